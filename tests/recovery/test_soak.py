"""Oracle: PostgreSQL's own answer to each view's query at the view's position, again and again amid
everything that an operator does; and straight lines through what must not grow.

For as long as asked: `make soak SECONDS=7200` (TIDEMARK_TEST_SOAK_S).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness import figures
from tests.harness.meters import Meters
from tests.harness.postgres import new_database
from tests.harness.service import RunningService
from tests.recovery.soak import Soak, temporary_folder
from tests.recovery.soak_load import TABLES, Load

RUN = "pytest tests/recovery/test_soak.py"
SECONDS = float(os.environ.get("TIDEMARK_TEST_SOAK_S", "25"))
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "13"))
REPEAT = f"TIDEMARK_TEST_SEED={SEED} TIDEMARK_TEST_SOAK_S={SECONDS:g} {RUN}"
MEMORY_MB = 384
PAUSE_S = 0.3
CHECKED_S, SAMPLED_S = min(max(SECONDS / 4, 10), 60), 1.5
LIMITS = {
    "pipeline_mb": 120.0,
    "api_mb": 80.0,
    "handles": 40.0,
    "threads": 25.0,
    "files": 300.0,
    "disk_mb": 250.0,
    "slot_wal_mb": 200.0,
    "sink_mb": 120.0,
}


@pytest.mark.whole
@pytest.mark.timeout(SECONDS * 2 + 900)
def test_random_operations_under_load(
    own_postgres: EmbeddedPostgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"repeat: {REPEAT}")
    temporary = temporary_folder(tmp_path)
    monkeypatch.setenv("TMPDIR", str(temporary))
    with new_database(own_postgres) as database:
        database.execute(TABLES)
        load, meters = Load(database, SEED), Meters(LIMITS)
        with RunningService(database.dsn, tmp_path, memory=f"{MEMORY_MB}MB") as service:
            soak = Soak(service, database, load, SEED)
            load.start()
            began = time.monotonic()
            try:
                _run(soak, lambda: meters.sample(service, database, temporary))
            finally:
                load.stop()
            took_s = round(time.monotonic() - began)
            soak.check()
            soak.finish()
    trends = meters.trends()
    told = {name: str(growth) for name, growth in trends.items()}
    grown = [name for name, growth in trends.items() if not growth.is_flat]
    print(f"{sum(soak.done.values())} actions {dict(soak.done)}, {load.commits} commits")
    print(f"{soak.compared} comparisons; from first to last: {told}")
    # Whatever was found: the page of results may not forget it.
    figures.add(
        "soak",
        count=sum(soak.done.values()),
        epochs=soak.compared,
        wrong=len(soak.faults),
        command=REPEAT if soak.faults else f"make soak SECONDS={SECONDS:g}",
        seconds=took_s,
        commits=load.commits,
        **told,
        **({"failed": f"{', '.join(grown)} grew"} if grown else {}),
    )
    assert not soak.faults, "\n".join([*soak.faults, *soak.asked[-100:]])
    assert soak.compared >= 3
    assert not grown, told


def _run(soak: Soak, sample: Callable[[], None]) -> None:
    soak.begin()
    now = time.monotonic()
    until, checked, sampled = now + SECONDS, now, 0.0
    while time.monotonic() < until and not soak.faults:
        soak.act()
        time.sleep(PAUSE_S)
        if time.monotonic() - sampled > SAMPLED_S:
            sample()
            sampled = time.monotonic()
        if time.monotonic() - checked > CHECKED_S:
            soak.check()
            checked = time.monotonic()
