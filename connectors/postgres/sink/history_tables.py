"""The life of a view's history in the sink: begun, staged, renamed, pruned, dropped.

A history has its rows in a table of schema tidemark, which only the service writes, and a view
beside the maintained view that its creator may read. It begins with an epoch: at the first rows of
the view, or when the option is set; a new table of the view has a new history. Every function works
on the caller's cursor, inside the caller's transaction.
Invariant: a history that the catalog lists has recorded every epoch since it began.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from psycopg2 import errors as states

from connectors.postgres.schema.history_target import (
    History,
    create_indexes,
    create_table,
    create_view,
    history_target,
    is_damaged,
    period_of,
    view_name,
)
from connectors.postgres.schema.sink_target import Target, target_of
from connectors.postgres.schema.stored_roles import current_oid
from connectors.postgres.schema.trigger_guard import require_ours
from connectors.postgres.session.quoting import quote_name, quote_text
from connectors.postgres.sink.carry_over import OURS
from connectors.sink import SinkEpoch, SinkTable
from connectors.view_states import ViewState
from dataflow.errors import SinkError

# Rows that one epoch deletes at most, besides twice as many as it has recorded.
PRUNED_ROWS = 5_000
PRUNE_S = 1.0

_KNOWN = """
SELECT h.schema, h.name, c.relname, h.period FROM tidemark.histories AS h
LEFT JOIN pg_class AS c ON c.oid = h.table_oid WHERE NOT h.is_staged AND h.sink_key = %s
"""
_FOUND = """
SELECT c.relname, h.period, v.oid, h.sink_key FROM tidemark.histories AS h
LEFT JOIN pg_class AS c ON c.oid = h.table_oid LEFT JOIN pg_class AS v ON v.oid = h.view_oid
WHERE (h.schema, h.name, h.is_staged) = (%s, %s, %s)
"""
# What a view is to retain; of its next version, where one is being built.
_DESIRED = """
SELECT nullif({0} ->> 'history', 'none') FROM tidemark.views WHERE (schema, name) = (%s, %s)
"""
_GRANTS = """
SELECT CASE WHEN a.grantee = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END,
    a.is_grantable
FROM tidemark.histories AS h JOIN pg_class AS c ON c.oid = h.view_oid, aclexplode(c.relacl) AS a
WHERE (h.schema, h.name) = (%s, %s) AND NOT h.is_staged AND a.privilege_type = 'SELECT'
    AND a.grantee <> c.relowner
"""

# Of a history that goes to another group: what its rows, and who reads the past, refer to.
_COPY_EPOCHS = """
INSERT INTO tidemark.epochs (sink_key, epoch, committed_at, positions)
SELECT h.sink_key, e.epoch, e.committed_at, e.positions
FROM tidemark.histories AS h JOIN tidemark.epochs AS e
    ON e.sink_key = %s AND e.epoch >= h.oldest_epoch
WHERE (h.schema, h.name) = (%s, %s) AND NOT h.is_staged ON CONFLICT DO NOTHING
"""
_COPY_REWINDS = """
INSERT INTO tidemark.rewinds (sink_key, epoch, follows, positions, repaired_at)
SELECT h.sink_key, r.epoch, r.follows, r.positions, r.repaired_at
FROM tidemark.histories AS h JOIN tidemark.rewinds AS r
    ON r.sink_key = %s AND r.epoch > h.oldest_epoch
WHERE (h.schema, h.name) = (%s, %s) AND NOT h.is_staged ON CONFLICT DO NOTHING
"""

Grants = Sequence[tuple[str, bool]]


@dataclass(frozen=True)
class _Found:
    """A history in the catalog. name: of its table, None if that is gone; view: likewise."""

    name: str | None
    period: Sequence[str]
    view: int | None
    sink_key: str


class Histories:
    """The views whose history an epoch records, cached for one session.

    key: of the sink's progress. Call `forget` when a transaction is rolled back or a view changes.
    """

    def __init__(self, key: str) -> None:
        self._key = key
        self._known: dict[tuple[str, str], tuple[str | None, Sequence[str]]] | None = None
        self._pruned_at = 0.0

    @property
    def is_known(self) -> bool:
        """Return whether `find` can answer without the database."""
        return self._known is not None

    def forget(self) -> None:
        """Query the database again the next time."""
        self._known = None

    def find(self, cursor: Any, table: SinkTable) -> History | None:
        """Return the history of a view; None if nothing is retained. SinkError
        sink.table_missing."""
        found = self._all(cursor).get((table.schema, table.name))
        if found is None:
            return None
        name, period = found
        if name is None:
            raise SinkError(
                "sink.table_missing",
                f'the history of view "{table.title}" does not exist',
                hint="rebuild the view, which begins a new history, or drop it",
                relation=table.relation,
            )
        return history_target(table, name, period)

    def are_any(self, cursor: Any) -> bool:
        """Return whether any view has a history."""
        return bool(self._all(cursor))

    def _all(self, cursor: Any) -> dict[tuple[str, str], tuple[str | None, Sequence[str]]]:
        if self._known is None:
            cursor.execute(_KNOWN, (self._key,))
            self._known = {(s, n): (table, period) for s, n, table, period in cursor.fetchall()}
        return self._known

    def is_due(self, now_s: float, recorded: int) -> bool:
        """Return whether rows that are no longer retained are to be deleted.

        now_s: a monotonic clock. recorded: rows that this epoch has recorded.
        """
        if now_s - self._pruned_at < PRUNE_S and recorded < PRUNED_ROWS:
            return False
        self._pruned_at = now_s
        return True

    def pruning(self, cursor: Any, recorded: int) -> list[bytes]:
        """Return the statements that delete some of them."""
        if not self.are_any(cursor):
            return []
        most = PRUNED_ROWS + 2 * recorded
        return [f"SELECT tidemark.prune_histories({quote_text(self._key)}, {most})".encode()]


def noted(key: str, epoch: SinkEpoch) -> bytes:
    """Return the statement that enters an epoch and its clock, before its changes are recorded."""
    positions = quote_text(json.dumps(dict(epoch.progress.positions)))
    number = epoch.progress.epoch
    call = f"{quote_text(key)}, {number}, {epoch.commit_time_us}, {positions}"
    return f"SELECT tidemark.note_epoch({call})".encode()


def check_name(cursor: Any, table: SinkTable) -> None:
    """Require that the name of what users read is free, or ours. SinkError sink.name_taken."""
    name = view_name(table)
    cursor.execute(
        "SELECT c.oid FROM pg_class AS c WHERE c.oid = to_regclass(%s) AND NOT EXISTS (SELECT "
        "FROM tidemark.histories AS h WHERE h.view_oid = c.oid AND (h.schema, h.name) = (%s, %s))",
        (f"{quote_name(table.schema)}.{quote_name(name)}", table.schema, table.name),
    )
    if cursor.fetchone() is not None:
        raise SinkError(
            "sink.name_taken",
            f'the name "{table.schema}.{name}" of the history of view "{table.title}" is taken',
            detail="a relation of this name exists in the sink",
            hint="rename or drop it, or choose another name for the view",
        )


def has_failed(cursor: Any, table: SinkTable) -> bool:
    """Return whether a view stands as failed in the catalog."""
    cursor.execute(
        "SELECT status = %s FROM tidemark.views WHERE (schema, name) = (%s, %s)",
        (ViewState.FAILED, table.schema, table.name),
    )
    found = cursor.fetchone()
    return bool(found and found[0])


def stage(cursor: Any, table: SinkTable, source: Target) -> None:
    """Create the history of a view that is not visible yet, if it is to have one.

    source: its hidden table, filled.
    """
    drop(cursor, table, is_staged=True)
    period = _desired(cursor, table, "coalesce(change -> 'options', options)")
    if period is None:
        return
    name = _create(cursor, table, source)
    _register(cursor, table, name, period, is_staged=True)


def settle(
    cursor: Any,
    table: SinkTable,
    key: str,
    epoch: SinkEpoch,
    *,
    grants: Grants = (),
    is_doubtful: bool = False,
) -> None:
    """Begin, keep or drop the history of a view, as its options say. For an epoch that changes the
    view as a whole, before that changes the rows.

    key: of the sink's progress. grants: to read what users read. is_doubtful: the view had failed,
    maybe for a history that someone has changed: then it restarts. SinkError sink.name_taken,
    sink.dependents.
    """
    desired, found = _desired(cursor, table), _find(cursor, table)
    staged = _find(cursor, table, is_staged=True)
    is_whole = _is_whole(cursor, table, found, is_doubtful=is_doubtful)
    if desired is not None and is_whole and staged is None:
        cursor.execute(
            "UPDATE tidemark.histories SET retained = %s WHERE (schema, name) = (%s, %s)",
            (desired, table.schema, table.name),
        )
        return
    grants = grants or grants_of(cursor, table)
    drop(cursor, table, is_staged=False)
    if desired is None:
        drop(cursor, table, is_staged=True)
        return
    cursor.execute("SELECT to_regclass(%s)", (target_of(table).sql,))
    if cursor.fetchone()[0] is None:
        # The view is about to fail for it.
        return
    if staged is None or staged.name is None:
        require_ours(cursor, table)
        drop(cursor, table, is_staged=True)
        name = _create(cursor, table, target_of(table))
        _register(cursor, table, name, desired, is_staged=True)
    else:
        name = staged.name
    cursor.execute(noted(key, epoch))
    _show(cursor, table, key, name, grants)
    cursor.execute(
        "UPDATE tidemark.histories AS h SET is_staged = false, sink_key = %s, retained = %s, "
        "view_oid = %s::regclass, begun_epoch = e.epoch, begun_at = e.committed_at, "
        "oldest_epoch = e.epoch, oldest_at = e.committed_at FROM tidemark.epochs AS e "
        "WHERE (h.schema, h.name) = (%s, %s) AND h.is_staged AND (e.sink_key, e.epoch) = (%s, %s)",
        (key, desired, _shown_sql(table), table.schema, table.name, key, epoch.progress.epoch),
    )


def _is_whole(cursor: Any, table: SinkTable, found: _Found | None, *, is_doubtful: bool) -> bool:
    """Return whether a history can continue: it exists, and has the view's rows."""
    if found is None or found.name is None or found.view is None:
        return False
    if not is_doubtful:
        return True
    require_ours(cursor, table)
    cursor.execute(is_damaged(history_target(table, found.name, found.period)))
    return not cursor.fetchone()[0]


def rename(cursor: Any, before: SinkTable, table: SinkTable) -> None:
    """Follow a view to another name, after its table. SinkError sink.name_taken."""
    found = _find(cursor, before)
    if found is None:
        return
    cursor.execute(
        "UPDATE tidemark.histories SET schema = %s, name = %s WHERE (schema, name) = (%s, %s)",
        (table.schema, table.name, before.schema, before.name),
    )
    if found.view is None:
        return
    check_name(cursor, table)
    new = quote_name(view_name(table))
    between = quote_name(f"_tidemark_{found.view}")
    cursor.execute(f"ALTER VIEW {_shown_sql(before)} RENAME TO {between}")
    if before.schema != table.schema:
        cursor.execute(
            f"ALTER VIEW {quote_name(before.schema)}.{between} "
            f"SET SCHEMA {quote_name(table.schema)}"
        )
    cursor.execute(f"ALTER VIEW {quote_name(table.schema)}.{between} RENAME TO {new}")


def hand_over(cursor: Any, table: SinkTable, old: str, new: str) -> None:
    """Let the history of a view, if there is one, continue with the epochs of another group.

    old, new: of the progress of the groups. Epochs have the same numbers in both.
    """
    found = _find(cursor, table)
    if found is None or found.sink_key != old:
        return
    names = table.schema, table.name
    cursor.execute(
        "UPDATE tidemark.histories SET sink_key = %s WHERE (schema, name) = (%s, %s) "
        "AND NOT is_staged",
        (new, *names),
    )
    cursor.execute(_COPY_EPOCHS, (old, *names))
    cursor.execute(_COPY_REWINDS, (old, *names))
    if found.name is not None and found.view is not None:
        cursor.execute("SELECT %s::oid::regclass::text", (found.view,))
        history = history_target(table, found.name, found.period)
        cursor.execute(create_view(history, cursor.fetchone()[0], new, is_replaced=True))
    _forget_epochs(cursor, old)


def grants_of(cursor: Any, table: SinkTable) -> Grants:
    """Return who may read the history of a view: (role, whether it may grant that)."""
    cursor.execute(_GRANTS, (table.schema, table.name))
    return cursor.fetchall()


def drop(cursor: Any, table: SinkTable, *, is_staged: bool) -> None:
    """Drop the history of a view, if there is one. SinkError sink.dependents."""
    found = _find(cursor, table, is_staged=is_staged)
    if found is None:
        return
    cursor.execute(
        "DELETE FROM tidemark.histories WHERE (schema, name, is_staged) = (%s, %s, %s)",
        (table.schema, table.name, is_staged),
    )
    try:
        if found.view is not None:
            cursor.execute("SELECT %s::oid::regclass::text", (found.view,))
            cursor.execute(f"DROP VIEW {cursor.fetchone()[0]}")
        if found.name is not None:
            cursor.execute(f"DROP TABLE tidemark.{quote_name(found.name)}")
    except states.DependentObjectsStillExist as error:
        raise SinkError(
            "sink.dependents",
            f'the history of view "{table.title}" cannot be dropped from the sink',
            detail=str(error.diag.message_detail or error),
            hint="first drop the objects that depend on it",
        ) from None
    if not is_staged:
        _forget_epochs(cursor, found.sink_key)


def _forget_epochs(cursor: Any, key: str) -> None:
    """Delete the epochs of a progress that no history has."""
    for name in ("epochs", "rewinds"):
        cursor.execute(
            f"DELETE FROM tidemark.{name} WHERE sink_key = %s AND NOT EXISTS ("
            "SELECT FROM tidemark.histories WHERE sink_key = %s)",
            (key, key),
        )


def _desired(cursor: Any, table: SinkTable, options: str = "options") -> str | None:
    """Return the period that a view's past is to be retained; None for no history."""
    cursor.execute(_DESIRED.format(options), (table.schema, table.name))
    found = cursor.fetchone()
    return found[0] if found else None


def _find(cursor: Any, table: SinkTable, *, is_staged: bool = False) -> _Found | None:
    cursor.execute(_FOUND, (table.schema, table.name, is_staged))
    found = cursor.fetchone()
    return None if found is None else _Found(*found)


def _create(cursor: Any, table: SinkTable, source: Target) -> str:
    """Create the table with the rows of `source`, and return its name."""
    name = f"history_{secrets.token_hex(8)}"
    history = history_target(table, name, period_of(table))
    cursor.execute(create_table(history, source))
    for index in create_indexes(history):
        cursor.execute(index)
    comment = quote_text(f"{OURS}: history of view {table.title}")
    cursor.execute(f"COMMENT ON TABLE {history.sql} IS {comment}")
    cursor.execute(f"ANALYZE {history.sql}")
    return name


def _register(cursor: Any, table: SinkTable, name: str, retained: str, *, is_staged: bool) -> None:
    cursor.execute(
        "INSERT INTO tidemark.histories (schema, name, is_staged, sink_key, retained, table_oid, "
        "period) VALUES (%s, %s, %s, '', %s, %s::regclass, %s)",
        (
            table.schema,
            table.name,
            is_staged,
            retained,
            f"tidemark.{quote_name(name)}",
            list(period_of(table)),
        ),
    )


def _show(cursor: Any, table: SinkTable, key: str, name: str, grants: Grants) -> None:
    """Create what users read, for the creator of the view and for who could read it before."""
    check_name(cursor, table)
    shown = _shown_sql(table)
    cursor.execute(create_view(history_target(table, name, period_of(table)), shown, key))
    comment = quote_text(f"{OURS}: the rows of view {table.name} with their periods")
    cursor.execute(f"COMMENT ON VIEW {shown} IS {comment}")
    owner = current_oid("v.created_by", "v.created_oid")
    cursor.execute(
        "SELECT quote_ident(r.rolname) FROM tidemark.views AS v JOIN pg_roles AS r "
        f"ON r.oid = {owner} WHERE (v.schema, v.name) = (%s, %s) "
        "AND r.rolname <> current_user",
        (table.schema, table.name),
    )
    creator = [(role, True) for (role,) in cursor.fetchall()]
    for role, is_grantable in dict([*grants, *creator]).items():
        option = " WITH GRANT OPTION" if is_grantable else ""
        cursor.execute(f"GRANT SELECT ON {shown} TO {role}{option}")


def _shown_sql(table: SinkTable) -> str:
    return f"{quote_name(table.schema)}.{quote_name(view_name(table))}"
