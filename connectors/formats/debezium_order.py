"""Debezium delivers at least once: what of a partition has been seen, and transactions kept whole.

Pure state, for the source to keep beside its places. `LastSeen` drops events that are repeated
after a restart of the connector. `Transactions` holds events until all of their transaction are
there, across topics and partitions.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np

from dataflow.errors import SourceError

Event = TypeVar("Event")
UNKNOWN = -1
REMEMBERED = 10_000


class LastSeen:
    """By partition, the order of its newest event.

    An order is int64[4]: PostgreSQL's (end of the last commit, LSN, place in the transaction, 0),
    MySQL's (number of the binlog file, position, row, 0); UNKNOWN in front means that it has
    none, as events of a snapshot have.
    """

    def __init__(self, state: Mapping[str, Sequence[int]] | None = None) -> None:
        self._newest = {int(p): tuple(order) for p, order in (state or {}).items()}

    def fresh(self, partition: int, orders: np.ndarray) -> np.ndarray:
        """bool[n] of int64[n, 4] in the order of the partition: False for events seen before.

        Events of one order (rows of one COPY without transaction metadata) are all let through:
        a repeated one does no harm to rows with a key, a lost one would.
        """
        keep = np.ones(len(orders), np.bool_)
        known = orders[:, 0] != UNKNOWN
        if not known.any():
            return keep
        newest = self._newest.get(partition, (UNKNOWN,) * 4)
        asked = np.concatenate([np.array([newest], np.int64), orders[known]])
        values, ranks = np.unique(asked, axis=0, return_inverse=True)
        ranks = ranks.ravel()
        before = np.maximum.accumulate(ranks)[:-1]
        has_no_place = asked[1:, 2] == UNKNOWN
        keep[known] = (ranks[1:] > before) | ((ranks[1:] == before) & has_no_place)
        self._newest[partition] = tuple(values[-1].tolist())
        return keep

    def state(self) -> dict[str, list[int]]:
        """As JSON has it."""
        return {str(p): list(order) for p, order in self._newest.items()}


@dataclass
class _Held(Generic[Event]):
    """A transaction that is not whole: events by their place in it, and what END told."""

    events: dict[int, Event] = field(default_factory=dict)
    by_collection: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, int] | None = None


class Transactions(Generic[Event]):
    """Holds events until the transaction topic's END and all that it counts are there.

    collections: the tables that are read ("schema.table" or "database.table", as Debezium names
    them); what a transaction has of others is not waited for. Transactions are given out in the
    order of their ENDs: one that is not whole yet keeps those after it waiting, as they may
    build on it.
    """

    def __init__(self, collections: Collection[str]) -> None:
        self._collections = frozenset(collections)
        self._held: dict[str, _Held[Event]] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._done: OrderedDict[str, None] = OrderedDict()

    def add_event(self, id: str, order: int, collection: str, event: Event) -> None:
        """An event with its transaction's id and its place in it; one that is repeated is not
        kept twice."""
        if id in self._done:
            return
        held = self._held.setdefault(id, _Held())
        if order not in held.events:
            held.events[order] = event
            held.by_collection[collection] = held.by_collection.get(collection, 0) + 1

    def add_marker(self, marker: Mapping[str, Any]) -> None:
        """A record of the transaction topic, decoded. SourceError record.malformed."""
        id, status = marker.get("id"), marker.get("status")
        if not isinstance(id, str) or status not in ("BEGIN", "END"):
            raise SourceError(
                "record.malformed",
                "a record of the transaction topic is none of Debezium's",
                detail=str(dict(marker))[:200],
                hint="is the option the topic <prefix>.transaction?",
            )
        if status == "BEGIN" or id in self._done or id in self._ended:
            return
        counts = {
            str(one["data_collection"]): int(one["event_count"])
            for one in marker.get("data_collections") or ()
        }
        held = self._held.setdefault(id, _Held())
        held.wanted = {name: n for name, n in counts.items() if name in self._collections}
        self._ended[id] = None

    def take_whole(self) -> list[tuple[str, list[Event]]]:
        """(id, its events in their order) of all transactions that are whole now, once each."""
        whole = []
        while self._ended:
            id = next(iter(self._ended))
            held = self._held[id]
            assert held.wanted is not None
            if any(held.by_collection.get(name, 0) < n for name, n in held.wanted.items()):
                break
            del self._ended[id], self._held[id]
            self._done[id] = None
            if len(self._done) > REMEMBERED:
                self._done.popitem(last=False)
            whole.append((id, [held.events[order] for order in sorted(held.events)]))
        return whole

    def held(self) -> list[Event]:
        """Events that wait: a source that is opened again must begin before the first of them."""
        return [event for held in self._held.values() for event in held.events.values()]

    def waiting(self) -> list[str]:
        """Transactions that are not whole, those that have ended first."""
        return [*self._ended, *(id for id in self._held if id not in self._ended)]
