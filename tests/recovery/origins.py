"""Sources of each type with their servers, as tests.harness.source_contract has them."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymongo import MongoClient

from tests.connectors.http.server import Reply, Server
from tests.connectors.mongodb.replica_set import ReplicaSet
from tests.connectors.mongodb.server import ferretdb
from tests.connectors.postgres_source.reading import options_of
from tests.connectors.stream.servers import EventServer, WebSocketServer
from tests.harness.clickhouse import ClickHouse
from tests.harness.mariadb import MariaDb
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService
from tests.harness.source_contract import (
    COLUMNS,
    NOBODY,
    SOURCE,
    Order,
    Orders,
    Origin,
    orders_origin,
)
from tests.harness.state_reader import Rows, StateReader
from tests.harness.verdicts import WrongStateError
from tests.recovery import prefix
from tests.recovery.prefix import ACCOUNTS, Checker, Writer

ID = {"name": "id", "type": "bigint"}
KEYED = {"key": ["id"], "columns": [ID, *COLUMNS]}
TABLES = ("marker", "accounts", "entries")
# Noticed soon, and not by a machine that is merely busy.
SHORT_MS = 3000
# Of a function, for which a process starts each time: between two calls, and for one.
CALLED_MS, CALL_MS = 300, 10_000
POLL_MS = 30
FUNCTIONS = "tests.connectors.python_functions"

Origins = Callable[[pytest.FixtureRequest, Path, int], AbstractContextManager[Origin]]


class _Current:
    """The orders as they are now, for a server that shows all of them."""

    def __init__(self) -> None:
        self.rows: dict[int, dict[str, int]] = {}

    def write(self, new: Sequence[Order], gone: Sequence[int]) -> None:
        """See Orders; what a reader holds already does not change."""
        rows = {id: row for id, row in self.rows.items() if id not in gone}
        self.rows = rows | {o[0]: {"id": o[0], "customer": o[1], "price": o[2]} for o in new}


def _values(orders: Sequence[Order]) -> str:
    return ", ".join(map(str, orders))


@contextmanager
def http(_: pytest.FixtureRequest, folder: Path, seed: int) -> Iterator[Origin]:
    """A REST service whose answer has all orders."""
    current = _Current()
    with Server().running() as server:
        server.answer = lambda _: Reply({"orders": list(current.rows.values())})
        relation = {"path": "/v1/orders", "rows": "$.orders", **KEYED}
        options = lambda port: {  # noqa: E731
            "url": f"http://127.0.0.1:{port}",
            "poll_interval_ms": POLL_MS,
            "timeout_ms": SHORT_MS,
            "relations": {"orders": relation},
        }
        yield orders_origin("http", options, Orders(current.write, seed), port=server.port)


@contextmanager
def dbapi(request: pytest.FixtureRequest, folder: Path, seed: int) -> Iterator[Origin]:
    """A query that pymysql runs on MariaDB, with the module's own limit for an answer."""
    mariadb: MariaDb = request.getfixturevalue("mariadb")
    mariadb.execute("CREATE TABLE orders (id int PRIMARY KEY, customer int, price int)")

    def write(new: Sequence[Order], gone: Sequence[int]) -> None:
        with mariadb.transaction():
            for id in gone:
                mariadb.execute(f"DELETE FROM orders WHERE id = {id}")
            if new:
                mariadb.execute(f"REPLACE INTO orders VALUES {_values(new)}")

    limits = {"connect_timeout": SHORT_MS // 1000, "read_timeout": SHORT_MS // 1000}
    login = {"host": "127.0.0.1", "user": "root", "database": mariadb.name, **limits}
    options = lambda port: {  # noqa: E731
        "module": "pymysql",
        "connect": {"port": port, **login},
        "poll_interval_ms": POLL_MS,
        "relations": {"orders": {"query": "SELECT id, customer, price FROM orders", **KEYED}},
    }
    yield orders_origin(
        "dbapi",
        options,
        Orders(write, seed),
        port=mariadb.server.port,
        settings={"allow_modules": "pymysql"},
    )


@dataclass
class _FunctionFaults:
    """What happens to the function's calls, as a word in a file that it reads."""

    path: Path
    port: None = None
    met: int = 0

    def begin(self, pick: random.Random) -> None:
        """See Disturbance."""
        self.met += 1
        self.path.write_text(pick.choice(("raise", "exit", "hang")))

    def heal(self) -> None:
        """See Disturbance."""
        self.path.unlink()

    def end_links(self) -> None:
        """See Disturbance."""


@contextmanager
def python(_: pytest.FixtureRequest, folder: Path, seed: int) -> Iterator[Origin]:
    """A function that returns what a file has. Its faults: it raises, ends or hangs amid rows."""
    current, path = _Current(), folder / "orders.json"

    def write(new: Sequence[Order], gone: Sequence[int]) -> None:
        current.write(new, gone)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(list(current.rows.values())))
        part.rename(path)

    arguments = {"path": str(path), "fault": str(folder / "fault")}
    relation = {"function": f"{FUNCTIONS}:disturbed", "arguments": arguments, **KEYED}
    options = {
        "poll_interval_ms": CALLED_MS,
        "timeout_ms": CALL_MS,
        "relations": {"orders": relation},
    }
    yield orders_origin(
        "python",
        lambda _: options,
        Orders(write, seed),
        settings={"allow_modules": FUNCTIONS},
        disturb=_FunctionFaults(folder / "fault"),
    )


def _mongodb(relation: Mapping[str, Any], **more: Any) -> Callable[[int | None], Mapping[str, Any]]:
    columns = [{"name": "_id", "type": "bigint"}, *COLUMNS]
    return lambda port: {
        "servers": [f"127.0.0.1:{port}"],
        "database": "shop",
        "timeout_ms": SHORT_MS,
        "relations": {"orders": {"columns": columns, **relation}},
        **more,
    }


def _document(order: Order) -> dict[str, int]:
    return {"_id": order[0], "customer": order[1], "price": order[2]}


@contextmanager
def mongodb(_: pytest.FixtureRequest, folder: Path, seed: int) -> Iterator[Origin]:
    """A collection of FerretDB that is read again and again. It changes one document at once."""
    with ferretdb(folder / "ferretdb") as port, MongoClient("127.0.0.1", port) as client:
        collection = client.shop.orders

        def write(new: Sequence[Order], gone: Sequence[int]) -> None:
            for id in gone:
                collection.delete_one({"_id": id})
            for order in new:
                collection.replace_one({"_id": order[0]}, _document(order), upsert=True)

        orders = Orders(write, seed, is_single=True)
        yield orders_origin("mongodb", _mongodb({}, poll_interval_ms=POLL_MS), orders, port=port)


@contextmanager
def mongodb_stream(_: pytest.FixtureRequest, folder: Path, seed: int) -> Iterator[Origin]:
    """A change stream, which says which documents have changed; now and then its log is cut off."""
    pick = random.Random(seed)
    with ReplicaSet().running() as server:

        def write(new: Sequence[Order], gone: Sequence[int]) -> None:
            for id in gone:
                server.remove("orders", id)
            for order in new:
                server.put("orders", _document(order))
            if pick.random() < 0.002:
                server.forget_history()

        orders = Orders(write, seed, is_single=True)
        options = _mongodb({}, changes="stream")
        yield orders_origin("mongodb", options, orders, port=server.port, is_any=True)


@contextmanager
def _clickhouse(
    table: str, relation: Mapping[str, Any], seed: int, *, is_added: bool
) -> Iterator[Origin]:
    with ClickHouse() as server:
        server.execute(f"CREATE TABLE orders (id Int64, customer Int32, price Int32) {table}")

        def write(new: Sequence[Order], gone: Sequence[int]) -> None:
            # One block of rows is seen as a whole.
            values = _values([*new, *((id, NOBODY, -1) for id in gone)])
            server.execute(f"INSERT INTO orders VALUES {values}")

        options = lambda port: {  # noqa: E731
            "url": f"http://127.0.0.1:{port}",
            "poll_interval_ms": POLL_MS,
            "timeout_ms": SHORT_MS,
            "relations": {"orders": relation},
        }
        orders = Orders(write, seed, is_added=is_added)
        yield orders_origin("clickhouse", options, orders, port=server.port)


def clickhouse(_: Any, folder: Path, seed: int) -> AbstractContextManager[Origin]:
    """A query over a replacing table: of each order the row that came last."""
    query = "SELECT id, customer, price FROM orders FINAL WHERE price >= 0"
    table = "ENGINE = ReplacingMergeTree ORDER BY id"
    return _clickhouse(table, {"query": query, **KEYED}, seed, is_added=False)


def clickhouse_cursor(_: Any, folder: Path, seed: int) -> AbstractContextManager[Origin]:
    """A table to which rows are added; four of them have one value of the cursor."""
    columns = [{"name": "n", "type": "bigint"}, *COLUMNS]
    query = "SELECT intDiv(id, 4) AS n, customer, price FROM orders"
    relation = {"query": query, "cursor": "n", "columns": columns}
    table = "ENGINE = MergeTree ORDER BY customer"
    return _clickhouse(table, relation, seed, is_added=True)


def _stream(url: str, relation: Mapping[str, Any], **more: Any) -> Mapping[str, Any]:
    found = {"columns": [ID, *COLUMNS], **relation}
    return {"url": url, "timeout_ms": SHORT_MS, "relations": {"orders": found}, **more}


@contextmanager
def events(_: pytest.FixtureRequest, folder: Path, seed: int) -> Iterator[Origin]:
    """Server-sent events of a server that replays, and ends its connections: each order once."""
    pick = random.Random(seed)
    with EventServer().running() as server:

        def write(new: Sequence[Order], gone: Sequence[int]) -> None:
            for id, customer, price in new:
                server.send({"id": id, "customer": customer, "price": price})
            if pick.random() < 0.02:
                server.cut()

        options = lambda port: _stream(  # noqa: E731
            f"http://127.0.0.1:{port}", {"replays": True}, idle_ms=SHORT_MS
        )
        orders = Orders(write, seed, is_added=True)
        yield orders_origin("stream", options, orders, port=server.port, require=_require_no_gap)


def _require_no_gap(service: RunningService, _: StateReader) -> None:
    found = service.call("GET", f"/sources/{SOURCE}").json()["positions"]["orders"]
    assert found["gaps"] == 0 and found["connection"] > 1, found
    assert "tidemark_source_gaps_total" in service.call("GET", "/metrics").text


class _MessagesReader(StateReader):
    """Holds the messages of each connection to what was sent: all from its first to its newest.

    Messages are lost between two connections alone, and no message that was seen goes.
    """

    queries = (
        "SELECT connection, n::int, low, high, total::bigint, sequence FROM seen ORDER BY 1",
    )

    def __init__(self, sink: Database, orders: Orders) -> None:
        super().__init__(sink)
        self._orders = orders
        self._seen: dict[int, tuple[int, int]] = {}
        self._newest = 0
        self._until: int | None = None

    def number_of(self, answers: Sequence[Rows]) -> int:
        """How many messages were seen."""
        seen: dict[int, tuple[int, int]] = {}
        before = -1
        for connection, n, low, high, total, sequence in answers[0]:
            is_whole = n == sequence == high - low + 1 and total == (low + high) * n // 2
            if not is_whole or low <= before:
                raise WrongStateError(f"messages lost or doubled: {answers[0]}")
            seen[connection], before = (low, high), high
        for connection, (low, high) in self._seen.items():
            now = seen.get(connection, (0, -1))
            if now[0] != low or now[1] < high:
                raise WrongStateError(f"messages {low} to {high} became {now}: {answers[0]}")
        self._seen, self._newest = seen, before
        return sum(high - low + 1 for low, high in seen.values())

    def shows(self, number: int) -> bool:
        """Whether a message was seen that was sent after this was first asked."""
        if self._until is None:
            self._until = self._orders.count
        self._orders.write_more()
        return self.check() is not None and self._newest >= self._until

    def settle(self, within_s: float, log: Callable[[], str]) -> None:
        """Look until a message was seen that is sent from now on."""
        deadline, until = time.monotonic() + within_s, self._orders.count
        while self._newest < until:
            assert time.monotonic() < deadline, f"no message from {until} on\n{log()}"
            self.look_for(0.05)

    def require_counted(self, service: RunningService) -> None:
        """Each hole between connections is within a gap that the service shows."""
        ends = list(self._seen.values())
        holes = sum(low > before + 1 for (_, before), (low, _) in itertools.pairwise(ends))

        def is_counted() -> bool:
            found = service.call("GET", f"/sources/{SOURCE}").json()["positions"]["orders"]
            is_shown = found["connection"] >= max(self._seen) and found["gaps"] >= holes
            return is_shown and found["gaps"] == found["connection"] - 1 > 0

        service.await_so(is_counted)
        assert any(event.get("event") == "source.gap" for event in service.events())


@contextmanager
def websocket(_: pytest.FixtureRequest, folder: Path, seed: int) -> Iterator[Origin]:
    """Messages that come once, or not at all."""
    metadata = [{"name": name, "type": "bigint"} for name in ("_connection", "_sequence")]
    query = f"""SELECT _connection AS connection, count(*) AS n, min(id) AS low, max(id) AS high,
        sum(id) AS total, max(_sequence) AS sequence FROM {SOURCE}.orders GROUP BY _connection"""
    with WebSocketServer().running() as server:

        def write(new: Sequence[Order], gone: Sequence[int]) -> None:
            for id, _, _ in new:
                server.send({"id": id})

        orders = Orders(write, seed, is_added=True)
        options = lambda port: _stream(  # noqa: E731
            f"ws://127.0.0.1:{port}", {"columns": [ID, *metadata]}, ping_ms=SHORT_MS
        )
        yield Origin(
            "stream",
            options,
            orders,
            lambda sink: _MessagesReader(sink, orders),
            port=server.port,
            views={"seen": query},
            tables="",
            require=lambda service, reader: reader.require_counted(service),
        )


# --- databases with a log ----------------------------------------------------------------------


def _views() -> dict[str, str]:
    """Those of `prefix`, over the source's tables."""
    names = re.compile(rf"\b(FROM|JOIN) ({'|'.join(TABLES)})\b")
    return {name: names.sub(rf"\1 {SOURCE}.\2", query) for name, query in prefix.VIEWS.items()}


def _prefix_origin(
    type: str, options: Callable[[int | None], Mapping[str, Any]], writer: Writer, port: int
) -> Origin:
    reader = lambda sink: Checker(sink, writer)  # noqa: E731
    return Origin(
        type, options, writer, reader, port, views=_views(), tables="", is_discovered=True
    )


def postgres_origin(other: Database, seed: int) -> Origin:
    """The tables of `prefix` in another database."""
    other.execute(prefix.SCHEMA)
    titles = [f"public.{table}" for table in TABLES]
    options = lambda port: options_of(other, *titles, port=port)  # noqa: E731
    made = _prefix_origin("postgres", options, Writer(other, seed), other.server.port)
    # The login is the service's own, on its server.
    return replace(made, settings={"allow_own_database": "true"})


@contextmanager
def postgres(request: pytest.FixtureRequest, folder: Path, seed: int) -> Iterator[Origin]:
    """Another database of the test's server."""
    with new_database(request.getfixturevalue("postgres")) as other:
        yield postgres_origin(other, seed)


class _MariaDbWriter(Writer):
    """Commits to MariaDB, in tables that it finds again after a restart of the server."""

    def __init__(self, mariadb: MariaDb, seed: int) -> None:
        super().__init__(None, seed)  # type: ignore[arg-type]
        self._mariadb = mariadb

    def _commit(self, connection, number, statements):
        while True:
            try:
                connection = connection or self._mariadb.server.connect(self._mariadb.name)
                with connection.cursor() as cursor:
                    connection.begin()
                    if not cursor.execute("SELECT 1 FROM marker WHERE id = %s", (number,)):
                        for sql, values in statements:
                            cursor.execute(sql, values)
                    connection.commit()
                return connection
            except (pymysql.Error, OSError):
                # Whether the commit was taken is looked up the next time.
                connection = None
                time.sleep(0.05)


def mysql_origin(mariadb: MariaDb, seed: int) -> Origin:
    """The tables of `prefix` in MariaDB."""
    for statement in (
        "CREATE TABLE marker (id bigint PRIMARY KEY)",
        "INSERT INTO marker VALUES (0)",
        "CREATE TABLE accounts (id int PRIMARY KEY, owner varchar(20) NOT NULL, "
        "balance bigint NOT NULL)",
        f"INSERT INTO accounts SELECT seq, concat('owner ', seq % 7), 0 FROM seq_1_to_{ACCOUNTS}",
        "CREATE TABLE entries (id bigint PRIMARY KEY, account int NOT NULL, "
        "amount bigint NOT NULL)",
    ):
        mariadb.execute(statement)
    options = lambda port: mariadb.options(*TABLES, port=port)  # noqa: E731
    return _prefix_origin("mysql", options, _MariaDbWriter(mariadb, seed), mariadb.server.port)


@contextmanager
def mysql(request: pytest.FixtureRequest, folder: Path, seed: int) -> Iterator[Origin]:
    """A database of the test's MariaDB."""
    yield mysql_origin(request.getfixturevalue("mariadb"), seed)


# Those that need no server of their own come first.
ORIGINS: Mapping[str, Origins] = {
    "http": http,
    "events": events,
    "websocket": websocket,
    "python": python,
    "postgres": postgres,
    "mongodb stream": mongodb_stream,
    "dbapi": dbapi,
    "mysql": mysql,
    "clickhouse": clickhouse,
    "clickhouse cursor": clickhouse_cursor,
    "mongodb": mongodb,
}
