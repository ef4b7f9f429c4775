"""Oracle: a view of PostgreSQL's own, made of the same query before anything was renamed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import Any

import psycopg2
import pytest

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.analysis.table_names import KnownNames
from dataflow.errors import SourceError
from dataflow.schema import VIEW_SOURCE, Field, Relation, RelationName
from dataflow.types import INT4
from service.factory.planning import plan_definition
from service.views.name_tracking import (
    are_current,
    names_facts,
    names_in,
    names_now,
    require_read,
    with_current_names,
    with_names,
)
from tests.harness.postgres import Database
from tests.harness.waiting import wait_until

TABLES = """
CREATE SCHEMA "My Data";
CREATE TABLE t (id int PRIMARY KEY, gone int, a int, b text,
    g int GENERATED ALWAYS AS (a + 1) STORED);
ALTER TABLE t DROP COLUMN gone;
CREATE TABLE "My Data"."U u" (id int, "B b" text, a int);
CREATE TABLE wide (id int PRIMARY KEY, spare int, a int, b int, d int);
INSERT INTO wide SELECT i, -i, i * 2, i * 3, i * 5 FROM generate_series(1, 9) i;
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
    "SELECT w.a, w.b FROM wide AS w",
    "SELECT k, d, c FROM wide AS w (k, x, c)",
    "SELECT x.b FROM t JOIN wide x (id, spare, b, a) USING (id)",
)
RENAMES = (
    # What has all columns, or compares all of them, has those that it had.
    'ALTER TABLE t ADD "B b" text DEFAULT 1; ALTER TABLE "My Data"."U u" ADD b text DEFAULT 2',
    "ALTER TABLE t RENAME TO moved",
    'ALTER VIEW "My Data".t RENAME TO other; ALTER TABLE t SET SCHEMA "My Data"',
    'ALTER TABLE t RENAME a TO "A""a"; ALTER TABLE t RENAME b TO a; ALTER TABLE t RENAME id TO b',
    "ALTER TABLE t RENAME g TO h; ALTER TABLE t ADD g int DEFAULT 77; ALTER TABLE t RENAME TO t2;"
    " CREATE TABLE t (id int PRIMARY KEY, a int, b text, g int)",
    'ALTER TABLE "My Data"."U u" RENAME TO t3; ALTER TABLE "My Data".t3 RENAME a TO b',
    'ALTER VIEW t_view RENAME amount TO a; ALTER VIEW t_view RENAME TO "t view"',
    "ALTER TABLE wide DROP COLUMN spare; ALTER TABLE wide ADD k int DEFAULT 9",
    "ALTER TABLE wide RENAME TO w; ALTER TABLE w DROP COLUMN spare; ALTER TABLE w ADD c int",
    'ALTER TABLE twin RENAME TO t4; ALTER TABLE "My Data".twin SET SCHEMA public;'
    ' ALTER TABLE t4 SET SCHEMA "My Data"; ALTER TABLE "My Data".t4 RENAME TO twin',
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
        newer = renewed(database, query, known[number])[0]
        assert_same(database, f"kept{number}", newer)
    # With the names of now there is nothing to change.
    newer, names = renewed(database, QUERIES[0], known[0])
    assert renewed(database, newer, names) == (newer, names)


def renewed(database: Database, query: str, known: KnownNames) -> tuple[str, KnownNames]:
    """The query and its names as they are kept after it was planned again."""
    with PostgresAnalyzer(database.dsn, "source") as analyzer:
        found = names_now(known, analyzer)
        newer = with_names(query, known, found)
        analyzer.analyze(newer)
        if newer != query:
            require_read(known, found, analyzer)
        assert are_current(found, analyzer)
        return newer, analyzer.named


def assert_same(database: Database, kept: str, query: str) -> None:
    both = (f"(TABLE {kept} EXCEPT ALL ({query}\n))", f"({query}\n) EXCEPT ALL TABLE {kept}")
    assert [database.rows(one) for one in both] == [[], []], query


OF_WIDE = (
    "SELECT id, a, b, d FROM wide",
    "SELECT count(*), sum(b) AS b FROM wide JOIN wide AS w USING (id, b)",
    "SELECT k, b, d FROM wide AS w (k, x)",
    "SELECT x, y FROM ONLY wide AS z (k, w, x, y, z)",
)
IN_TURN = (
    "ALTER TABLE wide RENAME TO w",
    "ALTER TABLE w RENAME b TO c",
    "ALTER TABLE w DROP COLUMN spare",
    "ALTER TABLE w ADD spare int DEFAULT 1, ADD b int DEFAULT 5, ADD x int, ADD y int",
    "ALTER TABLE w RENAME TO wide; ALTER TABLE wide RENAME a TO spare2; CREATE TABLE w (a int)",
    "ALTER TABLE wide DROP COLUMN spare; ALTER TABLE wide RENAME spare2 TO a",
    "ALTER TABLE wide DROP COLUMN b; ALTER TABLE wide RENAME c TO b; ALTER TABLE wide ADD c int",
)


@pytest.mark.whole
def test_a_query_means_what_it_meant_from_one_text_to_the_next(every_database: Database) -> None:
    database = every_database
    database.execute(TABLES)
    known = []
    for number, query in enumerate(OF_WIDE):
        database.execute(f"CREATE VIEW kept{number} AS {query}")
        known.append((query, names_before(database, query)))
    for statement in IN_TURN:
        database.execute(statement)
        known = [renewed(database, *one) for one in known]
        for number, (query, _) in enumerate(known):
            assert_same(database, f"kept{number}", query)


REFUSED = {
    "WITH t AS (SELECT 1 AS a) SELECT t.a FROM t, public.t AS u": "a WITH query has the same name",
    "SELECT public.t.a FROM t": "a column is named together with the schema of its table",
    "SELECT t.a FROM t, s.t AS u": '"t" may be one of two tables',
}


@pytest.mark.parametrize("query", REFUSED)
def test_invalid_options_are_refused(database: Database, query: str) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, a int); CREATE SCHEMA s")
    database.execute("CREATE TABLE s.t (id int PRIMARY KEY)")
    known = names_before(database, query)
    database.execute("ALTER TABLE t RENAME TO moved")
    analyzer = PostgresAnalyzer(database.dsn, "source")
    with analyzer, pytest.raises(SourceError) as refusal:
        with_current_names(query, known, analyzer)
    assert refusal.value.code == "source.renamed" and REFUSED[query] in refusal.value.detail
    assert '"public.moved"' in refusal.value.detail


def test_names_are_of_one_server_and_database(database: Database) -> None:
    """Elsewhere the same oid is another table."""
    database.execute("CREATE TABLE here (id int PRIMARY KEY, a int)")
    known = names_before(database, "SELECT a FROM here")
    database.execute("ALTER TABLE here RENAME TO there")
    system, oid = known.server.split("/")
    with PostgresAnalyzer(database.dsn, "source") as analyzer:
        assert '"there"' in with_current_names("SELECT a FROM here", known, analyzer)
        for server in (f"{system}/{int(oid) + 1}", f"1{system}/{oid}", ""):
            elsewhere = replace(known, server=server)
            assert (
                with_current_names("SELECT a FROM here", elsewhere, analyzer)
                == "SELECT a FROM here"
            )


def test_names_that_others_track_are_not_stored(database: Database) -> None:
    """Maintained views, in the same database and in another one."""
    database.execute("CREATE TABLE base (id int PRIMARY KEY); CREATE TABLE maintained (id int)")
    query, fields = "SELECT id FROM base JOIN maintained USING (id)", (Field("id", INT4),)
    maintained = Relation(RelationName(VIEW_SOURCE, "public", "maintained"), 0, fields)
    for views, has_stubs, named in (
        ([], False, ["base", "maintained"]),
        ([maintained], False, ["base"]),
        ([maintained], True, ["base"]),
    ):
        if has_stubs:
            database.execute("DROP TABLE maintained")
        with PostgresAnalyzer(database.dsn, "source", views, has_stubs=has_stubs) as analyzer:
            analyzer.analyze(query)
            assert [t.name for t in analyzer.named.tables] == named


class OnlyDatabase:
    """What is planned with: an analyzer, and nothing else of a service."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    def analyzer(
        self, views: list[Relation], feeds: list[Relation], requester: str, time_zone: str
    ) -> Any:
        """Of this database."""
        more: Any = {"feeds": feeds, "requester": requester, "time_zone": time_zone}
        return PostgresAnalyzer(self.dsn, "source", views, **more)


WAITING = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event_type = 'Lock'"


@pytest.mark.parametrize(
    "renames",
    [
        "ALTER TABLE held RENAME a TO b",
        "ALTER TABLE held RENAME TO moved",
        "ALTER TABLE held RENAME TO moved; CREATE TABLE held (id int PRIMARY KEY, a int)",
        "ALTER TABLE held RENAME a TO b; ALTER TABLE held RENAME id TO a;"
        " ALTER TABLE held RENAME b TO id",
    ],
)
def test_a_query_is_planned_while_its_table_is_being_renamed(
    database: Database, renames: str
) -> None:
    """The names were looked up before, and the table is waited for."""
    database.execute(
        "CREATE TABLE held (id int PRIMARY KEY, a int); INSERT INTO held VALUES (1, 5)"
    )
    query = "SELECT a, id FROM held"
    database.execute(f"CREATE VIEW kept AS {query}")
    known = names_before(database, query)
    parts: Any = OnlyDatabase(database.dsn)
    with closing(psycopg2.connect(database.dsn)) as session, ThreadPoolExecutor(1) as threads:
        session.cursor().execute(renames)
        planned = threads.submit(
            plan_definition, "1", ("public", "v"), query, parts, (), names=known
        )
        name = database.rows("SELECT current_database()")[0]
        wait_until(lambda: database.rows(WAITING, name)[0][0] == 1)
        session.commit()
        definition = planned.result(30)
    assert [r.oid for r in definition.relations()] == [known.tables[0].oid]
    assert_same(database, "kept", definition.query)
