"""Oracle: numba's own events. What the pipeline compiles after its start is counted, and must be
nothing: by hand with TIDEMARK_TEST_KERNELS=empty although the folder of compiled kernels was empty
when the service was started, which takes minutes; else it has what the set-up compiled."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from connectors.kafka.embedded import EmbeddedKafka
from tests.end_to_end.test_views import CHANGES, QUERIES, SHOP, assert_equal, flush_position
from tests.harness.broker import new_topic, send
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


COLUMNS = {"id": "int8", "customer": "int4", "price": "numeric(10,2)", "at": "timestamptz"}
TOTALS = """SELECT c.region, count(*) AS n, sum(p.price) AS spent, max(p.at) AS latest
    FROM {relation} p JOIN customers c ON c.id = p.customer GROUP BY c.region"""


def declare(service: RunningService, name: str, type: str, options: dict[str, Any]) -> None:
    body = {"name": name, "type": type, "options": options}
    answer = service.call("POST", "/sources", body)
    assert answer.status_code == 201, answer.text


def declare_sources(service: RunningService, broker: EmbeddedKafka, folder: Path) -> str:
    """A folder of CSV and a topic of JSON, each with a row before it is declared; the topic."""
    folder.mkdir()
    write_file(folder, 1)
    times = {"settle_ms": 50, "poll_interval_ms": 50}
    columns = [{"name": name, "type": type} for name, type in COLUMNS.items()]
    relation = {"path": f"{folder}/*.csv", "columns": columns, **times}
    declare(service, "shop", "files", {"relations": {"files": relation}})
    topic = new_topic(broker)
    send(broker, topic, [(0, None, record(1))])
    read = {"topic": topic, "format": "json", "columns": COLUMNS}
    given = {"bootstrap_servers": broker.bootstrap, "check_ms": 100, "topics": {"topic": read}}
    declare(service, "web", "kafka", given)
    return topic


def write_file(folder: Path, n: int) -> None:
    part = folder / f"{n}.part"
    part.write_text(f"id,customer,price,at\n{n},1,2.50,2026-01-02 03:04:05Z\n")
    part.rename(folder / f"{n}.csv")


def record(n: int) -> bytes:
    return json.dumps({"id": n, "customer": 1, "price": 2.5, "at": "2026-01-02T03:04:05Z"}).encode()


def await_rows(database: Database, service: RunningService, view: str, n: int) -> None:
    deadline = time.monotonic() + 60
    while database.rows(f"SELECT n, spent::text FROM {view}") != [(n, f"{2.5 * n:.2f}")]:
        assert time.monotonic() < deadline, service.log_tail()
        time.sleep(0.02)


def kernels_compiled(service: RunningService) -> float:
    lines = service.call("GET", "/metrics").text.splitlines()
    return sum(float(x.split()[-1]) for x in lines if x.startswith("tidemark_kernels_compiled"))


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_nothing_is_compiled_while_views_wait(
    database: Database, broker: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(SHOP)
    is_empty = os.environ.get("TIDEMARK_TEST_KERNELS") == "empty"
    if is_empty:
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    with RunningService(database.dsn, tmp_path, allow_folders=tmp_path) as service:
        while service.call("GET", "/health").json()["status"] == "starting":
            time.sleep(0.2)
        shown = service.log_tail(100_000).count("compiling kernels")
        assert shown > 2 or not is_empty, service.log_tail()
        for name, query in REPRESENTATIVE.items():
            service.create(name, query, backfill="local")
        for change in CHANGES:
            database.execute(change)
        for name, query in REPRESENTATIVE.items():
            service.wait(name, flush_position(database), timeout_s=60)
            assert_equal(database, name, query)
        topic = declare_sources(service, broker, tmp_path / "shop")
        for relation in ("shop.files", "web.topic"):
            view = relation.partition(".")[0]
            service.create(view, TOTALS.format(relation=relation), backfill="local")
            await_rows(database, service, view, 1)
        write_file(tmp_path / "shop", 2)
        send(broker, topic, [(0, None, record(2))])
        for view in ("shop", "web"):
            await_rows(database, service, view, 2)
        service.stop()
        log = service.log_tail(1_000_000)
        late = [line for line in log.splitlines() if "kernel.compiled_late" in line]
        assert not late, "\n".join(late) + "\nrun `python -m service.runtime.kernels --record`"
        # Compiled once: the next start has nothing to show.
        service.start()
        assert service.log_tail(1_000_000).count("compiling kernels") == shown
        service.wait("kinds", flush_position(database))
        assert kernels_compiled(service) == 0
