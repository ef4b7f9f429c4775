"""Causes for which a source cannot be read, of each type of sources; each can be begun and ended.

Nothing changes at a source between its begin and its end: what is told of it has to come from
asking it again alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.connectors.http.server import Asked, Reply, Server
from tests.connectors.mongodb.replica_set import ReplicaSet
from tests.connectors.postgres_source.reading import options_of
from tests.connectors.stream.servers import EventServer
from tests.harness.broker import new_topic, send
from tests.harness.clickhouse import ClickHouse, found_program
from tests.harness.mariadb import MariaDb
from tests.harness.postgres import Database, new_database
from tests.harness.proxied_broker import ProxiedKafka
from tests.harness.proxy import RESET, Fault, Proxy

COLUMNS = [{"name": "id", "type": "bigint"}, {"name": "n", "type": "int"}]
KEYED = {"key": ["id"], "columns": COLUMNS}
ROWS = [{"id": 1, "n": 10}, {"id": 2, "n": 20}]
POLL_MS, SHORT_MS, CALL_MS = 50, 2000, 10_000
FUNCTIONS = "tests.connectors.python_functions"
SETTINGS = {"allow_modules": f"pymysql {FUNCTIONS}", "allow_own_database": "true"}


@dataclass
class Cause:
    """A source over ROWS in `relation`, and why it cannot be read between `begin` and `end`.

    codes: of which one is its error's meanwhile. is_discovered: as in `declare`.
    """

    type: str
    options: Mapping[str, Any]
    codes: frozenset[str]
    begin: Callable[[], object]
    end: Callable[[], object]
    relation: str = "orders"
    is_discovered: bool = False


Causes = Callable[[pytest.FixtureRequest, Path], AbstractContextManager[Mapping[str, Cause]]]


@dataclass
class _Answers:
    """What a server of HTTP answers, by path: the rows, or what is in the way."""

    instead: dict[str, Reply] = field(default_factory=dict)

    def __call__(self, asked: Asked) -> Reply:
        return self.instead.get(asked.path, Reply(ROWS))


@contextmanager
def http(_: pytest.FixtureRequest, folder: Path) -> Iterator[Mapping[str, Cause]]:
    """A source for each kind of answer that is no answer."""
    answers = _Answers()
    bad = {
        "limited": (Reply({}, 429, {"Retry-After": "1"}), "http.unavailable"),
        "failing": (Reply({}, 503), "http.unavailable"),
        "forbidden": (Reply({}, 403), "http.login"),
        "gone": (Reply({}, 404), "http.refused"),
        "moved": (Reply({}, 302, {"Location": "/elsewhere"}), "http.redirected"),
        "page": (Reply(b"<html>under maintenance</html>"), "http.bad_answer"),
        "shaped": (Reply({"message": "later"}), "http.bad_answer"),
    }
    with Server().running() as server:
        server.answer = answers
        found = {}
        for name, (reply, code) in bad.items():
            path = f"/{name}"
            options = {
                "url": server.url,
                "poll_interval_ms": POLL_MS,
                "relations": {"orders": {"path": path, **KEYED}},
            }
            found[f"http_{name}"] = Cause(
                "http",
                options,
                frozenset({code}),
                lambda p=path, r=reply: answers.instead.update({p: r}),
                lambda p=path: answers.instead.pop(p),
            )
        yield found


@contextmanager
def python(_: pytest.FixtureRequest, folder: Path) -> Iterator[Mapping[str, Cause]]:
    """A function that raises, and one whose process ends."""
    (folder / "rows.json").write_text(str(ROWS).replace("'", '"'))
    found = {}
    for name, code in (("raise", "function.failed"), ("exit", "function.died")):
        fault = folder / name
        arguments = {"path": str(folder / "rows.json"), "fault": str(fault)}
        options = {
            "poll_interval_ms": 300,
            "timeout_ms": CALL_MS,
            "relations": {
                "orders": {"function": f"{FUNCTIONS}:disturbed", "arguments": arguments, **KEYED}
            },
        }
        found[f"python_{name}"] = Cause(
            "python",
            options,
            frozenset({code}),
            lambda f=fault, n=name: f.write_text(n),
            fault.unlink,
        )
    yield found


@contextmanager
def files(_: pytest.FixtureRequest, folder: Path) -> Iterator[Mapping[str, Cause]]:
    """A folder that is moved away."""
    inbox, away = folder / "inbox", folder / "away"
    inbox.mkdir()
    (inbox / "a.csv").write_text("id,n\n1,10\n2,20\n")
    relation = {"path": f"{inbox}/*.csv", "columns": COLUMNS}
    options = {"poll_interval_ms": POLL_MS, "settle_ms": 0, "relations": {"orders": relation}}
    yield {
        "files_folder": Cause(
            "files",
            options,
            frozenset({"source.folder"}),
            lambda: inbox.rename(away),
            lambda: away.rename(inbox),
        )
    }


@contextmanager
def mariadb(request: pytest.FixtureRequest, folder: Path) -> Iterator[Mapping[str, Cause]]:
    """MariaDB behind a network that fails, and with a user who may not log in: its log, and what a
    module of the DB-API reads.
    """
    server: MariaDb = request.getfixturevalue("mariadb")
    server.execute("CREATE TABLE orders (id bigint PRIMARY KEY, n int)")
    server.execute("INSERT INTO orders VALUES (1, 10), (2, 20)")
    user = f"reader_{server.name}"
    server.execute(f"CREATE USER '{user}'@'127.0.0.1'")
    server.execute(f"GRANT ALL ON *.* TO '{user}'@'127.0.0.1'")

    def lock() -> None:
        server.execute(f"ALTER USER '{user}'@'127.0.0.1' ACCOUNT LOCK")
        server.execute(f"KILL USER '{user}'@'127.0.0.1'")

    def unlock() -> None:
        server.execute(f"ALTER USER '{user}'@'127.0.0.1' ACCOUNT UNLOCK")

    with Proxy(server.server.port) as proxy:
        cut = lambda: proxy.begin(Fault(RESET))  # noqa: E731
        login = {"host": "127.0.0.1", "connect_timeout": 2, "read_timeout": 2}
        query = {
            "module": "pymysql",
            "poll_interval_ms": POLL_MS,
            "relations": {"orders": {"query": "SELECT id, n FROM orders", **KEYED}},
        }
        connect = {**login, "port": proxy.port, "user": "root", "database": server.name}
        denied = {**login, "port": server.server.port, "user": user}
        denied |= {"database": server.name}
        log = server.options("orders", port=proxy.port)
        log_denied = server.options("orders", user=user)
        known = {"relation": "orders", "is_discovered": True}
        yield {
            "mysql_away": Cause(
                "mysql", log, frozenset({"source.unreachable"}), cut, proxy.heal, **known
            ),
            "mysql_login": Cause(
                "mysql", log_denied, frozenset({"source.login"}), lock, unlock, **known
            ),
            "dbapi_away": Cause(
                "dbapi",
                {**query, "connect": connect},
                frozenset({"dbapi.unavailable"}),
                cut,
                proxy.heal,
            ),
            "dbapi_login": Cause(
                "dbapi",
                {**query, "connect": denied},
                frozenset({"dbapi.unavailable", "dbapi.refused"}),
                lock,
                unlock,
            ),
        }


@contextmanager
def _role(database: Database) -> Iterator[str]:
    """A role that may follow databases."""
    name = f"reader_{database.name}"
    database.execute(f"CREATE ROLE {name} LOGIN SUPERUSER REPLICATION")
    yield name
    database.execute(f"DROP ROLE {name}")


@contextmanager
def postgres(request: pytest.FixtureRequest, folder: Path) -> Iterator[Mapping[str, Cause]]:
    """Another PostgreSQL database behind a network that fails, and one that admits nobody."""
    server, sink = request.getfixturevalue("postgres"), request.getfixturevalue("database")
    with (
        _role(sink) as role,
        new_database(server) as other,
        new_database(server) as closed,
        Proxy(other.server.port) as proxy,
    ):
        for database in (other, closed):
            database.execute("CREATE TABLE orders (id bigint PRIMARY KEY, n int)")
            database.execute("INSERT INTO orders VALUES (1, 10), (2, 20)")

        def lock() -> None:
            closed.execute(f"ALTER ROLE {role} NOLOGIN")
            end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s"
            closed.execute(end, (role,))

        yield {
            "postgres_away": Cause(
                "postgres",
                options_of(other, "public.orders", port=proxy.port),
                frozenset({"source.unreachable"}),
                lambda: proxy.begin(Fault(RESET)),
                proxy.heal,
                is_discovered=True,
            ),
            "postgres_login": Cause(
                "postgres",
                options_of(closed, "public.orders", user=role),
                frozenset({"source.login"}),
                lock,
                lambda: closed.execute(f"ALTER ROLE {role} LOGIN"),
                is_discovered=True,
            ),
        }


@contextmanager
def mongodb(_: pytest.FixtureRequest, folder: Path) -> Iterator[Mapping[str, Cause]]:
    """A collection that is read again and again, and one with a change stream."""
    with ReplicaSet().running() as server, Proxy(server.port) as proxy:
        for row in ROWS:
            server.put("orders", {"_id": row["id"], "n": row["n"]})
        columns = [{"name": "_id", "type": "bigint"}, COLUMNS[1]]
        options = {
            "servers": [f"127.0.0.1:{proxy.port}"],
            "database": "shop",
            "timeout_ms": SHORT_MS,
            "relations": {"orders": {"columns": columns}},
        }
        found = {}
        for name, more in (
            ("poll", {"poll_interval_ms": POLL_MS}),
            ("stream", {"changes": "stream"}),
        ):
            found[f"mongodb_{name}"] = Cause(
                "mongodb",
                {**options, **more},
                frozenset({"mongodb.unreachable"}),
                lambda: proxy.begin(Fault(RESET)),
                proxy.heal,
            )
        yield found


@contextmanager
def clickhouse(_: pytest.FixtureRequest, folder: Path) -> Iterator[Mapping[str, Cause]]:
    """A table behind a network that fails, read whole and above a cursor; and a table that goes."""
    if found_program() is None:
        yield {}
        return
    with ClickHouse() as server, Proxy(server.port) as proxy:
        server.execute("CREATE TABLE orders (id Int64, n Int32) ENGINE = MergeTree ORDER BY id")
        server.execute("INSERT INTO orders VALUES (1, 10), (2, 20)")
        base = {"poll_interval_ms": POLL_MS, "timeout_ms": SHORT_MS}
        away = {**base, "url": f"http://127.0.0.1:{proxy.port}"}
        cursor = {"table": "orders", "cursor": "id", "columns": COLUMNS}
        gone = {**base, "url": f"http://127.0.0.1:{server.port}"}
        cut = lambda: proxy.begin(Fault(RESET))  # noqa: E731
        unreachable = frozenset({"clickhouse.unreachable"})
        server.execute("CREATE TABLE other AS orders")
        server.execute("INSERT INTO other SELECT * FROM orders")
        yield {
            "clickhouse_whole": Cause(
                "clickhouse",
                {**away, "relations": {"orders": {"table": "orders", **KEYED}}},
                unreachable,
                cut,
                proxy.heal,
            ),
            "clickhouse_cursor": Cause(
                "clickhouse",
                {**away, "relations": {"orders": cursor}},
                unreachable,
                cut,
                proxy.heal,
            ),
            "clickhouse_gone": Cause(
                "clickhouse",
                {**gone, "relations": {"orders": {"table": "other", **KEYED}}},
                frozenset({"clickhouse.refused"}),
                lambda: server.execute("RENAME TABLE other TO hidden"),
                lambda: server.execute("RENAME TABLE hidden TO other"),
            ),
        }


@contextmanager
def events(_: pytest.FixtureRequest, folder: Path) -> Iterator[Mapping[str, Cause]]:
    """A stream that ends, and whose server refuses the next connections."""
    with EventServer().running() as server:
        for row in ROWS:
            server.send(row)

        def refuse(status: int) -> None:
            server.status = status
            server.cut()

        yield {
            "stream_busy": Cause(
                "stream",
                {
                    "url": server.url,
                    "timeout_ms": SHORT_MS,
                    "relations": {"orders": {"columns": COLUMNS, "replays": True}},
                },
                frozenset({"stream.unavailable"}),
                lambda: refuse(503),
                lambda: refuse(200),
            )
        }


@contextmanager
def kafka(_: pytest.FixtureRequest, folder: Path) -> Iterator[Mapping[str, Cause]]:
    """A topic behind a network that fails."""
    with Proxy(0) as proxy, ProxiedKafka(proxy) as broker:
        topic = new_topic(broker)
        send(broker, topic, [(0, None, b'{"id": 1, "n": 10}'), (0, None, b'{"id": 2, "n": 20}')])
        options = {
            "bootstrap_servers": broker.proxied,
            "client": {"socket.timeout.ms": 3000, "reconnect.backoff.max.ms": 500},
            "relations": {"orders": {"topic": topic, "columns": COLUMNS}},
        }
        yield {
            "kafka_away": Cause(
                "kafka",
                options,
                frozenset({"source.unreachable"}),
                lambda: proxy.begin(Fault(RESET)),
                proxy.heal,
            )
        }


CAUSES: tuple[Causes, ...] = (http, python, files, mariadb, postgres, mongodb, clickhouse, events)
