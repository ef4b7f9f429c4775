"""Answer one query once: analyzed as a view's would be, then read-only in one snapshot.

Invariant: only PostgreSQL's own text of a single SELECT runs, never the user's. It runs inside the
sandbox, in a READ ONLY transaction under a timeout. It reads no catalog, and calls only functions
without side effects. Without a database role, the service grants access to the tables once it knows
which they are, and functions run with no rights at all.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import psycopg2
from psycopg2 import errorcodes
from psycopg2.extensions import new_type, string_types

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.analysis.foreign_code import depends_on_session
from connectors.postgres.evaluation import sandbox
from connectors.postgres.session.session import connect, is_temporary, to_error
from connectors.sink import Progress
from dataflow.errors import SourceError, SqlError, TemporaryError, TidemarkError
from dataflow.schema import Field
from dataflow.sql.bind.analysis import Analysis
from dataflow.types import TypeKind

MAX_BYTES = 32 << 20
_FETCHED = 500
_VIEW = "tidemark_query_once"
# All relations that a view's query reads, through views of any depth. Not from pg_depend, which
# omits catalogs.
_RELATIONS = r"""
WITH RECURSIVE read(oid, is_direct) AS (
    SELECT m[1]::oid, true FROM pg_rewrite w
    CROSS JOIN LATERAL regexp_matches(w.ev_action::text, ':relid (\d+)', 'g') AS m
    WHERE w.ev_class = %(view)s AND m[1] <> %(view)s::text
    UNION
    SELECT m[1]::oid, false FROM read JOIN pg_rewrite w ON w.ev_class = read.oid
    CROSS JOIN LATERAL regexp_matches(w.ev_action::text, ':relid (\d+)', 'g') AS m
    WHERE m[1]::oid <> read.oid
)
SELECT c.oid::bigint, n.nspname, c.relname, bool_or(read.is_direct)
FROM read JOIN pg_class c ON c.oid = read.oid JOIN pg_namespace n ON n.oid = c.relnamespace
GROUP BY 1, 2, 3 ORDER BY 2, 3
"""
_CATALOGS = ("pg_catalog", "information_schema", "tidemark", "pg_toast")
# Errors that mean missing rights of the asking role.
_RIGHTS = ("source.privilege", "source.row_security", "source.role_missing")
# Volatile, but without side effects.
_HARMLESS = ("random", "clock_timestamp", "timeofday", "gen_random_uuid")
_PLAIN = {
    *(TypeKind.INT2, TypeKind.INT4, TypeKind.INT8, TypeKind.FLOAT4, TypeKind.FLOAT8),
    *(TypeKind.JSON, TypeKind.JSONB),
}
_NOT_NUMBERS = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True)
class OneShot:
    """A query that may run.

    relations: (schema, name) of all relations that it reads; role: whose rights count, "" for the
    service's. reads_tables: not only maintained views; with a role, everything that the role may
    read.
    """

    text: str
    fields: tuple[Field, ...]
    relations: tuple[tuple[str, str], ...]
    role: str = ""
    reads_tables: bool = True


@dataclass(frozen=True)
class Answer:
    """rows: JSON objects. has_more: there are rows beyond the limit.

    progress: of the views in this database, by key; position: of the database's WAL; both as of the
    answer's snapshot.
    """

    rows: list[str]
    has_more: bool
    progress: dict[str, Progress]
    position: str


def prepare(dsn: str, query: str, role: str = "", *, reads_tables: bool = True) -> OneShot:
    """Analyze a query. SqlError as for a view; TidemarkError query.not_allowed, auth.rights."""
    try:
        with PostgresAnalyzer(dsn, "query", requester=role, keeps_rows=False) as analyzer:
            analysis = analyzer.analyze(query)
    except SourceError as error:
        if error.code not in _RIGHTS:
            raise
        if not role:
            raise _not_allowed(error.detail or error.what, error.hint) from None
        raise TidemarkError(
            "auth.rights", error.what, detail=error.detail, hint=error.hint
        ) from None
    _require_harmless(analysis)
    found = OneShot(analysis.text, analysis.fields, (), role, reads_tables)
    settings = {"statement_timeout": "30s"}
    session = connect(dsn, settings=settings, application_name="tidemark query")
    try:
        _, relations = _view_of(session.cursor(), dsn, found)
    except psycopg2.Error as error:
        raise _refusal(error) from None
    finally:
        session.close()
    return replace(found, relations=relations)


def run(dsn: str, query: OneShot, limit: int, timeout_s: float) -> Answer:
    """Answer the query. SqlError of its rows; TemporaryError query.timeout."""
    settings = {"statement_timeout": f"{max(1, round(timeout_s * 1000))}ms", "jit": "off"}
    session = connect(dsn, settings=settings, application_name="tidemark query")
    try:
        session.set_session(isolation_level="REPEATABLE READ")
        cursor = session.cursor()
        progress = _progress(cursor)
        cursor.execute(
            "SELECT CASE WHEN NOT pg_is_in_recovery() THEN pg_current_wal_lsn() END::text"
        )
        (position,) = cursor.fetchone() or ("",)
        box, _ = _view_of(cursor, dsn, query)
        sandboxed = box.confine(cursor, _VIEW, limit + 1)
        cursor.execute("SET LOCAL transaction_read_only = on")
        cursor.execute(f"DECLARE answer NO SCROLL CURSOR FOR SELECT * FROM {sandboxed}")
        rows, size_bytes = [], 0
        for row in _rows(session, query.fields):
            size_bytes += len(row)
            if len(rows) == limit or (rows and size_bytes > MAX_BYTES):
                return Answer(rows, True, progress, position or "")
            rows.append(row)
        return Answer(rows, False, progress, position or "")
    except psycopg2.Error as error:
        raise _refusal(error) from None
    finally:
        session.close()


def _view_of(
    cursor: Any, dsn: str, query: OneShot
) -> tuple[sandbox.Sandbox, tuple[tuple[str, str], ...]]:
    """Create the temporary view _VIEW of the query, with access to its relations; return those.

    TidemarkError query.not_allowed; SourceError source.role.
    """
    role, is_bound = sandbox.choose_role(cursor, query.role)
    if query.role and not role:
        why = "the service's role is not a member of it" if is_bound else "it is a superuser"
        raise sandbox.no_role(query.role, why, is_super=not is_bound)
    box = sandbox.enter(cursor, dsn, role)
    box.make_view(cursor, _VIEW, query.text)
    cursor.execute("SELECT %s::regclass::oid::bigint", (f"pg_temp.{_VIEW}",))
    (view,) = cursor.fetchone()
    cursor.execute(_RELATIONS, {"view": view})
    found = cursor.fetchall()
    for _, schema, name, _ in found:
        if schema in _CATALOGS or schema.startswith("pg_"):
            raise _not_allowed(f"it reads {schema}.{name}")
    if not query.reads_tables and not role:
        views = _oids_of_views(cursor)
        for oid, schema, name, is_direct in found:
            if is_direct and oid not in views:
                raise _not_allowed(
                    f"it reads {schema}.{name}, which is not a maintained view",
                    "a reader's token reads views; with a database role (db_role) it reads all that"
                    " this role may read",
                )
    if not role:
        box.lend_tables(cursor, _VIEW)
    return box, tuple((schema, name) for _, schema, name, _ in found)


def _oids_of_views(cursor: Any) -> set[int]:
    """Return the oids of the relations that users read, of this database's maintained views."""
    cursor.execute("SELECT to_regclass('tidemark.tables') IS NOT NULL")
    if not (cursor.fetchone() or (False,))[0]:
        return set()
    cursor.execute(
        "SELECT coalesce(view_oid, table_oid)::bigint FROM tidemark.tables WHERE NOT is_staged"
    )
    return {oid for (oid,) in cursor.fetchall()}


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
    """Return a value as JSON, as in JSON topics."""
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
        is_volatile = routine.volatility == "v" and routine.name not in _HARMLESS
        if is_volatile or depends_on_session(routine):
            raise _not_allowed(f"it calls {routine.name}()")


def _not_allowed(
    detail: str, hint: str = "read your own tables and views, with functions without side effects"
) -> TidemarkError:
    return TidemarkError(
        "query.not_allowed", "the query may not run here", detail=detail, hint=hint
    )


def _refusal(error: psycopg2.Error) -> TidemarkError:
    state, diagnostics = error.pgcode or "", error.diag
    if state == "57014":
        return TemporaryError(
            "query.timeout",
            "the query took too long",
            hint="raise timeout_s, or create a view for the query",
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
