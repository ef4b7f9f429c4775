"""Oracle: each source answers or does not, as its cause says; its status has to say the same.

Nothing changes at any source meanwhile, so that no row tells that a cause has ended.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from connectors.kafka.embedded import missing
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.source_contract import declare
from tests.harness.tiers import is_fast
from tests.harness.waiting import wait_until
from tests.recovery.causes import CAUSES, SETTINGS, Cause, kafka

# A source that refuses is asked again after half a minute, and the machine may be slow.
WITHIN_S = 120.0
ROUNDS = 1 if is_fast() else 3
# Of each type one, and of polled ones each kind of error: each source is a view that is built.
FEW = {"http_limited", "http_forbidden", "http_page", "python_raise", "files_folder"}
FEW |= {"mysql_login", "dbapi_away", "postgres_login", "mongodb_stream", "clickhouse_cursor"}
FEW |= {"stream_busy"}

pytestmark = pytest.mark.timeout(300 + 300 * ROUNDS)


def test_a_status_is_true_again_once_its_cause_has_ended(
    request: pytest.FixtureRequest, database: Database, tmp_path: Path
) -> None:
    """Of every kind of source, on every face; half of them after somebody asked for it."""
    made = [*CAUSES] if is_fast() or missing() else [*CAUSES, kafka]
    with ExitStack() as stack:
        causes: dict[str, Cause] = {}
        for make in made:
            causes |= stack.enter_context(make(request, tmp_path))
        if is_fast():
            causes = {name: cause for name, cause in causes.items() if name in FEW}
        service = stack.enter_context(
            RunningService(database.dsn, tmp_path / "service", allow_folders=tmp_path, **SETTINGS)
        )
        for name, cause in causes.items():
            declare(service, cause.type, cause.options, cause.is_discovered, name)
            service.create(name, f"SELECT sum(n) AS n FROM {name}.{cause.relation}")
        for turn in range(ROUNDS):
            for cause in causes.values():
                cause.begin()
            wait_until(lambda: not _untold(service, causes), why=lambda: _untold(service, causes))
            in_psql = partial(_in_psql, database, causes)
            wait_until(lambda tell=in_psql: _is_told(tell(), causes), why=in_psql)
            for cause in causes.values():
                cause.end()
            for number, name in enumerate(causes):
                if number % 2 == turn % 2:
                    service.call("POST", f"/sources/{name}/retry")
            _await_well(service, database, causes)


def _await_well(service: RunningService, database: Database, causes: dict[str, Cause]) -> None:
    unwell = lambda: _unwell(service, causes)  # noqa: E731
    wait_until(lambda: not unwell(), WITHIN_S, unwell)
    wait_until(lambda: service.call("GET", "/health").json()["status"] == "ok")
    in_psql = lambda: _in_psql(database, causes)  # noqa: E731
    wait_until(lambda: set(in_psql().values()) == {("live", None)}, why=in_psql)
    for name in causes:
        assert database.rows(f"SELECT n FROM {name}") == [(30,)]
    told = {e.get("source") for e in service.events() if e.get("event") == "source.running"}
    assert causes.keys() <= told


def _in_psql(database: Database, causes: dict[str, Cause]) -> dict[str, tuple[str, str | None]]:
    rows = database.rows("SELECT name, status, code FROM tidemark.status")
    return {name: (status, code) for name, status, code in rows if name in causes}


def _is_told(shown: dict[str, tuple[str, str | None]], causes: dict[str, Cause]) -> bool:
    """Whether each view says why its source is not read."""
    return all(
        status in ("live", "degraded") and code in causes[name].codes
        for name, (status, code) in shown.items()
    )


def _untold(service: RunningService, causes: dict[str, Cause]) -> dict[str, object]:
    """The sources of which nobody learns why they are not read."""
    found: dict[str, object] = {}
    for name, cause in causes.items():
        source = service.call("GET", f"/sources/{name}").json()
        error = source.get("error") or {}
        if source["status"] == "running" or error.get("code") not in cause.codes:
            found[name] = source["status"], error
    return found


def _unwell(service: RunningService, causes: dict[str, Cause]) -> dict[str, object]:
    """The sources and views that are not as if nothing had happened."""
    found: dict[str, object] = {}
    for name in causes:
        source = service.call("GET", f"/sources/{name}").json()
        view = service.call("GET", f"/views/{name}").json()
        if source["status"] != "running" or source.get("error") or view.get("error"):
            found[name] = source["status"], source.get("error")
        elif view["status"] != "live" or view.get("warnings"):
            found[name] = view["status"], view.get("warnings")
    return found
