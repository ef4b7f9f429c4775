"""Oracle: the model of tests/harness/sink_contract.py; PyMySQL reads rows and progress in one
snapshot of MariaDB, and its values are printed as PostgreSQL prints them."""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pymysql
import pytest

from connectors.mysql.sink import check, make
from connectors.mysql.sink_options import TableOptions
from connectors.mysql.sink_session import SinkSession
from connectors.sink import SinkTable
from connectors.view_sink import ViewSink
from dataflow.delta import Column
from dataflow.errors import SinkError, TemporaryError, TidemarkError
from dataflow.schema import Field
from dataflow.types import FLOAT8, NUMERIC, TypeKind
from dataflow.values import to_text
from tests.harness import sink_contract
from tests.harness.mariadb import MariaDb
from tests.harness.proxy import Proxy
from tests.harness.sink_contract import ALL, FINITE, Model, Row, new_identity
from tests.harness.tiers import count

KILLS = count("TIDEMARK_TEST_KILLS", 3, 20)
FAULTS = count("TIDEMARK_TEST_FAULTS", 3, 20)
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "7"))
FAILPOINTS = ("mysql.commit.before", "mysql.commit.after")
MODES = [("rows", True), ("rows", False), ("changes", True), ("changes", False)]
# What the server's types do not tell apart.
_SAME = {"x": {"-0"}, "total": {"1.50"}}
POOLS = tuple(
    (name, kind, tuple(v for v in pool if v not in _SAME.get(name, set())))
    for name, kind, pool in FINITE
)

pytestmark = pytest.mark.timeout(300 + 20 * (KILLS + FAULTS))


@dataclass
class MySqlTarget:
    """A database; a changelog is added up."""

    mariadb: MariaDb
    mode: str = "rows"
    more: dict[str, Any] = field(default_factory=dict)
    failpoints: Sequence[str] = FAILPOINTS

    def options(self) -> dict[str, Any]:
        login = {"host": "127.0.0.1", "port": self.mariadb.server.port, "user": "root"}
        return {**login, "database": self.mariadb.name, "mode": self.mode, **self.more}

    def sink(self, table: SinkTable, identity: str) -> ViewSink:
        return make(self.options(), table, identity, f"{table.title}/copy")

    def read(self, table: SinkTable) -> tuple[Counter[Row], int | None]:
        with contextlib.closing(self.mariadb.server.connect(self.mariadb.name)) as session:
            cursor = session.cursor()
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            sql = "SELECT epoch FROM tidemark_sink_progress WHERE table_name = %s"
            try:
                cursor.execute(sql, (table.name,))
            except pymysql.MySQLError as error:
                # It does not exist, or was created since this snapshot.
                assert error.args[0] in (1146, 1412)
                return Counter(), None
            found = cursor.fetchone()
            if found is None or found[0] is None:
                return Counter(), None
            weight = "1" if table.key else "tidemark_count"
            weight = weight if self.mode == "rows" else "tidemark_weight"
            columns = ", ".join(f"`{f.name}`" for f in table.fields)
            cursor.execute(f"SELECT {columns}, {weight} FROM {table.name}")
            rows: Counter[Row] = Counter()
            for *values, times in cursor.fetchall():
                shown = (_shown(f, v) for f, v in zip(table.fields, values, strict=True))
                rows[tuple(shown)] += times
            assert min(rows.values(), default=0) >= 0
            return +rows, found[0]


def _shown(column: Field, value: Any) -> str | None:
    """A value of the server as PostgreSQL prints it."""
    kind = column.type.kind
    if value is None:
        return None
    if kind is TypeKind.BOOL:
        return "t" if value else "f"
    if kind in (TypeKind.FLOAT4, TypeKind.FLOAT8):
        return to_text(FLOAT8, Column.of("f", [value])).texts()[0]
    if kind is TypeKind.DECIMAL:
        return _trimmed(f"{value:f}")
    if kind is TypeKind.TIME:
        assert isinstance(value, timedelta)
        return _trimmed(
            f"{value.seconds // 3600:02}:{value.seconds // 60 % 60:02}:"
            f"{value.seconds % 60:02}.{value.microseconds:06}"
        )
    if kind in (TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ):
        zone = "+00" if kind is TypeKind.TIMESTAMPTZ else ""
        return _trimmed(f"{value:%Y-%m-%d %H:%M:%S.%f}") + zone
    if kind is TypeKind.BYTEA:
        return "\\x" + value.hex()
    return str(value)


def _trimmed(text: str) -> str:
    return text.rstrip("0").removesuffix(".") if "." in text else text


def model_of(is_keyed: bool) -> Model:
    return Model(POOLS, is_keyed=is_keyed, seed=SEED)


@pytest.mark.parametrize(("mode", "is_keyed"), MODES)
def test_every_epoch_is_the_view(mariadb: MariaDb, mode: str, is_keyed: bool) -> None:
    sink_contract.check_life(MySqlTarget(mariadb, mode), model_of(is_keyed))


@pytest.mark.parametrize(("mode", "is_keyed"), [MODES[0], MODES[1], MODES[2]])
def test_a_failure_around_the_commit(mariadb: MariaDb, mode: str, is_keyed: bool) -> None:
    target = MySqlTarget(mariadb, mode)
    sink_contract.check_unknown_outcome(target, model_of(is_keyed))
    sink_contract.check_torn_write(target, model_of(is_keyed))


@pytest.mark.parametrize(("mode", "is_keyed"), [MODES[0], MODES[3]])
def test_an_epoch_in_parts(mariadb: MariaDb, mode: str, is_keyed: bool) -> None:
    sink_contract.check_large_epoch(MySqlTarget(mariadb, mode), model_of(is_keyed))


def test_changes_alone(mariadb: MariaDb) -> None:
    target = MySqlTarget(mariadb, "changes", {"initial": "changes"})
    sink_contract.check_changes_only(target, model_of(True))


def test_a_second_writer_fences_the_first(mariadb: MariaDb) -> None:
    sink_contract.check_fencing(MySqlTarget(mariadb), model_of(True))


@pytest.mark.parametrize("mode", ["rows", "changes"])
def test_what_was_written_is_removed(mariadb: MariaDb, mode: str) -> None:
    target = MySqlTarget(mariadb, mode)
    sink_contract.check_removal(target, model_of(True), lambda: not mariadb.rows("SHOW TABLES"))


def test_what_was_written_stays_when_the_service_leaves(mariadb: MariaDb) -> None:
    model = model_of(True)
    marks = "SELECT table_comment FROM information_schema.tables WHERE table_schema = database()"
    sink_contract.check_detachment(
        MySqlTarget(mariadb),
        model,
        lambda: sorted(map(repr, mariadb.rows(f"SELECT * FROM {model.table.name}"))),
        lambda: [tuple(row) for row in mariadb.rows(marks)] == [("",)],
    )


def test_a_table_that_is_gone_is_not_begun_again(mariadb: MariaDb) -> None:
    def recreate(name: str) -> None:
        mariadb.execute(f"DROP TABLE {name}")
        mariadb.execute(f"CREATE TABLE {name} (id int)")

    for lose in (lambda name: mariadb.execute(f"DROP TABLE {name}"), recreate):
        model = model_of(True)
        lost = lambda lose=lose, model=model: lose(model.table.name)  # noqa: E731
        sink_contract.check_loss(MySqlTarget(mariadb), model, lost)
    sql = "DELETE FROM tidemark_sink_progress"
    sink_contract.check_loss(MySqlTarget(mariadb), model_of(True), lambda: mariadb.execute(sql))


def test_a_table_that_is_newer_than_the_transaction_is_temporary(mariadb: MariaDb) -> None:
    options = TableOptions.of(MySqlTarget(mariadb).options(), Model([]).table)
    session = SinkSession(options, "t")
    with contextlib.closing(session), pytest.raises(TemporaryError) as raised:
        session.rows("START TRANSACTION WITH CONSISTENT SNAPSHOT")
        mariadb.execute("CREATE TABLE newer (id int)")
        session.rows("SELECT id FROM newer")
    assert raised.value.code == "sink.busy" and "1412" in raised.value.detail


def test_rows_that_others_have_changed(mariadb: MariaDb) -> None:
    for is_keyed in (True, False):
        model = model_of(is_keyed)
        sink = MySqlTarget(mariadb).sink(model.table, new_identity())
        sink.open(None)
        sink.write([model.epoch(100)])
        mariadb.execute(f"DELETE FROM {model.table.name}")
        with pytest.raises(SinkError) as raised:
            sink.write([model.epoch(100)])
        assert raised.value.code == "sink.target_changed"
        sink.close()


SPECIAL = [
    ("amount", "NaN"),
    ("total", "Infinity"),
    ("total", "1" * 36),
    ("total", "0." + "1" * 31),
    ("x", "NaN"),
    ("y", "-Infinity"),
    ("day", "infinity"),
    ("day", "0044-03-15 BC"),
    ("moment", "-infinity"),
]


@pytest.mark.parametrize(("name", "value"), SPECIAL)
def test_a_value_that_does_not_fit_is_refused(mariadb: MariaDb, name: str, value: str) -> None:
    """It is neither rounded nor replaced, and nothing of the epoch is written."""
    pools = [(n, kind, (value,)) for n, kind, _ in ALL if n == name]
    model, target = Model(pools, seed=SEED), MySqlTarget(mariadb)
    sink = target.sink(model.table, new_identity())
    sink.open(None)
    with pytest.raises(SinkError) as raised:
        sink.write([model.epoch()])
    assert raised.value.code == "sink.value_unfit"
    assert f'"{name}"' in raised.value.what and value in raised.value.detail
    assert target.read(model.table) == (Counter(), None)
    sink.close()


def test_the_most_digits_are_exact(mariadb: MariaDb) -> None:
    most = f"{'9' * 35}.{'9' * 30}"
    model = Model([("total", NUMERIC, (most, f"-{most}", f"0.{'0' * 29}1"))], seed=SEED)
    sink_contract.check_life(MySqlTarget(mariadb), model)


def _refused(target: MySqlTarget, table: SinkTable) -> str:
    with pytest.raises(TidemarkError) as raised:
        check(target.options(), table, "t")
    return raised.value.code


def test_what_check_refuses(mariadb: MariaDb) -> None:
    model = model_of(True)
    assert check(MySqlTarget(mariadb).options(), model.table, "t")["table"] == model.table.name
    mariadb.execute("CREATE TABLE taken (id int)")
    for more, code in (
        ({"table": "taken"}, "sink.table_unfit"),
        ({"database": "nowhere"}, "sink.database"),
        ({"user": "nobody"}, "sink.login"),
        ({"port": 1}, "sink.unreachable"),
        ({"mode": "upsert"}, "sink.bad_option"),
        ({"initial": "changes"}, "sink.bad_option"),
        ({"password": "plain"}, "secret.plain"),
        ({"nosuch": 1}, "sink.bad_option"),
        ({"table": ""}, "sink.bad_option"),
    ):
        assert _refused(MySqlTarget(mariadb, more=more), model.table) == code, more
    fields = (Field("a", NUMERIC), Field("A", NUMERIC))
    assert _refused(MySqlTarget(mariadb), SinkTable("public", "v", fields, ())) == "sink.column"
    assert mariadb.rows("SHOW TABLES") == [("taken",)]


@pytest.mark.parametrize(("mode", "is_keyed"), [MODES[0], MODES[1], MODES[3]])
def test_kills(mariadb: MariaDb, mode: str, is_keyed: bool) -> None:
    target = MySqlTarget(mariadb, mode)
    sink_contract.check_kills(target, lambda: model_of(is_keyed), KILLS, SEED)


@pytest.mark.parametrize(("mode", "is_keyed"), [MODES[0], MODES[3]])
def test_faults_of_the_network(mariadb: MariaDb, mode: str, is_keyed: bool) -> None:
    with Proxy(mariadb.server.port) as proxy:
        target = MySqlTarget(mariadb, mode, {"port": proxy.port})
        sink_contract.check_faults(target, model_of(is_keyed), proxy, FAULTS, SEED)
