"""Oracle: what each statement does to the answer of a query over the table, by PostgreSQL's manual,
written down by hand; the catalog is a real one, of each version."""

from __future__ import annotations

from dataclasses import replace

import pytest

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.replication.publication import Publication, give_publication
from connectors.postgres.replication.table_changes import renamed, why_lost
from connectors.postgres.replication.table_facts import TableCatalog
from connectors.postgres.session.session import Session
from dataflow.errors import SourceError
from dataflow.schema import Relation, RelationName, RowType
from dataflow.sql.bind.analysis import Table
from dataflow.sql.planner import plan_view
from tests.harness.postgres import Database
from tests.harness.psql import roles

TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'glad');
CREATE TABLE t (a int, id int PRIMARY KEY, b varchar(9) NOT NULL, spare int, m mood,
    z numeric(8,2));
CREATE TABLE p (id int NOT NULL, v int, spare text) PARTITION BY RANGE (id);
ALTER TABLE p ADD PRIMARY KEY (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
CREATE TABLE filled (id int NOT NULL PRIMARY KEY, v int, spare text);
CREATE TABLE bare (id int NOT NULL PRIMARY KEY, v int, spare text);
INSERT INTO t SELECT i, i, i, i, 'sad', i FROM generate_series(1, 9) i;
INSERT INTO p SELECT i, i, i FROM generate_series(1, 19) i;
INSERT INTO filled VALUES (31, 1, 'x');
CREATE PUBLICATION watched FOR TABLE t, p WITH (publish_via_partition_root = true);
"""
# Of t everything but `spare` is used, of p everything but `spare`.
GOES_ON = (
    "ALTER TABLE t ADD COLUMN x int DEFAULT 7, ADD COLUMN y text NOT NULL DEFAULT 'y'",
    "ALTER TABLE t ADD COLUMN g int GENERATED ALWAYS AS (a + 1) STORED",
    "ALTER TABLE t ADD COLUMN x float DEFAULT random()",
    "ALTER TABLE t DROP COLUMN spare",
    "ALTER TABLE t ALTER COLUMN spare TYPE text",
    "ALTER TABLE t RENAME COLUMN spare TO other",
    "ALTER TABLE t ALTER COLUMN a SET NOT NULL",
    "ALTER TABLE t ALTER COLUMN a SET DEFAULT 5; ANALYZE t",
    "ALTER TABLE t REPLICA IDENTITY FULL",
    "CREATE INDEX ON t (a); GRANT SELECT ON t TO PUBLIC; VACUUM FULL t",
    "ALTER TYPE mood ADD VALUE 'mad'",
    "TRUNCATE t",
    "VACUUM FULL p1; CLUSTER p1 USING p1_pkey",
    "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30)",
    "CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30); INSERT INTO p VALUES (21, 1, '')",
    "BEGIN; CREATE TABLE p3 PARTITION OF p FOR VALUES FROM (20) TO (30);"
    " INSERT INTO p VALUES (21, 1, ''); COMMIT",
    "ALTER TABLE p ATTACH PARTITION bare FOR VALUES FROM (30) TO (40)",
    "ALTER TABLE p1 RENAME TO p_1; ALTER TABLE p ADD COLUMN x int DEFAULT 3",
)
RENAMES = {
    "ALTER TABLE t RENAME COLUMN b TO a_b": ['column "b" of table "public.t" is now called "a_b"'],
    "ALTER TABLE t RENAME TO u": ['table "public.t" is now called "public.u"'],
    "CREATE SCHEMA s; ALTER TABLE t SET SCHEMA s; ALTER TABLE s.t RENAME id TO key": [
        'table "public.t" is now called "s.t"',
        'column "id" of table "public.t" is now called "key"',
    ],
}
ENDS = {
    "DROP TABLE t": "source.table_missing",
    "DROP TABLE t; CREATE TABLE t (a int, id int PRIMARY KEY, b text)": "source.table_missing",
    "ALTER PUBLICATION watched DROP TABLE t": "source.not_published",
    "ALTER PUBLICATION watched DROP TABLE t; ALTER PUBLICATION watched ADD TABLE t": (
        "source.published_again"
    ),
    "ALTER TABLE t DROP COLUMN a": "source.column_dropped",
    "ALTER TABLE t DROP COLUMN z; ALTER TABLE t ADD COLUMN z numeric(8,2)": "source.column_dropped",
    "ALTER TABLE t ALTER COLUMN a TYPE bigint": "source.column_changed",
    "ALTER TABLE t ALTER COLUMN b TYPE varchar(20)": "source.column_changed",
    "ALTER TABLE t ALTER COLUMN z TYPE numeric(12,2)": "source.column_changed",
    "ALTER TABLE t ALTER COLUMN b DROP NOT NULL": "source.column_changed",
    "ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'": "source.column_changed",
    "ALTER TABLE t ALTER COLUMN a TYPE int USING a * 2": "source.table_rewritten",
    "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (spare)": "source.key_changed",
    "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t REPLICA IDENTITY FULL": (
        "source.key_changed"
    ),
    "ALTER TABLE t REPLICA IDENTITY NOTHING": "source.key_changed",
    "ALTER TABLE p1 REPLICA IDENTITY FULL": "source.key_changed",
    "TRUNCATE p1": "source.partitions_changed",
    # Unless the stream is asked, which tells of the whole table.
    "TRUNCATE p": "source.partitions_changed",
    "TRUNCATE p1; INSERT INTO p VALUES (3, 3, '')": "source.partitions_changed",
    "ALTER TABLE p DETACH PARTITION p1": "source.partitions_changed",
    "ALTER TABLE p DETACH PARTITION p1; DELETE FROM p1 WHERE id < 5;"
    " ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10)": "source.partitions_changed",
    "DROP TABLE p2": "source.partitions_changed",
    "ALTER TABLE p ATTACH PARTITION filled FOR VALUES FROM (30) TO (40)": (
        "source.partitions_changed"
    ),
    "BEGIN; CREATE TABLE p3 (LIKE filled INCLUDING ALL); INSERT INTO p3 TABLE filled;"
    " ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (30) TO (40); COMMIT": (
        "source.partitions_changed"
    ),
    "CREATE TABLE child () INHERITS (t)": "source.partitions_changed",
}
# Of a reader of whole rows of t, besides ENDS of its columns.
ROW_TYPES = (
    "ALTER TABLE t ADD COLUMN x int",
    "ALTER TABLE t ADD COLUMN g int GENERATED ALWAYS AS (a + 1) STORED",
    "ALTER TABLE t RENAME COLUMN spare TO other",
    "ALTER TABLE t RENAME COLUMN a TO c; ALTER TABLE t RENAME COLUMN spare TO a",
    "ALTER TABLE t RENAME TO u",
    "CREATE SCHEMA s; ALTER TABLE t SET SCHEMA s",
)
WHOLE = (
    "SELECT id, to_jsonb(t) AS j FROM t",
    "SELECT p.id, t::text AS s FROM p LEFT JOIN t ON t.id = p.id",
    "SELECT p.id, (SELECT jsonb_agg(t) FROM t WHERE t.id > p.id) AS j FROM p",
    "SELECT id FROM (SELECT id, j FROM told) AS s WHERE j ? 'spare'",
    "WITH w AS (SELECT t AS whole FROM t) SELECT row_to_json(whole)::text AS j FROM w",
)

# Of the publication as a whole: both tables, also where it is as it was by the next look.
ALTERED = (
    "ALTER PUBLICATION watched SET (publish = 'insert')",
    "ALTER PUBLICATION watched SET (publish = 'insert, update, delete')",
    "ALTER PUBLICATION watched SET (publish = '')",
    "ALTER PUBLICATION watched SET (publish_via_partition_root = false)",
    "ALTER PUBLICATION watched SET (publish = 'insert');"
    " ALTER PUBLICATION watched SET (publish = 'insert, update, delete, truncate')",
    "ALTER PUBLICATION watched RENAME TO other; ALTER PUBLICATION other RENAME TO watched",
    "ALTER PUBLICATION watched OWNER TO pg_database_owner",
)
AGAIN = (
    "DROP PUBLICATION watched",
    "DROP PUBLICATION watched; CREATE PUBLICATION watched FOR TABLE t, p"
    " WITH (publish_via_partition_root = true)",
    "DROP PUBLICATION watched; CREATE PUBLICATION watched FOR ALL TABLES",
    "ALTER PUBLICATION watched RENAME TO other",
)
OPTIONS = (
    "publish = 'update'",
    "publish_via_partition_root = false",
    "publish_generated_columns = stored",
)
IN_PART = ("t WHERE (id > 3)", "t (id, b)")


def relations(database: Database) -> list[Relation]:
    """As the planner would have them."""
    with PostgresAnalyzer(database.dsn, "source") as analyzer:
        found = [analyzer.relation("public", name) for name in ("t", "p")]
    assert all(isinstance(table, Table) for table in found)
    return [table.relation for table in found if isinstance(table, Table)]


def used(relation: Relation) -> list[int]:
    return [i for i, f in enumerate(relation.fields) if f.name != "spare"]


def run(database: Database, statements: str) -> None:
    """One after the other, since VACUUM has to be alone; BEGIN ... COMMIT in one session."""
    connection = database.connect()
    with connection.cursor() as cursor:
        is_one = statements.startswith("DO ")
        for statement in [statements] if is_one else statements.split(";"):
            cursor.execute(statement)
    connection.close()


def judge(database: Database, statements: str) -> tuple[list[str], list[str]]:
    """(codes, renames) after the statements; the digest tells that there is something to judge."""
    database.execute(TABLES)
    both = relations(database)
    oids = [r.oid for r in both]
    catalog = TableCatalog(database.dsn, "watched")
    try:
        first = catalog.read(oids, {})
        digest, before = first.digest, first.tables
        assert digest == catalog.digest(before)
        run(database, statements)
        is_noticed = catalog.digest(before) != digest
        now = catalog.read(oids, before).tables
    finally:
        catalog.close()
    codes, names = [], []
    for relation in both:
        error = why_lost(relation, used(relation), before[relation.oid], now.get(relation.oid))
        if error is not None:
            assert error.relation == relation.name and error.hint
            codes.append(error.code)
        else:
            there = now[relation.oid]
            names += renamed(relation, used(relation), before[relation.oid], there)
    assert is_noticed or not (codes or names)
    return codes, names


@pytest.mark.parametrize("statements", GOES_ON)
def test_nothing_to_do_with_the_views(every_database: Database, statements: str) -> None:
    assert judge(every_database, statements) == ([], [])


@pytest.mark.parametrize("statements", RENAMES)
def test_renames(every_database: Database, statements: str) -> None:
    assert judge(every_database, statements) == ([], RENAMES[statements])


@pytest.mark.parametrize("statements", ENDS)
def test_views_cannot_continue(every_database: Database, statements: str) -> None:
    assert judge(every_database, statements) == ([ENDS[statements]], [])


def whole_rows(database: Database, query: str) -> tuple[RowType, ...]:
    """The row types that a query uses as values."""
    with PostgresAnalyzer(database.dsn, "source") as analyzer:
        return plan_view(query, analyzer).row_types


@pytest.mark.parametrize("statements", ROW_TYPES)
def test_the_row_type_is_another_one(database: Database, statements: str) -> None:
    database.execute(TABLES)
    database.execute("CREATE VIEW told AS SELECT id, to_jsonb(t) AS j FROM t")
    table = relations(database)[0]
    found = {whole_rows(database, query) for query in WHOLE}
    assert found == {(RowType(table.name, ("a", "id", "b", "spare", "m", "z")),)}
    assert whole_rows(database, "SELECT count(*) AS n, ROW(t.*)::text AS s FROM t GROUP BY 2") == ()
    ((row,),) = found
    catalog = TableCatalog(database.dsn, "watched")
    before = catalog.read([table.oid], {}).tables
    run(database, statements)
    now = catalog.read([table.oid], before).tables
    catalog.close()
    facts = before[table.oid], now[table.oid]
    error = why_lost(table, used(table), *facts, row=row)
    assert error is not None and error.code == "source.row_type_changed"
    assert why_lost(table, used(table), *facts) is None
    assert why_lost(table, used(table), before[table.oid], before[table.oid], row=row) is None


@pytest.mark.parametrize("statements", ALTERED)
def test_the_publication_is_altered(every_database: Database, statements: str) -> None:
    assert judge(every_database, statements) == (["source.publication_altered"] * 2, [])


def test_the_publication_is_given_to_another_role(every_database: Database) -> None:
    """That is no alteration, and hides none before or after it."""
    there, back = (give_publication("watched", r) for r in ("pg_database_owner", "postgres"))
    altered = ["source.publication_altered"] * 2
    assert judge(every_database, there) == ([], [])
    catalog = TableCatalog(every_database.dsn, "watched")
    both = relations(every_database)
    oids = [r.oid for r in both]
    before = catalog.read(oids, {}).tables

    def codes() -> list[str]:
        now = catalog.read(oids, before).tables
        found = [why_lost(r, used(r), before[r.oid], now.get(r.oid)) for r in both]
        return [error.code for error in found if error is not None]

    run(every_database, back)
    run(every_database, there)
    assert codes() == []
    run(every_database, ALTERED[4])
    assert codes() == altered
    run(every_database, back)
    assert codes() == altered
    catalog.close()


@pytest.mark.parametrize("statements", AGAIN)
def test_the_publication_is_made_again(every_database: Database, statements: str) -> None:
    codes, _ = judge(every_database, statements)
    lost = {"source.published_again", "source.not_published", "source.publication_altered"}
    assert codes and set(codes) <= lost


@pytest.mark.parametrize("member", IN_PART)
def test_a_table_is_sent_in_part(every_database: Database, member: str) -> None:
    """It is put right by the next reader, and that is no gap for him."""
    place = every_database
    assert judge(place, f"ALTER PUBLICATION watched SET TABLE {member}, p")[0] == [
        "source.publication_altered"
    ]
    assert is_put_right(place)


@pytest.mark.parametrize("options", OPTIONS)
def test_options_are_put_right(every_database: Database, options: str) -> None:
    place = every_database
    place.execute(TABLES)
    if "generated" in options and place.server.version < 18:
        options = OPTIONS[0]
    place.execute(f"ALTER PUBLICATION watched SET ({options})")
    assert is_put_right(place)


def is_put_right(place: Database) -> bool:
    """Whether publishing the table again leaves nothing wrong."""
    session, catalog = Session(place.dsn), TableCatalog(place.dsn, "watched")
    relation = relations(place)[0]
    before = catalog.read([relation.oid], {}).tables
    Publication(session, "watched").add([relation.name])
    now = catalog.read([relation.oid], {}).tables
    kinds = place.rows(
        "SELECT pubinsert, pubupdate, pubdelete, pubtruncate, pubviaroot,"
        " coalesce(to_jsonb(p) ->> 'pubgencols', 'n') = 'n' FROM pg_publication p"
    )
    session.close()
    catalog.close()
    facts = before[relation.oid], now[relation.oid]
    is_gap = why_lost(relation, used(relation), *facts) is not None and facts[0].withheld
    return not facts[1].withheld and all(kinds[0]) and not is_gap


def test_a_publication_of_another_role(database: Database) -> None:
    """What it sends is whole; what would have to be altered is refused by name, and left."""
    database.execute(TABLES)
    with roles(database, "follower", "stranger"):
        database.execute(
            "ALTER PUBLICATION watched OWNER TO stranger; ALTER TABLE t OWNER TO follower;"
            " ALTER TABLE bare OWNER TO follower; GRANT USAGE ON SCHEMA public TO follower"
        )
        session = Session(database.dsn.replace("user=postgres", "user=follower"))
        publication = Publication(session, "watched")
        names = [RelationName("source", "public", name) for name in ("t", "bare")]
        publication.add(names[:1])
        for act in (lambda: publication.add(names[1:]), lambda: publication.remove(names[:1])):
            with pytest.raises(SourceError) as caught:
                act()
            assert caught.value.code == "source.publication_foreign"
            assert 'OWNER TO "follower"' in caught.value.hint
        database.execute("ALTER PUBLICATION watched SET (publish = 'insert')")
        with pytest.raises(SourceError) as caught:
            publication.add(names[:1])
        assert caught.value.code == "source.publication_foreign"
        assert "SET (publish" in caught.value.detail
        publication.drop()
        assert publication.exists()
        session.close()


def test_a_definition_of_an_older_release(database: Database) -> None:
    """It knows its columns by name alone, and is judged by the names at the first look."""
    database.execute(TABLES)
    relation = replace(relations(database)[0], numbers=())
    catalog = TableCatalog(database.dsn, "watched")
    before = catalog.read([relation.oid], {}).tables
    run(database, "ALTER TABLE t RENAME a TO x; ALTER TABLE t RENAME spare TO a")
    now = catalog.read([relation.oid], before).tables
    catalog.close()
    there = (before[relation.oid], now[relation.oid])
    assert why_lost(relation, used(relation), *there) is None
    assert list(renamed(relation, used(relation), *there)) == [
        'column "a" of table "public.t" is now called "x"'
    ]
