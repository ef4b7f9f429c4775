"""Oracle: PostgreSQL's own answer. In every snapshot of the sink a view's rows are the answer to
the query that the catalog names in the same snapshot, whatever was killed meanwhile."""

from __future__ import annotations

import os
import random
import shutil
import threading
import time
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService
from tests.harness.verdicts import WrongStateError, judged

SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "11"))
# Each kills twice.
ROUNDS = max(5, int(os.environ.get("TIDEMARK_TEST_KILLS", "0")) // 25)
TABLES = """
CREATE TABLE t (id int PRIMARY KEY, grp int NOT NULL, v int NOT NULL);
INSERT INTO t SELECT i, i % 50, i FROM generate_series(1, 5000) i;
"""
# Two versions of one shape, and one of other columns.
QUERIES = [
    "SELECT grp, count(*) AS n, sum(v) AS s FROM t GROUP BY grp",
    "SELECT grp, count(*) AS n, sum(v) AS s FROM t WHERE v % 3 = 0 GROUP BY grp",
    "SELECT grp, count(*) AS n, sum(v) AS s, max(v) AS most FROM t GROUP BY grp",
]
CHILD = "SELECT n, count(*) AS groups FROM sums GROUP BY n"


class Watcher:
    """A thread that compares rows and catalog of one snapshot after the other."""

    def __init__(self, source: Database, sink: Database) -> None:
        self.faults: list[str] = []
        self.seen = 0
        self._answers = {
            q: sorted(str(row) for (row,) in source.rows(f"SELECT to_jsonb(s) FROM ({q}) AS s"))
            for q in QUERIES
        }
        self._sink = sink
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
        assert not self.faults, self.faults
        assert self.seen > 10

    def _run(self) -> None:
        # One statement: names are looked up as they are now, whatever a snapshot shows, so that
        # two would meet another table when one took its place in between.
        rows_and_query = (
            "SELECT (SELECT query FROM tidemark.views WHERE name = 'sums'), "
            "array_agg(to_jsonb(s)) FROM sums AS s"
        )
        while not self._stopping.wait(0.01):
            ((query, rows),) = self._sink.rows(rows_and_query)
            if sorted(map(str, rows)) != self._answers[query]:
                self.faults.append(f"not the answer to {query}")
            self.seen += 1


def settled(service: RunningService, timeout_s: float = 90) -> dict:
    """The view once nothing is in progress."""
    deadline = time.monotonic() + timeout_s
    while True:
        view = service.call("GET", "/views/sums").json()
        going = view.get("replacing") or {}
        if view.get("status") == "live" and going.get("status") != "in progress":
            return view
        assert time.monotonic() < deadline, f"{view}\n{service.log_tail()}"
        time.sleep(0.05)


def assert_follows(service: RunningService, source: Database, sink: Database, query: str) -> None:
    source.execute("UPDATE t SET v = v + 1 WHERE id % 7 = 0; DELETE FROM t WHERE id % 1000 = 1")
    position = source.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    for name, wanted in (("sums", query), ("child", CHILD.replace("sums", f"({query}) s"))):
        service.wait(name, position)
        with judged(WrongStateError):
            assert sorted(sink.rows(f"TABLE {name}")) == sorted(source.rows(wanted)), name


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_kills_while_views_change(database: Database, tmp_path: Path) -> None:
    print(f"repeat: TIDEMARK_TEST_SEED={SEED} TIDEMARK_TEST_KILLS={25 * ROUNDS} pytest {__file__}")
    database.execute(TABLES)
    pick = random.Random(SEED)
    with RunningService(database.dsn, tmp_path) as service:
        service.create("sums", QUERIES[0], backfill="local")
        service.create("child", CHILD, backfill="local")
        watcher = Watcher(database, database)
        try:
            for number in range(ROUNDS):
                wanted = QUERIES[1 + number % 2]
                for victim in ("pipeline", pick.choice(("pipeline", "api", ""))):
                    answer = service.call("POST", "/views/sums/replace", {"query": wanted})
                    assert answer.status_code in (202, 409), answer.text
                    time.sleep(pick.uniform(0, 1.5))
                    if victim:
                        service.kill_child(victim)
                view = settled(service)
                assert view["query"] == wanted, view
        finally:
            watcher.stop()
        assert_follows(service, database, database, view["query"])
        # A pause and a name, each with a kill on its way.
        for path, body in (("sums/pause?cascade=true", None), ("sums/resume?cascade=true", None)):
            assert service.call("POST", f"/views/{path}", body).status_code in (200, 202)
            service.kill_child("pipeline")
            for name in ("sums", "child"):
                service.await_status(name, "paused" if "pause" in path else "live")
        assert service.call("POST", "/views/child/rename?wait_s=0", {"name": "kid"}).is_success
        service.kill_child("pipeline")
        service.await_status("kid")
        service.call("POST", "/views/kid/rename?wait_s=30", {"name": "child"})
        assert_follows(service, database, database, settled(service)["query"])


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_the_sink_goes_away_and_the_state_is_lost(
    database: Database, own_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    with new_database(own_postgres) as sink:
        database.execute(TABLES)
        with RunningService(database.dsn, tmp_path, sink=sink.dsn) as service:
            service.create("sums", QUERIES[0], backfill="local")
            service.create("child", CHILD, backfill="local")
            sink.execute("CREATE INDEX mine ON sums (s); CREATE VIEW over AS SELECT s FROM sums")
            answer = service.call("POST", "/views/sums/replace", {"query": QUERIES[1]})
            assert answer.status_code == 202, answer.text
            own_postgres.stop()
            time.sleep(2)
            own_postgres.start()
            settled(service)
            assert_follows(service, database, sink, QUERIES[1])
            assert service.stop() == 0
            shutil.rmtree(service.state)
            service.start()
            for name in ("sums", "child"):
                service.await_status(name)
            assert_follows(service, database, sink, QUERIES[1])
            # The table is what it was, with all that stands on it.
            assert sink.rows("SELECT count(*) FROM over") == sink.rows("SELECT count(*) FROM sums")
            assert sink.rows("SELECT count(*) FROM pg_indexes WHERE indexname = 'mine'") == [(1,)]
