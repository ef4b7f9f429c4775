"""The connection to an SQL catalog in a database of PostgreSQL.

It is a foreign login like any other of PostgreSQL. Invariant: the catalog's tables are those of the
sink's schema, and every other name is PostgreSQL's own.
"""

from __future__ import annotations

from connectors.outside.logins import PostgresLogin
from connectors.postgres.session.foreign import ForeignDsn
from connectors.postgres.session.liveness_watchdog import Watched
from connectors.postgres.session.quoting import quote_name
from connectors.postgres.session.session import connect as open_session


def connect(login: PostgresLogin, schema: str) -> Watched:
    """Open the catalog's database. SinkError sink.own_database, sink.login, sink.database;
    SourceError host.forbidden, secret.missing; TemporaryError sink.unreachable.
    """
    path = f"{quote_name(schema)}, pg_temp"
    return open_session(
        ForeignDsn.of(login),
        side="sink",
        application_name="tidemark catalog",
        settings={"search_path": path},
    )
