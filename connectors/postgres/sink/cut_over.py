"""Changes of a view as a whole in the sink: another name, another version of its query.

Invariant: the table, its entry in tidemark.tables and its catalog row change in the caller's
transaction. No reader sees one without the others.
"""

from __future__ import annotations

import json
from typing import Any

from psycopg2 import errors as states
from psycopg2.extras import Json

from connectors.feed_source import REJECTED_COLUMNS
from connectors.postgres.schema import view_status
from connectors.postgres.schema.sink_target import target_of
from connectors.postgres.session.quoting import quote_name
from connectors.postgres.sink import carry_over, history_tables, sink_tables
from connectors.sink import Handover, SinkTable, ViewChange
from connectors.view_states import DesiredState, event_of
from dataflow.errors import SinkError

# A group's first progress. Its name is new, so there is none unless this is repeated.
_BEGIN = """INSERT INTO tidemark.progress (sink_key, epoch, positions) VALUES (%s, %s, %s)
ON CONFLICT (sink_key) DO UPDATE SET epoch = excluded.epoch, positions = excluded.positions"""
# The sinks that are being dropped are finished by the group that they are in.
_MOVE_SINKS = """UPDATE tidemark.sinks AS s SET view_group = v.options ->> 'group'
FROM tidemark.views AS v WHERE v.identity = s.view_identity
    AND s.view_identity = %s AND s.desired = %s"""
_LETTERS = ", ".join(REJECTED_COLUMNS)
_COPY_LETTERS = f"""INSERT INTO tidemark.dead_letters (sink_key, {_LETTERS})
SELECT %s, {_LETTERS} FROM tidemark.dead_letters
WHERE sink_key = %s AND (source, relation) IN %s ON CONFLICT DO NOTHING"""


def apply(cursor: Any, change: ViewChange, key: str = "") -> None:
    """Apply a change. key: of the progress of the view's group, for one that goes to another group.

    SinkError sink.name_taken, sink.schema_missing, sink.privilege.
    """
    if change.before.relation != change.table.relation:
        _rename(cursor, change)
    if change.is_replaced:
        sink_tables.forget_errors(cursor, [change.table])
    _report(cursor, change)
    if change.hands_over is not None:
        _begin_group(cursor, change.hands_over, key)
        cursor.execute(_MOVE_SINKS, (change.identity, DesiredState.LIVE))
        history_tables.hand_over(cursor, change.table, key, change.hands_over.sink_key)
    found = carry_over.oids_of(cursor, change.table)
    # A table of the other kind is about to be replaced by one that has its own comment.
    if found is not None and (found[0] != found[1]) == target_of(change.table).is_multiset:
        sink_tables.comment(cursor, change.table)


def _report(cursor: Any, change: ViewChange) -> None:
    facts = {c: Json(v) if isinstance(v, dict | list) else v for c, v in change.facts.items()}
    sets = "".join(f", {quote_name(c)} = %s" for c in facts)
    cursor.execute(
        f"UPDATE tidemark.views SET updated_at = now(){sets} WHERE identity = %s",
        (*facts.values(), change.identity),
    )
    if change.ends:
        # It may have been cancelled meanwhile: that no longer counts, since it is visible.
        cursor.execute(
            "UPDATE tidemark.views SET change = NULL, replacing = NULL WHERE identity = %s "
            "AND coalesce(change, replacing)->>'id' = %s",
            (change.identity, change.ends),
        )
    if change.status:
        where, events = ("identity = %s", [change.identity]), [event_of(change.status)]
        view_status.change(view_status.run_in(cursor), where, events, "an epoch says so")


def _begin_group(cursor: Any, found: Handover, key: str) -> None:
    cursor.execute(_BEGIN, (found.sink_key, found.epoch, json.dumps(dict(found.positions))))
    if found.relations:
        cursor.execute(_COPY_LETTERS, (found.sink_key, key, tuple(found.relations)))


def _rename(cursor: Any, change: ViewChange) -> None:
    before, table = change.before, change.table
    sink_tables.check_name(cursor, table)
    found = carry_over.oids_of(cursor, before)
    with sink_tables.NamesOf(table):
        if found is not None:
            rows, visible = found
            if visible != rows:
                _move(cursor, "VIEW", visible, table, table.name)
            _move(cursor, "TABLE", rows, table, target_of(table).name)
            sink_tables.rename_key(cursor, table)
    history_tables.rename(cursor, before, table)
    names = (table.schema, table.name, before.schema, before.name)
    cursor.execute(
        "UPDATE tidemark.tables SET schema = %s, name = %s "
        "WHERE schema = %s AND name = %s AND NOT is_staged",
        names,
    )
    cursor.execute(
        "UPDATE tidemark.sinks SET schema = %s, view = %s WHERE view_identity = %s",
        (table.schema, table.name, change.identity),
    )
    # Of this service or another: names are unique over all services of a database.
    try:
        cursor.execute(
            "UPDATE tidemark.views SET schema = %s, name = %s WHERE identity = %s",
            (table.schema, table.name, change.identity),
        )
    except states.UniqueViolation:
        raise SinkError(
            "sink.name_taken", f'view "{table.title}" exists already', hint="choose another name"
        ) from None


def _move(cursor: Any, word: str, oid: int, table: SinkTable, name: str) -> None:
    """Rename through an unused name, since the old or the new one may be taken on the way."""
    cursor.execute(
        "SELECT n.nspname, c.relname FROM pg_class AS c "
        "JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = %s",
        (oid,),
    )
    schema, old = cursor.fetchone()
    between = quote_name(f"_tidemark_{oid}")
    cursor.execute(f"ALTER {word} {quote_name(schema)}.{quote_name(old)} RENAME TO {between}")
    if schema != table.schema:
        cursor.execute(
            f"ALTER {word} {quote_name(schema)}.{between} SET SCHEMA {quote_name(table.schema)}"
        )
    cursor.execute(
        f"ALTER {word} {quote_name(table.schema)}.{between} RENAME TO {quote_name(name)}"
    )
