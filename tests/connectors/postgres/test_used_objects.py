"""Oracle: what each statement does to the answer of a query, by PostgreSQL's manual; the catalog is
a real one, of each version. That PostgreSQL's own views agree is in test_definitions.py."""

from __future__ import annotations

import time

import pytest

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.replication.object_changes import why_outdated
from connectors.postgres.replication.table_facts import TableCatalog
from connectors.postgres.replication.used_objects import UsedObject
from dataflow.schema import RelationName
from tests.harness.definitions import HARMLESS, KINDS, kinds_of, make, run
from tests.harness.postgres import Database

RELATION = RelationName("main", "public", "t")


def used_by(database: Database, query: str) -> tuple[UsedObject, ...]:
    """What a query rests on."""
    with PostgresAnalyzer(database.dsn, "main") as analyzer:
        analyzer.analyze(query)
        return analyzer.named.objects or ()


def test_what_changes_an_answer_is_noticed(every_database: Database) -> None:
    """And nothing else counts as a change."""
    catalog = TableCatalog(every_database.dsn, "none")
    for name, kind in kinds_of(every_database.server.version, KINDS | HARMLESS).items():
        used = used_by(every_database, make(every_database, name, kind))
        keys = frozenset(o.key for o in used)
        before = catalog.read([], {}, keys)
        assert set(before.objects) == keys and before.digest == catalog.digest({}, keys), name
        assert why_outdated(used, before.objects, RELATION) is None, name
        run(every_database, name, kind.ddl)
        now = catalog.read([], {}, keys)
        error = why_outdated(used, now.objects, RELATION)
        assert (error is not None) == (name in KINDS), name
        if error is not None:
            assert catalog.digest({}, keys) != before.digest, name
            assert error.code == "source.definition_changed" and error.relation == RELATION
    catalog.close()


def test_a_commit_in_progress_is_waited_for(every_database: Database) -> None:
    """A transaction that has replaced a function may be in the WAL before its rows are visible."""
    name = "sql_function"
    keys = frozenset(
        o.key for o in used_by(every_database, make(every_database, name, KINDS[name]))
    )
    catalog = TableCatalog(every_database.dsn, "none")
    before = catalog.digest({}, keys)
    session = every_database.connect(autocommit=False)
    with session.cursor() as cursor:
        cursor.execute(KINDS[name].ddl.format(n=name))
    started = time.monotonic()
    assert catalog.digest({}, keys) == before
    assert time.monotonic() - started >= 0.25
    session.commit()
    session.close()
    assert catalog.digest({}, keys) != before
    catalog.close()


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("SELECT id FROM {t}", set()),
        ("SELECT count(*) AS n, sum(v) AS v FROM {t} WHERE v > 2", set()),
        ("SELECT id, e FROM {t}", {"public.e"}),
        ("SELECT to_jsonb({t}) AS j FROM {t}", {"public.e"}),
        ("SELECT id FROM {t} WHERE e = 'a'", {"public.e"}),
    ],
)
def test_what_a_query_rests_on(database: Database, query: str, found: set[str]) -> None:
    database.execute("CREATE TYPE e AS ENUM ('a'); CREATE TABLE t (id int PRIMARY KEY, v int, e e)")
    assert {o.name for o in used_by(database, query.format(t="t"))} == found
