"""Oracle: the tables themselves, read right after the last commit of a history.

A moment is begun before that history; at its end its queries over the old snapshot must give the
tables as they are now, for each kind of table and of change.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.snapshot.point_in_time import PointInTimeRead
from connectors.postgres.source import PostgresSource
from dataflow.changes import Changes
from dataflow.delta import Column
from dataflow.errors import TemporaryError
from dataflow.schema import Relation
from dataflow.sql.bind.analysis import Table
from tests.harness.postgres import Database

TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'so so');
CREATE TABLE plain (id int, part text COLLATE "C", note text, price numeric, mood mood,
    at timestamptz, tags text[], made numeric GENERATED ALWAYS AS (price * 2) STORED,
    PRIMARY KEY (id, part));
ALTER TABLE plain ALTER note SET STORAGE EXTERNAL;
CREATE TABLE whole (a int, b text, c char(5), load jsonb);
ALTER TABLE whole REPLICA IDENTITY FULL;
ALTER TABLE whole ALTER b SET STORAGE EXTERNAL;
CREATE TABLE split (id int PRIMARY KEY, v float8) PARTITION BY RANGE (id);
CREATE TABLE split_1 PARTITION OF split FOR VALUES FROM (0) TO (50);
CREATE TABLE split_2 PARTITION OF split FOR VALUES FROM (50) TO (1000);
INSERT INTO plain SELECT i, 'p' || i % 3, repeat('x', 4000 * (i % 2)), i / 10.0, 'sad', now(), '{a}'
FROM generate_series(1, 60) i;
INSERT INTO whole SELECT i % 7, repeat('y', 3000 * (i % 2)), 'c' || i % 2, '{"a": 1}'
FROM generate_series(1, 60) i;
INSERT INTO split SELECT i, i / 3.0 FROM generate_series(1, 99) i;
"""
NAMES = ("plain", "whole", "split")


@pytest.fixture
def source(database: Database) -> PostgresSource:
    database.execute(TABLES)
    return PostgresSource(database.dsn)


def tables(database: Database) -> dict[str, Table]:
    with PostgresAnalyzer(database.dsn, "source") as analyzer:
        analyzer.analyze("SELECT 1")
        found = {name: analyzer.relation("public", name) for name in NAMES}
    return {n: t for n, t in found.items() if isinstance(t, Table)}


def change(draw: random.Random) -> str:
    i, j = draw.randint(1, 70), draw.randint(1, 7)
    return draw.choice(
        [
            f"UPDATE plain SET price = price + 1 WHERE id = {i}",
            f"UPDATE plain SET id = id + 100, part = 'q' WHERE id = {i}",
            f"UPDATE plain SET note = repeat('z', 5000) WHERE id = {i}",
            f"DELETE FROM plain WHERE id = {i}",
            f"INSERT INTO plain VALUES ({i}, 'new', NULL, 1.50, 'so so', 'infinity', '{{NULL,x}}') "
            "ON CONFLICT DO NOTHING",
            f"UPDATE whole SET c = 'z' WHERE a = {j}",
            f"DELETE FROM whole WHERE ctid = (SELECT min(ctid) FROM whole WHERE a = {j})",
            f"INSERT INTO whole VALUES ({j}, NULL, 'c1', NULL), ({j}, NULL, 'c1', NULL)",
            f"UPDATE split SET id = (id * 37) % 1000 WHERE id = {i} "
            f"AND NOT EXISTS (SELECT FROM split s WHERE s.id = ({i} * 37) % 1000)",
            f"DELETE FROM split WHERE id % 10 = {j}",
        ]
    )


def rows(connection: Any, query: str) -> Counter[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT q::text FROM ({query}) q")
        return Counter(cursor.fetchall())


def truncated(relation: Relation) -> Changes:
    nulls = tuple(Column.nulls(f.type.physical, 1) for f in relation.fields)
    return Changes(relation, np.array([Changes.TRUNCATE], np.uint8), nulls)


@pytest.mark.parametrize("seed", range(2))
def test_tables_at_a_later_position(database: Database, source: PostgresSource, seed: int) -> None:
    draw = random.Random(seed)
    found = tables(database)
    relations = [t.relation for t in found.values()]
    source.ensure_slot()
    source.watch(relations)
    connection = database.connect()
    moment = PointInTimeRead(database.dsn, relations, source.publication_name)
    try:
        with connection.cursor() as cursor:
            for _ in range(80):
                cursor.execute(change(draw))
            cursor.execute("SELECT pg_logical_emit_message(true, 'x', '')")
        position = source.current_position()
        moment.resolve(position)
        session = moment.open_session()
        for name, table in found.items():
            columns = ", ".join(column for column, _ in table.columns)
            overlay = moment.overlays[table.relation.name]
            assert overlay.is_changed
            assert rows(session, overlay.query(table)) == rows(
                connection, f"SELECT {columns} FROM {name}"
            ), name
            # While the moment is open nobody can truncate the table: only another reader's stream
            # could tell of it.
            overlay.add(truncated(table.relation))
            assert not rows(session, overlay.query(table))
        session.close()
    finally:
        moment.close()
        connection.close()
        source.drop_slot()
        source.close()


def test_too_much_in_between_is_reported(database: Database, source: PostgresSource) -> None:
    relation = tables(database)["split"].relation
    source.ensure_slot()
    source.watch([relation])
    moment = PointInTimeRead(database.dsn, [relation], source.publication_name)
    try:
        database.execute("INSERT INTO split SELECT i, 1 FROM generate_series(100, 999) i")
        for _ in range(25):
            database.execute("UPDATE split SET v = v + 1")
        with pytest.raises(TemporaryError, match="too_much"):
            moment.resolve(source.current_position())
    finally:
        moment.close()
        source.drop_slot()
        source.close()
