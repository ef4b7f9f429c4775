"""Oracle: PostgreSQL itself, asked as the role: who may not run a query is refused it, who may is
not; through views too, on every version."""

from __future__ import annotations

import psycopg2
import pytest

from connectors.postgres.analysis.rights import check_rights
from dataflow.errors import SourceError
from tests.harness.postgres import Database
from tests.harness.psql import roles, session_of

pytestmark = pytest.mark.versions

TABLES = """
CREATE TABLE open (id int PRIMARY KEY, shown int, secret int);
CREATE TABLE shut (id int PRIMARY KEY);
CREATE TABLE parts (id int, day int) PARTITION BY RANGE (day);
CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (9);
CREATE SCHEMA hidden; CREATE TABLE hidden.h (id int);
CREATE VIEW through AS SELECT id FROM shut;
CREATE VIEW twice AS SELECT id FROM through;
CREATE FUNCTION private(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT $1 + 1';
REVOKE EXECUTE ON FUNCTION private FROM PUBLIC;
GRANT SELECT (id, shown) ON open TO rita; GRANT SELECT ON twice, parts, hidden.h TO rita;
CREATE VIEW lent AS SELECT id FROM shut;
ALTER VIEW lent OWNER TO rita; GRANT CREATE, USAGE ON SCHEMA public TO rita;
"""
QUERIES = (
    *(
        "SELECT id, shown FROM open",
        "SELECT id FROM open WHERE shown > 0",
        "SELECT 1 AS x FROM open",
    ),
    *("SELECT id, secret FROM open", "SELECT id FROM open ORDER BY secret", "SELECT o FROM open o"),
    *(
        "SELECT id, o FROM open o",
        "SELECT count(*) FROM shut",
        "SELECT p.day FROM parts AS p, twice",
    ),
    *("SELECT id FROM part", "SELECT * FROM through", "SELECT * FROM lent", "SELECT * FROM twice"),
    *("SELECT * FROM hidden.h", "SELECT private(1)", "SELECT (SELECT max(id) FROM shut) AS m"),
    "WITH w AS (SELECT secret FROM open) SELECT count(*) FROM w",
    "SELECT o.id FROM open AS o JOIN open AS p USING (secret)",
)


def test_rights_are_postgresqls(every_database: Database) -> None:
    database = every_database
    with roles(database, "rita"):
        database.execute(TABLES)
        asker, connection = session_of(database, "rita"), database.connect()
        cursor = connection.cursor()
        outcomes = set()
        for query in QUERIES:
            cursor.execute(f"CREATE TEMP VIEW asked AS {query}")
            cursor.execute("SELECT 'asked'::regclass::oid")
            ((oid,),) = cursor.fetchall()
            try:
                asker.cursor().execute(query)
                may = True
            except psycopg2.errors.InsufficientPrivilege:
                may = False
            outcomes.add(may)
            if may:
                check_rights(cursor, oid, "rita")
            else:
                with pytest.raises(SourceError) as raised:
                    check_rights(cursor, oid, "rita")
                assert raised.value.code == "source.privilege", query
                assert raised.value.hint.startswith("GRANT "), query
            cursor.execute("DROP VIEW asked")
        assert outcomes == {True, False}
        with pytest.raises(SourceError) as raised:
            check_rights(cursor, 0, "nobody at all")
        assert raised.value.code == "source.role_missing"
        asker.close()
        connection.close()
