"""Oracle: PostgreSQL's own answer to each view's query, and the cap that the service was given.

One change that a great many rows depend on, of each kind; by hand with TIDEMARK_TEST_ROWS=1000000
(`make torture`). As tests/recovery/test_memory.py: a limit of the kernel where a cgroup can be
made, and the peak of the process everywhere. What does not go within the cap is refused by name.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import fan_out
from tests.harness.cgroup import MemoryCgroup
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.recovery.test_memory import WAIT_S, _peak_mb

ROWS = int(os.environ.get("TIDEMARK_TEST_ROWS", "50000")) // 2
CAP_MB = 384
OUTER = "an outer join with a condition"

pytestmark = pytest.mark.timeout(600 + ROWS / 200)


class Case:
    """A service under the cap, and what its views must show."""

    def __init__(self, service: RunningService, database: Database, limit: MemoryCgroup) -> None:
        self.service, self.database = service, database
        pid = service.pid_of("pipeline")
        assert pid is not None
        self.pid, self.is_limited, self.why = pid, limit.add(pid), limit.reason
        self.has_refused = False

    def check(self, kind: fan_out.Kind) -> None:
        """Every view shows PostgreSQL's answer, or has failed by name if it may."""
        position = self.database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
        live = {}
        for name, query in kind.views.items():
            if self._is_live(name, position, may_fail=kind.may_fail):
                live[name] = query
        with self.database.connect().cursor() as cursor:
            assert fan_out.differences(cursor, live) == dict.fromkeys(live, 0)
        assert self.service.pid_of("pipeline") == self.pid, "the pipeline was ended"
        peak = _peak_mb(self.pid)
        # What is refused has taken what the kernel would give, as far as it limits anything.
        assert self.has_refused or peak <= CAP_MB, f"under a cgroup: {self.is_limited} {self.why}"

    def _is_live(self, name: str, position: str, *, may_fail: bool) -> bool:
        deadline = time.monotonic() + WAIT_S
        while True:
            found = self.service.call("GET", f"/views/{name}").json()
            if found["status"] == "failed":
                assert may_fail and found["error"]["code"] == "view.out_of_memory", found
                self.has_refused = True
                return False
            path = f"/views/{name}/wait?position={position}&timeout_s=1"
            if self.service.call("GET", path).status_code == 200:
                return True
            assert time.monotonic() < deadline, self.service.log_tail()


@pytest.fixture
def service(
    request: pytest.FixtureRequest, database: Database, tmp_path: Path
) -> Iterator[RunningService]:
    """With these failpoints."""
    database.execute(fan_out.hot_tables(ROWS))
    settings = {"memory": f"{CAP_MB}MB", "failpoints": getattr(request, "param", "")}
    with RunningService(database.dsn, tmp_path, **settings, **fan_out.ANY_BUDGET) as running:
        yield running


@pytest.mark.whole
def test_what_one_change_meets_stays_under_the_cap(
    service: RunningService, database: Database
) -> None:
    kinds = fan_out.KINDS.values()
    for view, query in {k: q for kind in kinds for k, q in kind.views.items()}.items():
        service.create(view, query, wait_s=WAIT_S, backfill="local")
    with MemoryCgroup(CAP_MB) as limit:
        case = Case(service, database, limit)
        for kind in kinds:
            for statement in kind.steps:
                database.execute(statement)
                case.check(kind)


@pytest.mark.whole
@pytest.mark.parametrize("service", ["build.stage.after=sleep:12"], indirect=True)
def test_so_it_does_while_a_view_catches_up(service: RunningService, database: Database) -> None:
    """Its first rows are told, then an owner of all things changes, then they are truncated."""
    views = {"joined": fan_out.VIEWS["joined"], **fan_out.KINDS[OUTER].views}
    for name, query in views.items():
        service.create(name, query, wait_s=0, backfill="local")

    def are_read() -> bool:
        told = [service.call("GET", f"/views/{name}").json()["backfill"] for name in views]
        return all(build and build["phase"] == "staging" for build in told)

    service.await_so(are_read, WAIT_S)
    with MemoryCgroup(CAP_MB) as limit:
        case = Case(service, database, limit)
        for statement in (*fan_out.KINDS[OUTER].steps[:1], "TRUNCATE things"):
            database.execute(statement)
        case.check(fan_out.Kind(views, ()))
