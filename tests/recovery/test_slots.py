"""Oracle: rows 1 to n are inserted one by one, so count, max and sum of every state that is shown
must be those of 1 to n: whatever becomes of the slot, nothing is ever left out in silence."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg2
import pytest
from psycopg2 import extras

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness import figures
from tests.harness.postgres import SERVER_SETTINGS, Database, new_database, versions_to_test
from tests.harness.proxy import REFUSE, Fault, Proxy
from tests.harness.psql import give_query_role
from tests.harness.service import RunningService

RUN = "pytest tests/recovery/test_slots.py"
OURS, PUBLISHED = "tidemark_shop_source", "tidemark_source"
SENDERS = 4
WITHIN_S = 60.0
VIEW = "SELECT count(*) AS n, max(id) AS newest, sum(id) AS total FROM t"
OTHER = "SELECT count(*) AS n FROM other"
TABLES = """
CREATE TABLE t (id int PRIMARY KEY); ALTER TABLE t OWNER TO svc; INSERT INTO t VALUES (1);
CREATE TABLE other (id int PRIMARY KEY); ALTER TABLE other OWNER TO svc;
"""

pytestmark = pytest.mark.timeout(600)


@dataclass
class World:
    """The service, its source behind a proxy and as a role of no more rights than it needs."""

    server: EmbeddedPostgres
    source: Database
    sink: Database
    proxy: Proxy
    service: RunningService
    written: int = 1
    states: int = 0
    held: contextlib.ExitStack | None = None

    def write(self) -> None:
        """The next row."""
        self.written += 1
        self.source.execute("INSERT INTO t VALUES (%s)", (self.written,))

    def shown(self) -> int:
        """How many rows the view knows of, which must be the first ones."""
        n, newest, total = self.sink.rows("SELECT n::int, newest, total::int FROM seen")[0]
        assert (newest, total) == (n, n * (n + 1) // 2), (n, newest, total)
        self.states += 1
        return n

    def expect_all(self) -> None:
        """Everything that was written is shown."""
        self.write()
        self.await_so(lambda: self.shown() == self.written)

    def await_so(self, is_so: Callable[[], object]) -> None:
        """Wait for it."""
        deadline = time.monotonic() + WITHIN_S
        while not is_so():
            assert time.monotonic() < deadline, f"{self.problem()}\n{self.service.log_tail()}"
            time.sleep(0.05)

    def problem(self, view: str = "seen") -> dict:
        """What keeps a view from going on."""
        return self.service.call("GET", f"/views/{view}").json().get("error") or {}

    def create(self) -> None:
        """The views, from what there is now."""
        self.service.create("seen", VIEW, backfill="local")
        self.service.create("beside", OTHER, backfill="local")

    def create_anew(self) -> None:
        """The way out where nothing can be put right."""
        for view in ("seen", "beside"):
            self.service.drop(view)
        self.create()

    def rebuild(self) -> None:
        """The way out by one command."""
        for view in ("seen", "beside"):
            self.service.await_status(view, "failed")
        url = ("--url", self.service.url)
        command = [sys.executable, "-m", "service.cli.main", "rebuild", "--all", *url]
        subprocess.run(command, check=True, timeout=WITHIN_S, capture_output=True)

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """Meanwhile the service cannot reach the source."""
        self.proxy.begin(Fault(REFUSE))
        self.admin("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'svc'")
        slot = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND active"
        self.await_so(lambda: not self.source.rows(slot, (OURS,)))
        yield
        self.proxy.heal()

    def admin(self, *statements: str) -> None:
        """From another database, which is always there."""
        for statement in statements:
            Database(self.server, "postgres").execute(statement)


@pytest.fixture(scope="module")
def world(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    settings = {**SERVER_SETTINGS, "max_wal_senders": SENDERS, "max_wal_size": "64MB"}
    folder: Path = tmp_path_factory.mktemp("slots")
    with (
        EmbeddedPostgres(versions_to_test()[0], settings) as server,
        new_database(postgres) as sink,
    ):
        source = Database(server, "shop")
        with Proxy(server.port) as proxy:
            dsn = proxy.dsn(source.dsn).replace("user=postgres", "user=svc")
            _make(server)
            with RunningService(dsn, folder, sink=sink.dsn) as service:
                found = World(server, source, sink, proxy, service)
                found.create()
                yield found
                figures.add(
                    "slot_faults",
                    count=len(CASES),
                    epochs=found.states,
                    command=RUN,
                )


def _make(server: EmbeddedPostgres) -> None:
    admin = Database(server, "postgres")
    admin.execute("DROP ROLE IF EXISTS svc")
    admin.execute("CREATE ROLE svc LOGIN REPLICATION")
    _make_database(admin)


def _make_database(admin: Database) -> None:
    admin.execute("CREATE DATABASE shop")
    admin.execute("GRANT CREATE ON DATABASE shop TO svc")
    shop = Database(admin.server, "shop")
    shop.execute(TABLES)
    give_query_role(shop, "svc")


# --- what is done to it ------------------------------------------------------------------------


def _drop_slot(world: World) -> None:
    with world.apart():
        world.source.execute("SELECT pg_drop_replication_slot(%s)", (OURS,))
        world.write()


def _make_slot_again(world: World) -> None:
    with world.apart():
        world.source.execute("SELECT pg_drop_replication_slot(%s)", (OURS,))
        world.write()
        world.source.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (OURS,))


def _advance_slot(world: World) -> None:
    with world.apart():
        world.write()
        world.source.execute(
            "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", (OURS,)
        )


def _lose_slot(world: World) -> None:
    with world.apart():
        world.admin("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
        world.write()
        for _ in range(4):
            world.source.execute("SELECT pg_logical_emit_message(true, 'x', repeat('x', 999999))")
            world.admin("SELECT pg_switch_wal()", "CHECKPOINT")
        lost = "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s"
        world.await_so(lambda: world.source.rows(lost, (OURS,)) == [("lost",)])


def _keep_enough(world: World) -> None:
    world.admin("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    world.rebuild()


def _take_slot(world: World) -> None:
    """Another consumer, which confirms nothing."""
    world.held = contextlib.ExitStack()
    with world.apart():
        world.write()
        other = psycopg2.connect(
            world.source.dsn, connection_factory=extras.LogicalReplicationConnection
        )
        world.held.callback(other.close)
        options = {"proto_version": "1", "publication_names": PUBLISHED}
        other.cursor().start_replication(OURS, options=options, decode=False)


def _take_senders(world: World) -> None:
    world.held = contextlib.ExitStack()
    with world.apart():
        world.write()
        for _ in range(SENDERS):
            other = psycopg2.connect(
                world.source.dsn, connection_factory=extras.PhysicalReplicationConnection
            )
            world.held.callback(other.close)


def _let_go(world: World) -> None:
    assert world.held is not None
    world.held.close()


def _altered(role: str) -> Callable[[World], None]:
    def alter(world: World) -> None:
        with world.apart():
            world.write()
            world.admin(f"ALTER ROLE svc {role}")

    return alter


def _drop_publication(world: World) -> None:
    world.source.execute(f"DROP PUBLICATION {PUBLISHED}")
    world.write()


def _drop_database(world: World) -> None:
    with world.apart():
        world.source.execute("SELECT pg_drop_replication_slot(%s)", (OURS,))
        world.admin("DROP DATABASE shop WITH (FORCE)")


def _restore_database(world: World) -> None:
    _make_database(Database(world.server, "postgres"))
    world.written = 1
    world.create_anew()


# By whoever sees it first: our look at the tables, or the server at the next commit.
_NO_PUBLICATION = "source.not_published source.publication_missing"

# What is done; the codes by which it is told; how it is put right.
CASES: dict[str, tuple[Callable[[World], None], str, Callable[[World], None]]] = {
    "dropped": (_drop_slot, "source.slot_missing", World.rebuild),
    "made again": (_make_slot_again, "source.slot_advanced", World.rebuild),
    "advanced": (_advance_slot, "source.slot_advanced", World.create_anew),
    "lost": (_lose_slot, "source.slot_lost", _keep_enough),
    "taken": (_take_slot, "source.slot_in_use", _let_go),
    "no sender": (_take_senders, "source.no_free_wal_sender", _let_go),
    "may not replicate": (
        _altered("NOREPLICATION"),
        "source.privilege",
        _altered("REPLICATION"),
    ),
    "may not log in": (_altered("NOLOGIN"), "source.login", _altered("LOGIN")),
    "no publication": (_drop_publication, _NO_PUBLICATION, World.rebuild),
    "no database": (_drop_database, "source.database", _restore_database),
}


@pytest.mark.parametrize("case", CASES)
def test_each_is_reported_by_name_and_can_be_corrected(world: World, case: str) -> None:
    """Until then the view shows what it showed, or more of the same, but never leaves a row out."""
    do, codes, put_right = CASES[case]
    world.expect_all()
    before = world.shown()
    do(world)
    world.await_so(lambda: world.shown() and world.problem().get("code") in codes.split())
    problem = world.problem()
    assert problem["hint"], problem
    assert world.shown() == before
    put_right(world)
    world.expect_all()


@pytest.mark.whole
def test_no_connection_is_free_for_a_while(world: World) -> None:
    """Nothing is refused: it is tried again, and the view says why it stopped."""
    _altered("CONNECTION LIMIT 0")(world)
    world.await_so(lambda: "away" in str(world.service.call("GET", "/views/seen").json()))
    assert world.problem()["code"] == "source.unreachable"
    assert world.service.call("GET", "/views/seen").json()["status"] == "live"
    world.admin("ALTER ROLE svc CONNECTION LIMIT -1")
    world.expect_all()


@pytest.mark.whole
def test_a_table_is_taken_out_of_the_publication(world: World) -> None:
    """For a moment: what was not sent is read again. For good: its readers alone end."""
    out, back = (f"ALTER PUBLICATION {PUBLISHED} {word} TABLE other" for word in ("DROP", "ADD"))
    # One transaction, so that nobody looks in between.
    world.source.execute(f"{out}; INSERT INTO other VALUES (1); {back}")
    world.await_so(lambda: world.sink.rows("SELECT n FROM beside") == [(1,)])
    world.service.await_status("beside")
    world.source.execute(out)
    world.source.execute("INSERT INTO other VALUES (2)")
    world.await_so(lambda: world.problem("beside").get("code") == "source.not_published")
    assert world.sink.rows("SELECT n FROM beside") == [(1,)]
    world.expect_all()
