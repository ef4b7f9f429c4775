"""Oracle: a plain-Python model of the writer's transactions; every state that the sink ever shows
must be the model's at the prefix which it names itself, whatever the network does meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg2
import pytest

from tests.harness import figures
from tests.harness.postgres import Database, new_database
from tests.harness.proxy import BOTH, DOWN, HALF_OPEN, REFUSE, UP, Fault, Proxy
from tests.harness.service import RunningService
from tests.harness.tiers import count
from tests.recovery.prefix import SCHEMA, VIEWS, Checker, Writer

RUN = "pytest tests/recovery/test_connections.py"
FAULTS = count("TIDEMARK_TEST_FAULTS", 2, 20)
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "11"))
LIVENESS_TIMEOUT_S = 3.0
# From the end of a fault until the views move on; the machine may be busy with other tests.
WITHIN_S = 45.0
# PostgreSQL itself is asked for this one's values.
EVALUATED = "SELECT id, to_char(balance, 'SG999G999D99') AS shown FROM accounts"
LATE = "SELECT a.owner, max(e.amount) AS most FROM entries e JOIN accounts a ON a.id = e.account "
LATE += "GROUP BY a.owner"


@dataclass
class World:
    """The service between two proxies. source and sink are looked at without them."""

    service: RunningService
    source: Database
    sink: Database
    before_source: Proxy
    before_sink: Proxy


@pytest.fixture
def world(database: Database, tmp_path: Path) -> Iterator[World]:
    with (
        new_database(database.server) as sink,
        Proxy(database.server.port) as before_source,
        Proxy(database.server.port) as before_sink,
        RunningService(
            before_source.dsn(database.dsn),
            tmp_path / "service",
            sink=before_sink.dsn(sink.dsn),
            liveness_timeout_s=LIVENESS_TIMEOUT_S,
            allow_folders=tmp_path / "stock",
        ) as service,
    ):
        yield World(service, database, sink, before_source, before_sink)


class Caller:
    """Asks the API all the while: it may say that it cannot, but must say so in time."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url, timeout=120)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.longest_s = 0.0
        self.answers = 0

    def __enter__(self) -> Caller:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()
        self._client.close()

    def _run(self) -> None:
        paths = ("/views", "/health", "/views/prefix", "/views/rich/rows")
        while not self._stopping.wait(0.2):
            started = time.monotonic()
            with contextlib.suppress(httpx.TransportError):
                self._client.get(paths[self.answers % len(paths)])
                self.answers += 1
                self.longest_s = max(self.longest_s, time.monotonic() - started)


def _one_fault(world: World, pick: random.Random, checker: Checker, number: int) -> float:
    """A fault on one of the ways, or on both; seconds until the views moved on after it."""
    proxies = pick.choice(
        ([world.before_source], [world.before_sink], [world.before_source, world.before_sink])
    )
    if number % 5 == 1:
        # In the middle of a build: analysis, snapshot, backfill, staging, catching up.
        with contextlib.suppress(AssertionError):
            world.service.create("late", LATE, wait_s=0, backfill="local")
        checker.look_for(pick.uniform(0, 1.5))
    if number % 5 == 2:
        world.source.execute(f"ALTER TABLE accounts ADD COLUMN more_{number} int")
    for proxy in proxies:
        proxy.begin(Fault.draw(pick))
    checker.look_for(pick.choice((0.2, 1.0, 2.5)))
    for proxy in proxies:
        proxy.heal()
    took_s = checker.await_further(3, WITHIN_S, world.service.log_tail)
    if number % 5 == 4:
        answer = world.service.call("DELETE", "/views/late")
        assert answer.status_code in (204, 404, 503, 504), answer.text
    for proxy in proxies:
        proxy.terminate_orphan()
    return took_s


@pytest.mark.timeout(300 + FAULTS * 60)
def test_faults_of_the_network(world: World) -> None:
    command = f"TIDEMARK_TEST_SEED={SEED} TIDEMARK_TEST_FAULTS={FAULTS} {RUN}"
    print(f"repeat: {command}")
    source, sink, service = world.source, world.sink, world.service
    source.execute(SCHEMA)
    pick, writer = random.Random(SEED), Writer(source, SEED)
    checker = Checker(sink, writer)
    for name, query in {**VIEWS, "evaluated": EVALUATED}.items():
        service.create(name, query, backfill="local")
    writer.start()
    with figures.counted("connection_faults", command) as run:
        longest_s = 0.0
        with Caller(service.url) as caller:
            for number in range(FAULTS):
                longest_s = max(longest_s, _one_fault(world, pick, checker, number))
                run.count, run.epochs = number + 1, checker.states
        last = writer.stop()
        position = source.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
        for name in (*VIEWS, "evaluated"):
            service.wait(name, position, timeout_s=60)
        assert checker.check() == last
        checker.close()
        assert sorted(sink.rows("SELECT * FROM evaluated")) == sorted(source.rows(EVALUATED))
        # Faults may follow so fast that the pipeline is restarted several times in a row.
        errors = [e for e in service.events() if e["level"] == "error"]
        refused = [e for e in errors if e["event"] != "process.crash_loop"]
        assert not refused, "\n".join([*map(json.dumps, refused[:3]), service.log_tail()])
        assert caller.longest_s < WITHIN_S, caller.longest_s
        run.epochs = checker.states
        run.told.update(
            met=world.before_source.faults_met + world.before_sink.faults_met,
            longest_s=round(longest_s, 1),
            longest_answer_s=round(caller.longest_s, 1),
            restarts=sum(e["event"] == "process.ended" for e in service.events()),
        )


@pytest.mark.whole
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", [REFUSE, HALF_OPEN])
def test_other_sources_continue_while_the_database_is_away(
    world: World, tmp_path: Path, kind: str
) -> None:
    """Their views move, the API answers, and everyone is told what is away and since when."""
    service, folder = world.service, tmp_path / "stock"
    folder.mkdir()
    options = {
        "path": f"{folder}/*.csv",
        "columns": [{"name": "amount", "type": "bigint"}],
        "settle_ms": 20,
        "poll_interval_ms": 20,
    }
    body = {"name": "shop", "type": "files", "options": {"relations": {"stock": options}}}
    assert service.call("POST", "/sources", body).status_code == 201
    world.source.execute("CREATE TABLE people (id int PRIMARY KEY); INSERT INTO people VALUES (1)")
    service.create("stock", "SELECT count(*) AS n FROM shop.stock", backfill="local")
    service.create("people", "SELECT count(*) AS n FROM people", backfill="local")
    world.before_source.begin(Fault(kind, BOTH if kind == REFUSE else (UP, DOWN)))
    if kind == REFUSE:
        world.source.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name LIKE 'tidemark%%' AND datname = current_database()"
        )
    world.source.execute("INSERT INTO people VALUES (2)")
    service.await_so(
        lambda: "away" in str(service.call("GET", "/views/people").json()["warnings"]), WITHIN_S
    )
    for number in range(3):
        part = folder / "part"
        part.write_text("amount\n1\n")
        part.rename(folder / f"{number}.csv")
        shown = [(number + 1,)]
        service.await_so(
            lambda n=shown: world.sink.rows("SELECT n FROM stock") == n, LIVENESS_TIMEOUT_S + 7
        )
    started = time.monotonic()
    view, health = service.call("GET", "/views/people").json(), service.call("GET", "/health")
    assert time.monotonic() - started < 5
    assert view["status"] == "live" and view["lag_bytes"] is None, view
    assert not service.call("GET", "/views/stock").json()["warnings"]
    assert "source" in health.text and health.json()["status"] != "ok", health.text
    service.await_so(lambda: _told(service)["lag_seconds"] > 2, WITHIN_S)
    assert _told(service)["status"] == "retrying"
    assert world.sink.rows("SELECT n FROM people") == [(1,)]
    world.before_source.heal()
    service.await_so(lambda: world.sink.rows("SELECT n FROM people") == [(2,)], WITHIN_S)
    service.await_so(lambda: not service.call("GET", "/views/people").json()["warnings"], WITHIN_S)
    assert not [e for e in service.events() if e["event"] == "process.ended"]


def _told(service: RunningService) -> dict[str, Any]:
    """What the metrics say of the database."""
    return json.loads((service.state / "pipeline.json").read_text())["database"]


def test_a_commit_whose_answer_is_lost_is_not_repeated(world: World) -> None:
    """The sink's answers are swallowed, one byte more each time: somewhere in between it is the
    commit's own that is lost. The epoch is in the sink, and must not be written twice."""
    service, source, sink = world.service, world.source, world.sink
    source.execute("CREATE TABLE t (id int PRIMARY KEY, v int NOT NULL)")
    service.create("bag", "SELECT v FROM t", backfill="local")
    sink.execute(
        "CREATE TABLE seen (epoch bigint);"
        "CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS "
        "$$BEGIN INSERT INTO public.seen VALUES (new.epoch); RETURN new; END$$;"
        "CREATE TRIGGER see AFTER INSERT OR UPDATE ON tidemark.progress "
        "FOR EACH ROW EXECUTE FUNCTION see()"
    )
    for number, after_bytes in enumerate((0, 30, 60, 5)):
        world.before_sink.begin(Fault(HALF_OPEN, (DOWN,), after_bytes))
        source.execute("INSERT INTO t VALUES (%s, 7)", (number,))
        time.sleep(0.5)
        world.before_sink.heal()
        position = source.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
        shown = [(7,)] * (number + 1)
        service.await_so(lambda n=shown: sink.rows("SELECT v FROM bag") == n, WITHIN_S)
        with contextlib.suppress(psycopg2.Error):
            service.wait("bag", position, timeout_s=30)
    assert sink.rows("SELECT epoch FROM seen GROUP BY epoch HAVING count(*) > 1") == []
    assert not [e for e in service.events() if e["level"] == "error"]
