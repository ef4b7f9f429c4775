"""Oracle: the model of tests/harness/sink_contract.py; a session of its own reads rows and progress
in one snapshot of the other PostgreSQL."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from psycopg2.extensions import parse_dsn

from connectors.postgres.additional.options import TableOptions
from connectors.postgres.additional.sink import check, make
from connectors.postgres.session.backend_probe import TIME_LIMITS
from connectors.postgres.session.session import connect
from connectors.sink import SinkTable
from connectors.view_sink import ViewSink
from dataflow.errors import SinkError, TidemarkError
from tests.harness import sink_contract
from tests.harness.postgres import Database
from tests.harness.proxy import Proxy
from tests.harness.sink_contract import ALL, FINITE, Model, Row, new_identity
from tests.harness.tiers import count

KILLS = count("TIDEMARK_TEST_KILLS", 3, 20)
FAULTS = count("TIDEMARK_TEST_FAULTS", 3, 20)
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "7"))
FAILPOINTS = ("copy.commit.before", "copy.commit.after")
MODES = [("rows", True), ("rows", False), ("changes", True), ("changes", False)]

# A cast prints whole words.
_BOOLEANS = {"true": "t", "false": "f"}

pytestmark = pytest.mark.timeout(300 + 20 * (KILLS + FAULTS))


@dataclass
class PostgresTarget:
    """A schema of a database; rows are read by name, and a changelog is added up."""

    database: Database
    mode: str = "rows"
    more: dict[str, Any] = field(default_factory=dict)
    failpoints: Sequence[str] = FAILPOINTS

    def options(self) -> dict[str, Any]:
        keywords = parse_dsn(self.database.dsn)
        login = {"host": "127.0.0.1", "port": int(keywords["port"]), "user": keywords["user"]}
        return {**login, "database": keywords["dbname"], "mode": self.mode, **self.more}

    def sink(self, table: SinkTable, identity: str) -> ViewSink:
        return make(self.options(), table, identity, f"{table.title}/copy")

    def read(self, table: SinkTable) -> tuple[Counter[Row], int | None]:
        with contextlib.closing(connect(self.database.dsn, is_users=True)) as session:
            session.set_session(isolation_level="REPEATABLE READ", autocommit=False)
            cursor = session.cursor()
            cursor.execute("SELECT to_regclass('public.tidemark_sink_progress')")
            if cursor.fetchone() == (None,):
                return Counter(), None
            cursor.execute(
                "SELECT epoch FROM public.tidemark_sink_progress WHERE table_name = %s",
                (table.title,),
            )
            found = cursor.fetchone()
            if found is None or found[0] is None:
                return Counter(), None
            columns = ", ".join(f'"{f.name}"::text' for f in table.fields)
            if self.mode == "rows":
                cursor.execute(f"SELECT {columns}, 1 FROM {table.name}")
            else:
                cursor.execute(f"SELECT {columns}, tidemark_weight FROM {table.name}")
            rows: Counter[Row] = Counter()
            for *values, weight in cursor.fetchall():
                rows[
                    tuple("tf"[v == "false"] if v in ("true", "false") else v for v in values)
                ] += weight
            assert min(rows.values(), default=0) >= 0
            return +rows, found[0]


def model_of(is_keyed: bool, pools: Any = ALL, seed: int = SEED) -> Model:
    return Model(pools, is_keyed=is_keyed, seed=seed)


@pytest.mark.parametrize(("mode", "is_keyed"), MODES)
def test_every_epoch_is_the_view(database: Database, mode: str, is_keyed: bool) -> None:
    sink_contract.check_life(PostgresTarget(database, mode), model_of(is_keyed))


@pytest.mark.parametrize(("mode", "is_keyed"), MODES)
def test_a_failure_around_the_commit(database: Database, mode: str, is_keyed: bool) -> None:
    target = PostgresTarget(database, mode)
    sink_contract.check_unknown_outcome(target, model_of(is_keyed))
    sink_contract.check_torn_write(target, model_of(is_keyed))


@pytest.mark.parametrize(("mode", "is_keyed"), MODES)
def test_an_epoch_in_parts(database: Database, mode: str, is_keyed: bool) -> None:
    sink_contract.check_large_epoch(PostgresTarget(database, mode), model_of(is_keyed, FINITE))


def test_an_epoch_of_more_rows_than_arrays_take(database: Database) -> None:
    sink_contract.check_large_epoch(PostgresTarget(database), model_of(True, FINITE[:3]), 60_000)


def test_changes_alone(database: Database) -> None:
    target = PostgresTarget(database, "changes", {"initial": "changes"})
    sink_contract.check_changes_only(target, model_of(True))


def test_a_second_writer_fences_the_first(database: Database) -> None:
    sink_contract.check_fencing(PostgresTarget(database), model_of(True, FINITE))


@pytest.mark.parametrize(("mode", "is_keyed"), MODES)
def test_what_was_written_is_removed(database: Database, mode: str, is_keyed: bool) -> None:
    target, model = PostgresTarget(database, mode), model_of(is_keyed, FINITE)
    sql = "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
    sink_contract.check_removal(target, model, lambda: database.rows(sql) == [(0,)])


def test_what_was_written_stays_when_the_service_leaves(database: Database) -> None:
    model = model_of(True, FINITE)
    sink_contract.check_detachment(
        PostgresTarget(database),
        model,
        lambda: sorted(map(repr, database.rows(f"SELECT * FROM {model.table.name}"))),
        lambda: database.rows("SELECT to_regclass('tidemark_sink_progress')") == [(None,)],
    )


def test_a_table_that_is_gone_is_not_begun_again(database: Database) -> None:
    def recreate(name: str) -> None:
        database.execute(f"CREATE TABLE other (LIKE {name} INCLUDING ALL)")
        database.execute(f"DROP TABLE {name}; ALTER TABLE other RENAME TO {name}")

    for lose in (lambda name: database.execute(f"DROP TABLE {name}"), recreate):
        model = model_of(True, FINITE)
        lost = lambda lose=lose, model=model: lose(model.table.name)  # noqa: E731
        sink_contract.check_loss(PostgresTarget(database), model, lost)
    model = model_of(True, FINITE)
    sql = "DELETE FROM tidemark_sink_progress"
    sink_contract.check_loss(PostgresTarget(database), model, lambda: database.execute(sql))


def test_rows_that_others_have_changed(database: Database) -> None:
    for is_keyed in (True, False):
        model = model_of(is_keyed, FINITE)
        sink = PostgresTarget(database).sink(model.table, new_identity())
        sink.open(None)
        sink.write([model.epoch(100)])
        database.execute(f"DELETE FROM {model.table.name if is_keyed else '_' + model.table.name}")
        with pytest.raises(SinkError) as raised:
            sink.write([model.epoch(100)])
        assert raised.value.code == "sink.target_changed"
        sink.close()


def test_a_table_that_is_given(database: Database) -> None:
    target, model = PostgresTarget(database), model_of(True, FINITE)
    columns = ", ".join(f'"{f.name}" {f.type.name}' for f in model.table.fields)
    name = model.table.name
    database.execute(f"CREATE TABLE {name} ({columns}, seen timestamptz DEFAULT now())")
    assert _refused(target, model) == "sink.table_unfit"
    database.execute(f"ALTER TABLE {name} ADD PRIMARY KEY (id)")
    assert check(target.options(), model.table, "t")["table"] == f"public.{name}"
    identity = new_identity()
    sink = target.sink(model.table, identity)
    sink.open(None)
    sink.write([model.epoch(50)])
    sink.write([model.epoch(), model.epoch()])
    sink_contract.require(target, model, model.number)
    assert _refused(target, model) == "sink.table_unfit"
    sink.close()
    target.sink(model.table, identity).remove()
    assert database.rows(f"SELECT count(*) FROM {name}") == [(0,)]
    database.execute(f"ALTER TABLE {name} DROP COLUMN big")
    assert _refused(target, model) == "sink.table_unfit"


def _refused(target: PostgresTarget, model: Model) -> str:
    with pytest.raises(TidemarkError) as raised:
        check(target.options(), model.table, "t")
    return raised.value.code


def test_what_check_refuses(database: Database) -> None:
    model = model_of(True, FINITE)
    for more, code in (
        ({"table": "nowhere.t"}, "sink.schema_missing"),
        ({"database": "nowhere"}, "sink.database"),
        ({"user": "nobody_of_this_name"}, "sink.login"),
        ({"port": 1}, "sink.unreachable"),
        ({"mode": "upsert"}, "sink.bad_option"),
        ({"initial": "changes"}, "sink.bad_option"),
        ({"password": "plain"}, "secret.plain"),
        ({"database": "${env:HOME}"}, "sink.bad_option"),
        ({"host": "/tmp"}, "sink.bad_option"),
        ({"nosuch": 1}, "sink.bad_option"),
        ({"table": ""}, "sink.bad_option"),
    ):
        assert _refused(PostgresTarget(database, more=more), model) == code, more
    assert database.rows("SELECT to_regclass('tidemark_sink_progress')") == [(None,)]


def test_only_the_named_secret_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """None that libpq would find with the service's user: the sink's owner is somebody else."""
    monkeypatch.setenv("SECRET_COPY", "the sink's own")
    monkeypatch.setenv("PGPASSWORD", "the service's")
    given = {"host": "127.0.0.1", "database": "d", "user": "u"}
    table = model_of(True, FINITE).table
    for more, password in (({}, ""), ({"password": "${env:SECRET_COPY}"}, "the sink's own")):
        found = TableOptions.of({**given, **more}, table).dsn().keywords()
        assert found["password"] == password
        assert found["passfile"] == found["sslcert"] == "/nonexistent"


@pytest.mark.parametrize(("mode", "is_keyed"), [MODES[0], MODES[1], MODES[3]])
def test_kills(database: Database, mode: str, is_keyed: bool) -> None:
    target = PostgresTarget(database, mode)
    sink_contract.check_kills(target, lambda: model_of(is_keyed, FINITE), KILLS, SEED)


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(TIME_LIMITS, "liveness_timeout_s", 9.0)
    yield


@pytest.mark.parametrize(("mode", "is_keyed"), [MODES[0], MODES[3]])
def test_faults_of_the_network(
    database: Database, short_limits: None, mode: str, is_keyed: bool
) -> None:
    port = int(parse_dsn(database.dsn)["port"])
    with Proxy(port) as proxy:
        target = PostgresTarget(database, mode, {"port": proxy.port})
        sink_contract.check_faults(target, model_of(is_keyed, FINITE), proxy, FAULTS, SEED)
