"""Oracle: ordinary views of the same queries, kept beside the maintained ones through every change
of the tables whose whole rows are values in them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.end_to_end.test_source_ddl import busy
from tests.end_to_end.test_views import flush_position
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService

Case = tuple[RunningService, Database]

TABLES = """
CREATE TABLE fw (id int PRIMARY KEY, a int, b text);
CREATE TABLE other (id int PRIMARY KEY, spare int);
INSERT INTO fw SELECT i, i % 3, 'b' || i % 2 FROM generate_series(1, 8) i;
INSERT INTO other SELECT i, i FROM generate_series(1, 6) i;
CREATE VIEW told AS SELECT id, to_jsonb(t) AS j FROM fw t;
CREATE FUNCTION shown(fw) RETURNS text IMMUTABLE LANGUAGE sql
    AS 'SELECT upper(($1).b) || $1::text';
"""
VIEWS = {
    "w_json": "SELECT id, to_jsonb(t) AS j FROM fw t",
    "w_text": "SELECT t.id, t::text AS s FROM fw t",
    "w_list": "SELECT jsonb_agg(t ORDER BY t.id) AS j FROM fw t",
    "w_left": "SELECT o.id, to_jsonb(t) AS j FROM other o LEFT JOIN fw t ON t.id = o.id + 4",
    "w_counted": "SELECT a, count(DISTINCT t) AS n FROM fw t GROUP BY a",
    "w_key": "SELECT to_jsonb(t) - 'id' AS j, count(*) AS n FROM fw t GROUP BY 1",
    "w_expanded": "SELECT (t).*, ROW(t.*)::text AS r FROM fw t",
    "w_inner": "SELECT o.id, (SELECT to_jsonb(t) FROM fw t WHERE t.id = o.id) AS j FROM other o",
    "w_called": "SELECT id, shown(t) AS s FROM fw t",
    "w_told": "SELECT id, j - 'id' AS j FROM told",
    "w_same": "SELECT x.id FROM fw x JOIN fw y ON x IS NOT DISTINCT FROM y",
}
ABOVE = {"w_above": "SELECT id, j ->> 'b' AS b, j ? 'aa' AS has FROM w_json"}
APART = {"w_apart": "SELECT id, b FROM fw", "w_other": "SELECT count(spare) AS n FROM other"}
# Each is followed by rows of the new shape; the old table's name is "fw" up to the last.
STEPS = [
    "ALTER TABLE fw ADD c int DEFAULT 7",
    "ALTER TABLE fw RENAME a TO aa",
    "ALTER TABLE fw ADD d int; ALTER TABLE fw ALTER c TYPE numeric(9,2);"
    " ALTER TABLE fw ADD g int GENERATED ALWAYS AS (id * 2) STORED",
    "ALTER TABLE fw DROP COLUMN d; ALTER TABLE fw RENAME aa TO a2; ALTER TABLE fw ADD aa int",
]
CHANGE = (
    "UPDATE {t} SET b = b || '{n}' WHERE id % 3 = {n} % 3; DELETE FROM {t} WHERE id = {n};"
    " INSERT INTO {t} (id, b) VALUES ({n} + 100, 'n')"
)
TWICE = "UPDATE fw SET b = 'busy' WHERE id = 8; UPDATE fw SET b = 'more' WHERE id = 8"


@pytest.fixture(scope="module")
def case(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp("service")
    with new_database(postgres) as database, RunningService(database.dsn, folder) as service:
        yield service, database


def create(case: Case, views: Mapping[str, str]) -> None:
    for name, query in views.items():
        case[0].create(name, query, backfill="local")


def check(case: Case, names: list[str], did: str) -> None:
    service, database = case
    position = flush_position(database)
    for name in names:
        service.wait(name, position, 60)
        shown = "SELECT v::text FROM {} v ORDER BY 1"
        found, wanted = (database.rows(shown.format(n)) for n in (name, f"own.{name}"))
        assert found == wanted, (name, did)


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_whole_rows_follow_their_table(case: Case) -> None:
    service, database = case
    database.execute(TABLES)
    every = {**VIEWS, **ABOVE, **APART}
    own = (
        f"CREATE VIEW own.{n} AS {q.replace('FROM w_json', 'FROM own.w_json')}"
        for n, q in every.items()
    )
    database.execute("CREATE SCHEMA IF NOT EXISTS own; " + "; ".join(own))
    create(case, every)
    check(case, [*every], "create")
    since = {n: service.call("GET", f"/views/{n}").json()["live_at"] for n in APART}
    for number, ddl in enumerate(STEPS, 1):
        with busy(database, TWICE):
            database.execute(f"{CHANGE.format(t='fw', n=number)}; {ddl}")
        database.execute(CHANGE.format(t="fw", n=number + 20))
        check(case, [*every], ddl)
    service.kill()
    database.execute(f"ALTER TABLE fw RENAME g TO h; {CHANGE.format(t='fw', n=6)}")
    service.start()
    check(case, [*every], "while it was down")
    database.execute("ALTER TABLE fw RENAME TO renamed; UPDATE renamed SET b = 'z' WHERE id = 4")
    check(case, [*every], "renamed")
    assert not [e for e in service.events() if e["event"] == "view.failed"]
    assert since == {n: service.call("GET", f"/views/{n}").json()["live_at"] for n in APART}


OF_ROWS = {
    "r_keyed": "SELECT id, t AS whole FROM shown_whole t",
    "r_bag": "SELECT t AS whole FROM shown_whole t",
    "r_list": "SELECT a, array_agg(t ORDER BY id) AS l FROM shown_whole t GROUP BY a",
}


@pytest.mark.whole
def test_columns_of_a_row_type(case: Case) -> None:
    """The stored rows have another text then, also those that are found by its hash."""
    database = case[1]
    database.execute(
        "CREATE SCHEMA IF NOT EXISTS own; CREATE TABLE shown_whole (id int PRIMARY KEY, a int,"
        " b text); INSERT INTO shown_whole SELECT i, i % 3, 'b' FROM generate_series(1, 8) i;"
        + "; ".join(f"CREATE VIEW own.{n} AS {q}" for n, q in OF_ROWS.items())
    )
    create(case, OF_ROWS)
    for ddl in ("ADD c int", "RENAME a TO aa", "DROP c"):
        database.execute(
            f"UPDATE shown_whole SET b = 'x' WHERE id = 2; ALTER TABLE shown_whole {ddl};"
            " UPDATE shown_whole SET b = b || 'z' WHERE id = 3; DELETE FROM shown_whole"
            " WHERE id = 4"
        )
        check(case, [*OF_ROWS], ddl)


OF_RACE = {
    "q_slow": "SELECT id, slowly(b) AS b FROM raced",
    "q_row": "SELECT id, to_jsonb(t) AS j FROM raced t",
    "q_bag": "SELECT to_jsonb(t) - 'id' AS j FROM raced t",
    "q_key": "SELECT to_jsonb(t) - 'id' AS j, count(*) AS n FROM raced t GROUP BY 1",
}


@pytest.mark.whole
def test_a_change_while_rows_are_evaluated(case: Case) -> None:
    """PostgreSQL evaluates under the names of now, rows of before too: nothing fails for that."""
    service, database = case
    database.execute(
        "CREATE SCHEMA IF NOT EXISTS own; CREATE TABLE raced (id int PRIMARY KEY, a int, b text);"
        "INSERT INTO raced SELECT i, i % 3, 'b' FROM generate_series(1, 4) i;"
        "CREATE FUNCTION slowly(text) RETURNS text IMMUTABLE LANGUAGE plpgsql"
        " AS $$ BEGIN PERFORM pg_sleep(1.5); RETURN $1; END $$;"
        + "; ".join(f"CREATE VIEW own.{n} AS {q}" for n, q in OF_RACE.items())
    )
    create(case, OF_RACE)
    for number, ddl in enumerate(("ADD c int DEFAULT 7", "RENAME a TO aa")):
        database.execute(f"UPDATE raced SET b = 'race{number}' WHERE id = 2")
        # The first view is being evaluated now, the others are not yet.
        time.sleep(0.7)
        database.execute(f"ALTER TABLE raced {ddl}")
        check(case, [*OF_RACE], ddl)
    assert not [e for e in service.events() if e["event"] == "view.failed"]
