"""Oracle: docs/PSQL.md and PostgreSQL: what CALL says is done, what it refuses has PostgreSQL's own
SQLSTATE, words and place, and rows that were waited for are those of the query."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.harness.postgres import Database
from tests.harness.psql import call, psql, refusal
from tests.harness.service import RunningService

# --- one whole life, by psql alone --------------------------------------------------------

LIFE = """
CALL tidemark.create_view('by_a', 'SELECT a, count(*) AS n FROM t GROUP BY a');
SELECT * FROM by_a ORDER BY a;
INSERT INTO t VALUES (100, 7, 'new');
SELECT tidemark.wait() IS NOT NULL;
SELECT * FROM by_a WHERE a = 7;
SELECT schema, name, status, owner, failed_rows FROM tidemark.status;
CALL tidemark.verify_view('by_a');
CALL tidemark.drop_view('by_a');
SELECT count(*) FROM tidemark.status;
"""


def test_life_of_a_view(service: RunningService, place: Database) -> None:
    ended = psql(place, LIFE)
    assert ended.returncode == 0, ended.stderr
    rows = ["0|10", "1|10", "2|10", "t", "7|1", "public|by_a|live|postgres|", "0"]
    assert ended.stdout.split() == rows
    assert "NOTICE:  view public.by_a is live\n" in ended.stderr
    assert "NOTICE:  view public.by_a: equal, 4 rows compared" in ended.stderr
    assert "NOTICE:  view is dropped" in ended.stderr
    assert place.rows("SELECT to_regclass('by_a')") == [(None,)]
    said = place.rows("SELECT operation, status FROM tidemark.my_requests ORDER BY id DESC LIMIT 3")
    assert said == [("drop_view", "done"), ("verify_view", "done"), ("create_view", "done")]
    place.execute("DELETE FROM t WHERE id = 100")


def test_a_source_is_declared_and_dropped(
    service: RunningService, place: Database, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("id,price\n1,2.50\n")
    columns = [{"name": "id", "type": "bigint"}, {"name": "price", "type": "numeric(10,2)"}]
    options = {"relations": {"prices": {"path": f"{tmp_path}/*.csv", "columns": columns}}}
    create = "CALL tidemark.create_source('shop', 'files', %s)"
    call(place, create, (json.dumps(options),))
    assert place.rows("SELECT name, type FROM tidemark.sources WHERE name = 'shop'")
    again = refusal(lambda: call(place, create, (json.dumps(options),)))
    assert (again.pgcode, "code: source.name_taken" in again.diag.message_detail) == ("42710", True)
    call(place, "CALL tidemark.retry_source('shop')")
    assert place.rows("SELECT status, code, retry_at IS NULL FROM tidemark.source_status") == [
        ("running", None, False)
    ]
    assert refusal(lambda: call(place, "CALL tidemark.retry_source('nosuch')")).pgcode == "42704"
    call(place, "CALL tidemark.drop_source('shop')")
    assert not place.rows("SELECT FROM tidemark.sources WHERE name = 'shop'")
    # Options of sources may hold what is nobody's business.
    kept = place.rows("SELECT arguments FROM tidemark.requests WHERE operation = 'create_source'")
    assert all("options" not in arguments for (arguments,) in kept)


def test_all_of_it_is_reported(service: RunningService, place: Database) -> None:
    """Everything in the schema has a comment; what people call and read is in PSQL.md."""
    bare = """
        SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'tidemark'::regnamespace
            AND relkind IN ('r', 'v') AND obj_description(oid, 'pg_class') IS NULL
        UNION ALL SELECT oid::regprocedure::text FROM pg_proc
        WHERE pronamespace = 'tidemark'::regnamespace AND obj_description(oid, 'pg_proc') IS NULL
            AND prorettype <> 'trigger'::regtype"""
    assert place.rows(bare) == []
    page = Path("docs/PSQL.md").read_text()
    told = """
        SELECT proname FROM pg_proc WHERE pronamespace = 'tidemark'::regnamespace
            AND prokind = 'p' AND proname <> 'request'
        UNION SELECT relname FROM pg_class
        WHERE relnamespace = 'tidemark'::regnamespace AND relkind = 'v'"""
    names = [name for (name,) in place.rows(told)]
    assert len(names) >= 8
    assert [name for name in names if f"tidemark.{name}" not in page] == []


# --- errors -------------------------------------------------------------------------------

NOT_MAINTAINED = ("0A000", "sql.not_maintained", "", 0)
REFUSALS = [
    ("v", "SELECT id FRM t x", "42601", "sql.syntax_error", "LINE 1: SELECT id FRM t x", 14),
    ("v", "SELECT id,\n  nosuch FROM t", "42703", "sql.undefined_column", "LINE 2:   nosuch", 2),
    ("v", "SELECT * FROM nosuch", "42P01", "sql.undefined_table", "LINE 1: SELECT", 14),
    ("v", "SELECT 1; DROP TABLE t", "42601", "sql.many_statements", "LINE 1:", 8),
    ("v", "SELECT id, random() AS r FROM t", "0A000", "sql.volatile_function", "", 0),
    ("v", "SELECT a FROM keyless", "55000", "source.no_identity", "", 0),
    ("v", "SELECT sum(id) OVER (ORDER BY id ROWS -1 PRECEDING) AS n FROM t", *NOT_MAINTAINED),
    ("taken", "SELECT id FROM t", "42P07", "sink.name_taken", "", 0),
    ("nowhere.x", "SELECT id FROM t", "3F000", "sink.schema_missing", "", 0),
    ("bad..name", "SELECT id FROM t", "42602", "view.bad_name", "", 0),
    ("", "SELECT id FROM t", "22023", "request.invalid", "", 0),
    (None, "SELECT id FROM t", "22023", "request.invalid", "", 0),
    ("v", None, "22023", "request.invalid", "", 0),
]


@pytest.mark.parametrize(("name", "query", "state", "code", "line", "column"), REFUSALS)
def test_refused(
    service: RunningService,
    place: Database,
    name: str | None,
    query: str | None,
    state: str,
    code: str,
    line: str,
    column: int,
) -> None:
    error = refusal(lambda: call(place, "CALL tidemark.create_view(%s, %s)", (name, query)))
    detail = error.diag.message_detail.splitlines()
    assert error.pgcode == state, error
    assert f"code: {code}" in detail
    if line:
        at = next(i for i, text in enumerate(detail) if text.startswith(line))
        assert detail[at + 1] == " " * (len("LINE 1: ") + column) + "^"
    if code in ("sql.not_maintained", "source.no_identity", "sql.volatile_function"):
        assert error.diag.message_hint
    assert place.rows("SELECT count(*) FROM tidemark.views") == [(0,)]


def test_psql_shows_the_position(service: RunningService, place: Database) -> None:
    ended = psql(place, "CALL tidemark.create_view('v', 'SELECT id FRM t x');")
    assert ended.returncode == 3
    shown = (
        'ERROR:  syntax error at or near "t"\n'
        "DETAIL:  code: sql.syntax_error\n"
        "LINE 1: SELECT id FRM t x\n"
        "                      ^\n"
    )
    assert shown in ended.stderr, ended.stderr


@pytest.mark.parametrize(
    ("statement", "state"),
    [
        ("CALL tidemark.drop_view('nosuch')", "42P01"),
        ("CALL tidemark.drop_view('t', '{\"cascade\": true}')", "22023"),
        ("CALL tidemark.create_view('v', 'SELECT 1 AS x', '{\"nosuch\": 1}')", "22023"),
        ("CALL tidemark.drop_source('nosuch')", "42704"),
        ("CALL tidemark.create_source('s', 'carrier pigeon')", "22023"),
        ("SELECT tidemark.ask('request', '{}', 'postgres')", "42883"),
    ],
)
def test_other_refusals(
    service: RunningService, place: Database, statement: str, state: str
) -> None:
    assert refusal(lambda: call(place, statement)).pgcode == state


# --- transactions -------------------------------------------------------------------------


def test_a_transaction_block_is_refused(service: RunningService, place: Database) -> None:
    create = "CALL tidemark.create_view('v', 'SELECT id FROM t')"
    body = create.replace("'", "''")
    place.execute(
        "CREATE OR REPLACE FUNCTION in_function() RETURNS void LANGUAGE plpgsql "
        f"AS 'BEGIN {body}; END'"
    )
    for statement in (f"BEGIN; {create}", f"SELECT 1; {create}", "SELECT in_function()"):
        error = refusal(lambda text=statement: call(place, text))
        assert error.pgcode == "25001", error
        assert "wait" in error.diag.message_hint
    assert place.rows("SELECT count(*) FROM tidemark.views") == [(0,)]


def test_without_waiting_it_is_requested_by_the_commit(
    service: RunningService, place: Database
) -> None:
    session = place.connect(autocommit=False)
    cursor = session.cursor()
    create = "CALL tidemark.create_view(%s, 'SELECT id FROM t', '{\"wait\": false}')"
    cursor.execute(create, ("undone",))
    session.rollback()
    cursor.execute(create, ("done",))
    session.commit()
    session.close()
    service.await_status("done")
    assert service.call("GET", "/views/undone").status_code == 404
    call(place, "CALL tidemark.drop_view('done')")


def test_a_block_of_several_calls(service: RunningService, place: Database) -> None:
    """A DO block outside of a transaction may commit, so it may call as often as it likes."""
    create = "CALL tidemark.create_view('{0}', 'SELECT id FROM t'); "
    drop = "CALL tidemark.drop_view('{0}'); "
    words = "".join(text.format(n) for text in (create, drop) for n in ("one", "two"))
    call(place, f"DO $$ BEGIN {words} END $$")
    assert place.rows("SELECT count(*) FROM tidemark.views") == [(0,)]


# --- reading one's own writes -------------------------------------------------------------


def test_own_writes_are_read(service: RunningService, place: Database) -> None:
    call(place, "CALL tidemark.create_view('read', 'SELECT a, sum(id) AS s FROM t GROUP BY a')")
    session = place.connect()
    cursor = session.cursor()
    started = time.monotonic()
    for number in range(20):
        cursor.execute("SET synchronous_commit = %s", ("off" if number % 2 else "on",))
        cursor.execute("INSERT INTO t VALUES (%s, 50, '')", (1000 + number,))
        # Not only rows that a view reads: also where nothing else moves the position on.
        cursor.execute("INSERT INTO taken VALUES (%s)", (number,))
        cursor.execute("SELECT tidemark.wait('30 s')")
        cursor.execute("SELECT s FROM read WHERE a = 50")
        assert cursor.fetchall() == [(sum(range(1000, 1001 + number)),)]
    # An idle source's position moves every five seconds by itself.
    assert time.monotonic() - started < 60
    cursor.execute("DELETE FROM t WHERE a = 50; TRUNCATE taken")
    session.close()


def test_a_difference_is_an_error(service: RunningService, place: Database) -> None:
    place.forge("UPDATE _read SET s = s + 1 WHERE a = 1")
    error = refusal(lambda: call(place, "CALL tidemark.verify_view('read')"))
    assert error.pgcode == "XX001"
    assert "code: verify.different" in error.diag.message_detail
    found = place.rows("SELECT result FROM tidemark.my_requests ORDER BY id DESC LIMIT 1")
    told = found[0][0]
    assert (told["result"], told["missing"], told["surplus"]) == ("different", 1, 1)
    place.forge("UPDATE _read SET s = s - 1 WHERE a = 1")


def test_waits_that_cannot_end_well(service: RunningService, place: Database) -> None:
    cases = {
        "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT tidemark.wait()": "25001",
        "BEGIN; INSERT INTO taken VALUES (1); SELECT tidemark.wait()": "25001",
        "SELECT tidemark.wait('F/0'::pg_lsn, '0.2 s')": "57014",
    }
    for statement, state in cases.items():
        error = refusal(lambda text=statement: call(place, text))
        assert (error.pgcode, bool(error.diag.message_hint)) == (state, True), error
    call(place, "CALL tidemark.drop_view('read')")
