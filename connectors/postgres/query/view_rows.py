"""Rows of a view's table by filter, in order, a page at a time: the SQL, and reading it.

Identifiers are quoted, and values are literals that PostgreSQL parses as the column's own type. A
page starts after the last row's values (keyset pagination), so its cost does not depend on its
number. Invariant: rows and progress are of one snapshot; no text of the user is ever part of the
SQL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import psycopg2

from connectors.postgres.query.history_rows import find_point, history_of, require_reader
from connectors.postgres.schema.history_target import rows_as_of
from connectors.postgres.schema.sink_target import Target, target_of
from connectors.postgres.session import copy_text
from connectors.postgres.session.quoting import quote_name, quote_text
from connectors.postgres.session.session import connect, is_temporary, to_error
from connectors.postgres.sink.error_attribution import table_fault
from connectors.postgres.sink.restricted_sink import reading
from connectors.postgres.sink.sink_reader import progress_of
from connectors.postgres.types.hashing import RECORD_HASH
from connectors.sink import Progress, SinkTable
from connectors.view_states import ViewState
from dataflow.delta import Delta
from dataflow.errors import SinkError, TemporaryError, TidemarkError
from dataflow.types import TEXT, SqlType

# A page has fewer rows than requested when its text exceeds this size.
PAGE_BYTES = 32 << 20
COMPARISONS = {"eq": "=", "neq": "<>", "lt": "<", "lte": "<=", "gt": ">", "gte": ">="}
PATTERNS = {"like": "LIKE", "ilike": "ILIKE"}
STATES = {
    "null": "IS NULL",
    "not_null": "IS NOT NULL",
    "true": "IS TRUE",
    "false": "IS FALSE",
}


@dataclass(frozen=True)
class Condition:
    """A column of the view, an operator's word, and its values.

    is_not: the opposite, where the value is not NULL.
    """

    column: str
    operator: str
    values: tuple[str, ...]
    is_not: bool = False


@dataclass(frozen=True)
class Order:
    """A column to order by. nulls_first: where its NULLs are."""

    column: str
    is_descending: bool
    nulls_first: bool


@dataclass(frozen=True)
class PageRequest:
    """The rows to read. after: the last row's values of the order, then of the tie-breaker."""

    table: SinkTable
    columns: tuple[str, ...]
    conditions: tuple[Condition, ...]
    order: tuple[Order, ...]
    limit: int
    after: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class Past:
    """A point of a view's past, as text. role: whose rights count, "" for the service's."""

    point: str
    role: str = ""


@dataclass(frozen=True)
class Page:
    """progress: what the rows show, None for a view paused while it was unknown.

    rows: of the requested columns, None without any. after: where the next page begins, () at the
    end.
    """

    progress: Progress | None
    rows: Delta | None
    after: tuple[str | None, ...]


@dataclass(frozen=True)
class _Part:
    """One part of the order. cast: of a value compared with it; is_users: as `_as_text`."""

    sql: str
    is_descending: bool = False
    nulls_first: bool = False
    may_be_null: bool = False
    cast: str = ""
    is_users: bool = False


def read_page(
    dsn: str, key: str, request: PageRequest, timeout_s: float, past: Past | None = None
) -> Page:
    """Return one page; past: of the view's past. TidemarkError rows.bad_value, rows.bad_order,
    history.*, auth.rights; TemporaryError rows.timeout."""
    types = {f.name: f.type for f in request.table.fields}
    parts = _parts(request)
    selected = [types[name] for name in request.columns]
    settings = {"standard_conforming_strings": "on", "jit": "off", "row_security": "off"}
    settings["statement_timeout"] = f"{max(1, round(timeout_s * 1000))}ms"
    session = connect(dsn, side="sink", settings=settings, application_name="tidemark rows")
    try:
        session.set_session(isolation_level="REPEATABLE READ")
        cursor = session.cursor()
        all_types = [*selected, *(TEXT for _ in parts)]
        if past is None:
            progress = _shown(cursor, key, request.table)
            query = partial(page_sql, request, parts)
            source = reading(cursor, dsn, request.table, query, len(all_types))
        else:
            progress, rows_then = _past_rows(cursor, request.table, past)
            source = page_sql(request, parts, target_of(request.table), rows_then)
        first = copy_text.FirstRows(PAGE_BYTES)
        columns = first.copy_out(cursor, source, all_types)
    except psycopg2.Error as error:
        raise _refusal(error, request) from None
    finally:
        session.close()
    if columns is None:
        return Page(progress, None, ())
    count = len(columns[0])
    rows = Delta(columns, np.ones(count, np.int64))
    shown = rows.take(np.arange(request.limit)) if count > request.limit else rows
    after: tuple[str | None, ...] = ()
    if count > request.limit or not first.is_whole:
        last = shown.take(np.array([len(shown) - 1])).columns[len(selected) :]
        after = tuple(_text(column.to_list()[0]) for column in last)
    return Page(progress, Delta(shown.columns[: len(selected)], shown.weights), after)


def _shown(cursor: Any, key: str, table: SinkTable) -> Progress | None:
    """Return the progress of a view's rows: a paused view's is that of its pause."""
    cursor.execute(
        "SELECT epoch, positions FROM tidemark.views WHERE (schema, name, status) = (%s, %s, %s)",
        (table.schema, table.name, ViewState.PAUSED),
    )
    paused = cursor.fetchone()
    if paused is not None:
        return Progress(*paused) if None not in paused else None
    found = progress_of(cursor, key)
    if found is None:
        raise SinkError("sink.no_progress", "no epoch has been written yet")
    return found


def _past_rows(cursor: Any, table: SinkTable, past: Past) -> tuple[Progress, str]:
    """Return the progress of a view at a point of its past, and the FROM item of its rows."""
    cursor.execute("SET LOCAL transaction_read_only = on")
    if past.role:
        require_reader(cursor, table, past.role)
    point = find_point(cursor, table, past.point)
    rows = rows_as_of(history_of(cursor, table), point.epoch)
    return Progress(point.epoch, point.positions), rows


def page_sql(request: PageRequest, parts: Sequence[_Part], target: Target, source: str = "") -> str:
    """Return the statement for one page, and one row more. source: the FROM item `t`, by default
    the target."""
    columns = [_column(name) for name in request.columns]
    columns += [_as_text(part.sql, is_users=part.is_users) for part in parts]
    sql = f"SELECT {', '.join(columns)} FROM {source or f'ONLY {target.sql} AS t'}"
    if target.is_multiset:
        sql += f" CROSS JOIN LATERAL generate_series(1, t.{quote_name(target.count)}) AS s(n)"
    types = {f.name: f.type for f in request.table.fields}
    conditions = [_condition(c, types[c.column]) for c in request.conditions]
    if request.after:
        conditions.append(_after_condition(parts, request.after))
    if conditions:
        sql += f" WHERE {' AND '.join(conditions)}"
    order = ", ".join(map(_ordering, parts))
    return f"{sql} ORDER BY {order} LIMIT {request.limit + 1}"


def _ordering(part: _Part) -> str:
    direction = "DESC" if part.is_descending else "ASC"
    nulls = f" NULLS {'FIRST' if part.nulls_first else 'LAST'}" if part.may_be_null else ""
    return f"{part.sql} {direction}{nulls}"


def order_count(request: PageRequest) -> int:
    """Return the number of values of a page's position."""
    return len(_parts(request))


def _parts(request: PageRequest) -> list[_Part]:
    """Return the requested order, and the columns that make it total."""
    table = request.table
    fields = {f.name: f for f in table.fields}
    parts = [
        _Part(
            _column(o.column),
            o.is_descending,
            o.nulls_first,
            fields[o.column].is_nullable,
            _cast(fields[o.column].type),
            fields[o.column].type.is_users,
        )
        for o in request.order
    ]
    target = target_of(table)
    if target.is_multiset:
        return [*parts, _Part(f"t.{quote_name(target.hash)}"), _Part("s.n")]
    named = {o.column for o in request.order}
    keys = [table.fields[i] for i in table.key]
    rest = [f for f in keys if f.name not in named]
    return [
        *parts,
        *(_Part(_column(f.name), cast=_cast(f.type), is_users=f.type.is_users) for f in rest),
    ]


def _column(name: str) -> str:
    return f"t.{quote_name(name)}"


def _as_text(value: str, *, is_users: bool) -> str:
    """Return a value as text.

    is_users: of a type whose owner may have made a cast, which would run as the service. Then it is
    as PostgreSQL prints it.
    """
    if is_users:
        return f"CASE WHEN num_nulls({value}) = 0 THEN format('%s', {value}) END"
    return f"({value})::text"


def _cast(kind: SqlType) -> str:
    """Return the cast that makes a literal a value of a type.

    Only rows need it: PostgreSQL takes a literal beside a row for an anonymous row, which it cannot
    read.
    """
    return f"::{kind.name}" if kind.hashing == RECORD_HASH else ""


def _condition(condition: Condition, type: SqlType) -> str:
    column, cast = _column(condition.column), _cast(type)
    values = [f"{quote_text(v)}{cast}" for v in condition.values]
    if condition.operator in COMPARISONS:
        sql = f"{column} {COMPARISONS[condition.operator]} {values[0]}"
    elif condition.operator in PATTERNS:
        text = _as_text(column, is_users=type.is_users)
        sql = f"{text} {PATTERNS[condition.operator]} {quote_text(condition.values[0])}"
    elif condition.operator == "in":
        sql = f"{column} IN ({', '.join(values)})"
    else:
        sql = f"{column} {STATES[condition.values[0]]}"
    return f"NOT ({sql})" if condition.is_not else f"({sql})"


def _after_condition(parts: Sequence[_Part], after: Sequence[str | None]) -> str:
    """Return the condition that a row comes after the one with these values."""
    values = [
        None if v is None else f"{quote_text(v)}{part.cast}"
        for part, v in zip(parts, after, strict=True)
    ]
    if not any(p.is_descending or p.may_be_null for p in parts):
        names = ", ".join(p.sql for p in parts)
        return f"({names}) > ({', '.join(map(str, values))})"
    alternatives, same = [], []
    for part, value in zip(parts, values, strict=True):
        later = _is_later(part, value)
        if later:
            alternatives.append(" AND ".join([*same, later]))
        same.append(f"{part.sql} IS NULL" if value is None else f"{part.sql} = {value}")
    return f"({' OR '.join(f'({a})' for a in alternatives)})"


def _is_later(part: _Part, value: str | None) -> str:
    if value is None:
        return f"{part.sql} IS NOT NULL" if part.nulls_first else ""
    compared = f"{part.sql} {'<' if part.is_descending else '>'} {value}"
    if part.may_be_null and not part.nulls_first:
        return f"({compared} OR {part.sql} IS NULL)"
    return compared


def _refusal(error: psycopg2.Error, request: PageRequest) -> TidemarkError:
    title, words = request.table.title, str(error.diag.message_primary or error).strip()
    state = error.pgcode or ""
    if state == "57014":
        return TemporaryError(
            "rows.timeout",
            f'reading rows of view "{title}" took too long',
            hint="filter by the key, or by an indexed column",
        )
    if is_temporary(error):
        return to_error(error, "sink", f'cannot read view "{title}"')
    if state == "42883" or state.startswith("22"):
        return TidemarkError(
            "rows.bad_value",
            f'a condition or the order does not fit the columns of view "{title}"',
            detail=words,
            hint="check the column types in `fields` of the view",
        )
    return table_fault(error, f'cannot read view "{title}"')


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
