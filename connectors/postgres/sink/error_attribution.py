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
from connectors.postgres.schema.trigger_guard import FOREIGN_STATE, foreign_object
from connectors.postgres.session.quoting import quote_name
from connectors.postgres.session.session import to_error
from connectors.postgres.sink.apply_deltas import key_violation, rows_missing
from connectors.postgres.sink.sink_reader import progress_of
from connectors.sink import SinkEpoch, SinkLagging, SinkTable
from dataflow.errors import SinkError, TidemarkError

_REBUILD = "rebuild the view, or drop it"
_TOO_WIDE = "drop the index that was added to the table, or remove wide columns from the view"
_RIGHTS = ["SELECT", "INSERT", "UPDATE", "DELETE"]
# Wrong names and types, a relation kind that cannot be written, a stale plan.
_CHANGED = ("42", "55", "0A")
_VALUES = ("22", "23", "44", "P0")


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
