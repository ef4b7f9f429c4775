"""Oracle: the code of each statement's effect, as docs/POSTGRES.md lists it."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.postgres.remote import source as remote
from tests.connectors.postgres_source.reading import (
    Held,
    error_of,
    follow,
    is_equal,
    made,
    options_of,
)
from tests.harness.postgres import Database

TABLE = (
    "CREATE TABLE items (id int PRIMARY KEY, name text NOT NULL, price numeric(8,2), extra int); "
    "CREATE TABLE parts (id int, n int, PRIMARY KEY (id)) PARTITION BY RANGE (id); "
    "CREATE TABLE parts_low PARTITION OF parts FOR VALUES FROM (0) TO (100); "
    "INSERT INTO items SELECT n, 'n' || n, n FROM generate_series(1, 5) n; "
    "INSERT INTO parts SELECT n, n FROM generate_series(1, 5) n"
)
HARMLESS = (
    "ALTER TABLE items ADD COLUMN more int DEFAULT 3",
    "ALTER TABLE items DROP COLUMN extra",
    "ALTER TABLE items RENAME TO articles; ALTER TABLE articles RENAME TO items",
    "CREATE INDEX ON items (name)",
    "CREATE TABLE parts_high PARTITION OF parts FOR VALUES FROM (100) TO (200); "
    "INSERT INTO parts VALUES (150, 1)",
    "TRUNCATE parts",
)
FATAL = {
    "ALTER TABLE items DROP COLUMN price": "source.column_dropped",
    "ALTER TABLE items RENAME COLUMN price TO cost": "source.column_dropped",
    "ALTER TABLE items RENAME COLUMN price TO x; ALTER TABLE items RENAME COLUMN extra TO price": (
        "source.column_dropped"
    ),
    "ALTER TABLE items ALTER price TYPE numeric(9,2)": "source.column_changed",
    "ALTER TABLE items ALTER name TYPE text USING upper(name)": "source.table_rewritten",
    "ALTER TABLE items DROP CONSTRAINT items_pkey": "source.key_changed",
    "ALTER TABLE items REPLICA IDENTITY NOTHING": "source.key_changed",
    "DROP TABLE items": "source.table_missing",
    "DROP TABLE items; CREATE TABLE items (id int PRIMARY KEY, name text NOT NULL, "
    "price numeric(8,2), extra int)": "source.table_missing",
    "ALTER PUBLICATION tidemark_default_from_erp DROP TABLE items": "source.not_published",
    "ALTER PUBLICATION tidemark_default_from_erp SET (publish = 'insert')": (
        "source.publication_altered"
    ),
}


def _held(database: Database) -> Held:
    database.execute(TABLE)
    options: Any = remote.discover(options_of(database, "public.items", "public.parts"))
    columns = options["tables"]["items"]["columns"]
    # What is not declared may come and go.
    options["tables"]["items"]["columns"] = [c for c in columns if c["name"] != "extra"]
    return Held(made(database, options)).start()


def test_what_changes_nothing_of_the_declared_columns(database: Database) -> None:
    held = _held(database)
    for number, statement in enumerate(HARMLESS):
        database.execute(f"INSERT INTO items (id, name) VALUES ({100 + number}, 'before')")
        database.execute(statement)
        database.execute(f"INSERT INTO items (id, name) VALUES ({200 + number}, 'after')")
        if number % 2:
            follow(held, is_equal)
    follow(held, is_equal)


@pytest.mark.parametrize("is_down", [False, True], ids=["running", "down"])
@pytest.mark.parametrize("statement", FATAL)
def test_what_stops_the_relation_by_name(database: Database, statement: str, is_down: bool) -> None:
    held = _held(database)
    database.execute("INSERT INTO items VALUES (6, 'f', 6)")
    if is_down:
        database.execute(statement)
        error = error_of(held)
    else:
        error = error_of(held, lambda: database.execute(statement))
    assert error.code == FATAL[statement], error.described
    assert error.relation is not None
    assert error.relation.name == "items" or "PUBLICATION" in statement


def test_a_partition_that_comes_with_rows(database: Database) -> None:
    held = _held(database)
    database.execute(
        "CREATE TABLE apart (id int PRIMARY KEY, n int); INSERT INTO apart VALUES (300, 1); "
        "ALTER TABLE parts ATTACH PARTITION apart FOR VALUES FROM (300) TO (400)"
    )
    error = error_of(held)
    assert error.code == "source.partitions_changed"
    assert error.relation is not None and error.relation.name == "parts"
