"""The life of a view's table in the sink: checked, staged, swapped in, dropped.

Invariant: only relations registered in tidemark.tables with their oid are ever dropped or replaced.
A name used by anything else is refused. Every function works on the caller's cursor, inside the
caller's transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import psycopg2
from psycopg2 import errors as states

from connectors.postgres.evaluation.sandbox import EVENT_TRIGGER, check_event_triggers
from connectors.postgres.schema import sink_target, table_guard, view_status
from connectors.postgres.schema.sink_target import (
    ERRORS,
    NOTED,
    Target,
    staged_target_of,
    target_of,
)
from connectors.postgres.schema.trigger_guard import TYPES_OF
from connectors.postgres.session import copy_text
from connectors.postgres.session.quoting import quote_name, quote_text
from connectors.postgres.sink import carry_over, history_tables, sink_keys
from connectors.postgres.sink.apply_deltas import lines_of, rows_missing, split_delta
from connectors.postgres.sink.ownership import give_to_creator
from connectors.postgres.sink.restricted_sink import reading
from connectors.sink import REBUILT, SinkTable
from connectors.view_states import ViewEvent
from dataflow.delta import Delta
from dataflow.errors import SinkError, TidemarkError

_OURS = """SELECT 1 FROM tidemark.tables WHERE schema = %s AND name = %s
AND %s::regclass IN (table_oid, view_oid)"""

_EXACT_ROWS = 100_000


def count_rows(cursor: Any, dsn: str, table: SinkTable) -> int:
    """Return estimate how many rows a view has; exact while it is small and not locked.

    dsn: of the cursor's session.
    """
    target = target_of(table)
    rows = f"sum({quote_name(target.count)})" if target.is_multiset else "count(*)"
    cursor.execute(
        "SELECT reltuples::bigint FROM pg_class WHERE oid = to_regclass(%s)", (target.sql,)
    )
    found = cursor.fetchone()
    if found is None:
        return 0
    estimate = max(int(found[0]), 0)
    if estimate > _EXACT_ROWS:
        return estimate
    try:
        cursor.execute(
            reading(
                cursor,
                dsn,
                table,
                lambda target: f"SELECT coalesce({rows}, 0)::bigint FROM ONLY {target.sql}",
                1,
            )
        )
    except states.UndefinedTable:
        # Dropped or renamed since the query of pg_class.
        return 0
    except (states.LockNotAvailable, states.QueryCanceled, states.UndefinedColumn):
        return estimate
    except SinkError:
        return estimate
    return cursor.fetchone()[0]


def check_name(cursor: Any, table: SinkTable) -> None:
    """Require that the view can be created: schema exists, privilege to create, name free or ours.

    SinkError sink.schema_missing, sink.privilege, sink.name_taken, sink.event_trigger.
    """
    require_no_event_trigger(cursor)
    cursor.execute("SELECT to_regnamespace(%s)::oid", (quote_name(table.schema),))
    namespace = cursor.fetchone()[0]
    if namespace is None:
        raise SinkError(
            "sink.schema_missing",
            f'schema "{table.schema}" does not exist in the sink',
            hint=f"CREATE SCHEMA {quote_name(table.schema)}, or choose another schema",
        )
    cursor.execute("SELECT has_schema_privilege(%s, 'CREATE'), current_user", (namespace,))
    is_allowed, role = cursor.fetchone()
    if not is_allowed:
        raise SinkError(
            "sink.privilege",
            f'role "{role}" may not create tables in schema "{table.schema}" of the sink',
            hint=f"GRANT USAGE, CREATE ON SCHEMA {quote_name(table.schema)} TO {quote_name(role)}",
        )
    for name in {table.name, target_of(table).name}:
        _check_free(cursor, table, name)


def require_no_event_trigger(cursor: Any) -> None:
    """Require that our DDL runs no code of others. SinkError sink.event_trigger."""
    cursor.execute(EVENT_TRIGGER)
    check_event_triggers(cursor.fetchall(), is_sink=True)


def _check_free(cursor: Any, table: SinkTable, name: str) -> None:
    sql = f"{quote_name(table.schema)}.{quote_name(name)}"
    cursor.execute("SELECT c.relkind FROM pg_class AS c WHERE c.oid = to_regclass(%s)", (sql,))
    found = cursor.fetchone()
    if found is None:
        return
    cursor.execute(_OURS, (table.schema, table.name, sql))
    if cursor.fetchone() is None:
        kinds = {"r": "table", "p": "table", "v": "view", "m": "materialized view", "i": "index"}
        kind = kinds.get(found[0], "relation")
        raise SinkError(
            "sink.name_taken",
            f'view name "{table.schema}.{name}" is taken in the sink',
            detail=f"a {kind} of this name exists, and Tidemark did not create it",
            hint="choose another name for the view, or rename or drop what has it",
        )


def stage(cursor: Any, table: SinkTable, rows: Iterable[Delta], token: str = "") -> int:
    """Create and fill the hidden table, with its key; return the rows (a multiset's by count)."""
    check_name(cursor, table)
    drop(cursor, table, is_staged=True)
    target = staged_target_of(table)
    desired = {f.type.collation for f in target.fields if f.type.collation}
    cursor.execute(
        "SELECT c FROM unnest(%s::text[]) c WHERE to_regcollation(c) IS NOT NULL",
        (sorted(desired),),
    )
    collations = frozenset(c for (c,) in cursor.fetchall())
    with NamesOf(table):
        cursor.execute(sink_target.create_table(target, collations))
        cursor.execute(f"COMMENT ON TABLE {target.sql} IS {quote_text(_waiting(token))}")
    counter = _Counter(target)
    chunks = (lines for delta in rows for lines in counter.lines(delta))
    reader = copy_text.ChunkReader(chunks)
    try:
        cursor.copy_expert(f"COPY {target.sql} FROM STDIN (FREEZE)", reader)
    except states.ProgramLimitExceeded as error:
        raise SinkError(
            "sink.row_too_wide",
            f'a row of view "{table.title}" is wider than PostgreSQL can store',
            detail=str(error.diag.message_primary),
            hint="remove columns from the view, or split it into two views",
        ) from None
    except psycopg2.Error as error:
        # PostgreSQL reports an exception of ours as a cancelled statement.
        raise reader.failure or error from None
    sink_keys.add_key(cursor, target)
    carry_over.prepare(cursor, table, target.sql)
    table_guard.add(cursor, target.sql)
    cursor.execute(f"ANALYZE {target.sql}")
    _register(cursor, table, target.sql, None, is_staged=True)
    history_tables.stage(cursor, table, target)
    return counter.rows


class _Counter:
    """Turn deltas of initial rows into COPY lines and count them."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self.rows = 0

    def lines(self, delta: Delta) -> Iterable[np.ndarray]:
        """Yield COPY lines of one chunk; initial rows never have negative weights."""
        for letter, columns, n in split_delta(self._target, delta):
            if letter != "i":
                raise rows_missing(f"initial rows of {self._target.name} with negative weights")
            yield from lines_of(columns, n)
        self.rows += int(delta.weights.sum())


def is_staged(cursor: Any, table: SinkTable, token: str = "") -> bool:
    """Return whether a view's initial rows are in their hidden table; of this token, if not ""."""
    cursor.execute(
        "SELECT obj_description(c.oid, 'pg_class') FROM pg_class AS c JOIN tidemark.tables AS t"
        " ON t.table_oid = c.oid AND t.is_staged AND (t.schema, t.name) = (%s, %s)"
        " WHERE c.oid = to_regclass(%s)",
        (table.schema, table.name, staged_target_of(table).sql),
    )
    found = cursor.fetchone()
    return found is not None and (not token or found[0] == _waiting(token))


def _waiting(token: str) -> str:
    return f"{carry_over.OURS}: first rows {token}, not visible yet"


def swap(cursor: Any, table: SinkTable, token: str = "") -> None:
    """Make the staged table the view, in place of an older one of ours.

    SinkError sink.not_staged, sink.name_taken, sink.dependents, sink.owner.
    """
    staged, target = staged_target_of(table), target_of(table)
    if not is_staged(cursor, table, token):
        raise SinkError(
            "sink.not_staged",
            f'view "{table.title}" has lost its initial rows in the sink',
            detail=f"table {staged.sql} does not exist, or is a different one",
            hint="nothing to do: the view is rebuilt",
        )
    check_name(cursor, table)
    carried = carry_over.find(cursor, table)
    drop(cursor, table, is_staged=False)
    with NamesOf(table):
        cursor.execute(f"ALTER TABLE {staged.sql} RENAME TO {quote_name(target.name)}")
        view = None
        if target.is_multiset:
            cursor.execute(sink_target.create_view(table))
            view = f"{quote_name(table.schema)}.{quote_name(table.name)}"
    rename_key(cursor, table)
    _register(cursor, table, target.sql, view, is_staged=False)
    cursor.execute(
        "DELETE FROM tidemark.tables WHERE schema = %s AND name = %s AND is_staged",
        (table.schema, table.name),
    )
    comment(cursor, table)
    relations = [("TABLE", target.sql), *([("VIEW", view)] if view else [])]
    give_to_creator(cursor, table, relations)
    if carried is not None:
        _warn(cursor, table, carry_over.give(cursor, table, carried))


def is_there(cursor: Any, table: SinkTable) -> bool:
    """Return whether the view has its table, with all its columns."""
    found = carry_over.oids_of(cursor, table)
    if found is None:
        return False
    cursor.execute(
        "SELECT array_agg(attname::text) FROM pg_attribute "
        "WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped",
        (found[0],),
    )
    return {c.name for c in target_of(table).columns} <= set(cursor.fetchone()[0] or ())


def _warn(cursor: Any, table: SinkTable, reported: Sequence[str]) -> None:
    for text in reported:
        cursor.execute(
            "UPDATE tidemark.views SET warnings = warnings || to_jsonb(%s::text) "
            "WHERE schema = %s AND name = %s",
            (text, table.schema, table.name),
        )


def rename_key(cursor: Any, table: SinkTable) -> None:
    """Give the key its usual name, if that is free."""
    target, desired = target_of(table), sink_target.key_name(table)
    qualified = f"{quote_name(table.schema)}.{quote_name(desired)}"
    cursor.execute(
        "SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'p' "
        "AND to_regclass(%s) IS NULL",
        (target.sql, qualified),
    )
    found = cursor.fetchone()
    if found is not None:
        names = f"{quote_name(found[0])} TO {quote_name(desired)}"
        cursor.execute(f"ALTER TABLE {target.sql} RENAME CONSTRAINT {names}")


def comment(cursor: Any, table: SinkTable) -> None:
    """Set the comment of the view's table, unless the user has set one."""
    target = target_of(table)
    cursor.execute(
        "SELECT obj_description(to_regclass(%s), 'pg_class')",
        (f"{quote_name(table.schema)}.{quote_name(table.name)}",),
    )
    if carry_over.is_users(cursor.fetchone()[0] or carry_over.OURS):
        return
    cursor.execute(
        "SELECT query FROM tidemark.views WHERE schema = %s AND name = %s",
        (table.schema, table.name),
    )
    found = cursor.fetchone()
    query = f": {found[0]}" if found else ""
    text = quote_text(f"{carry_over.OURS}, do not write{query}")
    if target.is_multiset:
        name = f"{quote_name(table.schema)}.{quote_name(table.name)}"
        cursor.execute(f"COMMENT ON VIEW {name} IS {text}")
        count = quote_text(f"Rows of view {table.name}, each with its count; by Tidemark")
        cursor.execute(f"COMMENT ON TABLE {target.sql} IS {count}")
    else:
        cursor.execute(f"COMMENT ON TABLE {target.sql} IS {text}")


def drop(cursor: Any, table: SinkTable, *, is_staged: bool) -> None:
    """Drop what is registered under the view's name, also if it was renamed, and its history.
    SinkError sink.dependents."""
    history_tables.drop(cursor, table, is_staged=is_staged)
    cursor.execute(
        "DELETE FROM tidemark.tables WHERE schema = %s AND name = %s AND is_staged = %s "
        "RETURNING view_oid, table_oid",
        (table.schema, table.name, is_staged),
    )
    for view_oid, table_oid in cursor.fetchall():
        for oid, word in ((view_oid, "VIEW"), (table_oid, "TABLE")):
            _drop_oid(cursor, table, oid, word)


def _drop_oid(cursor: Any, table: SinkTable, oid: int | None, word: str) -> None:
    cursor.execute(
        "SELECT format('%%I.%%I', n.nspname, c.relname) FROM pg_class AS c "
        "JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = %s AND c.relkind = %s",
        (oid, "v" if word == "VIEW" else "r"),
    )
    found = cursor.fetchone()
    if found is None:
        return
    try:
        cursor.execute(f"DROP {word} {found[0]}")
    except states.DependentObjectsStillExist as error:
        raise SinkError(
            "sink.dependents",
            f'view "{table.title}" cannot be dropped from the sink',
            detail=str(error.diag.message_detail or error),
            hint="first drop the objects that depend on it",
        ) from None


def _register(
    cursor: Any, table: SinkTable, table_sql: str, view_sql: str | None, *, is_staged: bool
) -> None:
    shape = table_guard.SHAPE_OF.format("table_oid", "view_oid")
    cursor.execute(
        "INSERT INTO tidemark.tables (schema, name, is_staged, table_oid, view_oid, types, shape) "
        f"SELECT %s, %s, %s, table_oid, view_oid, {TYPES_OF.format('table_oid')}, {shape} "
        "FROM (SELECT %s::regclass::oid AS table_oid, %s::regclass::oid AS view_oid) AS made",
        (table.schema, table.name, is_staged, table_sql, view_sql),
    )


class NamesOf:
    """Translate PostgreSQL's refusals of a name or a type into ours."""

    def __init__(self, table: SinkTable) -> None:
        self._table = table

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        title = self._table.title
        if isinstance(error, states.DuplicateTable | states.DuplicateObject):
            raise SinkError(
                "sink.name_taken",
                f'view name "{title}" is taken in the sink',
                detail=str(error.diag.message_primary),
                hint="choose another name for the view, or rename or drop what has it",
            ) from None
        if isinstance(error, states.UndefinedObject):
            raise SinkError(
                "sink.type_missing",
                f'view "{title}" has a type that the sink lacks',
                detail=str(error.diag.message_primary),
                hint="create the type in the sink too, or cast the column to text",
            ) from None
        if isinstance(error, psycopg2.ProgrammingError):
            raise SinkError(
                "sink.column",
                f'table of view "{title}" cannot be created in the sink',
                detail=str(error.diag.message_primary),
                hint="rename the column in the query",
            ) from None


def report_refusal(cursor: Any, table: SinkTable, error: TidemarkError) -> None:
    """Record in the catalog that this view failed, or is rebuilt, and why."""
    event = ViewEvent.UNSTAGE if error.code in REBUILT else ViewEvent.REFUSE
    where = "(schema, name) = (%s, %s)", [table.schema, table.name]
    reported = {"code": error.code, "detail": error.described, "hint": error.hint}
    columns = [("progress", None), *reported.items()]
    view_status.change(view_status.run_in(cursor), where, [event], error.code, columns)


def forget_errors(cursor: Any, tables: Sequence[SinkTable]) -> None:
    """Delete the error rows and notes of these views."""
    titles = [t.title for t in tables]
    for target in (ERRORS, NOTED):
        cursor.execute(f"DELETE FROM {target.sql} WHERE view = ANY (%s)", (titles,))
