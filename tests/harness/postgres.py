"""Databases of the tests: one a test on a shared server, with nothing left of it afterwards."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg2
from psycopg2.extensions import connection as Connection

from connectors.postgres.embedded.server import EmbeddedPostgres, available_versions

WANTED_VERSIONS = (15, 18)
# A killed server loses nothing without fsync, only a machine that loses power does. Queries over a
# few rows that the planner thinks dear take longer to be compiled than to be answered.
SERVER_SETTINGS = {"fsync": "off", "jit": "off", "wal_sender_timeout": "30s"}
_numbers = itertools.count()
# Of a thread: the sessions of `one_session`, by DSN.
_local = threading.local()


def versions_to_test() -> list[int]:
    """Those of WANTED_VERSIONS that are on this machine, or what TIDEMARK_TEST_PG names."""
    chosen = os.environ.get("TIDEMARK_TEST_PG")
    if chosen:
        return [int(part) for part in chosen.split(",")]
    found = available_versions()
    return [v for v in WANTED_VERSIONS if v in found] or list(found)[:1]


@dataclass(frozen=True)
class Database:
    """A database of its own for one test."""

    server: EmbeddedPostgres
    name: str

    @property
    def dsn(self) -> str:
        """libpq's connection string."""
        return self.server.dsn_of(self.name)

    def connect(self, *, autocommit: bool = True) -> Connection:
        """A new session; the caller closes it, or the end of the test does."""
        connection = psycopg2.connect(self.dsn)
        connection.autocommit = autocommit
        return connection

    def execute(self, sql: str, parameters: Any = None) -> None:
        """Run statements in a session of their own and commit."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql, parameters)
        finally:
            connection.close()

    def forge(self, sql: str, parameters: Any = None) -> None:
        """Write to the tables of views past their guard: as a transaction that is an epoch's."""
        mark = "SELECT set_config('tidemark.epoch', pg_current_xact_id()::text, true)"
        self.execute(f"{mark}; {sql}", parameters)

    def rows(self, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """All rows of a query, in a session of its own; see `one_session`."""
        held = getattr(_local, "sessions", None)
        connection = self.connect() if held is None else held.pop(self.dsn, None) or self.connect()
        is_usable = False
        try:
            with connection.cursor() as cursor:
                cursor.execute(sql, parameters)
                found = cursor.fetchall()
            is_usable = held is not None
            return found
        finally:
            if held is not None and is_usable:
                held[self.dsn] = connection
            else:
                connection.close()


@contextmanager
def one_session() -> Iterator[None]:
    """Let `rows` reuse a session of each database in this thread until the end: what waits asks
    often, and a new session takes the server 5 ms of CPU."""
    if getattr(_local, "sessions", None) is not None:
        yield
        return
    _local.sessions = {}
    try:
        yield
    finally:
        for connection in _local.sessions.values():
            connection.close()
        _local.sessions = None


@contextmanager
def new_database(server: EmbeddedPostgres) -> Iterator[Database]:
    """An empty database, dropped at the end with its sessions and its slots."""
    name = f"t{os.getpid()}_{next(_numbers)}"
    admin = Database(server, "postgres")
    admin.execute(f"CREATE DATABASE {name} TEMPLATE template0")
    try:
        yield Database(server, name)
    finally:
        if server.is_running:
            drop_database(server, name)


def drop_database(server: EmbeddedPostgres, name: str) -> None:
    """End the sessions of a database, drop its slots, drop it."""
    admin = Database(server, "postgres")
    deadline = time.monotonic() + 60
    while True:
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,)
        )
        slots = admin.rows(
            "SELECT slot_name, active FROM pg_replication_slots WHERE database = %s", (name,)
        )
        for slot, is_active in slots:
            if not is_active:
                admin.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
        if all(not is_active for _, is_active in slots) or time.monotonic() > deadline:
            break
        time.sleep(0.05)
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
