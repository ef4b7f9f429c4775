"""An epoch on its way into the sink: whose table is at hand, and statements that go together.

A refusal is about one view wherever that can be known, so that the others go on without it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from connectors.sink import SinkEpoch, SinkTable
from dataflow.delta import Delta
from dataflow.schema import RelationName


@dataclass
class Place:
    """Whose table is at hand. widened: tables whose key may be too wide for a primary key.
    is_searched: only to find whose it is, nothing is to be written."""

    widened: frozenset[SinkTable] = frozenset()
    relation: RelationName | None = None
    is_searched: bool = False


def deltas_of(epoch: SinkEpoch, place: Place) -> Iterator[tuple[SinkTable | None, Delta]]:
    """What to apply to which view's table, or to that of error rows (None), part by part."""
    for part in epoch.parts():
        for table, delta in part.deltas:
            if len(delta):
                place.relation = table.relation
                yield table, delta
        place.relation = None
        if part.errors is not None and len(part.errors):
            yield None, part.errors


def flush(cursor: Any, waiting: list[bytes]) -> None:
    """Send the statements that have gathered, together."""
    if waiting:
        cursor.execute(b";".join(waiting))
        waiting.clear()
