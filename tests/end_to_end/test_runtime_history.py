"""Oracle: after which of the writer's transactions a view was, which its rows name at every epoch
of its history, wherever the view was maintained then.

The master is local[2], as in test_on_spark.py.
"""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.end_to_end.test_runtime import (
    FURTHER,
    SETTINGS,
    is_reached,
    move,
    moved_by_force,
    require_only,
    scans,
)
from tests.harness.failpoints import arm
from tests.harness.postgres import Database
from tests.harness.prefix_writer import REGIONS, SCHEMA, PrefixReader, PrefixWriter
from tests.harness.service import RunningService

pytestmark = [
    pytest.mark.skipif(shutil.which("java") is None, reason="no Java here, Spark needs it"),
    pytest.mark.timeout(900),
]
# In the transaction that gives the view away, after it, and before the new group begins.
POINTS = ("sink.change.after", "sink.commit.after", "view.handover.adopting")
EPOCHS = "SELECT epoch FROM tidemark.history_epochs WHERE name = 'moved' ORDER BY 1"


def require_past(database: Database, writer: PrefixWriter) -> list[int]:
    """Require that each epoch of the history shows a prefix, none before that of the last one."""
    epochs = [number for (number,) in database.rows(EPOCHS)]
    last = -1
    for number in epochs:
        rows = database.rows("SELECT * FROM tidemark.as_of(NULL::moved, %s::text)", (number,))
        found = writer.prefix_of(REGIONS, [(r, n, int(total)) for r, n, total in rows])
        assert found is not None and found >= last, (number, last, rows)
        last = found
    assert last == writer.number
    return epochs


def require_periods(database: Database, begun: int) -> None:
    """Require that no two periods of a key overlap, and that each end is a known epoch."""
    periods = "SELECT region, from_epoch, coalesce(to_epoch, 9e18), to_positions FROM moved_history"
    ends = Counter[str]()
    for region, begins, end, positions in sorted(database.rows(periods), key=lambda r: r[:3]):
        assert begins >= ends[region], (region, begins, end)
        ends[region] = end
        assert positions is not None or end > 1e18 or end < begun
    verified = "SELECT max(from_epoch) FROM moved_history WHERE from_positions IS NULL"
    assert (database.rows(verified)[0][0] or 0) <= begun


@pytest.mark.whole
def test_a_history_goes_along(database: Database, tmp_path: Path) -> None:
    """There and back, killed on the way; the past stays readable, and is the same."""
    (folder := tmp_path / "points").mkdir()
    database.execute(SCHEMA)
    with RunningService(database.dsn, tmp_path, failpoints_folder=folder, **SETTINGS) as service:
        service.create("other", "SELECT count(*) AS n FROM orders", history="1 day")
        service.create("moved", REGIONS, history="1 day", backfill="local")
        database.execute("GRANT SELECT ON moved_history TO PUBLIC")
        begun = database.rows("SELECT begun_epoch FROM tidemark.history WHERE name = 'moved'")
        before = scans(database)
        with (
            PrefixWriter(database, 6) as writer,
            PrefixReader(database, writer, "moved", REGIONS) as reader,
        ):
            named = service.call("POST", "/views/moved/subscriptions", {"name": "billing"})
            assert named.status_code == 201, named.text
            for point in POINTS:
                for runtime in ("spark", "local"):
                    reader.await_prefix(writer.number + FURTHER, 240, service.log_tail)
                    arm(folder, point)
                    group = moved_by_force(service, runtime)
                    service.await_so(lambda p=point: is_reached(folder, p), 120)
                    reader.await_prefix(writer.number + FURTHER, 240, service.log_tail)
                    require_only(service, database, group)
            move(service, "moved", "spark")
            reader.await_prefix(writer.number + FURTHER, 240, service.log_tail)
        position = database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
        service.wait("moved", position, timeout_s=60)
        assert scans(database) == before
        epochs = require_past(database, writer)
        assert epochs[0] == begun[0][0] and len(epochs) > 10 * FURTHER
        require_periods(database, begun[0][0])
        answer = service.call("POST", "/views/moved/verify").json()
        assert answer["result"] == "equal" and answer["history"]["rows"] > 0, answer
        granted = "SELECT has_table_privilege('public', 'moved_history', 'SELECT')"
        assert database.rows(granted) == [(True,)]
        events = [e["event"] for e in service.events()]
        assert events.count("build.started") == 2
        assert not {"view.state_lost", "view.failed", "handover.refused"} & {*events}
        service.drop("moved")
        keys = "SELECT DISTINCT sink_key FROM tidemark.epochs"
        service.await_so(lambda: database.rows(keys) == [("tidemark",)])
