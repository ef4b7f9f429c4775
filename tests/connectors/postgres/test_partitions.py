"""Oracle: what PostgreSQL documents of publish_via_partition_root: changes of whole partitions are
not sent. docs/CONSISTENCY.md tells users so; a server that begins to send them fails here."""

from __future__ import annotations

import pytest

from tests.connectors.postgres.reading import changes_of, events, following, read_all
from tests.harness.postgres import Database

pytestmark = pytest.mark.versions

TABLES = """
CREATE TABLE part (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE part1 PARTITION OF part FOR VALUES FROM (0) TO (10);
CREATE TABLE part2 PARTITION OF part FOR VALUES FROM (10) TO (20);
CREATE TABLE part3 PARTITION OF part FOR VALUES FROM (20) TO (30);
CREATE TABLE filled (id int NOT NULL, v text);
INSERT INTO part VALUES (1, 'a'), (11, 'b'), (21, 'c');
INSERT INTO filled VALUES (31, 'd');
"""
UNSEEN = (
    "TRUNCATE part1",
    "ALTER TABLE part DETACH PARTITION part2",
    "DROP TABLE part3",
    "ALTER TABLE part ATTACH PARTITION filled FOR VALUES FROM (30) TO (40)",
)


def test_changes_of_whole_partitions_are_not_sent(every_database: Database) -> None:
    every_database.execute(TABLES)
    with following(every_database, "part") as (source, stream):
        for statement in UNSEEN:
            every_database.execute(statement)
        every_database.execute("INSERT INTO part VALUES (2, 'e')")
        found = changes_of(read_all(source, stream))
    assert events(found) == [("part", "I", ("2", "e"))]


def test_rows_deleted_one_by_one_are_sent(every_database: Database) -> None:
    """The way around: DELETE on the partition first, then truncate, detach or drop it."""
    every_database.execute(TABLES)
    with following(every_database, "part") as (source, stream):
        every_database.execute("DELETE FROM part1")
        every_database.execute("DELETE FROM part WHERE id BETWEEN 10 AND 19")
        every_database.execute("ALTER TABLE part DETACH PARTITION part2")
        every_database.execute("TRUNCATE part")
        found = changes_of(read_all(source, stream))
    assert events(found) == [
        ("part", "E", ("1", None)),
        ("part", "E", ("11", None)),
        ("part", "T", (None, None)),
    ]
