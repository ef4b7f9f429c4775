"""Checks before the service starts, and on demand: what is wrong, and what to do about it.

Each check is one that the service itself makes later, so that "ok" here means that it gets past
it. Nothing at the source is made or changed; in the sink only schema tidemark is, when missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

from dataflow.errors import TidemarkError
from service import wal_budget
from service.parts import Parts
from service.prepare import Wanted, checks_of
from service.settings import Settings

MIN_FREE_BYTES = 1 << 30


def check_service(settings: Settings) -> list[TidemarkError]:
    """What keeps the service from working at all: source and sink."""
    parts = Parts(settings)
    found = [_outcome(parts.source.check), _outcome(parts.sink().prepare)]
    return [problem for problem in found if problem is not None]


def check_all(settings: Settings) -> list[tuple[str, TidemarkError | None]]:
    """(what was checked, the problem or None) for source, sink, state and Java."""
    parts = Parts(settings)
    # Where views will lie, and tables that no view reads, are nobody's trouble yet.
    wanted = Wanted(settings.source, settings.sink, prefix=settings.prefix, schemas=())
    checks = [check for check in checks_of(wanted) if not check.is_optional]
    return [
        *((f"{c.name} {c.found}".rstrip(), c.problem) for c in checks),
        ("source: replication slot", _outcome(parts.source.check)),
        ("source: WAL kept for us", _outcome(lambda: wal_budget.check(settings, parts.source))),
        ("sink: control tables", _outcome(parts.sink().prepare)),
        ("state: directory and free space", _outcome(lambda: _check_state(settings))),
        ("java: for backfill by Spark", _outcome(_check_java)),
    ]


def _outcome(check: Callable[[], object]) -> TidemarkError | None:
    try:
        check()
    except TidemarkError as error:
        return error
    return None


def _check_state(settings: Settings) -> None:
    settings.state.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(settings.state).free
    if free < MIN_FREE_BYTES:
        raise TidemarkError(
            "state.no_space",
            f'little space left for state directory "{settings.state}"',
            detail=f"{free >> 20} MiB free",
            hint="make room, or choose another directory with --state",
        )


def _check_java() -> None:
    from connectors.spark.session import check_java

    check_java()
