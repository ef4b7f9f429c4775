"""One query, answered once: analyzed as a view's would be, then read-only in one snapshot.

Invariant: what runs is PostgreSQL's own text of a single SELECT (never the user's), in a READ ONLY
transaction under a time-out, over tables that are no catalog's, by functions that have no effect
beside their result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg2
from psycopg2 import errorcodes
from psycopg2.extensions import new_type, string_types

from connectors.postgres import confined
from connectors.postgres.analyzer import PostgresAnalyzer
from connectors.postgres.explained import relations_scanned
from connectors.postgres.session import connect, is_temporary, to_error
from connectors.sink import Progress
from dataflow.errors import SourceError, SqlError, TemporaryError, TidemarkError
from dataflow.schema import Field
from dataflow.sql.analysis import Analysis
from dataflow.types import TypeKind

MOST_BYTES = 32 << 20
_FETCHED = 500
_CATALOGS = ("pg_catalog", "information_schema", "tidemark", "pg_toast")
# What is refused to a role that asks.
_RIGHTS = ("source.privilege", "source.row_security", "source.role_missing")
# Volatile, but with no effect beside their result.
_HARMLESS = ("random", "clock_timestamp", "timeofday", "gen_random_uuid")
_PLAIN = {
    *(TypeKind.INT2, TypeKind.INT4, TypeKind.INT8, TypeKind.FLOAT4, TypeKind.FLOAT8),
    *(TypeKind.JSON, TypeKind.JSONB),
}
_NOT_NUMBERS = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True)
class OneShot:
    """A query that may run. relations: (schema, name) of the tables that it reads; role: whose
    rights count, "" for the session's own."""

    text: str
    fields: tuple[Field, ...]
    relations: tuple[tuple[str, str], ...]
    role: str = ""


@dataclass(frozen=True)
class Answer:
    """rows: JSON objects. has_more: there are rows beyond the limit. progress: of the views in
    this database, by key; position: of the database's log, both as of the answer's snapshot."""

    rows: list[str]
    has_more: bool
    progress: dict[str, Progress]
    position: str


def prepare(dsn: str, query: str, role: str = "") -> OneShot:
    """Look at a query. SqlError as for a view; TidemarkError query.not_allowed, auth.rights."""
    try:
        with PostgresAnalyzer(dsn, "query", asker=role) as analyzer:
            analysis = analyzer.analyze(query)
    except SourceError as error:
        if error.code not in _RIGHTS:
            raise
        raise TidemarkError(
            "auth.rights", error.what, detail=error.detail, hint=error.hint
        ) from None
    _require_harmless(analysis)
    session = connect(dsn, settings={"statement_timeout": "30s", "search_path": "pg_temp"})
    try:
        session.set_session(readonly=True)
        with session.cursor() as cursor:
            _assume(cursor, role)
            cursor.execute(f"EXPLAIN (VERBOSE, FORMAT JSON, COSTS OFF) {analysis.text}")
            (plan,) = cursor.fetchone() or ([],)
    except psycopg2.Error as error:
        raise _refusal(error) from None
    finally:
        session.close()
    relations = tuple(sorted(set(relations_scanned(plan))))
    for schema, name in relations:
        if schema in _CATALOGS:
            raise _not_allowed(f"it reads {schema}.{name}")
    return OneShot(analysis.text, analysis.fields, relations, role)


def run(dsn: str, query: OneShot, limit: int, timeout_s: float) -> Answer:
    """Answer it. SqlError of its rows; TemporaryError query.timeout."""
    settings = {
        "statement_timeout": f"{max(1, round(timeout_s * 1000))}ms",
        "search_path": "pg_temp",
        "jit": "off",
    }
    session = connect(dsn, settings=settings, application_name="tidemark query")
    try:
        session.set_session(isolation_level="REPEATABLE READ", readonly=True)
        cursor = session.cursor()
        progress = _progress(cursor)
        cursor.execute(
            "SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_lsn() END::text"
        )
        (position,) = cursor.fetchone() or ("",)
        _assume(cursor, query.role)
        cursor.execute(f"DECLARE answer NO SCROLL CURSOR FOR {query.text}")
        rows, held_bytes = [], 0
        for row in _rows(session, query.fields):
            held_bytes += len(row)
            if len(rows) == limit or (rows and held_bytes > MOST_BYTES):
                return Answer(rows, True, progress, position or "")
            rows.append(row)
        return Answer(rows, False, progress, position or "")
    except psycopg2.Error as error:
        raise _refusal(error) from None
    finally:
        session.close()


def _assume(cursor: Any, role: str) -> None:
    # Functions that are not volatile cannot take it back.
    if role:
        confined.assume(cursor, role)


def _rows(session: Any, fields: tuple[Field, ...]) -> Iterator[str]:
    names = [json.dumps(f.name, ensure_ascii=False) for f in fields]
    cursor = session.cursor()
    raw = new_type(tuple(string_types), "raw", lambda value, _: value)
    psycopg2.extensions.register_type(raw, cursor)
    while True:
        cursor.execute(f"FETCH {_FETCHED} FROM answer")
        found = cursor.fetchall()
        for row in found:
            values = (_shown(f.type.kind, v) for f, v in zip(fields, row, strict=True))
            yield "{" + ",".join(f"{n}:{v}" for n, v in zip(names, values, strict=True)) + "}"
        if len(found) < _FETCHED:
            return


def _shown(kind: TypeKind, text: str | None) -> str:
    """A value as JSON, as the JSON topics have it."""
    if text is None:
        return "null"
    if kind is TypeKind.BOOL:
        return "true" if text == "t" else "false"
    if kind in _PLAIN and text not in _NOT_NUMBERS:
        return text
    return json.dumps(text, ensure_ascii=False)


def _progress(cursor: Any) -> dict[str, Progress]:
    cursor.execute("SELECT to_regclass('tidemark.progress') IS NOT NULL")
    if not (cursor.fetchone() or (False,))[0]:
        return {}
    cursor.execute("SELECT sink_key, epoch, positions FROM tidemark.progress")
    return {key: Progress(epoch, positions) for key, epoch, positions in cursor.fetchall()}


def _require_harmless(analysis: Analysis) -> None:
    for routine in analysis.routines:
        is_ours = "." not in routine.name
        is_volatile = routine.volatility == "v" and routine.name not in _HARMLESS
        is_telling = is_ours and routine.volatility == "s" and _tells(routine.name)
        if is_volatile or is_telling:
            raise _not_allowed(f"it calls {routine.name}()")


def _tells(name: str) -> bool:
    """Whether a stable function of PostgreSQL's own tells of more than its arguments."""
    return name.startswith("pg_") or "_to_xml" in name or name == "current_setting"


def _not_allowed(detail: str) -> TidemarkError:
    return TidemarkError(
        "query.not_allowed",
        "the query may not run here",
        detail=detail,
        hint="read tables and views of your own, by functions without an effect",
    )


def _refusal(error: psycopg2.Error) -> TidemarkError:
    state, diagnostics = error.pgcode or "", error.diag
    if state == "57014":
        return TemporaryError(
            "query.timeout",
            "the query took too long",
            hint="raise timeout_s, or create a view of it",
        )
    if is_temporary(error) or state in ("", "42501"):
        return to_error(error, "source", "the query cannot be answered")
    name = errorcodes.lookup(state).lower() if state in errorcodes.__dict__.values() else "failed"
    return SqlError(
        f"sql.{name}",
        diagnostics.message_primary or "the query fails",
        detail=diagnostics.message_detail or "",
        hint=diagnostics.message_hint or "",
    )
