"""An epoch on its way into the sink: whose table is at hand, and statements that go together.

A refusal is about one view wherever that can be known, so that the others go on without it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from connectors.postgres.schema import view_status
from connectors.postgres.session.quoting import quote_text
from connectors.sink import SinkEpoch, SinkRepair, SinkTable, errors_by_view
from dataflow.delta import Delta
from dataflow.schema import RelationName


@dataclass
class WriteContext:
    """Whose table is at hand. widened: tables whose key may be too wide for a primary key.
    title: of whose error rows are at hand. is_searched: only to find whose it is, nothing is to be
    written."""

    widened: frozenset[SinkTable] = frozenset()
    relation: RelationName | None = None
    title: str = ""
    is_searched: bool = False


def deltas_of(epoch: SinkEpoch, context: WriteContext) -> Iterator[tuple[SinkTable | None, Delta]]:
    """What to apply to which view's table, or to that of error rows (None), part by part."""
    for part in epoch.parts():
        for table, delta in part.deltas:
            if len(delta):
                context.relation = table.relation
                yield table, delta
        context.relation = None
        if part.errors is None or not len(part.errors):
            continue
        if not context.is_searched:
            yield None, part.errors
            continue
        for context.title, errors in errors_by_view(part.errors).items():
            yield None, errors
        context.title = ""


def begin(key: str, token: str, epoch: SinkEpoch) -> list[bytes]:
    """The statements that an epoch begins with: the fence, and the progress that it leads to.

    token: of who has claimed the key, "" where nobody has.
    """
    positions = quote_text(json.dumps(dict(epoch.progress.positions)))
    number, name = epoch.progress.epoch, quote_text(key)
    owner = f", {quote_text(token)}" if token else ""
    statements = [f"SELECT tidemark.advance({name}, {number}, {positions}{owner})"]
    if epoch.repair is not None:
        before = f"UPDATE tidemark.progress SET epoch = {number - 1} WHERE sink_key = {name}"
        statements.insert(0, f"{before} AND epoch = {epoch.repair.follows}")
        statements.append(_recall_others(epoch.repair))
    return [b"BEGIN", *(s.encode() for s in statements)]


def _recall_others(repair: SinkRepair) -> str:
    """Views of the group that are called live, and are not, are to be built anew."""
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
