"""Read the past of a view: its rows at a point, the difference of two points, changes by epoch.

A point is a time, a position or an epoch; the database finds its epoch (`tidemark.find_epoch`).
Invariant: a point that cannot be read exactly is an error, never another point's rows.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import psycopg2

from connectors.postgres.schema.history_target import (
    ClosedWindows,
    History,
    changes_between,
    difference,
    final_rows,
    history_target,
    rows_as_of_counted,
)
from connectors.postgres.session import copy_text
from connectors.postgres.session.quoting import quote_name
from connectors.postgres.session.session import connect, is_temporary, to_error
from connectors.sink import SinkTable
from dataflow.delta import Delta
from dataflow.errors import TemporaryError, TidemarkError
from dataflow.types import INT8, TEXT

# SQLSTATEs of tidemark.find_epoch (schema/0018_history.sql).
_REFUSALS = {
    "TM010": "none",
    "TM011": "too_old",
    "TM012": "not_reached",
    "TM013": "bad_point",
    "TM014": "lost",
}
_CLOCK = "to_char(committed_at AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US\"Z\"')"
_FIND = f"SELECT epoch, {_CLOCK}, positions FROM tidemark.find_epoch(to_regclass(%s), %s)"
_ROWS = """
SELECT c.relname, h.period FROM tidemark.histories AS h JOIN pg_class AS c ON c.oid = h.table_oid
WHERE (h.schema, h.name) = (%s, %s) AND NOT h.is_staged
"""
_MAY_READ = """
SELECT h.history::text, has_table_privilege(r.oid, h.history, 'SELECT')
    AND has_schema_privilege(r.oid, (SELECT relnamespace FROM pg_class WHERE oid = h.history),
        'USAGE')
FROM tidemark.history AS h JOIN pg_roles AS r ON r.rolname = %s
WHERE (h.schema, h.name) = (%s, %s)
"""
_EPOCHS = """
SELECT epoch, positions FROM tidemark.history_epochs
WHERE (schema, name) = (%s, %s) AND epoch > %s ORDER BY epoch LIMIT %s
"""
# Epochs of a stream, after one and up to another.
_POINTS = f"""
SELECT epoch, {_CLOCK}, positions FROM tidemark.history_epochs
WHERE (schema, name) = (%s, %s) AND epoch > %s AND epoch <= %s ORDER BY epoch LIMIT %s
"""
_OLDEST = """
SELECT oldest_epoch, extract(epoch FROM retained)::float8 FROM tidemark.history
WHERE (schema, name) = (%s, %s)
"""
_NEWEST = """
SELECT newest_epoch, newest_positions FROM tidemark.history WHERE (schema, name) = (%s, %s)
"""
_EDGES = """
SELECT e.epoch, e.edge_us FROM tidemark.window_edges AS e
WHERE e.table_oid = to_regclass(%s) AND e.epoch <= %s AND e.epoch >= (
    SELECT max(b.epoch) FROM tidemark.window_edges AS b
    WHERE b.table_oid = e.table_oid AND b.epoch <= %s)
ORDER BY e.epoch
"""
# A page has fewer rows than requested when its text exceeds this size.
_PAGE_BYTES = 32 << 20
_SETTINGS = {"standard_conforming_strings": "on", "jit": "off", "row_security": "off"}


@dataclass(frozen=True)
class Point:
    """An epoch of a view's past: its clock, as ISO 8601 in UTC, and positions by source."""

    epoch: int
    committed_at: str
    positions: dict[str, Any]


@dataclass(frozen=True)
class DifferencePage:
    """Some rows of a difference, with their weights; None without any. has_more: after these."""

    begin: Point
    end: Point
    rows: Delta | None
    has_more: bool


def find_point(cursor: Any, table: SinkTable, point: str) -> Point:
    """Return the newest epoch at a point. TidemarkError history.none, history.too_old,
    history.not_reached, history.bad_point, history.lost."""
    name = f"{quote_name(table.schema)}.{quote_name(table.name)}"
    try:
        cursor.execute(_FIND, (name, point))
    except psycopg2.Error as error:
        name = _REFUSALS.get(error.pgcode or "")
        if name is None:
            raise
        detail = str(error.diag.message_detail or "")
        detail = detail.removeprefix(f"code: history.{name}").removeprefix("; ")
        raise TidemarkError(
            f"history.{name}",
            str(error.diag.message_primary),
            detail=detail,
            hint=str(error.diag.message_hint or ""),
        ) from None
    return Point(*cursor.fetchone())


def history_of(cursor: Any, table: SinkTable) -> History:
    """Return the history of a view. TidemarkError history.none."""
    found = find_history(cursor, table)
    if found is None:
        raise no_history(table.title)
    return found


def find_history(cursor: Any, table: SinkTable) -> History | None:
    """Return the history of a view; None if it has none."""
    cursor.execute(_ROWS, (table.schema, table.name))
    found = cursor.fetchone()
    return None if found is None else history_target(table, *found)


def no_history(title: str) -> TidemarkError:
    """Return the error of a view whose past is not retained."""
    return TidemarkError(
        "history.none",
        f'view "{title}" has no history',
        hint='create or replace it with the option history, for example "7 days"',
    )


def point_of(dsn: str, table: SinkTable, point: str, role: str = "") -> Point:
    """Return the newest epoch at a point. role: whose rights count, "" for the service's.

    TidemarkError history.*, auth.rights.
    """
    session = connect(dsn, side="sink", settings=_SETTINGS, application_name="tidemark rows")
    try:
        cursor = session.cursor()
        if role:
            require_reader(cursor, table, role)
        return find_point(cursor, table, point)
    except psycopg2.Error as error:
        raise _refusal(error, table) from None
    finally:
        session.close()


def require_reader(cursor: Any, table: SinkTable, role: str) -> None:
    """Require that a role may SELECT the history of a view. TidemarkError auth.rights."""
    cursor.execute(_MAY_READ, (role, table.schema, table.name))
    found = cursor.fetchone()
    if found is not None and not found[1]:
        raise TidemarkError(
            "auth.rights",
            f'role "{role}" may not read the history of view "{table.title}"',
            detail="this is the database role of the token",
            hint=f"GRANT SELECT ON {found[0]} TO {quote_name(role)}; in the sink",
        )


def read_difference(
    dsn: str,
    table: SinkTable,
    points: tuple[str, str],
    window: tuple[int, int],
    *,
    role: str = "",
    timeout_s: float = 30.0,
) -> DifferencePage:
    """Return rows of the difference between two points, ordered by key.

    points: (from, to), to "" is the newest epoch. window: (rows to skip, rows to return). role:
    whose rights count, "" for the service's. TidemarkError history.*, auth.rights; TemporaryError
    rows.timeout.
    """
    settings = {**_SETTINGS, "statement_timeout": f"{max(1, round(timeout_s * 1000))}ms"}
    session = connect(dsn, side="sink", settings=settings, application_name="tidemark rows")
    try:
        session.set_session(isolation_level="REPEATABLE READ", readonly=True)
        cursor = session.cursor()
        if role:
            require_reader(cursor, table, role)
        begin = find_point(cursor, table, points[0])
        end = find_point(cursor, table, points[1] or str(_newest(cursor, table)[0]))
        if end.epoch < begin.epoch:
            raise TidemarkError(
                "history.bad_point",
                f'"from" is after "to": epoch {begin.epoch}, epoch {end.epoch}',
                hint="exchange them",
            )
        query = difference(history_of(cursor, table), begin.epoch, end.epoch)
        skipped, limit = window
        types = [TEXT, INT8, *(f.type for f in table.fields)]
        first = copy_text.FirstRows(_PAGE_BYTES)
        ordered = f"SELECT * FROM ({query}) AS d ORDER BY 1, 2 OFFSET {skipped} LIMIT {limit + 1}"
        columns = first.copy_out(cursor, ordered, types)
    except psycopg2.Error as error:
        raise _refusal(error, table) from None
    finally:
        session.close()
    if columns is None:
        return DifferencePage(begin, end, None, has_more=False)
    rows = Delta(columns[2:], columns[1].values)
    shown = rows.take(np.arange(limit)) if len(rows) > limit else rows
    return DifferencePage(begin, end, shown, len(rows) > limit or not first.is_whole)


def _newest(cursor: Any, table: SinkTable) -> tuple[int, dict[str, Any]]:
    """Return the newest epoch of the sink, and its positions. TidemarkError history.none."""
    cursor.execute(_NEWEST, (table.schema, table.name))
    found = cursor.fetchone()
    if found is None:
        raise no_history(table.title)
    return found


def _refusal(error: psycopg2.Error, table: SinkTable) -> TidemarkError:
    if error.pgcode == "57014":
        return TemporaryError(
            "rows.timeout",
            f'reading the history of view "{table.title}" took too long',
            hint="read points that are closer to each other",
        )
    doing = f'cannot read the history of view "{table.title}"'
    found = to_error(error, "sink", doing)
    found.is_temporary = found.is_temporary or is_temporary(error)
    return found


Changed = tuple[int, dict[str, Any], Delta | None]


def read_changes(
    dsn: str, table: SinkTable, after: int, max_epochs: int
) -> Generator[Changed, None, None]:
    """Yield the changes of each epoch after one: (epoch, positions, delta), of one snapshot.

    Of final rows (SinkTable.final) those that each epoch has published.
    Several deltas of one epoch follow each other. At most so many epochs; where these are all, the
    newest epoch comes last, with None if it does not change the view. TidemarkError history.*.
    """
    with _history_session(dsn, table) as (cursor, history):
        find_point(cursor, table, str(after))
        newest, newest_positions = _newest(cursor, table)
        cursor.execute(_EPOCHS, (table.schema, table.name, after, max_epochs))
        positions = dict(cursor.fetchall())
        until = max(positions) if len(positions) == max_epochs else newest
        number = after
        if table.final is None:
            found = _by_epoch(cursor, history, changes_between(history, after, until))
        else:
            found = _final_by_epoch(cursor, table, history, (after, until))
        for number, delta in found:
            yield number, positions[number], delta
        if number < until:
            yield until, positions.get(until, newest_positions), None


@dataclass(frozen=True)
class StreamBounds:
    """What a stream of a view's history covers.

    after: the epoch before its first changes. begins_with_rows: the rows of that epoch come first.
    until: its last epoch, None while it stays open. retained_s: how long the history retains rows.
    """

    after: Point
    until: Point | None
    begins_with_rows: bool
    retained_s: float


def stream_bounds(
    dsn: str, table: SinkTable, points: tuple[str, str], role: str = ""
) -> StreamBounds:
    """Return the bounds of a stream. points: (since, until); since "" is the oldest readable epoch,
    with its rows; until "" leaves the stream open. role: whose rights count, "" for the service's.

    TidemarkError history.*, auth.rights.
    """
    with _history_session(dsn, table) as (cursor, _):
        if role:
            require_reader(cursor, table, role)
        since, until = points
        oldest, retained_s = _oldest(cursor, table)
        after = find_point(cursor, table, since or str(oldest))
        end = find_point(cursor, table, until) if until else None
        if end is not None and end.epoch < after.epoch:
            raise TidemarkError(
                "history.bad_point",
                f'"since" is after "until": epoch {after.epoch}, epoch {end.epoch}',
                hint="exchange them",
            )
        return StreamBounds(after, end, not since, retained_s)


def _oldest(cursor: Any, table: SinkTable) -> tuple[int, float]:
    """Return (oldest readable epoch, seconds retained) of a view. TidemarkError history.none."""
    cursor.execute(_OLDEST, (table.schema, table.name))
    found = cursor.fetchone()
    if found is None:
        raise no_history(table.title)
    return found


def read_stream_rows(
    dsn: str, table: SinkTable, point: Point
) -> Generator[tuple[Point, Delta], None, None]:
    """Yield the rows of a view at a point, as changes of its epoch. TidemarkError history.*."""
    with _history_session(dsn, table) as (cursor, history):
        find_point(cursor, table, str(point.epoch))
        for _, delta in _by_epoch(cursor, history, rows_as_of_counted(history, point.epoch)):
            yield point, delta


def read_stream(
    dsn: str, table: SinkTable, after: int, until: int | None, max_epochs: int
) -> Generator[tuple[Point, Delta], None, None]:
    """Yield the changes of the view's table in each epoch after one, of one snapshot.

    until: the last epoch, None for the newest. At most so many epochs, in order; several deltas of
    one epoch follow each other, retractions first. TidemarkError history.*.
    """
    with _history_session(dsn, table) as (cursor, history):
        find_point(cursor, table, str(after))
        last = _newest(cursor, table)[0] if until is None else until
        cursor.execute(_POINTS, (table.schema, table.name, after, last, max_epochs))
        points = {facts[0]: Point(*facts) for facts in cursor.fetchall()}
        if len(points) == max_epochs:
            last = max(points)
        for number, delta in _by_epoch(cursor, history, changes_between(history, after, last)):
            yield points[number], delta


@contextmanager
def _history_session(dsn: str, table: SinkTable) -> Iterator[tuple[Any, History]]:
    """Open one snapshot of the sink, with the history of a view. TidemarkError history.none."""
    session = connect(dsn, side="sink", settings=_SETTINGS, application_name="tidemark changes")
    try:
        session.set_session(isolation_level="REPEATABLE READ", readonly=True)
        cursor = session.cursor()
        yield cursor, history_of(cursor, table)
    except psycopg2.Error as error:
        raise _refusal(error, table) from None
    finally:
        session.close()


def _final_by_epoch(
    cursor: Any, table: SinkTable, history: History, epochs: tuple[int, int]
) -> Iterator[tuple[int, Delta]]:
    """Yield the final rows of epochs after the first until the second, as `_by_epoch`."""
    assert table.final is not None
    after, until = epochs
    cursor.execute(_EDGES, (history.sql, until, after))
    known = cursor.fetchall()
    if not known:
        raise TidemarkError(
            "history.too_old",
            f'the final rows of view "{table.title}" after epoch {after} are not known',
            detail="an earlier version of Tidemark did not retain them",
            hint="create a new subscription, which starts with the newest epoch",
        )
    (_, edge_us), *moved = known
    for after_us, edges in _rising(edge_us, moved):
        closed = ClosedWindows(*table.final, after_us, edges)
        yield from _by_epoch(cursor, history, final_rows(history, closed))


Edges = list[tuple[int, int]]


def _rising(
    after_us: int | None, moved: Sequence[tuple[int, int | None]]
) -> Iterator[tuple[int | None, Edges]]:
    """Yield the edges that close windows, in runs that rise, each with the edge before it.

    An edge falls, or is gone, where another version of the view has begun.
    """
    run: Edges = []
    edge_us = after_us
    for epoch, next_us in moved:
        if next_us is not None and (edge_us is None or next_us > edge_us):
            run.append((epoch, next_us))
        elif next_us != edge_us:
            if run:
                yield after_us, run
            after_us, run = next_us, []
        edge_us = next_us
    if run:
        yield after_us, run


def _by_epoch(cursor: Any, history: History, query: str) -> Iterator[tuple[int, Delta]]:
    """Yield the rows of a query, (epoch, weight, columns), each delta of one epoch."""
    types = [INT8, INT8, *(f.type for f in history.rows.fields)]
    for columns in copy_text.copy_out(cursor, query, types):
        numbers = columns[0].values
        starts = [0, *(np.flatnonzero(np.diff(numbers)) + 1)]
        for start, stop in zip(starts, [*starts[1:], len(numbers)], strict=True):
            rows = [column.slice(start, stop) for column in columns[2:]]
            yield int(numbers[start]), Delta(rows, columns[1].values[start:stop])
