"""Whether a DSN leads to the server itself, or to a pooler before it.

A pooler tells its clients a number of its own for their session, which is not that of the server's
process. One that pools transactions gives the session that a client has just used to the next one.
Source: PgBouncer's manual, "pool_mode" and "server_round_robin".
"""

from __future__ import annotations

from connectors.postgres.session.liveness_watchdog import Watched
from connectors.postgres.session.session import Session, connect

DIRECT, POOLER = "direct", "pooler"


def connection_of(session: Session) -> tuple[str, bool]:
    """Return what a DSN leads to, and whether two sessions were seen to share one of the server.

    It needs one more connection. Errors as of `Session.rows`.
    """

    def compare(first: Watched) -> tuple[str, bool]:
        with first.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            ((own,),) = cursor.fetchall()
        if own == first.info.backend_pid:
            return DIRECT, False
        second = connect(session.dsn, side=session.side)
        try:
            with second.cursor() as cursor:
                # While the first one still has its session.
                cursor.execute("SELECT pg_backend_pid()")
                ((other,),) = cursor.fetchall()
        finally:
            second.close()
        return POOLER, own == other

    return session.run(compare)
