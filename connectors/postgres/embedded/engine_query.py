"""Answer one query of an engine's user once.

Function tables read for this query alone are replaced by temporary tables. Then PostgreSQL's own
text of the query runs with those in their position, and ordinary views that read them are expanded.
Invariant: nothing is stored. The transaction is READ ONLY except for the temporary tables, and is
rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import psycopg2
from psycopg2 import errorcodes
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import new_type, string_types
from psycopg2.sql import SQL, Identifier

from connectors.postgres.embedded.function_tables import SCHEMA, FunctionTable
from connectors.postgres.session.session import connect, is_temporary, to_error
from dataflow.errors import SourceError, SqlError, TidemarkError
from dataflow.lexer import one_query, position_of
from dataflow.mismatched_types import mismatch_of

# PostgreSQL's number of the type, and the most digits that it can declare.
_NUMERIC, _MOST_DIGITS = 1700, 1000
Flatten = Callable[[str, Callable[[str, str], str | None]], str]
_EXPLAIN = "EXPLAIN (VERBOSE, FORMAT JSON, COSTS OFF) "


@dataclass(frozen=True)
class StandIn:
    """Rows of a function that were read for one query: lines of COPY's text form."""

    table: FunctionTable
    lines: IO[bytes]


@dataclass(frozen=True)
class Answer:
    """fields: (name, type) of the columns; rows: PostgreSQL's texts, None for NULL."""

    fields: tuple[tuple[str, str], ...]
    rows: list[tuple[str | None, ...]]


def with_parameters(dsn: str, query: str, parameters: Sequence[Any] | Mapping[str, Any]) -> str:
    """Return the query with its parameters (%s, %(name)s) as literals. TidemarkError
    request.invalid for others than it names.
    """
    with _session(dsn) as session, session.cursor() as cursor:
        return _filled(cursor, query, parameters)


def _filled(cursor: Any, query: str, parameters: Any) -> str:
    try:
        return cursor.mogrify(query, parameters).decode()
    except (TypeError, ValueError, LookupError, psycopg2.ProgrammingError) as error:
        # psycopg2 has no error of its own for these.
        raise TidemarkError(
            "request.invalid",
            "the parameters do not fit the query",
            detail=str(error),
            hint="pass a list with a value for each %s, or a dict for %(name)s; write %% for a %",
        ) from None


def inspect(dsn: str, query: str) -> tuple[set[tuple[str, str]], int]:
    """Return (schema, name) of the tables that a query reads, and its number of columns.

    Follows ordinary views. SqlError.
    """
    text = one_query(query)
    with _session(dsn) as session, session.cursor() as cursor:
        try:
            cursor.execute(_EXPLAIN + text)
        except psycopg2.Error as error:
            raise _refusal(error, text, len(_EXPLAIN)) from None
        (plan,) = cursor.fetchone() or ([],)
        return set(_relations_scanned(plan)), len(plan[0]["Plan"].get("Output", ()))


def with_other_names(query: str, width: int) -> str:
    """Return the query with distinct column names, as a view requires."""
    names = ", ".join(f"c{i}" for i in range(width))
    return f"SELECT * FROM ({one_query(query)}) AS q ({names})"


def answer(
    dsn: str, query: str, stand_ins: Sequence[StandIn] = (), flatten: Flatten | None = None
) -> Answer:
    """Answer a query. SqlError.

    flatten: required with stand_ins; writes queries in position of relations
    (`dataflow.sql.parse.flatten`).
    """
    text = one_query(query)
    with _session(dsn) as session, session.cursor() as cursor:
        try:
            names: list[str] | None = None
            if stand_ins and flatten is not None:
                names = _names(cursor, text)
                # A view needs distinct column names.
                other = with_other_names(text, len(names)) if len(set(names)) < len(names) else text
                text = _with_stand_ins(dsn, other, {s.table.name for s in stand_ins}, flatten)
                for stand_in in stand_ins:
                    _stand_in(cursor, stand_in)
                cursor.execute("SET LOCAL search_path = pg_temp")
            cursor.execute("SET TRANSACTION READ ONLY")
            _as_texts(cursor)
            cursor.execute(text)
            found = _fetched(cursor)
        except psycopg2.Error as error:
            raise _refusal(error, text, 0) from None
    if names is None:
        return found
    types = (type_name for _, type_name in found.fields)
    return Answer(tuple(zip(names, types, strict=True)), found.rows)


def _names(cursor: Any, text: str) -> list[str]:
    """Return the column names of a query."""
    cursor.execute(f"SELECT * FROM ({text}) AS q LIMIT 0")
    return [d.name for d in cursor.description or ()]


def execute(dsn: str, statement: str, parameters: Any = None) -> Answer | int:
    """Run any statement and commit; return its rows, or the number of changed rows. SqlError."""
    with _session(dsn) as session, session.cursor() as cursor:
        session.autocommit = True
        _as_texts(cursor)
        try:
            text = statement if parameters is None else _filled(cursor, statement, parameters)
            cursor.execute(text)
            return cursor.rowcount if cursor.description is None else _fetched(cursor)
        except psycopg2.Error as error:
            raise _refusal(error, statement, 0) from None


def _as_texts(cursor: Any) -> None:
    """Read values as PostgreSQL prints them."""
    raw = new_type(tuple(string_types), "raw", lambda value, _: value)
    psycopg2.extensions.register_type(raw, cursor)


def _fetched(cursor: Any) -> Answer:
    described, rows = cursor.description, cursor.fetchall()
    cursor.execute(
        "SELECT format_type(o, m) FROM unnest(%s::oid[], %s::int[]) WITH ORDINALITY AS t (o, m, n)"
        " ORDER BY n",
        ([d.type_code for d in described], [_modifier_of(d) for d in described]),
    )
    types = (type_name for (type_name,) in cursor.fetchall())
    return Answer(tuple(zip((d.name for d in described), types, strict=True)), rows)


def _modifier_of(column: Any) -> int:
    """Return the modifier of a numeric's precision and scale, -1 for none and for other types.

    Source: PostgreSQL, src/backend/utils/adt/numeric.c, make_numeric_typmod. psycopg2 takes the
    modifier apart; without one its precision is 65535.
    """
    is_limited = column.type_code == _NUMERIC and 0 < (column.precision or 0) <= _MOST_DIGITS
    return ((column.precision << 16) | (column.scale & 0x7FF)) + 4 if is_limited else -1


def _stand_in(cursor: Any, stand_in: StandIn) -> None:
    table = stand_in.table
    own = Identifier("pg_temp", table.name)
    real = Identifier(SCHEMA, table.name)
    cursor.execute(
        SQL("CREATE TEMP TABLE {} (LIKE {}) ON COMMIT DROP").format(Identifier(table.name), real)
    )
    for column in table.key:
        loosen = SQL("ALTER TABLE {} ALTER COLUMN {} DROP NOT NULL")
        cursor.execute(loosen.format(own, Identifier(column)))
    columns = SQL(", ").join(Identifier(n) for n, _ in table.columns)
    copy = SQL("COPY {} ({}) FROM STDIN").format(own, columns)
    cursor.copy_expert(copy.as_string(cursor), stand_in.lines, 1 << 18)
    cursor.execute(SQL("ANALYZE {}").format(own))


def _with_stand_ins(dsn: str, query: str, names: set[str], flatten: Flatten) -> str:
    """Return the query as PostgreSQL prints it, over pg_temp's tables of these names."""
    # Loaded only when needed.
    from connectors.postgres.analysis.analyzer import PostgresAnalyzer
    from dataflow.sql.bind.analysis import Analysis

    with PostgresAnalyzer(dsn, "query") as analyzer:

        def replacement(schema: str, name: str) -> str | None:
            if schema == SCHEMA and name in names:
                quoted = '"' + name.replace('"', '""') + '"'
                return f"SELECT * FROM pg_temp.{quoted}"
            try:
                found = analyzer.relation(schema, name)
            except SourceError:  # a table that no view may read is still read here
                return None
            return flatten(found.text, replacement) if isinstance(found, Analysis) else None

        return flatten(analyzer.analyze(query).text, replacement)


@contextmanager
def _session(dsn: str) -> Iterator[Connection]:
    session = connect(dsn, application_name="tidemark engine", is_long=True, is_users=True)
    try:
        yield session
    finally:
        session.close()


def _refusal(error: psycopg2.Error, text: str, before: int) -> TidemarkError:
    state, diagnostics = error.pgcode or "", error.diag
    if is_temporary(error) or state in ("", "42501", "57014"):
        return to_error(error, "source", "the query cannot be answered")
    name = errorcodes.lookup(state).lower() if state in errorcodes.__dict__.values() else "failed"
    at = diagnostics.statement_position
    offset = int(at) - 1 - before if at and int(at) > before else None
    message = diagnostics.message_primary or "the query fails"
    detail, hint = diagnostics.message_detail or "", diagnostics.message_hint or ""
    if (mismatch := mismatch_of(message, text, offset)) is not None:
        detail, hint, offset = mismatch
    position = None if offset is None else position_of(text, offset)
    return SqlError(f"sql.{name}", message, detail=detail, hint=hint, position=position)


def _relations_scanned(plan: Any) -> Iterator[tuple[str, str]]:
    """Yield (schema, name) of each relation that a plan scans, at any depth.

    Source: PostgreSQL manual, "EXPLAIN", FORMAT JSON.
    """
    if isinstance(plan, list):
        for part in plan:
            yield from _relations_scanned(part)
    elif isinstance(plan, dict):
        if "Relation Name" in plan:
            yield plan.get("Schema", ""), plan["Relation Name"]
        for part in plan.values():
            yield from _relations_scanned(part)
