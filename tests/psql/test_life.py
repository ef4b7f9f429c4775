"""Oracle: docs/PSQL.md and the query: a view that was replaced, paused, moved or rebuilt by CALL
shows its query's rows, and only its owner may do that."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.harness.postgres import Database
from tests.harness.psql import as_role, call, psql, refusal, roles, states
from tests.harness.service import RunningService
from tests.harness.waiting import wait_until

LIFE = """
CREATE SCHEMA elsewhere;
CALL tidemark.create_view('v', 'SELECT a, count(*) AS n FROM t GROUP BY a');
CALL tidemark.replace_view('v', 'SELECT a, sum(id) AS s FROM t GROUP BY a');
SELECT * FROM v WHERE a = 0;
CALL tidemark.pause_view('v');
INSERT INTO t VALUES (300, 0, 'x');
SELECT * FROM v WHERE a = 0;
CALL tidemark.resume_view('v');
SELECT tidemark.wait() IS NOT NULL;
SELECT * FROM v WHERE a = 0;
CALL tidemark.rename_view('v', '"Odd one"');
CALL tidemark.move_view('"Odd one"', 'elsewhere');
SELECT * FROM elsewhere."Odd one" WHERE a = 0;
CALL tidemark.change_runtime('elsewhere."Odd one"', 'local');
CALL tidemark.rebuild_view('elsewhere."Odd one"');
SELECT schema, name, status FROM tidemark.status;
CALL tidemark.drop_view('elsewhere."Odd one"');
DELETE FROM t WHERE id = 300;
DROP SCHEMA elsewhere;
"""


def test_life_of_a_view(service: RunningService, place: Database) -> None:
    ended = psql(place, LIFE)
    assert ended.returncode == 0, ended.stderr
    rows = ["0|165", "0|165", "t", "0|465", "0|465", "elsewhere|Odd one|live"]
    assert ended.stdout.splitlines() == rows
    words = ("replace is done", "is paused", "resume is done", "rename is done", "rebuild is")
    for word in (*words, "move is done"):
        assert word in ended.stderr, ended.stderr


def test_refusals(service: RunningService, place: Database) -> None:
    def state(statement: str) -> str | None:
        return refusal(lambda: call(place, statement)).pgcode

    for words in ("pause_view('no')", "resume_view('no')", "rebuild_view('no')"):
        assert state(f"CALL tidemark.{words}") == "42P01"
    assert state("CALL tidemark.rename_view('no', 'x')") == "42P01"
    call(place, "CALL tidemark.create_view('kept', 'SELECT a, count(*) AS n FROM t GROUP BY a')")
    shown = refusal(lambda: call(place, "CALL tidemark.replace_view('kept', 'SELECT a FRM t')"))
    assert shown.pgcode == "42601"
    assert "LINE 1: SELECT a FRM t" in shown.diag.message_detail
    assert state("CALL tidemark.resume_view('kept')") == "55000"
    assert state("CALL tidemark.rename_view('kept', 'taken')") == "42P07"
    assert state("CALL tidemark.move_view('kept', 'nowhere')") == "3F000"
    assert state("CALL tidemark.pause_view('kept', '{\"cascades\": true}')") == "22023"
    assert state("CALL tidemark.change_runtime('kept', 'elsewhere')") == "22023"
    shown = refusal(lambda: call(place, "CALL tidemark.change_runtime('kept', 'spark')"))
    assert "no Spark maintains views here" in shown.diag.message_primary
    with roles(place, "rita"):
        ended: subprocess.CompletedProcess[str] = psql(
            place, "\\i deploy/creators.sql\n", creators="rita"
        )
        assert ended.returncode == 0, ended.stderr
        for words in ("pause_view('kept')", "replace_view('kept', 'SELECT 1 AS a')"):
            not_hers = refusal(lambda text=words: as_role(place, "rita", f"CALL tidemark.{text}"))
            assert not_hers.pgcode == "42501"
    assert place.rows("SELECT count(*) FROM kept") == [(3,)]
    call(place, "CALL tidemark.drop_view('kept')")


def test_a_change_is_made_once(service: RunningService, place: Database) -> None:
    """The API process dies after it has asked the pipeline, and before that has done anything."""
    call(place, "CALL tidemark.create_view('once', 'SELECT a, count(*) AS n FROM t GROUP BY a')")
    pipeline = service.pid_of("pipeline")
    assert pipeline is not None
    os.kill(pipeline, signal.SIGSTOP)
    try:
        words = "'SELECT a, min(id) AS n FROM t GROUP BY a', '{\"wait\": false}'"
        call(place, f"CALL tidemark.replace_view('once', {words})")
        asked = "SELECT change IS NOT NULL FROM tidemark.views WHERE name = 'once'"
        wait_until(lambda: place.rows(asked) == [(True,)])
        assert service.kill_child("api")
        wait_until(lambda: place.rows("SELECT tidemark.is_served()") == [(True,)])
    finally:
        os.kill(pipeline, signal.SIGCONT)
    wait_until(lambda: not states(place))
    ended = (
        "SELECT status FROM tidemark.my_requests WHERE operation = 'replace_view' ORDER BY id DESC"
    )
    assert place.rows(f"{ended} LIMIT 1") == [("done",)]
    assert place.rows("SELECT version FROM tidemark.views WHERE name = 'once'") == [(1,)]
    assert place.rows("SELECT n FROM once WHERE a = 1") == [(1,)]
    call(place, "CALL tidemark.drop_view('once')")


@pytest.mark.whole
def test_warnings_are_raised_as_rest_gives_them(service: RunningService, place: Database) -> None:
    """Those of the query of then, also where a view is replaced or rebuilt."""
    query = "SELECT id, a FROM t ORDER BY id"
    ended = psql(place, f"CALL tidemark.create_view('warned', '{query}');")
    told = service.call("GET", "/views/public.warned").json()["warnings"]
    assert told and ended.returncode == 0, ended.stderr
    for warning in told:
        assert f"WARNING:  {warning}" in ended.stderr
    plain = "SELECT id, a FROM t"
    ended = psql(place, f"CALL tidemark.replace_view('warned', '{plain}');")
    assert ended.returncode == 0 and "WARNING" not in ended.stderr, ended.stderr
    for statement in (f"replace_view('warned', '{query}')", "rebuild_view('warned')"):
        ended = psql(place, f"CALL tidemark.{statement};")
        assert ended.returncode == 0 and f"WARNING:  {told[0]}" in ended.stderr, ended.stderr
    ended = psql(
        place, "SELECT result -> 'warnings' FROM tidemark.my_requests ORDER BY id DESC LIMIT 1"
    )
    assert told[0][:20] in ended.stdout
    assert psql(place, "CALL tidemark.drop_view('warned');").returncode == 0
