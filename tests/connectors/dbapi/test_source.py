"""Oracle: the database itself, asked by the test: SQLite, and PostgreSQL by its own module."""

from __future__ import annotations

import datetime
import decimal
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from connectors import netguard
from connectors.dbapi import source as connector
from connectors.netguard import Guard
from connectors.polled import schedule
from connectors.polled.values import records_of
from dataflow.errors import SourceError, TemporaryError
from tests.connectors.feed_mirror import make_source
from tests.connectors.polled_mirror import PolledMirror
from tests.harness.postgres import Database

COLUMNS = [
    {"name": "id", "type": "bigint"},
    {"name": "price", "type": "numeric(12,2)"},
    {"name": "note", "type": "text"},
]
QUERY = "SELECT id, price, note FROM t"


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = ("sqlite3", "psycopg2", "json", "no_such_module")
    monkeypatch.setattr(netguard, "_guard", Guard(modules=modules))
    monkeypatch.setattr(schedule, "FIRST_S", 0.05)


def options(module: str, connect: dict[str, Any], **relation: Any) -> dict[str, Any]:
    own = {"query": QUERY, "columns": COLUMNS, "key": ["id"], **relation}
    relations = {"relations": {"t": own}}
    return {"module": module, "connect": connect, "poll_interval_ms": 20, **relations}


def begun(given: dict[str, Any]) -> PolledMirror:
    mirror = PolledMirror(make_source(connector, given))
    mirror.begin()
    return mirror


def held(mirror: PolledMirror) -> list[tuple]:
    return sorted((int(row[0]), *row[1:]) for row in mirror.rows["t"].values())


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = str(tmp_path / "crm.db")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, price TEXT, note TEXT)")
        connection.execute("INSERT INTO t VALUES (1, '1.10', 'a'), (2, '2.00', NULL)")
    return path


def test_rows_of_sqlite_come_change_and_go(file: str) -> None:
    mirror = begun(options("sqlite3", {"database": file}))
    assert held(mirror) == [(1, "1.10", "a"), (2, "2.00", None)]
    mirror.open()
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE t SET note = 'b' WHERE id = 2")
        connection.execute("DELETE FROM t WHERE id = 1")
        connection.execute("INSERT INTO t VALUES (3, '3.5', 'c')")
    mirror.follow(lambda m: held(m) == [(2, "2.00", "b"), (3, "3.50", "c")])
    assert mirror.changed == 3
    mirror.close()


def test_rows_of_another_postgresql(database: Database) -> None:
    """Every type has the value that the server shows."""
    columns = {
        "i": ("bigint", "9007199254740993"),
        "n": ("numeric", "12345678901234567890.123456789"),
        "f": ("double precision", "0.1"),
        "b": ("boolean", "true"),
        "t": ("text", "'é'"),
        "d": ("date", "'2024-02-29'"),
        "ts": ("timestamp", "'2024-02-29 12:34:56.789012'"),
        "tz": ("timestamptz", "'2024-02-29 12:34:56.789012+02'"),
        "u": ("uuid", "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'"),
        "y": ("bytea", "'\\xdeadbeef'"),
        "j": ("jsonb", "'[1, {\"a\": null}]'"),
    }
    fields = ", ".join(f"{name} {type}" for name, (type, _) in columns.items())
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, {fields})")
    database.execute(f"INSERT INTO t VALUES (1, {', '.join(v for _, v in columns.values())})")
    database.execute("INSERT INTO t VALUES (2)")
    declared = [{"name": n, "type": t} for n, (t, _) in columns.items()]
    declared.append({"name": "id", "type": "int"})
    login = {"host": "127.0.0.1", "port": database.server.port, "user": "postgres"}
    login |= {"dbname": database.name, "options": "-c timezone=UTC"}
    mirror = begun(options("psycopg2", login, query="SELECT * FROM t", columns=declared))
    shown = ", ".join("left(b::text, 1)" if n == "b" else f"{n}::text" for n in columns)
    wanted = database.rows(f"SET timezone = 'UTC'; SELECT {shown}, id::text FROM t")
    assert sorted(mirror.rows["t"].values(), key=lambda r: r[-1]) == sorted(
        wanted, key=lambda r: r[-1]
    )


def test_parameters_are_values(file: str) -> None:
    given = options(
        "sqlite3", {"database": file}, query=f"{QUERY} WHERE note = ?", parameters=["a' OR 1=1 --"]
    )
    assert held(begun(given)) == []


@pytest.mark.parametrize(
    ("module", "change", "code"),
    [
        ("os", {}, "module.forbidden"),
        ("no_such_module", {}, "dbapi.module_missing"),
        ("json", {}, "dbapi.module_missing"),
        ("sqlite3", {"query": "SELECT id FROM missing"}, "dbapi.unavailable"),
        ("sqlite3", {"query": "CREATE TABLE u (id int)"}, "dbapi.refused"),
        ("sqlite3", {"parameters": [1]}, "dbapi.refused"),
        ("sqlite3", {"query": "SELECT 'x' AS id, 1 AS price, 2 AS note"}, "source.bad_record"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    file: str, module: str, change: dict[str, Any], code: str
) -> None:
    with pytest.raises((SourceError, TemporaryError)) as refused:
        begun(options(module, {"database": file}, **change))
    assert refused.value.code == code


def test_more_rows_than_are_allowed_are_an_error(file: str) -> None:
    with pytest.raises(SourceError, match=r"dbapi\.too_many_rows"):
        begun({**options("sqlite3", {"database": file}), "max_rows": 1})


def test_a_password_is_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SourceError, match="must refer to a secret") as refused:
        connector.declare(options("psycopg2", {"password": "hunter2"}))
    with pytest.raises(SourceError, match=r"connect\.host"):
        connector.declare(options("psycopg2", {"user": "me", "dbname": "crm"}))
    assert "hunter2" not in str(refused.value)
    monkeypatch.setenv("CRM_PASSWORD", "hunter2-hunter2")
    login = {"host": "127.0.0.1", "port": 1, "user": "me", "dbname": "crm"}
    given = options("psycopg2", {**login, "password": "${env:CRM_PASSWORD}"})
    with pytest.raises(TemporaryError, match=r"dbapi\.unavailable") as failed:
        begun(given)
    assert "hunter2" not in str(failed.value) + failed.value.detail


def test_columns_are_proposed(file: str) -> None:
    given = options("sqlite3", {"database": file})
    del given["relations"]["t"]["columns"]
    found = connector.discover(given)["relations"]["t"]["columns"]
    assert {c["name"] for c in found} == {"id", "price", "note"}


def test_values_are_exact_or_refused() -> None:
    row = (
        10**30,
        decimal.Decimal("0.10"),
        float("inf"),
        True,
        b"\x00\xff",
        datetime.timedelta(days=-2, microseconds=1),
        [True, None, 1, 0.5, decimal.Decimal("0.10")],
    )
    [record] = records_of("abcdefg", [row])
    assert record == (
        b'{"a":"1000000000000000000000000000000","b":"0.10","c":"inf","d":true,"e":"\\\\x00ff",'
        b'"f":"-47:59:59.999999","g":[true,null,1,0.5,"0.10"]}'
    )
    with pytest.raises(SourceError, match=r"source\.python_value"):
        records_of("a", [(object(),)])
