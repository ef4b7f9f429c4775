"""Oracle: PostgreSQL's own answer after each way to stop the service; the list of metrics and of
events, and the wall clock where an end in time is promised."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from service.engine.state_version import VERSION
from service.metrics.metric_list import BY_NAME
from tests.end_to_end.test_views import assert_equal, flush_position
from tests.harness import http
from tests.harness.log_events import events_of
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.unit.service.test_prometheus import listed

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).resolve().parents[2]
# The service promises 5; a machine that does other things as well may take its time.
STOPPED_S = 20.0
SHOP = """
CREATE TABLE orders (id int PRIMARY KEY, region int NOT NULL, amount int NOT NULL);
INSERT INTO orders SELECT i, i % 7, i % 100 FROM generate_series(1, 1000) i;
CREATE TABLE many_orders (id int PRIMARY KEY, region int NOT NULL, amount int NOT NULL);
INSERT INTO many_orders SELECT i, i % 70, i % 100 FROM generate_series(1, 1500000) i;
"""
SUMS = "SELECT region, sum(amount) AS total FROM orders GROUP BY region"
MANY = "SELECT region, sum(amount) AS total, count(*) AS n FROM many_orders GROUP BY region"


def await_true(check: Callable[[], object], service: RunningService) -> None:
    service.await_so(check, 240)


def stop_in_time(service: RunningService) -> None:
    """SIGTERM; nothing is left of it in time."""
    started = time.monotonic()
    assert service.stop() == 0
    assert time.monotonic() - started < STOPPED_S, service.log_tail()


def check(service: RunningService, database: Database) -> None:
    service.wait("sums", flush_position(database), timeout_s=120)
    assert_equal(database, "sums", SUMS)


def is_in_hand(service: RunningService) -> bool:
    """Whether an epoch has been on its way to the sink for a while."""
    figures = service.call("GET", "/health").json()["pipeline"] or {}
    return figures.get("sink_stalled_s", 0) > 1


@pytest.mark.whole
def test_the_life_of_a_service(database: Database, tmp_path: Path) -> None:
    database.execute(SHOP)
    service = RunningService(database.dsn, tmp_path)
    with service:
        service.create("sums", SUMS, backfill="local")
        figures_are_told(service, database)
        stopped_while_the_sink_stands_still(service, database)
        stopped_while_views_are_built(service, database)
        refused_by_a_newer_state(service, database)
        ended_by_a_second_signal(service, database)
        check(service, database)
    lines_are_events(service)


def figures_are_told(service: RunningService, database: Database) -> None:
    database.execute("UPDATE orders SET amount = amount + 1 WHERE id < 50")
    check(service, database)
    answer = service.call("GET", "/views/sums/dataflow").json()
    await_true(lambda: dataflow_rows(service) >= 49, service)
    answer = service.call("GET", "/views/sums/dataflow").json()
    kinds = [node["what"] for node in answer["nodes"]]
    assert kinds[0] == "table" and kinds[-1] == "aggregate", kinds
    assert answer["nodes"][0]["rows"] >= 1000 and answer["nodes"][-1]["time_s"] > 0
    health = service.call("GET", "/health").json()
    assert health["versions"]["state"] == str(VERSION)
    assert service.call("GET", "/health/live").json() == {"status": "ok"}
    latency = 'tidemark_view_latency_seconds_count{view="public.sums"}'
    await_true(lambda: latency in service.call("GET", "/metrics").text, service)
    text = service.call("GET", "/metrics").text
    assert listed(set(re.findall(r"^(tidemark_\w+)", text, re.MULTILINE))) <= set(BY_NAME)
    assert 'route="/views/{name}/dataflow"' in text
    await_true(lambda: lag_of(service) < 1.5, service)


def dataflow_rows(service: RunningService) -> int:
    nodes = service.call("GET", "/views/sums/dataflow").json()["nodes"]
    return nodes[0]["rows_in"] or 0


def lag_of(service: RunningService) -> float:
    text = service.call("GET", "/metrics").text
    found = re.search(r'^tidemark_lag_seconds\{group="default"\} (\S+)$', text, re.MULTILINE)
    return float(found[1]) if found else 99.0


def stopped_while_the_sink_stands_still(service: RunningService, database: Database) -> None:
    """With a waiting call open as well. The epoch that was cancelled is written by the next run."""
    holder = database.connect(autocommit=False)
    holder.cursor().execute("LOCK TABLE sums IN ACCESS EXCLUSIVE MODE")
    database.execute("UPDATE orders SET amount = amount + 3")
    position = flush_position(database)
    waiting = threading.Thread(target=wait_in_vain, args=(service.url, position))
    waiting.start()
    await_true(lambda: is_in_hand(service), service)
    stop_in_time(service)
    waiting.join(30)
    assert not waiting.is_alive()
    assert database.rows(
        "SELECT count(*)::int FROM pg_stat_activity WHERE application_name LIKE 'tidemark sink%'"
        " AND datname = current_database()"
    ) == [(0,)]
    holder.rollback()
    holder.close()
    service.start()
    check(service, database)


def wait_in_vain(url: str, position: str) -> None:
    try:
        http.get(f"{url}/views/sums/wait?position={position}&timeout_s=120", timeout=150)
    except httpx.TransportError:
        return


def stopped_while_views_are_built(service: RunningService, database: Database) -> None:
    for road in ("spark", "local"):
        service.create("many", MANY, wait_s=0, backfill=road)
        await_true(lambda: is_reading(service), service)
        stop_in_time(service)
        service.start()
        if road == "spark":
            service.call("DELETE", "/views/many?wait_s=0")
            await_true(lambda: is_gone(service), service)
    service.await_status("many", timeout_s=240)
    assert_equal(database, "many", MANY)
    service.drop("many")


def is_gone(service: RunningService) -> bool:
    return service.call("GET", "/views/many").status_code == 404


def is_reading(service: RunningService) -> bool:
    view = service.call("GET", "/views/many").json()
    return view["status"] == "live" or (view["backfill"] or {}).get("phase") == "backfill"


def refused_by_a_newer_state(service: RunningService, database: Database) -> None:
    """The pipeline is started once, the API tells why, and what is there stays as it is."""
    service.stop()
    path = service.state / "version.json"
    before = path.read_text()
    path.write_text(json.dumps({"version": VERSION + 1, "program": "9.9"}))
    logged = len(service.log_tail(10_000_000))
    service.start()
    await_true(lambda: "state.version" in reasons(service), service)
    await_true(lambda: "process.not_restarted" in service.log_tail(10_000_000)[logged:], service)
    time.sleep(1)
    assert service.log_tail(10_000_000)[logged:].count("pipeline.refused") == 1
    assert service.pid_of("pipeline") is None
    assert "Tidemark 9.9" in reasons(service) and "move the directory away" in reasons(service)
    assert service.call("GET", "/health").status_code == 503
    assert 'tidemark_pipeline_refused{group="default"} 1.0' in service.call("GET", "/metrics").text
    service.stop()
    path.write_text(before)
    service.start()
    check(service, database)


def reasons(service: RunningService) -> str:
    return " ".join(service.call("GET", "/health").json()["reasons"])


def ended_by_a_second_signal(service: RunningService, database: Database) -> None:
    process = service._process
    assert process is not None
    holder = database.connect(autocommit=False)
    holder.cursor().execute("LOCK TABLE sums IN ACCESS EXCLUSIVE MODE")
    database.execute("UPDATE orders SET amount = amount + 5")
    await_true(lambda: is_in_hand(service), service)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    assert service.stop() in (0, 128 + signal.SIGTERM)
    holder.rollback()
    holder.close()
    service.start()


def lines_are_events(service: RunningService) -> None:
    """Whatever was written to standard error, by whichever process."""
    known, seen = set(events_of(ROOT)), set()
    for line in service.log_path.read_text().splitlines():
        event = json.loads(line)
        assert event["event"] in known, line
        assert {"level", "process", "pid", "timestamp"} <= event.keys(), line
        seen.add(event["process"])
    assert seen == {"supervisor", "pipeline", "api"} or seen == {"supervisor", "pipeline"}
