"""Oracle: a view of PostgreSQL's own, made of the same query before anything was renamed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectors.postgres.analyzer import PostgresAnalyzer
from connectors.postgres.table_names import KnownNames
from dataflow.errors import SourceError
from dataflow.schema import VIEW_SOURCE, Field, Relation, RelationName
from dataflow.types import INT4
from service.kept_names import names_facts, names_in, require_read, with_names_of_now
from tests.harness.postgres import Database

TABLES = """
CREATE SCHEMA "My Data";
CREATE TABLE t (id int PRIMARY KEY, gone int, a int, b text,
    g int GENERATED ALWAYS AS (a + 1) STORED);
ALTER TABLE t DROP COLUMN gone;
CREATE TABLE "My Data"."U u" (id int, "B b" text, a int);
CREATE TABLE twin (id int, a int);
CREATE TABLE "My Data".twin (id int, a int);
CREATE VIEW t_view AS SELECT id, a AS amount FROM t WHERE a > 2;
CREATE VIEW "My Data".t AS SELECT 7 AS a;
INSERT INTO t (id, a, b) SELECT i, i % 5, 'b' || i FROM generate_series(1, 20) i;
INSERT INTO "My Data"."U u" SELECT i, 'b' || i, i % 3 FROM generate_series(1, 10) i;
INSERT INTO twin VALUES (1, 2); INSERT INTO "My Data".twin VALUES (3, 4);
"""
QUERIES = (
    "SELECT id, a FROM t",
    "SELECT * FROM public.t",
    "SELECT t.*, x.c FROM t, LATERAL (SELECT t.a + 1 AS c) x",
    "SELECT g, count(*) FROM ONLY t AS x GROUP BY g",
    "SELECT id, b FROM t GROUP BY id",
    "SELECT k, n FROM T AS x (k, n) WHERE b <> 'b3'",
    'SELECT * FROM t JOIN "My Data"."U u" USING (id, a)',
    'SELECT * FROM t NATURAL JOIN "My Data"."U u" AS u',
    'SELECT j.k FROM (t FULL JOIN "My Data"."U u" u ON t.b = u."B b") AS j (k)',
    "SELECT a FROM t WHERE EXISTS (SELECT FROM t AS i WHERE i.id = t.id + 1 AND i.a > t.a)",
    "WITH w AS (SELECT * FROM t WHERE a > 1)"
    " SELECT w.a, t_view.amount FROM w JOIN t_view USING (id)",
    "SELECT amount FROM t_view",
    "SELECT 't' AS t, a /* FROM t */ FROM t -- t",
    "TABLE t",
    "(TABLE ONLY t EXCEPT TABLE public.t) UNION ALL SELECT * FROM t",
    "SELECT (t).a, to_jsonb(x) ->> 'twin' AS n FROM t, (SELECT 1 AS twin) x",
    'SELECT twin.a, u.a AS b FROM public.twin JOIN "My Data".twin u ON u.id = twin.id + 2',
    'SELECT a FROM "My Data".t',
)
RENAMES = (
    "ALTER TABLE t RENAME TO moved",
    'ALTER VIEW "My Data".t RENAME TO other; ALTER TABLE t SET SCHEMA "My Data"',
    'ALTER TABLE t RENAME a TO "A""a"; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME id TO b',
    "ALTER TABLE t RENAME g TO h; ALTER TABLE t ADD g int DEFAULT 77; ALTER TABLE t RENAME TO t2;"
    " CREATE TABLE t (id int PRIMARY KEY, a int, b text, g int)",
    'ALTER TABLE "My Data"."U u" RENAME TO t3; ALTER TABLE "My Data".t3 RENAME a TO b',
    'ALTER VIEW t_view RENAME amount TO a; ALTER VIEW t_view RENAME TO "t view"',
    'ALTER TABLE twin RENAME TO t4; ALTER TABLE "My Data".twin SET SCHEMA public;'
    ' ALTER TABLE t4 SET SCHEMA "My Data"; ALTER TABLE "My Data".t4 RENAME TO twin',
)
COLUMNS = (
    "SELECT quote_ident(attname) FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
)


def names_before(database: Database, query: str) -> KnownNames:
    with PostgresAnalyzer(database.dsn, "source") as analyzer:
        analyzer.analyze(query)
        kept = analyzer.named
    assert kept.server and names_in({"names": names_facts(kept)}) == kept
    return kept


@pytest.mark.parametrize("renames", RENAMES)
def test_a_query_means_what_it_meant(every_database: Database, renames: str) -> None:
    database = every_database
    database.execute(TABLES)
    known = {}
    for number, query in enumerate(QUERIES):
        database.execute(f"CREATE VIEW kept{number} AS {query}\n")
        known[number] = names_before(database, query)
    database.execute(renames)
    for number, query in enumerate(QUERIES):
        with PostgresAnalyzer(database.dsn, "source") as analyzer:
            newer = with_names_of_now(query, known[number], analyzer)
            analyzer.analyze(newer)
            if newer != query:
                require_read(known[number], analyzer)
        if "*" in query or "TABLE" in query:
            # It has the columns that were added since, as another query of today has.
            names = [name for (name,) in database.rows(COLUMNS, (f"kept{number}",))]
            newer = f"SELECT {', '.join(names)} FROM ({newer}\n) AS newer"
        both = (
            f"(TABLE kept{number} EXCEPT ALL ({newer}\n))",
            f"({newer}\n) EXCEPT ALL TABLE kept{number}",
        )
        assert [database.rows(one) for one in both] == [[], []], newer
    # With the names of now there is nothing to change.
    with PostgresAnalyzer(database.dsn, "source") as analyzer:
        newer = with_names_of_now(QUERIES[0], known[0], analyzer)
        analyzer.analyze(newer)
        assert with_names_of_now(newer, analyzer.named, analyzer) == newer


REFUSED = {
    "WITH t AS (SELECT 1 AS a) SELECT t.a FROM t, public.t AS u": "a WITH query has the same name",
    "SELECT public.t.a FROM t": "a column is named together with the schema of its table",
    "SELECT t.a FROM t, s.t AS u": '"t" may be one of two tables',
}


@pytest.mark.parametrize("query", REFUSED)
def test_what_cannot_be_told_is_refused(database: Database, query: str) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a int); CREATE SCHEMA s")
    database.execute("CREATE TABLE s.t (id int PRIMARY KEY)")
    known = names_before(database, query)
    database.execute("ALTER TABLE t RENAME TO moved")
    analyzer = PostgresAnalyzer(database.dsn, "source")
    with analyzer, pytest.raises(SourceError) as refusal:
        with_names_of_now(query, known, analyzer)
    assert refusal.value.code == "source.renamed" and REFUSED[query] in refusal.value.detail
    assert '"public.moved"' in refusal.value.detail


def test_names_are_of_one_server_and_database(database: Database) -> None:
    """Elsewhere the same oid is another table."""
    database.execute("CREATE TABLE here (id int PRIMARY KEY, a int)")
    known = names_before(database, "SELECT a FROM here")
    database.execute("ALTER TABLE here RENAME TO there")
    system, oid = known.server.split("/")
    with PostgresAnalyzer(database.dsn, "source") as analyzer:
        assert '"there"' in with_names_of_now("SELECT a FROM here", known, analyzer)
        for server in (f"{system}/{int(oid) + 1}", f"1{system}/{oid}", ""):
            elsewhere = replace(known, server=server)
            assert (
                with_names_of_now("SELECT a FROM here", elsewhere, analyzer) == "SELECT a FROM here"
            )


def test_names_of_what_is_looked_after_elsewhere_are_not_kept(database: Database) -> None:
    """Maintained views, in the same database and in another one."""
    database.execute("CREATE TABLE base (id int PRIMARY KEY); CREATE TABLE maintained (id int)")
    query, fields = "SELECT id FROM base JOIN maintained USING (id)", (Field("id", INT4),)
    maintained = Relation(RelationName(VIEW_SOURCE, "public", "maintained"), 0, fields)
    for views, has_shadows, named in (
        ([], False, ["base", "maintained"]),
        ([maintained], False, ["base"]),
        ([maintained], True, ["base"]),
    ):
        if has_shadows:
            database.execute("DROP TABLE maintained")
        with PostgresAnalyzer(database.dsn, "source", views, has_shadows=has_shadows) as analyzer:
            analyzer.analyze(query)
            assert [t.name for t in analyzer.named.tables] == named
