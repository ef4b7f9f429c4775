"""Oracle: PostgreSQL's own answer to each view's query, and the cap that the service was given.

What is large in other ways than many rows: values, rows, the number of views, and the WAL of a
database beside ours. By hand with TIDEMARK_TEST_MB=100 (megabytes of a value) and
TIDEMARK_TEST_VIEWS=200.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.query import view_rows
from connectors.sink import SinkTable
from dataflow import types
from dataflow.schema import Field
from service.pipeline.build_queue import MAX_CHILDREN
from tests.harness import figures
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService, is_named
from tests.harness.verdicts import differing_rows

VALUE_MB = int(os.environ.get("TIDEMARK_TEST_MB", "2"))
VIEWS = int(os.environ.get("TIDEMARK_TEST_VIEWS", "10"))
# A value lies in a dozen places at once on its way, as text, which of a bytea has twice its bytes.
CAP_MB = 384 + max(VALUE_MB - 2, 0) * 45
COLUMNS = 1_000
WAIT_S = 120.0 + 4 * VALUE_MB
TABLES = f"""
CREATE TABLE docs (id int PRIMARY KEY, kind int NOT NULL, body text, raw bytea, tree jsonb);
INSERT INTO docs VALUES (0, 0, 'a', 'b', '{{}}');
CREATE TABLE broad (id int PRIMARY KEY, {", ".join(f"c{i} int" for i in range(1, COLUMNS))});
INSERT INTO broad SELECT i, {", ".join(f"i + {k}" for k in range(1, COLUMNS))}
    FROM generate_series(1, 20) i;
CREATE TABLE ticks (id int PRIMARY KEY, v int NOT NULL);
INSERT INTO ticks SELECT i, i FROM generate_series(1, 100) i;
"""
Case = tuple[RunningService, Database]

pytestmark = pytest.mark.timeout(600 + 20 * VALUE_MB + 10 * VIEWS)


@pytest.fixture(scope="module")
def case(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp("bounded")
    with new_database(postgres) as database:
        database.execute(TABLES)
        with RunningService(database.dsn, folder, memory=f"{CAP_MB}MB") as service:
            yield service, database


def _peak_mb(service: RunningService) -> float:
    lines = Path(f"/proc/{service.pid_of('pipeline')}/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("VmHWM")) / 1024


def _follow(case: Case, *views: str) -> None:
    position = case[1].rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    deadline = time.monotonic() + WAIT_S
    for name in views:
        path = f"/views/{name}/wait?position={position}&timeout_s=30"
        while (answer := case[0].call("GET", path)).status_code != 200:
            assert time.monotonic() < deadline, f"{answer.text}\n{case[0].log_tail()}"


def _difference(database: Database, query: str, name: str) -> int:
    return len(differing_rows(database, name, query))


@pytest.mark.whole
def test_large_values_come_change_and_go(case: Case) -> None:
    """Text, bytea and jsonb, through a key too, beside values that stay as they were (TOAST)."""
    service, database = case
    queries = {
        "whole": "SELECT id, kind, body, raw, tree FROM docs",
        "lengths": "SELECT kind, sum(length(body)) AS t, sum(length(raw)) AS b FROM docs"
        " GROUP BY kind",
        "bodies": "SELECT body, count(*) AS n FROM docs WHERE body IS NOT NULL GROUP BY body",
    }
    for name, query in queries.items():
        service.create(name, query, backfill="local")
    pid, size = service.pid_of("pipeline"), VALUE_MB << 20
    # Not to be compressed away: every character is another's digest.
    text = f"(SELECT string_agg(md5(i::text), '') FROM generate_series(1, {size // 32}) i)"
    for statement in (
        f"INSERT INTO docs VALUES (1, 1, {text}, NULL, NULL)",
        f"INSERT INTO docs VALUES (2, 1, NULL, decode(repeat('5c27', {size // 2}), 'hex'), NULL)",
        f"INSERT INTO docs VALUES (3, 1, NULL, NULL, jsonb_build_object('a', {text}))",
        "UPDATE docs SET kind = kind + 1",
        "UPDATE docs SET body = body || '\\' WHERE id = 1",
        "DELETE FROM docs WHERE id > 0",
    ):
        database.execute(statement)
        _follow(case, *queries)
        for name, query in queries.items():
            assert _difference(database, query, name) == 0, f"{name} after {statement[:60]}"
    assert service.pid_of("pipeline") == pid, "the pipeline was ended"
    peak = _peak_mb(service)
    figures.add(
        "bounded",
        count=6,
        epochs=18,
        command=f"TIDEMARK_TEST_MB={VALUE_MB} pytest {Path(__file__).name}",
        case=f"values of {VALUE_MB} MB",
        peak_mb=round(peak),
        cap_mb=CAP_MB,
    )
    assert peak <= CAP_MB
    for name in queries:
        service.drop(name)


@pytest.mark.whole
def test_pages_of_rows_go_by_bytes_too(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    service, database = case
    service.create("pages", "SELECT id, body FROM docs", backfill="local")
    database.execute("DELETE FROM docs WHERE id > 0")
    database.execute(
        "INSERT INTO docs SELECT i, 1, repeat('x', i * 300) FROM generate_series(1, 9) i"
    )
    _follow(case, "pages")
    monkeypatch.setattr(view_rows, "PAGE_BYTES", 2_000)
    fields = (Field("id", types.INT4, False), Field("body", types.TEXT))
    table, after, pages = SinkTable("public", "pages", fields, (0,)), (), []
    while not pages or after:
        wish = view_rows.PageRequest(table, ("id", "body"), (), (), 100, after)
        page = view_rows.read_page(database.dsn, "tidemark", wish, 30)
        assert page.rows is not None
        pages.append([row[0] for row, _ in page.rows.rows()])
        after = page.after
    assert [i for page in pages for i in page] == list(range(10))
    assert len(pages) > 3 and len(pages[-1]) == 1
    database.execute("DELETE FROM docs WHERE id > 0")
    service.drop("pages")


@pytest.mark.whole
def test_a_thousand_columns_and_a_row_that_no_table_holds(case: Case) -> None:
    service, database = case
    query = "SELECT * FROM broad"
    service.create("broad_view", query, backfill="local")
    database.execute("UPDATE broad SET c7 = c7 + 1 WHERE id < 9; DELETE FROM broad WHERE id = 3")
    database.execute("INSERT INTO broad (id, c1) VALUES (100, 1)")
    _follow(case, "broad_view")
    assert _difference(database, query, "broad_view") == 0
    many = ", ".join(f"c{i % 900 + 1}::bigint AS b{i}" for i in range(1_040))
    body = {"name": "too_wide", "query": f"SELECT id, {many} FROM broad"}
    service.call("POST", "/views?wait_s=0", {**body, "options": {"backfill": "local"}})
    failed = service.await_status("too_wide", "failed", timeout_s=WAIT_S)
    assert failed["error"]["code"] == "sink.row_too_wide", failed
    service.drop("too_wide")
    database.execute("DELETE FROM broad WHERE id = 100")
    _follow(case, "broad_view")
    assert _difference(database, query, "broad_view") == 0
    service.drop("broad_view")


def test_an_idle_source_beside_a_busy_database_keeps_no_wal(
    case: Case, postgres: EmbeddedPostgres
) -> None:
    service, database = case
    service.create("idle", "SELECT count(*) AS n FROM ticks", backfill="local")
    kept = (
        "SELECT coalesce(max(pg_current_wal_lsn() - restart_lsn), 0) FROM pg_replication_slots"
        " WHERE database = current_database() AND NOT temporary"
    )
    with new_database(postgres) as busy:
        busy.execute("CREATE TABLE noise (t text)")
        for _ in range(3):
            busy.execute(
                "INSERT INTO noise SELECT repeat(md5(i::text), 30) FROM generate_series(1, 20000) i"
            )
    database.execute("CHECKPOINT")
    deadline = time.monotonic() + 60
    while database.rows(kept)[0][0] > 16 << 20:
        assert time.monotonic() < deadline, f"{database.rows(kept)}\n{service.log_tail()}"
        time.sleep(0.5)
    service.drop("idle")


@pytest.mark.whole
def test_many_views_at_once(case: Case) -> None:
    """Built a few at a time, while one that is live continues; then a kill, and all are dropped."""
    service, database = case
    service.create("live", "SELECT sum(v) AS total FROM ticks", backfill="local")
    stopping, builders = threading.Event(), _Builders(service)
    beside = threading.Thread(target=_tick, args=(database, stopping))
    beside.start()
    queries = {f"v{n}": _query(n) for n in range(VIEWS)}
    positions = set()
    try:
        for name, query in queries.items():
            service.create(name, query, wait_s=0, backfill="local")
            builders.look()
        deadline = time.monotonic() + 120 + 5 * VIEWS
        left = "SELECT count(*) FROM tidemark.views WHERE status <> 'live'"
        while database.rows(left) != [(0,)]:
            assert time.monotonic() < deadline, service.log_tail()
            builders.look()
            positions.add(database.rows("SELECT positions::text FROM tidemark.progress")[0][0])
            time.sleep(0.05)
    finally:
        stopping.set()
        beside.join()
    assert builders.most <= MAX_CHILDREN + 2, "more than those that work and those that wait"
    assert len(positions) >= 3, "the live view stood still"
    service.kill_child("pipeline")
    database.execute("UPDATE ticks SET v = v + 1 WHERE id < 50")
    _follow(case, "live", *queries)
    for name, query in queries.items():
        assert _difference(database, query, name) == 0, query
    peak = _peak_mb(service)
    for name in ("live", *queries):
        service.call("DELETE", f"/views/{name}?wait_s=0")
    deadline = time.monotonic() + 60 + VIEWS
    while database.rows("SELECT count(*) FROM tidemark.views") != [(0,)]:
        assert time.monotonic() < deadline, service.log_tail()
        time.sleep(0.05)
    slots = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    assert database.rows(slots) == [(0,)]
    command = f"TIDEMARK_TEST_VIEWS={VIEWS} pytest {Path(__file__).name}"
    told = {"case": f"{VIEWS} views at once", "peak_mb": round(peak), "cap_mb": CAP_MB}
    figures.add("bounded", count=1, epochs=VIEWS, command=command, **told)
    assert peak <= CAP_MB


def _query(number: int) -> str:
    return (
        f"SELECT id, v * {number} AS w FROM ticks WHERE v <> {number}",
        f"SELECT v % {number + 2} AS g, count(*) AS n FROM ticks GROUP BY v % {number + 2}",
        f"SELECT id, v FROM ticks ORDER BY v DESC, id LIMIT {number + 5}",
        f"SELECT a.id, b.v FROM ticks a JOIN ticks b ON b.id = a.id + {number}",
    )[number % 4]


class _Builders:
    """How many children the pipeline has had at once."""

    def __init__(self, service: RunningService) -> None:
        self._pipeline = psutil.Process(service.pid_of("pipeline"))
        self.most = 0

    def look(self) -> None:
        builders = [c for c in self._pipeline.children() if is_named("backfill", _words(c))]
        self.most = max(self.most, len(builders))


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _tick(database: Database, stopping: threading.Event) -> None:
    number = 0
    while not stopping.wait(0.05):
        number += 1
        database.execute("UPDATE ticks SET v = v + 1 WHERE id = %s", (number % 100 + 1,))
