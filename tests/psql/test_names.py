"""Oracle: docs/PSQL.md and PostgreSQL: a name is a name, whatever is in it."""

from __future__ import annotations

import os
import signal

import pytest

from tests.harness.postgres import Database
from tests.harness.psql import psql, states
from tests.harness.service import RunningService
from tests.harness.waiting import wait_until

# --- names --------------------------------------------------------------------------------

NAMES = (
    *("select", "SELECT", "table", "user", "null", "Group", "order by", "a b", " a", "a "),
    *("a.b", "a..b", ".", "a;b", "a'b", "a''b", "'", "a\\b", "\\", "a/b", "/", "..", "../x", "a%b"),
    *("%s", "%(x)s", "%%", "{}", "{0}", "$1", "$$", "a$b", ":a", ":'a'", "?", "a?b", "--", "a--b"),
    *("/*", "*/", "/* a */", "a\tb", "a\nb", "a\rb", "a\x07b", "\x7f", "ü", "ß", "日本", "😀"),
    *("e\u0301", "\u200b", "\u202etxet", "NaN", "1", "1a", "0x1", "-1", "true", "x" * 63),
    *("é" * 31, "a\"b", "\"", "\"\"", "' OR 1=1 --", "\"; DROP TABLE t; --", "<b>", "&amp;", "`a`"),
    *("pg_class", "_a", "__h", "_tidemark_x", "oid", "ctid", "public", "tidemark"),
)  # fmt: skip


BUILT = ("a.b", 'a"b', "' OR 1=1 --", "日本\n%s")


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@pytest.mark.whole
def test_hostile_names(service: RunningService, place: Database) -> None:
    """A view of each name, asked for and dropped; the catalog has the very name."""
    assert len(set(NAMES)) == len(NAMES) >= 60
    service.await_so(lambda: service.pid_of("pipeline"))
    pipeline = service.pid_of("pipeline")
    assert pipeline is not None
    session = place.connect(autocommit=False)
    cursor = session.cursor()
    create = "CALL tidemark.create_view(%s, 'SELECT id FROM t WHERE a = 1', '{\"wait\": false}')"
    # Nothing is built meanwhile: that takes a second each, and is another test's.
    os.kill(pipeline, signal.SIGSTOP)
    try:
        for name in NAMES:
            cursor.execute(create, (quoted(name),))
        session.commit()
        known = "SELECT name FROM tidemark.views"
        wait_until(lambda: sorted(n for (n,) in place.rows(known)) == sorted(NAMES), 120)
        for name in NAMES:
            drop = "CALL tidemark.drop_view(%s, '{\"wait\": false}')"
            cursor.execute(drop, (quoted(name),))
        session.commit()
        session.close()
        dropped = "SELECT count(*) FROM tidemark.views WHERE desired = 'dropped'"
        wait_until(lambda: place.rows(dropped) == [(len(NAMES),)], 120)
    finally:
        os.kill(pipeline, signal.SIGCONT)
    wait_until(lambda: not states(place), 120)
    asked = "SELECT operation, status, code FROM tidemark.my_requests ORDER BY id DESC LIMIT %s"
    assert set(place.rows(asked, (2 * len(NAMES),))) == {
        ("drop_view", "done", None),
        ("create_view", "failed", "view.dropped"),
    }
    assert place.rows("SELECT count(*) FROM tidemark.views") == [(0,)]
    assert place.rows("SELECT count(*) FROM t") == [(30,)]


@pytest.mark.whole
def test_hostile_names_of_views_and_columns(service: RunningService, place: Database) -> None:
    """Some are built, read and dropped, through psql's own variables."""
    for name in BUILT:
        query = f"SELECT id AS {quoted(name)} FROM t WHERE a = 1"
        statement = "CALL tidemark.create_view(:'name', :'query', '{\"wait\": false}');"
        ended = psql(place, statement, name=quoted(name), query=query)
        assert ended.returncode == 0, ended.stderr
    wait_until(lambda: not states(place), 180)
    expected = sorted(place.rows("SELECT id FROM t WHERE a = 1"))
    for name in BUILT:
        assert sorted(place.rows(f"SELECT {quoted(name)} FROM {quoted(name)}")) == expected
        statement = "CALL tidemark.drop_view(:'name', '{\"wait\": false}');"
        assert psql(place, statement, name=quoted(name)).returncode == 0
    wait_until(lambda: not states(place), 120)
    assert place.rows("SELECT count(*) FROM tidemark.views") == [(0,)]
