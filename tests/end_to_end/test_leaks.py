"""Oracle: what the service held before an operation was repeated: sessions as PostgreSQL lists
them; descriptors, threads, processes and files as the kernel does. None may become more."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psycopg2
import pytest

from connectors.kafka.embedded import EmbeddedKafka
from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.connectors.http.server import Reply, Server
from tests.connectors.postgres_source.reading import options_of
from tests.harness.broker import unique_name
from tests.harness.holdings import Holder
from tests.harness.postgres import Database, new_database
from tests.harness.psql import call
from tests.harness.service import RunningService
from tests.harness.sinks import add_sink, drop_sink
from tests.harness.tiers import count

pytestmark = pytest.mark.timeout(900)

FIRST = 2
THEN = count("TIDEMARK_TEST_LOOPS", 4, 30)
QUERY = "SELECT region, sum(amount) AS total FROM orders GROUP BY region"
ORDERS = """
CREATE TABLE orders (id int PRIMARY KEY, region text NOT NULL, amount int NOT NULL);
INSERT INTO orders SELECT i, 'r' || i % 3, i FROM generate_series(1, 90) i;
CREATE TABLE loose (a int);
CREATE FUNCTION doubled(int) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT 2 * $1';
"""
# Answers with no end in sight.
ENDLESS = "SELECT count(*) FROM generate_series(1, 100000000) a, generate_series(1, 100) b"
FUNCTIONS = "tests.connectors.python_functions"
# With nothing to do: what docs/DEPLOY.md promises of a source that is the sink too.
AT_REST = 8


@dataclass
class World:
    """A service with separate databases, and one more PostgreSQL for sources and sinks."""

    service: RunningService
    source: Database
    sink: Database
    other: Database
    folder: Path
    temporary: Path

    @property
    def holder(self) -> Holder:
        """Return what counts what the service holds."""
        databases = {"source": self.source, "sink": self.sink, "other database": self.other}
        return Holder(self.service, databases, self.temporary)

    def refused(self, path: str, body: dict[str, Any]) -> None:
        """POST what is to be refused."""
        answer = self.service.call("POST", path, body)
        assert 400 <= answer.status_code < 500, answer.text

    def done(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """POST what is to succeed; its answer."""
        answer = self.service.call("POST", path, body)
        assert answer.is_success, f"{answer.text}\n{self.service.log_tail()}"
        return answer.json() if answer.content else None

    def declared(self, type_name: str, options: dict[str, Any], query: str) -> None:
        """Declare a source, create a view of it, drop both."""
        body = {"name": "more", "type": type_name, "options": options}
        found = self.service.call("POST", "/sources", body)
        assert found.status_code == 201, found.text
        self.service.create("of_more", query)
        self.service.drop("of_more")
        answer = self.service.call("DELETE", "/sources/more")
        assert answer.status_code == 204, answer.text


@pytest.fixture(scope="module")
def world(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("leaks")
    temporary = folder / "tmp"
    temporary.mkdir()
    with (
        new_database(postgres) as source,
        new_database(postgres) as sink,
        new_database(postgres) as other,
    ):
        source.execute(ORDERS)
        other.execute("CREATE TABLE goods (id int PRIMARY KEY, price int)")
        allowed = {"allow_modules": FUNCTIONS, "allow_folders": folder}
        # Another database of the same server, with the same login.
        allowed["allow_own_database"] = True
        service = RunningService(source.dsn, folder / "service", sink=sink.dsn, **allowed)
        service.set_variable("TMPDIR", str(temporary))
        with service:
            yield World(service, source, sink, other, folder, temporary)


# --- one repetition each -------------------------------------------------------------------------


def _create_and_drop(world: World) -> None:
    world.service.create("more", QUERY, backfill="local")
    world.service.drop("more")


def _use_a_function(world: World) -> None:
    """PostgreSQL evaluates it for the build and for a change."""
    world.service.create("more", "SELECT id, doubled(amount) AS twice FROM orders")
    world.source.execute("UPDATE orders SET amount = amount + 1 WHERE id = 1")
    [(position,)] = world.source.rows("SELECT pg_current_wal_flush_lsn()::text")
    world.service.wait("more", position)
    world.service.drop("more")


def _fail_to_create(world: World) -> None:
    for query in (
        "SELECT nothing FROM orders",
        "SELECT FROM missing",
        "SELECT a FROM loose",
        "SELECT (",
        "SELECT id, random() FROM orders",
    ):
        world.refused("/views", {"name": "more", "query": query})
        world.refused("/views/validate", {"query": query})
    world.refused("/views", {"name": "kept", "query": QUERY})
    world.refused("/views", {"name": "tidemark.x", "query": QUERY})
    world.refused("/views", {"name": "more", "query": QUERY, "options": {"time_zone": "Nowhere"}})


def _fail_to_build(world: World) -> None:
    """Its table is gone before the snapshot is taken."""
    world.source.execute("CREATE TABLE brief (id int PRIMARY KEY)")
    world.done("/views", {"name": "more", "query": "SELECT id FROM brief"})
    world.source.execute("DROP TABLE brief")
    world.service.drop("more")


def _replace(world: World) -> None:
    for what in ("sum", "max"):
        query = f"SELECT region, {what}(amount) AS total FROM orders GROUP BY region"
        world.done("/views/kept/replace?wait_s=60", {"query": query})


def _rebuild(world: World) -> None:
    world.done("/views/kept/rebuild?wait_s=60")


def _pause_and_resume(world: World) -> None:
    world.done("/views/kept/pause?wait_s=60")
    world.done("/views/kept/resume?wait_s=60")


def _cut_subscriptions(world: World) -> None:
    for options in ("", "?snapshot=false"):
        with (
            httpx.Client(base_url=world.service.url, timeout=60) as client,
            client.stream("GET", f"/views/kept/changes{options}") as stream,
        ):
            next(stream.iter_raw())


def _verify(world: World) -> None:
    assert world.done("/views/kept/verify")["result"] == "equal"


def _cancel_queries(world: World) -> None:
    """By their time limit, and by a client that goes."""
    body = {"query": ENDLESS, "timeout_s": 0.1}
    assert world.service.call("POST", "/query", body).status_code >= 400
    world.refused("/query", {"query": "SELECT nothing FROM orders"})
    with suppress(httpx.TimeoutException):
        gone = {"query": ENDLESS, "timeout_s": 1}
        httpx.post(f"{world.service.url}/query", json=gone, timeout=0.2)


def _read(world: World) -> None:
    paths = ["/views/kept/rows", "/views/kept/plan", "/views/kept/dataflow", "/overview"]
    for path in (*paths, "/metrics", "/health", "/tables", "/sources", "/views/missing/rows"):
        assert world.service.call("GET", path).status_code in (200, 404), path
    world.done("/views/validate", {"query": QUERY})
    world.done("/query", {"query": "SELECT * FROM orders LIMIT 3"})


def _use_psql(world: World) -> None:
    call(world.sink, "CALL tidemark.create_view('more', %s)", (QUERY,))
    call(world.sink, "CALL tidemark.drop_view('more')")


def _declare_files(world: World) -> None:
    folder = world.folder / "files"
    folder.mkdir(exist_ok=True)
    (folder / "1.csv").write_text("id\n1\n2\n")
    relation = {"path": f"{folder}/*.csv", "columns": [{"name": "id", "type": "bigint"}]}
    world.declared("files", {"relations": {"rows": relation}}, "SELECT count(*) FROM more.rows")


def _declare_http(world: World) -> None:
    with Server().running() as server:
        server.answer = lambda _: Reply([{"id": 1}, {"id": 2}])
        relation = {"path": "/", "key": ["id"], "columns": [{"name": "id", "type": "bigint"}]}
        options = {"url": server.url, "poll_interval_ms": 50, "relations": {"rows": relation}}
        world.declared("http", options, "SELECT count(*) FROM more.rows")


def _declare_python(world: World) -> None:
    file = world.folder / "rows.json"
    file.write_text(json.dumps([{"id": 1}]))
    relation = {
        "function": f"{FUNCTIONS}:of_file",
        "arguments": {"path": str(file)},
        "key": ["id"],
        "columns": [{"name": "id", "type": "bigint"}],
    }
    options = {"poll_interval_ms": 100, "relations": {"rows": relation}}
    world.declared("python", options, "SELECT count(*) FROM more.rows")


def _declare_postgres(world: World) -> None:
    body = {"type": "postgres", "options": options_of(world.other, "public.goods")}
    options = world.done("/sources/discover", body)["options"]
    world.declared("postgres", options, "SELECT count(*) FROM more.goods")


def _declare_in_vain(world: World) -> None:
    """Nobody of this name may log in; there is no such table."""
    good = options_of(world.other, "public.goods")
    for bad in (
        {"user": "nobody_here"},
        {"database": "nothing_here"},
        {"tables": ["public.missing"]},
    ):
        world.refused("/sources/discover", {"type": "postgres", "options": {**good, **bad}})
    sink = {"host": "127.0.0.1", "port": world.other.server.port, "user": "nobody_here"}
    sink |= {"database": world.other.name}
    world.refused("/views/kept/sinks", {"name": "copy", "type": "postgres", "options": sink})


def _add_a_sink(world: World) -> None:
    server = {"host": "127.0.0.1", "port": world.other.server.port, "user": "postgres"}
    options = {**server, "database": world.other.name, "table": "copy"}
    add_sink(world.service, "kept", "copy", type_name="postgres", **options)
    drop_sink(world.service, "kept", "copy", "?drop_data=true")


def _use_a_group(world: World) -> None:
    world.service.create("more", QUERY, backfill="local", group="apart")
    world.service.drop("more")
    world.service.await_so(lambda: not (world.service.state / "groups" / "apart").exists())


ALONE = {"create_and_drop_the_only_view": _create_and_drop}
BESIDE: dict[str, Callable[[World], None]] = {
    "create_and_drop": _create_and_drop,
    "use_a_function": _use_a_function,
    "fail_to_create": _fail_to_create,
    "replace": _replace,
    "cut_subscriptions": _cut_subscriptions,
    "cancel_queries": _cancel_queries,
    "declare_http": _declare_http,
    "declare_postgres": _declare_postgres,
    "declare_in_vain": _declare_in_vain,
}
BESIDE_WHOLE: dict[str, Callable[[World], None]] = {
    "fail_to_build": _fail_to_build,
    "rebuild": _rebuild,
    "pause_and_resume": _pause_and_resume,
    "verify": _verify,
    "read": _read,
    "use_psql": _use_psql,
    "declare_files": _declare_files,
    "declare_python": _declare_python,
    "add_a_sink": _add_a_sink,
    "use_a_group": _use_a_group,
}
LOOPS = {**ALONE, **BESIDE, **BESIDE_WHOLE}


@pytest.mark.parametrize(
    "name",
    [*ALONE, *BESIDE, *(pytest.param(name, marks=pytest.mark.whole) for name in BESIDE_WHOLE)],
)
def test_repetition_leaves_nothing(world: World, name: str) -> None:
    world.service.clear()
    if name not in ALONE:
        world.service.create("kept", QUERY, backfill="local")
    world.holder.require_no_growth(lambda: LOOPS[name](world), first=FIRST, then=THEN)


@pytest.mark.whole
def test_declared_topics_leave_nothing(world: World, broker: EmbeddedKafka) -> None:
    topic = unique_name("leaks")
    relation = {"topic": topic, "format": "json", "columns": {"id": "int8"}}
    options = {"bootstrap_servers": broker.bootstrap, "topics": {"rows": relation}}
    broker.create_topic(topic, 1)
    world.service.clear()
    world.service.create("kept", QUERY, backfill="local")
    world.holder.require_no_growth(
        lambda: world.declared("kafka", options, "SELECT count(*) FROM more.rows"),
        first=FIRST,
        then=min(THEN, 10),
    )


# --- at rest -------------------------------------------------------------------------------------


def test_an_idle_service_holds_few_sessions(database: Database, tmp_path: Path) -> None:
    """The source is the sink too, as it is by default."""
    database.execute(ORDERS)
    with RunningService(database.dsn, tmp_path) as service:
        holder = Holder(service, {"source": database}, tmp_path / "none")
        at_rest = lambda: len(holder.sessions()) <= AT_REST  # noqa: E731
        service.create("kept", QUERY, backfill="local")
        service.await_so(at_rest)
        for number in range(2):
            service.create(f"kept_{number}", f"{QUERY} HAVING count(*) > {number}")
        for path in ("/views", "/health", "/metrics", "/views/kept/rows"):
            service.call("GET", path)
        service.await_so(at_rest)
        names = " ".join(holder.sessions())
        for owner in ("stream", "sink", "listen", "requests", "doorbell"):
            assert f"tidemark {owner}" in names, names


# --- a former reader of the slot -----------------------------------------------------------------


def test_a_view_is_created_while_the_last_one_s_reader_ends(world: World) -> None:
    """A server under load ends the walsender late: it is ours, and no other reader."""
    service = world.service
    service.clear()
    service.create("last", QUERY, backfill="local")
    [(pid,)] = world.source.rows(
        "SELECT active_pid FROM pg_replication_slots WHERE database = current_database()"
    )
    os.kill(pid, signal.SIGSTOP)
    awakes = threading.Timer(3.0, os.kill, (pid, signal.SIGCONT))
    awakes.start()
    try:
        service.call("DELETE", "/views/last?wait_s=0")
        service.create("next", f"{QUERY} HAVING true", backfill="local")
        service.await_so(lambda: service.call("GET", "/views/last").status_code == 404)
    finally:
        awakes.join()
    refusals = [e for e in service.events() if e.get("code") == "source.slot_in_use"]
    assert not [e for e in refusals if e["event"] not in ("source.retry", "drop.retry")], refusals


# --- servers that fail ---------------------------------------------------------------------------


@dataclass
class Servers:
    """A service whose source and sink are servers that may be stopped, and a view that moves."""

    service: RunningService
    source: Database
    sink: Database

    def moves(self) -> None:
        """Wait until the view shows a row that was written just now."""
        self.source.execute("UPDATE orders SET amount = amount + 1")
        expected = self.source.rows("SELECT sum(amount)::int FROM orders")

        def shows() -> bool:
            with suppress(psycopg2.Error):
                return self.sink.rows("SELECT sum(total)::int FROM kept") == expected
            return False

        self.service.await_so(shows, 120)


def _end_ours(database: Database) -> None:
    Database(database.server, "postgres").execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = %s AND pid <> pg_backend_pid()",
        (database.name,),
    )


def _restart_source(servers: Servers) -> None:
    servers.source.server.stop()
    servers.source.server.start()


def _restart_sink(servers: Servers) -> None:
    servers.sink.server.stop()
    servers.sink.server.start()


def _without_writes(servers: Servers) -> None:
    """The sink refuses writes for a while."""
    admin = Database(servers.sink.server, "postgres")
    name = servers.sink.name
    admin.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    _end_ours(servers.sink)
    servers.source.execute("UPDATE orders SET amount = amount + 1")
    servers.service.await_so(lambda: "read_only" in servers.service.call("GET", "/health").text, 60)
    admin.execute(f"ALTER DATABASE {name} RESET default_transaction_read_only")
    _end_ours(servers.sink)


def _without_login(database: Database) -> Callable[[Servers], None]:
    def act(servers: Servers) -> None:
        admin = Database(database.server, "postgres")
        admin.execute(f"ALTER DATABASE {database.name} CONNECTION LIMIT 0")
        admin.execute("ALTER ROLE svc NOLOGIN")
        _end_ours(database)
        servers.service.await_so(
            lambda: servers.service.call("GET", "/health").json()["status"] != "ok", 60
        )
        admin.execute("ALTER ROLE svc LOGIN")
        admin.execute(f"ALTER DATABASE {database.name} CONNECTION LIMIT -1")

    return act


@pytest.mark.whole
@pytest.mark.parametrize("name", ["source", "sink", "read_only", "login_source", "login_sink"])
def test_faults_of_servers_leave_nothing(tmp_path: Path, name: str) -> None:
    with (
        EmbeddedPostgres() as first,
        EmbeddedPostgres() as second,
        new_database(first) as source,
        new_database(second) as sink,
    ):
        for database in (source, sink):
            admin = Database(database.server, "postgres")
            admin.execute("CREATE ROLE svc SUPERUSER LOGIN")
        source.execute(ORDERS)
        login = lambda d: d.dsn.replace("user=postgres", "user=svc")  # noqa: E731
        act = {
            "source": _restart_source,
            "sink": _restart_sink,
            "read_only": _without_writes,
            "login_source": _without_login(source),
            "login_sink": _without_login(sink),
        }[name]
        temporary = tmp_path / "tmp"
        temporary.mkdir()
        service = RunningService(login(source), tmp_path / "service", sink=login(sink))
        service.set_variable("TMPDIR", str(temporary))
        with service:
            service.create("kept", QUERY, backfill="local")
            servers = Servers(service, source, sink)

            def repeat() -> None:
                act(servers)
                servers.moves()

            holder = Holder(service, {"source": source, "sink": sink}, temporary)
            holder.require_no_growth(repeat, first=2, then=min(THEN, 8), settles_s=10, within_s=120)
