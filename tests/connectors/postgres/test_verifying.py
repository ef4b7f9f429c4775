"""Oracle: PostgreSQL's rules of rights: what a role may read, and who current_user is."""

from __future__ import annotations

import psycopg2
import pytest

from connectors.postgres.query.answer_comparison import SortedRows, compare
from connectors.postgres.query.verify_session import Reader, open_sandboxed
from connectors.postgres.snapshot.point_in_time import PointInTimeRead
from connectors.postgres.source import PostgresSource
from dataflow.errors import TidemarkError
from dataflow.schema import Field
from dataflow.types import FLOAT8, INT4, NUMERIC, TEXT
from tests.harness.postgres import Database

HOSTILE = """
CREATE TABLE secrets (word text); INSERT INTO secrets VALUES ('s3cret');
CREATE TABLE open (id int PRIMARY KEY); INSERT INTO open VALUES (1);
DROP ROLE IF EXISTS maker; CREATE ROLE maker;
GRANT SELECT ON open TO maker; GRANT CREATE ON SCHEMA public TO maker;
SET ROLE maker;
CREATE FUNCTION steal(id int) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    BEGIN
        PERFORM set_config('role', session_user, true);
    EXCEPTION WHEN OTHERS THEN NULL;
    END;
    RETURN current_user || ' ' || (SELECT word FROM secrets);
EXCEPTION WHEN insufficient_privilege THEN
    RETURN current_user;
END $$;
RESET ROLE;
"""


def test_functions_of_a_query_have_its_creators_rights(database: Database) -> None:
    database.execute(HOSTILE)
    query = "SELECT id, steal(id) AS word FROM open"
    fields = (Field("id", INT4, False), Field("word", TEXT))
    session, asked, _ = open_sandboxed(database.dsn, "maker", query, None)
    rows = SortedRows(fields, (0,))
    with session.cursor() as cursor:
        rows.fill(cursor, asked)
        with pytest.raises(psycopg2.Error):
            cursor.execute("CREATE TABLE written (a int)")
    session.close()
    assert list(rows.lines()) == ["1\tmaker"]
    with pytest.raises(TidemarkError, match=r"source\.role"):
        open_sandboxed(database.dsn, "nobody at all", query, None)
    database.execute("DROP OWNED BY maker; DROP ROLE maker")


def test_a_statement_ends_in_time(database: Database) -> None:
    reader = Reader("source", database.connect(autocommit=False), 0.2)
    with pytest.raises(TidemarkError, match=r"verify\.timeout"):
        reader.fill(SortedRows((Field("a", INT4),), ()), "SELECT 1 FROM pg_sleep(20)")
    reader.close()


def test_a_moment_takes_its_slot_with_it(database: Database) -> None:
    source = PostgresSource(database.dsn)
    source.ensure_slot()
    moment = PointInTimeRead(database.dsn, [], source.publication_name)
    count = "SELECT count(*) FROM pg_replication_slots WHERE temporary"
    assert database.rows(count)[0][0] == 1
    moment.close()
    assert database.rows(count)[0][0] == 0
    source.drop_slot()
    source.close()


COMPARED = [
    # expected, found: missing, surplus, different, alike
    ("1 a 1.5|2 b NaN", "1 a 1.5|2 b NaN", (0, 0, 0, 0)),
    ("1 a 1.5", "1 a 1.5000000000001", (0, 0, 0, 0)),
    ("1 a 1.5", "1 a 1.6", (1, 1, 0, 0)),
    ("1.0 a 1|1.0 a 1", "1.0 a 1", (1, 0, 0, 0)),
    ("1.0 a 1", "1.00 a 1", (0, 0, 0, 1)),
    (r"1 \N 1", "1  1", (1, 1, 0, 0)),
    ("1 a 1|1 a 5|1 a 9", "1 a 5|1 a 9", (1, 0, 0, 0)),
]


@pytest.mark.parametrize(("expected", "found", "counts"), COMPARED)
def test_rows_are_equal_by_the_rules(
    database: Database, expected: str, found: str, counts: tuple[int, int, int, int]
) -> None:
    fields = (Field("n", NUMERIC), Field("t", TEXT), Field("f", FLOAT8))
    sides = []
    connection = database.connect()
    for text in (expected, found):
        rows = SortedRows(fields, ())
        values = ", ".join(
            f"({n}::numeric, {'NULL' if t == chr(92) + 'N' else repr(t)}::text, '{f}'::float8)"
            for n, t, f in (row.split(" ") for row in text.split("|"))
        )
        rows.fill(connection.cursor(), f"SELECT * FROM (VALUES {values}) v")
        sides.append(rows)
    got = compare(sides[0], sides[1], fields, (), 10)
    assert (got.missing, got.surplus, got.different, got.alike) == counts
    assert got.rows == len(found.split("|"))
