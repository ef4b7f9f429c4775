"""Oracle: numba's own events. What the pipeline compiles after its start is counted, and must be
nothing, although the folder of compiled kernels was empty when the service was started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.test_views import CHANGES, QUERIES, SHOP, assert_equal, flush_position
from tests.harness.postgres import Database
from tests.harness.service import RunningService

REPRESENTATIVE = {
    **QUERIES,
    "extremes": """SELECT customer_id, min(amount) AS least, max(note) AS most,
        count(DISTINCT note) AS notes FROM orders GROUP BY customer_id""",
    "newest": "SELECT id, customer_id, amount FROM orders ORDER BY id DESC LIMIT 20",
    "ranked": """SELECT id, customer_id, row_number() OVER (
        PARTITION BY customer_id ORDER BY amount DESC NULLS LAST, id) AS place FROM orders""",
    "kinds": "SELECT DISTINCT note, amount > 100 AS large FROM orders",
    "joined": """SELECT o.id, c.name, upper(c.region) AS region, o.amount * 2 AS twice
        FROM orders o JOIN customers c ON c.id = o.customer_id WHERE o.note LIKE 'n%'""",
}


def kernels_compiled(service: RunningService) -> float:
    lines = service.call("GET", "/metrics").text.splitlines()
    return sum(float(x.split()[-1]) for x in lines if x.startswith("tidemark_kernels_compiled"))


@pytest.mark.timeout(900)
def test_nothing_is_compiled_while_views_wait(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(SHOP)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    with RunningService(database.dsn, tmp_path) as service:
        shown = service.log_tail(100_000).count("compiling kernels")
        assert shown > 2, service.log_tail()
        for name, query in REPRESENTATIVE.items():
            service.create(name, query, backfill="local")
        for change in CHANGES:
            database.execute(change)
        for name, query in REPRESENTATIVE.items():
            service.wait(name, flush_position(database), timeout_s=60)
            assert_equal(database, name, query)
        service.stop()
        log = service.log_tail(1_000_000)
        late = [line for line in log.splitlines() if "kernel.compiled_late" in line]
        assert not late, "\n".join(late) + "\nrun `python -m service.kernels --record`"
        # Compiled once: the next start has nothing to show.
        service.start()
        assert service.log_tail(1_000_000).count("compiling kernels") == shown
        service.wait("kinds", flush_position(database))
        assert kernels_compiled(service) == 0
