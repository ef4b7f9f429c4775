"""Oracle: the server's own sessions. A call whose answer cannot come ends, one at work does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import psycopg2
import pytest

from connectors.postgres.session import backend_probe
from connectors.postgres.session.backend_probe import TIME_LIMITS, Verdict
from connectors.postgres.session.session import Session, connect
from dataflow.errors import TemporaryError
from tests.harness.postgres import Database
from tests.harness.proxy import BOTH, DOWN, HALF_OPEN, UP, Fault, Proxy
from tests.harness.waiting import wait_until


@pytest.fixture(autouse=True)
def _short_timeout() -> Iterator[None]:
    before, TIME_LIMITS.liveness_timeout_s = TIME_LIMITS.liveness_timeout_s, 1.5
    yield
    TIME_LIMITS.liveness_timeout_s = before


@pytest.fixture
def proxy(database: Database) -> Iterator[Proxy]:
    with Proxy(database.server.port) as running:
        yield running


def _left(database: Database) -> int:
    """Sessions of ours that the server still has."""
    found = database.rows(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidemark'"
        " AND datname = current_database()"
    )
    return found[0][0]


@pytest.mark.parametrize("directions", [BOTH, (UP,), (DOWN,)])
def test_a_half_open_session_is_noticed(
    database: Database, proxy: Proxy, directions: tuple[str, ...]
) -> None:
    """The call fails as one on a lost connection, and the server has nothing of it any more."""
    session = connect(proxy.dsn(database.dsn), is_users=True)
    cursor = session.cursor()
    cursor.execute("CREATE TABLE held (id int)")
    proxy.begin(Fault(HALF_OPEN, directions))
    threading.Timer(1.0, proxy.heal).start()
    with pytest.raises(psycopg2.OperationalError, match=r"wait for each other|no sign of life"):
        cursor.execute("SELECT 1")
    assert session.closed
    wait_until(lambda: _left(database) == 0)


@pytest.mark.whole
def test_statements_at_work_are_left_alone(database: Database, proxy: Proxy) -> None:
    """Far longer than silence may last; also while we ourselves are the slow ones."""
    session = connect(proxy.dsn(database.dsn))
    cursor = session.cursor()
    cursor.execute("SELECT pg_sleep(4), 1")
    assert cursor.fetchone() == ("", 1)

    class Slow:
        """Rows that take their time."""

        def __init__(self) -> None:
            self.rows = ["1\n", "2\n", ""]

        def read(self, size: int) -> str:
            time.sleep(1.5)
            return self.rows.pop(0)

    cursor.execute("CREATE TEMP TABLE t (id int)")
    cursor.copy_expert("COPY t FROM STDIN", Slow())
    assert cursor.rowcount == 2
    session.close()


def test_a_session_of_single_statements_continues(database: Database, proxy: Proxy) -> None:
    """It is opened again where it was lost."""
    session = Session(proxy.dsn(database.dsn))
    assert session.rows("SELECT 1") == [(1,)]
    proxy.begin(Fault(HALF_OPEN))
    threading.Timer(0.5, proxy.heal).start()
    assert session.rows("SELECT 2") == [(2,)]
    session.close()


@pytest.mark.whole
def test_nobody_answers(database: Database, proxy: Proxy) -> None:
    session = Session(proxy.dsn(database.dsn))
    assert session.rows("SELECT 1") == [(1,)]
    proxy.begin(Fault(HALF_OPEN))
    with pytest.raises(TemporaryError) as raised:
        session.rows("SELECT 2")
    assert raised.value.code == "source.unreachable"


def test_what_the_server_says(database: Database) -> None:
    session = connect(database.dsn)
    assert backend_probe.probe(session) is Verdict.WAITING
    busy = threading.Thread(target=lambda: session.cursor().execute("SELECT pg_sleep(2)"))
    busy.start()
    wait_until(lambda: backend_probe.probe(session) is Verdict.WORKING)
    busy.join()
    other = connect(database.dsn, application_name="somebody else")
    session.pid = other.pid  # as if the number had been given anew
    backend_probe.end_left(session)
    assert other.cursor().execute("SELECT 1") is None
    for one in (session, other):
        one.close()
