"""Oracle: docs/MYSQL.md, for what a server must be; each refusal names what to change."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from connectors import netguard
from connectors.feed_source import DeclaredRelation
from connectors.mysql import server as server_module
from connectors.mysql import source as mysql
from connectors.mysql.preflight import check_server
from dataflow.errors import SourceError, TemporaryError, TidemarkError
from tests.connectors.mysql.reading import made, source_of, starts
from tests.harness.mariadb import MariaDb, MariaDbServer

TABLE = "CREATE TABLE orders (id int PRIMARY KEY, amount decimal(8,2), at datetime)"
GOOD = {
    "log_bin": "ON",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "binlog_row_metadata": "FULL",
    "binlog_transaction_compression": "OFF",
    "binlog_row_value_options": "",
    "server_id": "7",
}


class _Server:
    """A server as it says that it is: MySQL's variables are not MariaDB's."""

    name, version, flavor = "shop", "8.4.0", "MySQL"

    def __init__(self, **variables: str | None) -> None:
        self._found = {k: v for k, v in {**GOOD, **variables}.items() if v is not None}

    def variables(self, *names: str) -> dict[str, str]:
        return {name: self._found[name] for name in names if name in self._found}

    def texts(self, sql: str) -> list[tuple[str, ...]]:
        return [("GRANT ALL PRIVILEGES ON *.* TO `root`@`%`",)]


def _code(action: Any) -> tuple[str, str]:
    with pytest.raises(TidemarkError) as raised:
        action()
    assert raised.value.hint
    return raised.value.code, f"{raised.value.what}. {raised.value.detail}"


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("log_bin", "OFF"),
        ("binlog_format", "MIXED"),
        ("binlog_row_image", "MINIMAL"),
        ("binlog_row_metadata", "MINIMAL"),
        ("binlog_row_metadata", None),
        ("binlog_transaction_compression", "ON"),
        ("binlog_row_value_options", "PARTIAL_JSON"),
    ],
)
def test_each_variable_is_refused_by_name(variable: str, value: str | None) -> None:
    check_server(_Server(), 0)  # type: ignore[arg-type]
    server: Any = _Server(**{variable: value})
    code, text = _code(lambda: check_server(server, 0))
    assert code == "mysql.setting" and variable in text


def test_the_number_of_the_server_is_its_own() -> None:
    server: Any = _Server()
    assert _code(lambda: check_server(server, 7))[0] == "mysql.server_id"


@contextlib.contextmanager
def _global(mariadb: MariaDb, variable: str, value: str) -> Iterator[None]:
    ((_, before),) = mariadb.rows(f"SHOW GLOBAL VARIABLES LIKE '{variable}'")
    mariadb.execute(f"SET GLOBAL {variable} = '{value}'")
    try:
        yield
    finally:
        mariadb.execute(f"SET GLOBAL {variable} = '{before}'")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("binlog_format", "STATEMENT"),
        ("binlog_row_image", "NOBLOB"),
        ("binlog_row_metadata", "NO_LOG"),
    ],
)
def test_a_servers_variables_are_read(mariadb: MariaDb, variable: str, value: str) -> None:
    mariadb.execute(TABLE)
    source = source_of(mariadb.options("orders"))
    source.check()
    with _global(mariadb, variable, value):
        code, text = _code(source.check)
    assert code == "mysql.setting" and variable in text and value in text


@pytest.mark.whole
def test_a_server_without_a_log() -> None:
    with MariaDbServer({"log-bin": ""}) as server, server.database() as found:
        found.execute(TABLE)
        source = source_of(found.options("orders"))
        code, text = _code(source.check)
    assert code == "mysql.setting" and "log_bin" in text


def test_privileges(mariadb: MariaDb) -> None:
    mariadb.execute(TABLE)
    user = f"u_{mariadb.name}"
    options = {**mariadb.options("orders"), "user": user}
    source = source_of({**options, "user": "root"})
    limited = made({**mysql.discover({**options, "user": "root"}), "user": user})
    mariadb.execute(f"CREATE USER {user}@localhost, {user}@'127.0.0.1'")
    try:
        for grant, lacking in (
            ("USAGE ON *.*", "REPLICATION SLAVE"),
            ("REPLICATION SLAVE ON *.*", "BINLOG MONITOR"),
            ("BINLOG MONITOR ON *.*", "orders"),
        ):
            mariadb.execute(f"GRANT {grant} TO {user}@localhost, {user}@'127.0.0.1'")
            code, text = _code(limited.check)
            assert (code in ("source.privilege", "source.table_missing")) and lacking in text
        grant = f"SELECT ON {mariadb.name}.*"
        mariadb.execute(f"GRANT {grant} TO {user}@localhost, {user}@'127.0.0.1'")
        limited.check()
        assert starts(limited) == starts(source)
        with pytest.raises(SourceError) as raised:
            made({**mysql.discover(options), "user": "nobody"}).check()
        assert raised.value.code == "source.login"
    finally:
        mariadb.execute(f"DROP USER {user}@localhost, {user}@'127.0.0.1'")


def test_tables_that_cannot_be_followed(mariadb: MariaDb) -> None:
    mariadb.execute(TABLE)
    mariadb.execute(
        "CREATE TABLE items (id int PRIMARY KEY, orders int, FOREIGN KEY (orders) "
        "REFERENCES orders (id) ON DELETE CASCADE)"
    )
    mariadb.execute("CREATE TABLE old (id int PRIMARY KEY) ENGINE=MyISAM")
    mariadb.execute("CREATE VIEW seen AS SELECT * FROM orders")
    for table, code in (
        ("items", "mysql.cascading_key"),
        ("old", "mysql.table_engine"),
        ("seen", "source.table_missing"),
        ("nothing", "source.table_missing"),
    ):
        assert _code(lambda table=table: source_of(mariadb.options(table)))[0] == code
        declared = {"table": f"{mariadb.name}.{table}", "columns": {"id": "integer"}}
        options = {**mariadb.options("orders"), "tables": {"t": declared}}
        assert _code(made(options).check)[0] == code


def test_columns_and_keys_are_compared(mariadb: MariaDb) -> None:
    mariadb.execute(
        "CREATE TABLE t (id int, part varchar(20), f float UNIQUE NOT NULL, p point, "
        "v int AS (id + 1) VIRTUAL, s int AS (id + 2) STORED, u uuid, c text COMPRESSED, "
        "PRIMARY KEY (id, part(3)), UNIQUE (id))"
    )
    found = mysql.discover(mariadb.options("t"))["tables"]["t"]
    assert [column["name"] for column in found["columns"]] == ["id", "part", "f", "s"]
    # Neither the beginning of a column nor a float identifies a row.
    assert found["key"] == ["id"]

    def check(columns: dict[str, str], key: list[str]) -> Any:
        table = {"table": f"{mariadb.name}.t", "columns": columns, "key": key}
        return made({**mariadb.options("t"), "tables": {"t": table}}).check

    check({"id": "integer", "s": "integer"}, ["id"])()
    check({"ID": "bigint"}, [])()
    for columns, key, code in (
        ({"id": "integer", "gone": "text"}, ["id"], "source.column_dropped"),
        ({"id": "date"}, [], "source.column_changed"),
        ({"id": "integer", "p": "bytea"}, [], "mysql.unsupported_column"),
        ({"id": "integer", "v": "integer"}, [], "mysql.unsupported_column"),
        ({"id": "integer", "u": "uuid"}, [], "mysql.unsupported_column"),
        ({"id": "integer", "c": "text"}, [], "mysql.unsupported_column"),
        ({"id": "integer", "part": "text"}, ["id", "part"], "source.key_changed"),
        ({"part": "text"}, ["part"], "source.key_changed"),
        ({"f": "real"}, ["f"], "source.bad_option"),
    ):
        assert _code(check(columns, key))[0] == code, (columns, key)


def test_databases_that_are_not_logged() -> None:
    server: Any = object.__new__(server_module.Server)
    for logged, ignored, expected in (
        ("", "", ""),
        ("shop,other", "", ""),
        ("other", "", "binlog_do_db"),
        ("", "other,shop", "binlog_ignore_db"),
    ):
        server._status_row = lambda row=("f", "4", logged, ignored): row
        assert server.unlogged("shop") == expected


def test_options_are_refused_by_name() -> None:
    good = {"host": "db", "user": "me", "tables": {"o": {"table": "s.o", "columns": {"id": "int"}}}}
    assert mysql.declare(good) == [DeclaredRelation("o", (("id", "int"),), (), is_full=True)]
    for more, word in (
        ({"password": "hunter2"}, "password"),
        ({"port": 0}, "port"),
        ({"server_id": 2**32}, "server_id"),
        ({"buffer_bytes": 1}, "buffer_bytes"),
        ({"tables": []}, "tables"),
        ({"tables": ["a.t", "b.t"]}, "tables"),
        ({"tables": {"o": {"table": "s.o"}}}, "columns"),
        ({"tables": {"o": {"table": "o", "columns": {"id": "int"}}}}, "table"),
        ({"zero_dates": "guess"}, "zero_dates"),
        ({"on_error": "skip"}, "on_error"),
        ({"hosts": "x"}, "hosts"),
        ({"tables": {"o": good["tables"]["o"], "p": {**good["tables"]["o"], "table": "S.O"}}}, "o"),
    ):
        code, text = _code(lambda more=more: mysql.declare({**good, **more}))
        assert code in ("source.bad_option", "secret.plain") and word in text


def test_an_unreachable_server_is_temporary() -> None:
    options = {"host": "127.0.0.1", "port": 1, "user": "me"}
    table = {"table": "s.o", "columns": {"id": "integer"}}
    with pytest.raises(TemporaryError) as raised:
        made({**options, "tables": {"o": table}}).check()
    assert raised.value.code == "source.unreachable"


def test_a_host_that_must_not_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netguard, "_guard", netguard.Guard(is_local=False))
    table = {"table": "s.o", "columns": {"id": "integer"}}
    options = {"host": "127.0.0.1", "port": 3306, "user": "me", "tables": {"o": table}}
    assert _code(made(options).check)[0] == "host.forbidden"


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pymysqlreplication", None)
    with pytest.raises(TidemarkError) as caught:
        server_module.package()
    assert caught.value.code == "package.missing" and "tidemarkdb[mysql]" in str(caught.value.hint)
