"""One engine per database: a session holds an advisory lock for the engine's lifetime.

Invariant: an engine never shares a slot with another engine or a service. The lock ends with its
session, so a killed engine blocks nobody.
"""

from __future__ import annotations

import time
from typing import Self

from psycopg2.extensions import connection as Connection
from psycopg2.extensions import make_dsn, parse_dsn

from connectors.postgres.embedded.function_tables import SCHEMA
from connectors.postgres.session.session import connect, redact, translated
from dataflow.errors import TidemarkError

_NUMBER = 7_954_889_273_471_285


def with_search_path(dsn: str) -> str:
    """Return the DSN with the schema of functions appended to its sessions' search path.

    SourceError, TemporaryError.
    """
    session = connect(dsn, is_users=True)
    try:
        with translated("source", "the search path cannot be read"), session.cursor() as cursor:
            cursor.execute("SHOW search_path")
            (path,) = cursor.fetchone() or ("",)
    finally:
        session.close()
    parts = [part.strip() for part in path.split(",") if part.strip()]
    extended = ",".join([*(p for p in parts if p != SCHEMA), SCHEMA]).replace(" ", "\\ ")
    options = parse_dsn(dsn).get("options", "")
    return make_dsn(dsn, options=f"{options} -csearch_path={extended}".strip())


class EngineLock:
    """`with EngineLock(dsn, timeout_s):`. TidemarkError engine.in_use."""

    def __init__(self, dsn: str, timeout_s: float) -> None:
        self._dsn = dsn
        self._timeout_s = timeout_s
        self._session: Connection | None = None

    def __enter__(self) -> Self:
        session = self._session = connect(self._dsn, application_name="tidemark engine")
        session.autocommit = True
        deadline = time.monotonic() + self._timeout_s
        try:
            with translated("source", "the engine's lock cannot be taken"):
                while not self._is_free(session):
                    if time.monotonic() > deadline:
                        raise self._in_use()
                    time.sleep(0.1)
        except BaseException:
            session.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def _is_free(self, session: Connection) -> bool:
        with session.cursor() as cursor:
            cursor.execute(
                "SELECT pg_try_advisory_lock(%s) AND NOT EXISTS (SELECT FROM pg_replication_slots "
                "WHERE slot_name ~ '^tidemark_([a-z0-9_]+_)?source$' AND active "
                "AND database = current_database())",
                (_NUMBER,),
            )
            return bool((cursor.fetchone() or (False,))[0])

    def _in_use(self) -> TidemarkError:
        return TidemarkError(
            "engine.in_use",
            "another engine or service uses the database",
            detail=redact(self._dsn),
            hint="close it, connect to it with tidemark.connect, or use another database",
        )
