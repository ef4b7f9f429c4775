"""Oracle: the codes of docs/POSTGRES.md for servers, roles, tables and options that are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from connectors.postgres.remote import source as remote
from dataflow.errors import TidemarkError
from tests.connectors.postgres_source.reading import Held, error_of, made, options_of, source_of
from tests.harness.postgres import Database

TABLE = "CREATE TABLE items (id int PRIMARY KEY, name varchar(9), at timestamptz)"
BAD_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "source.bad_option": {"host": "/tmp"},
    "secret.plain": {"password": "hunter2"},
}
COLUMNS = [{"name": "id", "type": "int"}, {"name": "name", "type": "text"}]


def _options(database: Database, columns: list[dict[str, str]], **more: Any) -> dict[str, Any]:
    table = {"table": "public.items", "columns": columns, "key": ["id"], **more}
    return {**options_of(database), "tables": {"items": table}}


def _refusal(database: Database, options: Mapping[str, Any]) -> TidemarkError:
    with pytest.raises(TidemarkError) as found:
        made(database, options).check()
    return found.value


@pytest.mark.parametrize("code", BAD_OPTIONS)
def test_options(database: Database, code: str) -> None:
    with pytest.raises(TidemarkError) as found:
        remote.declare({**_options(database, COLUMNS), **BAD_OPTIONS[code]})
    assert found.value.code == code


def test_a_table_that_is_fine(database: Database) -> None:
    database.execute(TABLE)
    source_of(database, "public.items").check()
    # A shorter type's texts pass as text.
    made(database, _options(database, COLUMNS)).check()
    assert not database.rows("SELECT FROM pg_publication")


def test_columns_and_keys(database: Database) -> None:
    database.execute("CREATE TYPE pair AS (a int, b int)")
    database.execute(
        "CREATE TABLE items (id int PRIMARY KEY, name text, p pair, g int GENERATED "
        "ALWAYS AS (id) STORED, big bigint UNIQUE)"
    )
    proposed = remote.discover(options_of(database, "public.items"))["tables"]["items"]
    assert [c["name"] for c in proposed["columns"]] == ["id", "name", "big"]
    for column, type, code in (
        ("p", "text", "postgres.unsupported_column"),
        ("g", "int", "postgres.unsupported_column"),
        ("big", "int", "source.column_changed"),
        ("nosuch", "int", "source.column_dropped"),
    ):
        options = _options(database, [*COLUMNS, {"name": column, "type": type}])
        assert _refusal(database, options).code == code
    columns = [*COLUMNS, {"name": "big", "type": "bigint"}]
    assert _refusal(database, _options(database, columns, key=["big"])).code == "source.key_changed"
    database.execute("ALTER TABLE items REPLICA IDENTITY FULL")
    is_refused = database.server.version >= 18
    if is_refused:
        assert _refusal(database, _options(database, COLUMNS)).code == "source.no_identity"
    else:
        made(database, _options(database, COLUMNS)).check()
    database.execute("ALTER TABLE items REPLICA IDENTITY DEFAULT")
    error = _refusal(database, _options(database, COLUMNS, key=[]))
    assert error.code == "source.no_replica_identity" and "FULL" in error.hint


def test_tables(database: Database) -> None:
    assert _refusal(database, _options(database, COLUMNS)).code == "source.table_missing"
    database.execute("CREATE TABLE items (id int, name text)")
    refusal = _refusal(database, _options(database, COLUMNS))
    assert refusal.code == "source.no_replica_identity"
    database.execute(
        "DROP TABLE items; CREATE UNLOGGED TABLE items (id int PRIMARY KEY, name text)"
    )
    assert _refusal(database, _options(database, COLUMNS)).code == "source.not_publishable"


def test_roles(database: Database) -> None:
    database.execute(TABLE)
    role = f"r_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN")
    try:
        options = {**_options(database, COLUMNS), "user": role}
        for statement in (
            f"ALTER ROLE {role} REPLICATION",
            f"GRANT CREATE ON DATABASE {database.name} TO {role}",
            f"GRANT SELECT ON items TO {role}",
            f"ALTER TABLE items OWNER TO {role}",
        ):
            error = _refusal(database, options)
            assert error.code == "source.privilege", error.described
            database.execute(statement)
        made(database, options).check()
        assert _refusal(database, {**options, "user": "nobody"}).code == "source.login"
    finally:
        database.execute(f"ALTER TABLE items OWNER TO postgres; DROP OWNED BY {role}")
        database.execute(f"DROP ROLE {role}")


def test_slots(database: Database) -> None:
    database.execute(TABLE)
    source = source_of(database, "public.items")
    held = Held(source).start()
    name = "tidemark_default_from_erp"
    # Another group has a slot of its own.
    other = made(database, remote.discover(options_of(database, "public.items")), "night")
    Held(other).start()
    found = database.rows(
        "SELECT slot_name FROM pg_replication_slots WHERE database = current_database() ORDER BY 1"
    )
    assert found == [(name,), ("tidemark_night_from_erp",)]
    other.release(float("inf"))
    # Another server, as far as the position knows.
    here = held.positions["items"]
    held.positions["items"] = {**here, "system": "1"}
    error = error_of(held)
    assert error.code == "source.identity_changed" and error.relation is not None
    held.positions["items"] = here
    database.execute("SELECT pg_drop_replication_slot(%s)", (name,))
    assert error_of(held).code == "source.slot_missing"
    # Released, unless it was begun again since.
    source.start_position(source.relations()[0])
    source.release(0.0)
    assert database.rows("SELECT FROM pg_replication_slots WHERE slot_name = %s", (name,))
    source.release(float("inf"))
    assert not database.rows("SELECT FROM pg_replication_slots WHERE slot_name = %s", (name,))
    assert not database.rows("SELECT FROM pg_publication")


def test_a_database_that_cannot_be_reached(database: Database) -> None:
    options = {**_options(database, COLUMNS), "port": 1}
    assert _refusal(database, options).code == "source.unreachable"
    with pytest.raises(TidemarkError) as found:
        made(database, options).release(float("inf"))
    assert found.value.code == "source.slot_not_dropped"
    assert "pg_drop_replication_slot('tidemark_default_from_erp')" in found.value.hint
