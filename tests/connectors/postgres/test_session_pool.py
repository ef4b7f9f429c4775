"""Oracle: the sessions that PostgreSQL lists, by owner."""

from __future__ import annotations

import os
from contextlib import closing

import pytest

from connectors.postgres.catalog.catalog import Control
from connectors.postgres.catalog.requests import Requests
from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from connectors.postgres.session import session_pool
from connectors.postgres.session.liveness_watchdog import Watched
from connectors.postgres.session.session import Session, connect
from connectors.postgres.session.session_pool import POOL, SessionPool
from dataflow.errors import SinkError, TidemarkError
from dataflow.types import INT4
from tests.harness.postgres import Database
from tests.harness.waiting import wait_until

_OURS = """SELECT application_name FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'tidemark%'"""


def _ours(database: Database) -> list[str]:
    """Return the owners of our sessions in a database."""
    return [name for (name,) in database.rows(_OURS)]


def test_statements_share_a_session_that_ends_when_it_is_idle(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_pool, "_CHECK_S", 0.05)
    monkeypatch.setattr(SessionPool.run, "__defaults__", (0.3,))
    kept = [Session(database.dsn, side) for side in ("source", "sink") for _ in range(5)]
    controls = [Control(database.dsn) for _ in range(5)]
    for session in kept:
        assert session.rows("SELECT 1") == [(1,)]
    for control in controls:
        control.ensure()
    assert _ours(database) == ["tidemark"]
    wait_until(lambda: not _ours(database))


def test_a_session_with_an_open_transaction_is_not_shared(database: Database) -> None:
    session = Session(database.dsn)

    def begin(lent: Watched) -> int:
        lent.cursor().execute("BEGIN")
        return lent.info.backend_pid

    pid = session.run(begin)
    assert session.rows("SELECT pg_backend_pid()") != [(pid,)]
    session.close()


def test_a_server_that_became_writable_is_written_to(database: Database) -> None:
    """The setting of an idle session is as old as the session."""
    session = Session(database.dsn, "sink")
    alter = f"ALTER DATABASE {database.name} SET default_transaction_read_only ="
    admin = Database(database.server, "postgres")
    admin.execute(f"{alter} on")
    with pytest.raises(SinkError) as caught:
        session.execute("CREATE TABLE public.t ()")
    assert caught.value.code == "sink.read_only"
    admin.execute(f"{alter} off")
    session.execute("CREATE TABLE public.t ()")
    session.close()


def test_a_forked_process_has_none_of_its_parent_s(database: Database) -> None:
    session = Session(database.dsn)
    [(pid,)] = session.rows("SELECT pg_backend_pid()")
    child = os.fork()
    if child == 0:
        # Nothing of the test's is run in the child.
        found = session.rows("SELECT pg_backend_pid()")
        os._exit(1 if found == [(pid,)] else 0)
    assert os.waitpid(child, 0)[1] == 0
    assert session.rows("SELECT pg_backend_pid()") == [(pid,)]
    session.close()


@pytest.mark.parametrize("is_replication", [False, True])
def test_a_refused_login_keeps_no_socket(database: Database, is_replication: bool) -> None:
    dsn = database.dsn.replace("user=postgres", "user=nobody_here")
    errors = []
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with pytest.raises(TidemarkError) as caught:
            connect(dsn, is_replication=is_replication)
        errors.append(caught.value)
    assert len(os.listdir("/proc/self/fd")) < before + len(errors)


@pytest.mark.parametrize("owner", ["setup", "requests", "evaluator", "statement"])
def test_a_session_that_cannot_be_set_up_is_closed(database: Database, owner: str) -> None:
    """Whoever holds the error holds no session by it."""
    Control(database.dsn).ensure()
    errors = []
    if owner == "requests":
        database.execute("DROP TABLE tidemark.listeners")
    for _ in range(5):
        with pytest.raises(TidemarkError) as caught:
            match owner:
                case "setup":
                    connect(database.dsn, setup=lambda s: s.cursor().execute("SELECT 1/0"))
                case "requests":
                    Requests(database.dsn).take()
                case "evaluator":
                    evaluator = PostgresEvaluator(f"{database.dsn} options='-c role=pg_monitor'")
                    with closing(evaluator):
                        evaluator.evaluate("1", [], [], 1, INT4)
                case "statement":
                    Session(database.dsn).rows("SELECT 1/0")
        errors.append(caught.value)
    POOL.close((database.dsn, "tidemark"))
    wait_until(lambda: not _ours(database))
    assert len(errors) == 5
