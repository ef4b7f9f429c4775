"""Attribute a refused epoch to the view whose table someone else changed.

Only that view fails; a rebuild recreates its table. Codes follow PostgreSQL's classes of SQLSTATE
(appendix A).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg2

from connectors.postgres.schema.lease import FENCED_STATE
from connectors.postgres.schema.schema_setup import MISSING_STATE
from connectors.postgres.schema.sink_target import Target, target_of
from connectors.postgres.schema.table_guard import IS_GUARD
from connectors.postgres.schema.trigger_guard import FOREIGN_STATE, foreign_object
from connectors.postgres.session.quoting import quote_name
from connectors.postgres.session.session import to_error
from connectors.postgres.sink.apply_deltas import key_violation, rows_missing
from connectors.postgres.sink.sink_reader import progress_of
from connectors.sink import SinkEpoch, SinkLagging, SinkTable
from dataflow.errors import SinkError, TidemarkError
from dataflow.schema import VIEW_SOURCE, RelationName

_REBUILD = "rebuild the view, or drop it"
_TOO_WIDE = "drop the index that was added to the table, or remove wide columns from the view"
_RIGHTS = ["SELECT", "INSERT", "UPDATE", "DELETE"]
# Wrong names and types, a relation kind that cannot be written, a stale plan.
_CHANGED = ("42", "55", "0A")
_VALUES = ("22", "23", "44", "P0")
_LOCK_STATE = "55P03"
_TRIGGERS = f"""
SELECT g.tgname, quote_ident(p.proname), g.tgtype & 3 = 3 FROM tidemark.tables AS t
JOIN pg_trigger AS g ON g.tgrelid = t.table_oid JOIN pg_proc AS p ON p.oid = g.tgfoid
WHERE (t.schema, t.name) = (%s, %s) AND NOT t.is_staged AND NOT g.tgisinternal
    AND g.tgenabled <> 'D' AND NOT {IS_GUARD} ORDER BY 1
"""
_CONSTRAINED = """
SELECT t.schema, t.name FROM pg_constraint AS k JOIN pg_class AS c ON c.oid = k.conrelid
JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN tidemark.tables AS t ON t.table_oid IN (k.conrelid, k.confrelid) AND NOT t.is_staged
WHERE (n.nspname, c.relname, k.conname) = (%s, %s, %s) ORDER BY t.table_oid <> k.conrelid
"""
# Constraint triggers of users run at once while the faulty view is searched, else at COMMIT, which
# names no table. A foreign key is not to be checked early: its error names the constraint.
AT_ONCE = """
SELECT string_agg(DISTINCT format('%I.%I', n.nspname, k.conname), ', ')
FROM tidemark.tables AS t JOIN pg_constraint AS k ON k.conrelid = t.table_oid
JOIN pg_namespace AS n ON n.oid = k.connamespace
WHERE NOT t.is_staged AND k.contype = 't' AND k.condeferrable
"""


def refusal_of(cursor: Any, key: str, epoch: SinkEpoch, error: psycopg2.Error) -> TidemarkError:
    """Return the error behind a permanently refused statement of an epoch, after its rollback.

    key: of the sink's progress.
    """
    number = epoch.progress.epoch
    state, diagnostics = error.pgcode, error.diag
    if state == FENCED_STATE or diagnostics.table_name == "progress":
        found = progress_of(cursor, key)
        at = 0 if found is None else found.epoch
        if at < number - 1 and epoch.repair is None:
            return SinkLagging(at, number - 1)
        return SinkError(
            "sink.fenced",
            f"epoch {number} does not follow the sink's epoch",
            detail=str(diagnostics.message_primary),
            hint="another service writes under the same key: stop it, or choose another --prefix",
        )
    if state == FOREIGN_STATE:
        return foreign_object(error)
    if state == MISSING_STATE:
        return rows_missing(str(diagnostics.message_primary))
    if state == "23505" and _is_key(cursor, diagnostics):
        target = Target(str(diagnostics.schema_name), str(diagnostics.table_name), (), ())
        return key_violation(target, str(diagnostics.message_detail))
    if state in ("42P01", "42501"):
        # Tables swapped in with this epoch are gone after the rollback.
        swapped = {swap.table for swap in epoch.ddl.swaps}
        unwritable = _find_unwritable(cursor, epoch.rows.counts().keys() - swapped)
        if unwritable is not None:
            return unwritable
    return table_fault(error, f"cannot write epoch {number}")


def is_of_statement(error: psycopg2.Error) -> bool:
    """Return whether a table may have caused an error that counts as temporary.

    That is a lock that somebody holds, or the code of a trigger. The session is still there.
    """
    diagnostics = error.diag
    is_alive = diagnostics.severity_nonlocalized == "ERROR"
    return is_alive and (error.pgcode == _LOCK_STATE or bool(diagnostics.context))


def fault_of(
    cursor: Any, view: RelationName, error: psycopg2.Error, blocked_by: str
) -> SinkError | None:
    """Return the fault of one view's table, if somebody's lock or trigger is the cause.

    The transaction is rolled back. blocked_by: what the epoch has waited for.
    """
    title = f"{view.schema}.{view.name}"
    diagnostics = error.diag
    # Not one that a trigger raises: PostgreSQL's own timeout.
    if error.pgcode == _LOCK_STATE and diagnostics.source_function == "ProcessInterrupts":
        return locked(title, view, blocked_by)
    context = diagnostics.context or ""
    cursor.execute(_TRIGGERS, (view.schema, view.name))
    for trigger, function, is_before_row in cursor.fetchall():
        is_named = f"{function}(" in context or f'"{function}"' in context
        if is_named or (is_before_row and error.pgcode == MISSING_STATE):
            return SinkError(
                "sink.trigger_failed",
                f'trigger "{trigger}" on the table of view "{title}" fails',
                detail=f"{diagnostics.message_primary} ({error.pgcode})",
                hint="repair or drop the trigger, then rebuild the view; a rebuild makes a new"
                " table, without triggers",
                relation=view,
            )
    return None


def locked(title: str, view: RelationName, blocked_by: str) -> SinkError:
    """Return the refusal of a view whose table is locked for too long."""
    return SinkError(
        "sink.locked",
        f'the table of view "{title}" is locked by another session',
        detail=blocked_by,
        hint="end that transaction; the view is rebuilt once the table is free",
        relation=view,
    )


def constrained_view(cursor: Any, error: psycopg2.Error) -> RelationName | None:
    """Return the view whose table a violated constraint belongs to, or refers to."""
    diagnostics = error.diag
    names = (diagnostics.schema_name, diagnostics.table_name, diagnostics.constraint_name)
    if None in names:
        return None
    cursor.execute(_CONSTRAINED, names)
    found = cursor.fetchone()
    return None if found is None else RelationName(VIEW_SOURCE, *found)


def _is_key(cursor: Any, diagnostics: Any) -> bool:
    name = f"{quote_name(diagnostics.schema_name)}.{quote_name(diagnostics.table_name)}"
    cursor.execute(
        "SELECT 1 FROM pg_constraint WHERE contype = 'p' AND conname = %s "
        "AND conrelid = to_regclass(%s)",
        (diagnostics.constraint_name, name),
    )
    return cursor.fetchone() is not None


def _find_unwritable(cursor: Any, tables: Iterable[SinkTable]) -> SinkError | None:
    """Return the error of the first view whose table was dropped, or revoked from us."""
    for table in tables:
        cursor.execute(
            "SELECT to_regclass(%s), current_user, coalesce(bool_and("
            "has_table_privilege(to_regclass(%s), p)), false) FROM unnest(%s) AS p",
            (target_of(table).sql, target_of(table).sql, _RIGHTS),
        )
        found, role, is_ours = cursor.fetchone()
        if is_ours:
            continue
        what = f'table of view "{table.title}" '
        code = "sink.privilege" if found else "sink.table_missing"
        return SinkError(
            code,
            what + (f'may not be written by role "{role}"' if found else "does not exist"),
            hint=_REBUILD,
            relation=table.relation,
        )
    return None


def table_fault(error: psycopg2.Error, doing: str) -> TidemarkError:
    """Return the error of a statement that a table refused, permanent or temporary."""
    state = error.pgcode or ""
    code, hint = "sink.failed", ""
    if state == "42P01":
        code, hint = "sink.table_missing", _REBUILD
    elif state[:2] in _VALUES:
        code, hint = "sink.constraint", "drop the constraint or trigger that was added to the table"
    elif state[:2] == "54":
        code, hint = "sink.row_too_wide", _TOO_WIDE
    elif state[:2] in _CHANGED and state != "42501":
        code, hint = "sink.table_changed", _REBUILD
    return to_error(error, "sink", doing, code=code, hint=hint)


@contextmanager
def about(table: SinkTable) -> Iterator[None]:
    """Attribute errors raised inside to this view alone."""
    try:
        yield
    except SinkError as error:
        error.relation = table.relation
        raise


@contextmanager
def reading(table: SinkTable) -> Iterator[None]:
    """Attribute permanent errors of reading a view's rows to this view alone."""
    try:
        yield
    except psycopg2.Error as error:
        failure = table_fault(error, f'cannot read view "{table.title}"')
        if not failure.is_temporary:
            failure.relation = table.relation
        raise failure from error
