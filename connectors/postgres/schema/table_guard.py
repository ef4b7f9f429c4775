"""The guard of views' tables, and what somebody has changed of a table by hand.

A statement trigger on each view's table refuses every write that is not part of an epoch: the
transaction that advances tidemark.progress is marked with its own number. It fires in replica mode
too. What a table is like is stored when it is made. Everything that would show other rows than
those written differs from that, and is found by one query over all tables. Invariant: what the
query finds is not the service's work. The functions are in schema/0025_table_guard.sql.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from connectors.postgres.session.quoting import quote_text
from connectors.sink import TableState
from dataflow.errors import SinkError
from dataflow.schema import VIEW_SOURCE, RelationName

REFUSED_STATE = "TM005"
# After the number of the transaction, in the mark of a statement on a table with users' triggers.
WITH_TRIGGERS = " with triggers"
# Lets the rest of a transaction write. In braces: what to add to its number, "" for nothing.
MARK = "SELECT set_config('tidemark.epoch', pg_current_xact_id()::text{}, true)"
# Before those of users, which fire by name too.
NAME = "0_tidemark"
# BEFORE (2) INSERT (4) OR DELETE (8) OR UPDATE (16) OR TRUNCATE (32) FOR EACH STATEMENT.
_EVENTS = 62
IS_GUARD = (
    f"(g.tgfoid = to_regproc('tidemark.refuse_write') AND g.tgtype = {_EVENTS} "
    "AND g.tgenabled = 'A' AND g.tgqual IS NULL AND g.tgattr::text = '')"
)
SERVER = "current_setting('server_version_num')::integer / 10000"
# {0}: the table with the rows; {1}: the view over it, NULL without one.
SHAPE_OF = f"""jsonb_build_object(
    'columns', (SELECT jsonb_object_agg(a.attname,
            jsonb_build_array(a.atttypid::bigint, a.atttypmod))
        FROM pg_attribute AS a WHERE a.attrelid = {{0}} AND a.attnum > 0 AND NOT a.attisdropped),
    'shown', (SELECT jsonb_agg(a.attname ORDER BY a.attnum)
        FROM pg_attribute AS a WHERE a.attrelid = {{1}} AND a.attnum > 0),
    'rule', (SELECT md5(w.ev_action::text) FROM pg_rewrite AS w
        WHERE w.ev_class = {{1}} AND w.rulename = '_RETURN'),
    'server', {SERVER})"""

_STATES = "SELECT * FROM tidemark.table_states(%s)"
_WITH_TRIGGERS = f"""SELECT t.schema, t.name FROM tidemark.tables AS t WHERE NOT t.is_staged
AND EXISTS (SELECT FROM pg_trigger AS g WHERE g.tgrelid = t.table_oid AND NOT g.tgisinternal
    AND g.tgenabled <> 'D' AND NOT {IS_GUARD})"""
_ADOPT = f"""UPDATE tidemark.tables AS t SET shape = {SHAPE_OF.format("t.table_oid", "t.view_oid")}
WHERE (t.shape ->> 'server')::integer <> {SERVER} RETURNING 1"""

Run = Callable[..., Sequence[tuple[Any, ...]]]


def read_states(run: Run, wide_index: str) -> Iterator[TableState]:
    """Yield the state of each view's table.

    run: executes a statement with parameters. wide_index: the prefix of the index that stands in
    for a primary key.
    """
    for schema, name, is_gone, what, has_triggers, is_foreign, is_unguarded in run(
        _STATES, wide_index
    ):
        relation = RelationName(VIEW_SOURCE, schema, name)
        error = None
        if what:
            changed = "sink.foreign_object" if is_foreign else "sink.table_changed"
            error = SinkError(
                "sink.table_missing" if is_gone else changed,
                f'the table of view "{schema}.{name}" was changed by hand',
                detail=what,
                hint="undo it if it is a trigger or a rule, then rebuild the view",
                relation=relation,
            )
        yield TableState(relation, error, has_triggers, is_unguarded)


def let_write(cursor: Any) -> None:
    """Let the rest of a transaction of the service that is no epoch write to views' tables."""
    cursor.execute(MARK.format(""))


def add(cursor: Any, table_sql: str) -> None:
    """Put the guard on a table."""
    cursor.execute(f"SELECT tidemark.add_guard({quote_text(table_sql)}::regclass)")


def adopt(run: Run) -> list[tuple[str, str]]:
    """Put the guard on tables of an older version, and learn those of an older server.

    Return (view, why not) for those that refuse, or are locked: to be tried again.
    """
    run(_ADOPT)
    return [(title, why) for title, why in run("SELECT * FROM tidemark.add_guards()")]


def with_triggers(cursor: Any) -> frozenset[RelationName]:
    """Return the views on whose tables users have triggers."""
    cursor.execute(_WITH_TRIGGERS)
    return frozenset(RelationName(VIEW_SOURCE, *found) for found in cursor.fetchall())
