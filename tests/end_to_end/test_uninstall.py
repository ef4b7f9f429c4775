"""Oracle: the server before anything was installed: its objects, roles, privileges and slots, by
pg_dump and the catalogs; after `tidemark uninstall` all of it is the same."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import SERVER_SETTINGS, Database
from tests.harness.psql import as_role, psql
from tests.harness.server_contents import contents, differences
from tests.harness.service import RunningService
from tests.recovery.special import UNINSTALL

pytestmark = pytest.mark.timeout(900)

SHOP = """
CREATE SCHEMA sales;
CREATE TABLE sales.orders (id int PRIMARY KEY, region text NOT NULL, amount numeric, note text);
INSERT INTO sales.orders SELECT i, 'r' || i % 3, i, 'n' || i % 7 FROM generate_series(1, 100) AS i;
GRANT USAGE ON SCHEMA sales TO ann; GRANT SELECT ON sales.orders TO ann;
ALTER SCHEMA sales OWNER TO shop; ALTER TABLE sales.orders OWNER TO shop;
"""
VIEWS = """
CREATE SCHEMA shown AUTHORIZATION shop; GRANT USAGE, CREATE ON SCHEMA shown TO ann;
"""
DATABASES = ("shop", "views")
TOTALS = "SELECT region, sum(amount) AS total FROM sales.orders GROUP BY region"
NOTES = "SELECT note FROM sales.orders"
ROLE = "keeper"


class Ground:
    """A server with a shop, and a service in it that an administrator has installed."""

    def __init__(self, server: EmbeddedPostgres, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.shop, self.views = (Database(server, name) for name in DATABASES)
        self.before = contents(server, DATABASES)
        self.service = self.made("tidemark", "service")

    def made(self, prefix: str, name: str, **more: object) -> RunningService:
        source, sink = self.dsn(ROLE, "shop"), self.dsn(ROLE, "views")
        copies = {"checkpoint_to": self.folder / "copies", "checkpoint_every_s": 1}
        copies["allow_own_database"] = True
        return RunningService(source, self.folder / name, sink, prefix=prefix, **copies, **more)

    def dsn(self, user: str, database: str) -> str:
        return f"host=127.0.0.1 port={self.server.port} user={user} dbname={database}"

    def install(self) -> None:
        """As DEPLOY says: the role by deploy/role.sql, then init, then creators."""
        script = Path("deploy/role.sql").read_text()
        for place, more in ((self.shop, {}), (self.views, {"sink_only": "yes"})):
            schema = "sales" if place is self.shop else "shown"
            done = psql(place, script, role=ROLE, schemas=schema, views=schema, **more)
            assert done.returncode == 0, done.stderr
        options = ["--sink", self.dsn("postgres", "views"), "--schemas", "shown", "--functions"]
        run("init", self.dsn("postgres", "shop"), *options, "--role", ROLE)
        done = psql(self.views, Path("deploy/creators.sql").read_text(), creators="ann")
        assert done.returncode == 0, done.stderr

    def use(self, service: RunningService) -> None:
        """Views of each kind, and what people do with them."""
        create(service, "shown.totals", TOTALS, history="7 days")
        create(service, "shown.notes", NOTES, history="7 days")
        create(service, "shown.apart", TOTALS, group="second")
        made = f"CALL tidemark.create_view('shown.anns', '{TOTALS.replace('total', 'most')}')"
        as_role(self.views, "ann", made)
        self.views.execute(
            "GRANT SELECT ON shown.totals TO ann; GRANT SELECT ON shown.totals_history TO PUBLIC;"
            " CREATE INDEX of_users ON shown.totals (total)"
        )
        service.call("POST", "/tokens", {"name": "ci", "role": "reader"})
        sink = {"name": "copy", "type": "postgres", "options": self.copy_options()}
        answer = service.call("POST", "/views/shown.totals/sinks", sink)
        assert answer.status_code == 201, answer.text
        self.shop.execute("INSERT INTO sales.orders VALUES (1000, 'new', 1, 'one')")
        ((position,),) = self.shop.rows("SELECT pg_current_wal_flush_lsn()::text")
        service.wait("shown.totals", position, timeout_s=300)
        service.await_so(lambda: self.copies() == self.totals(), within_s=300)

    def use_one(self, service: RunningService) -> None:
        """A view, with rows in as many control tables as one view has."""
        query = TOTALS.replace("sum(amount)", "sum(100 / (amount - 1))")
        create(service, "shown.totals", query, history="7 days")
        ((position,),) = self.shop.rows("SELECT pg_current_wal_flush_lsn()::text")
        service.wait("shown.totals", position, timeout_s=300)
        assert self.views.rows("SELECT DISTINCT view FROM tidemark.errors") == [("shown.totals",)]
        as_role(self.views, "postgres", "CALL tidemark.pause_view('shown.totals')")

    def copy_options(self) -> dict[str, Any]:
        place = {"host": "127.0.0.1", "port": self.server.port, "database": "copies"}
        return {**place, "user": "postgres", "table": "totals"}

    def copies(self) -> list[Any]:
        copies = Database(self.server, "copies")
        if copies.rows("SELECT to_regclass('public.totals')") == [(None,)]:
            return []
        return sorted(copies.rows("SELECT region, total FROM public.totals"))

    def totals(self) -> list[Any]:
        return sorted(self.shop.rows(TOTALS))

    def uninstall(
        self, *options: str, user: str = "postgres", code: int = 0, **environment: str
    ) -> list[str]:
        """Return the lines that it prints."""
        done = self.started(*options, user=user, **environment)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout.splitlines() + done.stderr.splitlines()

    def started(
        self, *options: str, user: str = "postgres", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        places = ["--source", self.dsn(user, "shop"), "--sink", self.dsn(user, "views")]
        command = [*places, "--state", str(self.service.state), *options]
        own = ("TIDEMARK_CHECKPOINT", "TIDEMARK_ALLOW")
        settings = {k: v for k, v in self.service.environment.items() if k.startswith(own)}
        return run("uninstall", *command, code=None, **settings, **environment)

    def require_as_before(self) -> None:
        """Nothing is left, and the role can be dropped: by whoever has made it."""
        self.shop.execute(f"DROP ROLE {ROLE}")
        assert differences(self.before, contents(self.server, DATABASES)) == {}
        assert not self.service.state.exists()


def create(service: RunningService, name: str, query: str, **options: str) -> None:
    """Create a view; on a busy machine its pipeline may be silent for a while."""
    service.create(name, query, wait_s=0, **options)
    service.await_status(name, timeout_s=300)


def run(*words: str, code: int | None = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service.cli.main", *words]
    settings = {k: v for k, v in os.environ.items() if not k.startswith("TIDEMARK_")}
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**settings, **environment},
    )
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done


def things(lines: list[str], outcome: str) -> list[str]:
    return [x[8:] for x in lines if x[:8].rstrip() == outcome]


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    with EmbeddedPostgres(settings=SERVER_SETTINGS) as server:
        admin = Database(server, "postgres")
        admin.execute("CREATE ROLE shop; CREATE ROLE ann LOGIN")
        for name in (*DATABASES, "copies"):
            admin.execute(f"CREATE DATABASE {name} OWNER shop")
        Database(server, "shop").execute(SHOP)
        Database(server, "views").execute(VIEWS)
        made = Ground(server, tmp_path)
        try:
            yield made
        finally:
            made.service.stop()


def test_nothing_is_left(ground: Ground) -> None:
    ground.install()
    with ground.service:
        ground.use(ground.service)
        refused = ground.uninstall("--yes", code=1)
        assert any("uninstall.running" in line for line in refused), refused
        assert any(f"pid {ground.service.pid}" in line for line in refused), refused
    installed = contents(ground.server, DATABASES)
    files = sorted(map(str, ground.folder.rglob("*")))
    planned = ground.uninstall("--dry-run")
    assert differences(installed, contents(ground.server, DATABASES)) == {}
    assert sorted(map(str, ground.folder.rglob("*"))) == files
    asked = ground.uninstall(code=1)
    assert any("uninstall.unconfirmed" in line for line in asked), asked
    assert differences(installed, contents(ground.server, DATABASES)) == {}
    removed = ground.uninstall("--yes")
    assert removed[-1] == "nothing is left"
    assert removed[:-1] == planned[:-1]
    ground.require_as_before()
    # What was written for others stays, without the progress of the sink.
    assert any("postgres sink shown.totals/copy: table public.totals" in x for x in removed)
    assert ground.copies() == ground.totals()
    copies = Database(ground.server, "copies")
    assert copies.rows("SELECT to_regclass('tidemark_sink_progress')") == [(None,)]
    kept = things(removed, "keep")
    assert any(line.startswith("checkpoints:") for line in kept), kept
    assert list((ground.folder / "copies" / "tidemark").rglob("*.json"))
    again = ground.uninstall("--yes", "--checkpoints")
    assert things(again, "remove") == [
        f'checkpoints: checkpoints of "tidemark" in "{ground.folder / "copies"}"'
    ]
    assert not (ground.folder / "copies" / "tidemark").exists()
    assert ground.uninstall("--yes") == ["nothing is left"]


def test_tables_stay_and_kills_do_no_harm(ground: Ground) -> None:
    """Killed once at each point, with the tables kept as plain ones."""
    ground.install()
    with ground.service:
        ground.use(ground.service)
    ground.views.execute("CREATE VIEW shown.counted AS SELECT count(*) FROM shown.totals")
    refused = ground.uninstall("--yes", code=1)
    assert any("view shown.counted" in line for line in refused), refused
    assert any("uninstall.dependents" in line for line in refused), refused
    names = ("totals", "notes", "apart", "anns")
    rows = {name: _rows(ground.views, f"shown.{name}") for name in names}
    past = ground.views.rows("SELECT count(*) FROM shown.totals_history")
    for point in UNINSTALL:
        killed = ground.started("--yes", "--keep-tables", TIDEMARK_FAILPOINTS=f"{point}=kill")
        assert killed.returncode == -9, (point, killed.stdout, killed.stderr)
    ground.uninstall("--yes", "--keep-tables")
    assert not ground.service.state.exists()
    assert {name: _rows(ground.views, f"shown.{name}") for name in names} == rows
    assert ground.views.rows("SELECT count(*) FROM shown.totals_history") == past
    assert as_role(ground.views, "ann", "SELECT count(*) FROM shown.totals_history") == past
    assert ground.views.rows("SELECT * FROM shown.counted") == [(len(rows["totals"]),)]
    # They are plain: of the owner of the database, without triggers and comments, and writable.
    owners = ground.views.rows(
        "SELECT DISTINCT relowner::regrole::text FROM pg_class"
        " WHERE relnamespace = 'shown'::regnamespace AND relname NOT IN ('counted', 'of_users')"
    )
    assert owners == [("shop",)]
    ground.views.execute("DELETE FROM shown.totals WHERE region = 'new'")
    ground.views.execute("DROP VIEW shown.counted")
    left = differences(ground.before, contents(ground.server, DATABASES))
    # The role that stays is a member of the owners of tables.
    assert set(left) == {"roles", "members", "views: schema", "views: replica identities"}, left
    assert not [line for line in left["views: schema"][1] if "tidemark" in line.lower()]
    ground.views.execute(
        "DROP TABLE shown.totals, shown.apart, shown.anns, shown.totals_history,"
        " shown.notes_history; DROP VIEW shown.notes; DROP TABLE shown._notes"
    )
    ground.require_as_before()


def test_one_of_two_services_leaves_then_the_other(ground: Ground) -> None:
    """The other continues; it leaves without a source, and by its own role, which may less."""
    ground.install()
    with ground.made("other", "other") as other:
        create(other, "shown.notes", NOTES)
        with ground.service:
            ground.use_one(ground.service)
        ground.uninstall("--yes", "--prefix", "tidemark")
        assert not ground.service.state.exists()
        _require_no_trace(ground.views, "tidemark", "totals")
        ground.shop.execute("INSERT INTO sales.orders VALUES (2000, 'new', 1, 'two')")
        ((position,),) = ground.shop.rows("SELECT pg_current_wal_flush_lsn()::text")
        other.wait("shown.notes", position, timeout_s=300)
        assert _rows(ground.views, "shown.notes") == sorted(ground.shop.rows(NOTES))
        assert ground.uninstall("--yes", "--prefix", "tidemark")[-1] == "nothing is left"
        # From another machine, too: the sink says where it runs.
        refused = ground.uninstall("--yes", "--prefix", "other", code=1)
        assert any("uninstall.running" in line for line in refused), refused
    nowhere = f"host=127.0.0.1 port={ground.server.port} user=postgres dbname=gone"
    options = ("--yes", "--prefix", "other", "--source", nowhere)
    by_hand = _commands(ground.uninstall(*options, user=ROLE, code=1))
    assert "SELECT pg_drop_replication_slot('other_shop_source');" in by_hand
    assert 'DROP PUBLICATION "other_source";' in by_hand
    # What the source and its administrator have to do: it is the other's source after all.
    for command in by_hand:
        place = ground.views if "shown" in command or "views" in command else ground.shop
        place.execute(command)
    rest = _commands(ground.uninstall("--yes", "--prefix", "other", "--role", ROLE))
    assert rest == []
    ground.uninstall("--yes", "--prefix", "other", "--state", str(other.state))
    assert not other.state.exists()
    ground.require_as_before()


def _rows(database: Database, name: str) -> list[Any]:
    return sorted(database.rows(f"SELECT * FROM {name}"))


def _commands(lines: list[str]) -> list[str]:
    return [line.split("run: ")[1] for line in lines if "run: " in line]


def _require_no_trace(sink: Database, service: str, view: str) -> None:
    """No row of any control table names the service or its view, also not of a later version."""
    tables = sink.rows(
        "SELECT oid::regclass::text FROM pg_class"
        " WHERE relnamespace = 'tidemark'::regnamespace AND relkind = 'r'"
    )
    assert len(tables) > 10
    for (table,) in tables:
        found = sink.rows(
            f"SELECT x::text FROM {table} AS x, LATERAL jsonb_each_text(to_jsonb(x)) AS f"
            " WHERE f.value = %s OR f.value LIKE %s OR f.value = %s OR f.value = %s",
            (service, f"{service}/%", view, f"shown.{view}"),
        )
        assert not found, (table, found)
