"""Oracle: PostgreSQL's count, which views show however long a connector of another view takes.

Each method of our contracts of sources and sinks blocks forever in turn, under the real service:
changes keep arriving elsewhere, what is stuck can be dropped, and the process stays the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from dataflow.errors import TemporaryError
from service.api.connector_calls import MOST_OF_CALLER, ConnectorCalls, client_is_gone
from tests.harness.blocking_connector import FOLDER, SINK_METHODS, SOURCE_METHODS
from tests.harness.blocking_service import BlockingService
from tests.harness.postgres import Database, new_database
from tests.harness.sinks import add_sink, await_sink, drop_sink
from tests.harness.trickle import Trickle

# Of a source: what is called before its view is live, and what afterwards.
AT_BUILD = ("start_position", "open_snapshot", "parts", "read", "close_snapshot")


class World:
    """A service with a view over its database, and one over a source that never blocks."""

    def __init__(self, service: BlockingService, database: Database, folder: Path) -> None:
        self.service, self.database, self.folder = service, database, folder
        self.declare("calm")
        service.create("orders_count", "SELECT count(*) AS n FROM orders")
        service.create("calm_count", "SELECT count(*) AS n FROM calm.t")
        self.pipeline = service.pid_of("pipeline")

    def declare(self, name: str) -> None:
        (self.folder / f"{name}.count").write_text("1")
        body = {"name": name, "type": "dbapi", "options": {"name": name}}
        answer = self.service.call("POST", "/sources", body)
        assert answer.status_code == 201, answer.text

    def grow(self, name: str, count: int) -> None:
        made = self.folder / f"{name}.new"
        made.write_text(str(count))
        made.rename(self.folder / f"{name}.count")

    def count(self, view: str) -> int:
        [[found]] = self.database.rows(f"SELECT n FROM {view}")
        return found

    def block(self, name: str, method: str) -> None:
        (self.folder / f"{name}.{method}").touch()

    def unblock(self, name: str, method: str) -> None:
        (self.folder / f"{name}.{method}").unlink()

    def await_block(self, name: str, method: str) -> None:
        reached = self.folder / f"{name}.{method}.blocks"
        self.service.await_so(reached.exists)

    def require_moving(self) -> None:
        """Changes of the database and of another source arrive, one after the other, twice."""
        for _ in range(2):
            self.database.execute("INSERT INTO orders DEFAULT VALUES")
            [[orders]] = self.database.rows("SELECT count(*) FROM orders")
            self.service.await_so(lambda n=orders: self.count("orders_count") == n)
            calm = self.count("calm_count") + 1
            self.grow("calm", calm)
            self.service.await_so(lambda n=calm: self.count("calm_count") == n)
        assert self.service.pid_of("pipeline") == self.pipeline, self.service.log_tail()

    def drop_source(self, name: str) -> None:
        answer = self.service.call("DELETE", f"/sources/{name}")
        assert answer.status_code == 204, answer.text


@pytest.fixture(scope="module")
def world(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("blocks")
    with new_database(postgres) as database:
        database.execute("CREATE TABLE orders (id bigserial PRIMARY KEY)")
        service = BlockingService(database.dsn, tmp_path_factory.mktemp("service"))
        service.set_variable(FOLDER, str(folder))
        with service:
            yield World(service, database, folder)
            # Some calls are still blocked: the service ends all the same.
            assert service.stop() == 0


@pytest.mark.parametrize("method", SOURCE_METHODS)
def test_a_method_of_a_source_that_never_returns(world: World, method: str) -> None:
    name, service = f"s_{method}", world.service
    world.declare(name)
    view, query = f"{name}_count", f"SELECT count(*) AS n FROM {name}.t"
    if method in AT_BUILD:
        world.block(name, method)
        service.create(view, query, wait_s=0)
    else:
        service.create(view, query)
        world.grow(name, 9)
        service.await_so(lambda: world.count(view) == 9)
        world.block(name, method)
        begin(world, name, method)
    world.await_block(name, method)
    world.require_moving()
    service.drop(view)
    world.drop_source(name)
    world.require_moving()


def begin(world: World, name: str, method: str) -> None:
    """Bring about a call of the method."""
    service = world.service
    if method == "open_feed":
        # With other options the feed is opened again.
        changed = {"options": {"name": name, "changed": True}}
        answer = service.call("PUT", f"/sources/{name}", changed)
        assert answer.status_code == 200, answer.text
    elif method == "close":
        service.drop(f"{name}_count")
        world.await_block(name, method)
        service.create(f"{name}_count", f"SELECT count(*) AS n FROM {name}.t", wait_s=0)
    elif method == "decode_again":
        world.grow(name, 10)
        letters = f"/dead-letters?source={name}"
        service.await_so(lambda: service.call("GET", letters).json()["dead_letters"])
        answer = service.call("POST", "/dead-letters/retry", {"source": name, "relation": "t"})
        assert answer.status_code < 300, answer.text
    else:
        world.grow(name, 10)


def test_a_source_that_answers_again_is_read_on(world: World) -> None:
    """Positive control: nothing of what came meanwhile is lost or doubled."""
    world.declare("again")
    world.service.create("again_count", "SELECT count(*) AS n FROM again.t")
    for n, method in enumerate(("poll", "lag"), 1):
        world.block("again", method)
        world.grow("again", 100 * n)
        world.await_block("again", method)
        world.require_moving()
        world.unblock("again", method)
        world.service.await_so(lambda n=n: world.count("again_count") == 100 * n)
    world.service.drop("again_count")
    world.drop_source("again")


@pytest.mark.parametrize("method", SINK_METHODS)
def test_a_method_of_a_sink_that_never_returns(world: World, method: str) -> None:
    name, service = f"k_{method}", world.service
    if method == "open":
        world.block(name, method)
        add_sink(service, "orders_count", name, 0, "webhook", of=name)
        world.await_block(name, method)
    else:
        add_sink(service, "orders_count", name, 60, "webhook", of=name)
        world.block(name, method)
    world.require_moving()
    if method == "write":
        world.await_block(name, method)
    if method == "remove":
        path = f"/views/orders_count/sinks/{name}?drop_data=true&wait_s=0"
        assert service.call("DELETE", path).status_code == 202
        world.await_block(name, method)
        world.require_moving()
    # Without its data, which its server would have to delete.
    drop_sink(service, "orders_count", name)
    world.require_moving()


def test_a_sink_that_answers_again_is_written_on(world: World) -> None:
    """Positive control."""
    add_sink(world.service, "orders_count", "late", 60, "webhook", of="late")
    world.block("late", "write")
    world.require_moving()
    world.await_block("late", "write")
    world.unblock("late", "write")
    newest = world.service.call("GET", "/views/orders_count").json()
    assert newest["status"] == "live"
    await_sink(world.service, "orders_count", "late", status="live", backlog_bytes=0)
    drop_sink(world.service, "orders_count", "late")


def test_the_view_of_a_stuck_sink_can_be_dropped(world: World) -> None:
    service = world.service
    service.create("doomed", "SELECT count(*) AS n FROM orders")
    add_sink(service, "doomed", "stuck", 60, "webhook", of="stuck")
    for method in ("write", "interrupt", "close"):
        world.block("stuck", method)
    world.database.execute("INSERT INTO orders DEFAULT VALUES")
    world.await_block("stuck", "write")
    service.drop("doomed")
    world.require_moving()


def test_requests_that_wait_for_others_hold_up_nothing(world: World) -> None:
    """More of them than there are workers; what they ask for is not done afterwards."""
    service = world.service
    for name, method in (("slow", "discover"), ("slow", "check")):
        world.block(name, method)
    body = {"name": "slow", "type": "dbapi", "options": {"name": "slow"}}
    discover = {"type": "dbapi", "options": {"name": "slow"}}

    def ask(path: str, sent: dict[str, object]) -> None:
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{service.url}{path}", json=sent, timeout=3)

    with ThreadPoolExecutor(6) as clients:
        waiting = [clients.submit(ask, "/sources", body)]
        world.await_block("slow", "check")
        waiting += [clients.submit(ask, "/sources/discover", discover) for _ in range(5)]
        world.await_block("slow", "discover")
        answer = service.call("POST", "/query", {"query": "SELECT n FROM orders_count"}, 60)
        assert answer.status_code == 200, answer.text
        world.require_moving()
        for one in waiting:
            one.result()
    service.await_so(
        lambda: any(
            e.get("event") == "source.abandoned" and e["source"] == "slow" for e in service.events()
        )
    )
    world.unblock("slow", "check")
    world.unblock("slow", "discover")
    # Positive control, once the earlier ones are over: the same request is answered.
    assert service.call("POST", "/sources/discover", discover).status_code == 200
    assert service.call("GET", "/sources/slow").status_code == 404


def test_nothing_is_done_for_a_client_that_has_gone() -> None:
    """However close to its end the call was."""
    calls, gone = ConnectorCalls(), threading.Event()
    token = client_is_gone.set(gone.is_set)
    try:
        assert calls.result("source", "quick", "me", lambda: 1) == 1
        with pytest.raises(TemporaryError, match="does not answer") as found:
            calls.result("source", "late", "me", gone.set)
    finally:
        client_is_gone.reset(token)
    assert found.value.detail == "the client did not wait for it"


def test_a_call_that_takes_too_long_ends_with_a_code() -> None:
    calls, end = ConnectorCalls(timeout_s=0.2), threading.Event()
    assert calls.result("source", "quick", "me", lambda: 1) == 1
    for side in ("source", "sink"):
        with pytest.raises(TemporaryError) as found:
            calls.result(side, "slow", "me", end.wait)
        assert found.value.code == f"{side}.stuck"
    # What is not answered is limited for each caller, and a thread that ends makes room.
    for _ in range(MOST_OF_CALLER - 2):
        with pytest.raises(TemporaryError, match="does not answer"):
            calls.result("source", "slow", "me", end.wait)
    with pytest.raises(TemporaryError, match="cannot be reached now"):
        calls.result("source", "slow", "me", end.wait)
    assert calls.result("source", "quick", "another", lambda: 2) == 2
    end.set()
    deadline = time.monotonic() + 60
    while calls.running and time.monotonic() < deadline:
        time.sleep(0.01)
    assert calls.result("source", "quick", "me", lambda: 3) == 3


COLUMNS = [{"name": "id", "type": "bigint"}]
SLOW: dict[str, Callable[[int], dict[str, Any]]] = {
    "http": lambda port: {
        "url": f"http://127.0.0.1:{port}",
        "relations": {"t": {"path": "/t", "key": ["id"], "columns": COLUMNS}},
    },
    "clickhouse": lambda port: {
        "url": f"http://127.0.0.1:{port}",
        "relations": {"t": {"table": "t", "key": ["id"], "columns": COLUMNS}},
    },
    "mysql": lambda port: {
        "host": "127.0.0.1",
        "port": port,
        "user": "u",
        "tables": {"t": {"table": "d.t"}},
    },
    "postgres": lambda port: {
        "host": "127.0.0.1",
        "port": port,
        "user": "u",
        "database": "d",
        "tables": ["public.t"],
    },
    "kafka": lambda port: {
        "bootstrap_servers": f"127.0.0.1:{port}",
        "topics": {"t": {"topic": "t", "format": "json", "columns": COLUMNS}},
    },
    "mongodb": lambda port: {
        "servers": [f"127.0.0.1:{port}"],
        "database": "d",
        "relations": {"t": {"collection": "t", "columns": COLUMNS}},
    },
}


@pytest.mark.whole
def test_servers_that_send_a_byte_now_and_then(world: World) -> None:
    """All types at once: each request ends with a code, and nothing else waits for it."""
    service = world.service

    def discover(kind: str, port: int) -> httpx.Response:
        options = SLOW[kind](port)
        for one in [*options.get("relations", {}).values(), *options.get("topics", {}).values()]:
            # Columns that are not declared are asked for.
            one.pop("columns")
        body = {"type": kind, "options": options}
        return httpx.post(f"{service.url}/sources/discover", json=body, timeout=120)

    with Trickle().running() as server, ThreadPoolExecutor(len(SLOW)) as clients:
        asked = {kind: clients.submit(discover, kind, server.port) for kind in SLOW}
        service.await_so(lambda: server.slow)
        world.require_moving()
        assert service.call("GET", "/sources").status_code == 200
        codes = {kind: answer.result().json()["code"] for kind, answer in asked.items()}
    assert not set(codes.values()) & {"internal", "request.invalid", "source.bad_option"}, codes


def test_a_source_that_becomes_slow(world: World) -> None:
    """A byte a second for its request, and its view is dropped: nothing else stops."""
    service = world.service
    with Trickle().running() as server:
        server.rows = [{"id": n} for n in range(5)]
        options = {**SLOW["http"](server.port), "poll_interval_ms": 100}
        options["relations"]["t"]["rows"] = "$"
        body = {"name": "slow_api", "type": "http", "options": options}
        answer = service.call("POST", "/sources", body)
        assert answer.status_code == 201, answer.text
        service.create("slow_rows", "SELECT count(*) AS n FROM slow_api.t")
        assert world.count("slow_rows") == 5
        server.rows = None
        service.await_so(lambda: server.slow)
        world.require_moving()
        service.drop("slow_rows")
        world.drop_source("slow_api")
        world.require_moving()
