"""The real psql, and roles of a test's own on a server that others share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2
import pytest
from psycopg2.extensions import connection as Connection

from connectors.postgres.evaluation.query_role import QUERY_ROLE
from tests.harness.postgres import Database


def psql(
    database: Database, text: str, *, user: str = "postgres", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run statements, each as psql sends it; stops at the first error (code 3)."""
    return subprocess.run(
        psql_command(database, user, **variables),
        input=text,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=psql_environment(),
    )


def psql_command(database: Database, user: str = "postgres", **variables: str) -> list[str]:
    """psql on a database, its statements from standard input; prints rows without ornament."""
    server = database.server
    dsn = f"host=127.0.0.1 port={server.port} user={user} dbname={database.name}"
    command = [str(server.program("psql")), "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1"]
    for name, value in variables.items():
        command += ["-v", f"{name}={value}"]
    return [*command, "-d", dsn]


def psql_environment() -> dict[str, str]:
    """Without what a user has set for himself."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PG")}


def give_query_role(place: Database, *services: str) -> None:
    """Let roles of a test's own be those of services, as deploy/role.sql does."""
    place.execute(
        f"DO $$ BEGIN CREATE ROLE {QUERY_ROLE} NOLOGIN NOINHERIT;"
        " EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
    )
    for service in services:
        place.execute(f'GRANT {QUERY_ROLE} TO "{service}"')
    place.execute(f"GRANT USAGE ON SCHEMA public TO {QUERY_ROLE}")


def call(place: Database, statement: str, parameters: tuple[Any, ...] = ()) -> list[str]:
    """A statement on a session of its own; its notices."""
    session = place.connect()
    try:
        session.cursor().execute(statement, parameters or None)
        return [notice.strip() for notice in session.notices]
    finally:
        session.close()


def refusal(act: Callable[[], object]) -> psycopg2.Error:
    """The error that an act ends in."""
    with pytest.raises(psycopg2.Error) as raised:
        act()
    return raised.value


def states(place: Database) -> list[tuple[Any, ...]]:
    """How the requests stand that have not ended."""
    return place.rows("SELECT status FROM tidemark.requests WHERE ended_at IS NULL")


def as_role(place: Database, user: str, statement: str) -> list[tuple[Any, ...]]:
    """The rows of a statement on a session of a role."""
    session = session_of(place, user)
    try:
        cursor = session.cursor()
        cursor.execute(statement)
        return cursor.fetchall() if cursor.description else []
    finally:
        session.close()


def session_of(database: Database, user: str) -> Connection:
    """A session of a role, committing by itself."""
    server = database.server
    dsn = f"host=127.0.0.1 port={server.port} user={user} dbname={database.name}"
    connection = psycopg2.connect(dsn)
    connection.autocommit = True
    return connection


@contextmanager
def roles(database: Database, *names: str) -> Iterator[None]:
    """Roles that may log in, gone afterwards with all that they own in this database."""
    for name in names:
        database.execute(f'CREATE ROLE "{name}" LOGIN')
    try:
        yield
    finally:
        for name in names:
            database.execute(f'DROP OWNED BY "{name}" CASCADE; DROP ROLE "{name}"')
