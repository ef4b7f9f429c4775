"""The statements of an epoch for the sink, and the table that is being written.

A refusal is attributed to one view if possible, so that the others continue.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from connectors.postgres.schema import view_status
from connectors.postgres.schema.sink_target import ERRORS, NOTED, Target
from connectors.postgres.schema.table_guard import MARK, WITH_TRIGGERS
from connectors.postgres.session.quoting import quote_text
from connectors.postgres.session.session import PINNED_PATH
from connectors.sink import SinkEpoch, SinkRepair, SinkTable, errors_by_view
from dataflow.delta import Delta
from dataflow.notes import NOTES
from dataflow.schema import RelationName

# Around a statement on a table with triggers of users: they find what they name as in any other
# session of the role, and the statement itself is planned before (schema/0025_table_guard.sql).
USERS_TRIGGERS = MARK.format(f" || {quote_text(WITH_TRIGGERS)}").encode()
PINNED_AGAIN = (
    f"SET LOCAL search_path TO {PINNED_PATH}; SET LOCAL row_security TO off; {MARK.format('')}"
).encode()
# Nothing of ours is planned after it: those that are deferred run within COMMIT.
COMMIT_WITH_TRIGGERS = b"SET LOCAL search_path TO DEFAULT; SET LOCAL row_security TO on; COMMIT"


@dataclass
class WriteContext:
    """What is being written.

    relation: the table. widened: tables whose key may be too wide for a primary key. title: the
    view whose error rows are being written. is_searched: only to find the faulty view; nothing is
    to be written.
    """

    widened: frozenset[SinkTable] = frozenset()
    relation: RelationName | None = None
    title: str = ""
    is_searched: bool = False


def deltas_of(
    epoch: SinkEpoch, context: WriteContext
) -> Iterator[tuple[SinkTable | Target, Delta]]:
    """What to apply to which view's table, or to those of error rows and notes, part by part."""
    for part in epoch.rows.parts():
        for table, delta in part.deltas:
            if len(delta) and table.final is None:
                context.relation = table.relation
                yield table, delta
        context.relation = None
        if part.errors is None or not len(part.errors):
            continue
        if not context.is_searched:
            yield from _by_target(part.errors)
            continue
        for context.title, errors in errors_by_view(part.errors).items():
            yield from _by_target(errors)
        context.title = ""


def _by_target(errors: Delta) -> Iterator[tuple[Target, Delta]]:
    """What of these rows goes to which table: those of error rows and of notes."""
    is_note = np.array([code in NOTES for code in errors.columns[2].texts()], np.bool_)
    for target, rows in ((ERRORS, errors.filter(~is_note)), (NOTED, errors.filter(is_note))):
        if len(rows):
            yield target, rows


def begin(key: str, token: str, epoch: SinkEpoch) -> list[bytes]:
    """Return the first statements of an epoch: the fence, and its progress.

    token: of the service that claimed the key, "" if none did.
    """
    positions = quote_text(json.dumps(dict(epoch.progress.positions)))
    number, name = epoch.progress.epoch, quote_text(key)
    owner = f", {quote_text(token)}" if token else ""
    statements = [f"SELECT tidemark.advance({name}, {number}, {positions}{owner})"]
    if epoch.repair is not None:
        before = f"UPDATE tidemark.progress SET epoch = {number - 1} WHERE sink_key = {name}"
        statements.insert(0, f"{before} AND epoch = {epoch.repair.follows}")
        statements.insert(0, f"SELECT tidemark.note_rewind({name}, {number})")
        statements.append(_recall_others(epoch.repair))
    return [b"BEGIN", *(s.encode() for s in statements)]


def _recall_others(repair: SinkRepair) -> str:
    """Return the statement that marks other views of the group, which are wrongly called live, for
    a rebuild.
    """
    live = ", ".join(quote_text(identity) for identity in sorted(repair.live))
    group = quote_text(repair.group)
    is_of_group = f"options->>'group' = {group}"
    if repair.is_default:
        is_of_group = f"coalesce(options->>'group', {group}) = {group}"
    return view_status.recalled(f"identity <> ALL (ARRAY[{live}]::text[]) AND {is_of_group}")


def flush(cursor: Any, waiting: list[bytes]) -> None:
    """Send the statements that have gathered, together."""
    if waiting:
        cursor.execute(b";".join(waiting))
        waiting.clear()
