"""Decide which of Debezium's events may be emitted: whole transactions, partitions in order.

Pure state. A lane is a partition of a relation: its waiting events, as runs of one transaction.
Invariant: a cut holds all events of a transaction that the source reads, or none. If the BEGIN of a
transaction lies before a relation's bound, the relation's start position cut it. Its END then waits
for nothing of that relation, and events after the END are emitted as they arrive. The END stands
for a BEGIN that is missing: lost, or in a partition of the transaction topic that is read later.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from connectors.formats.debezium import transaction_id
from dataflow.errors import SourceError

# A relation and a partition.
Lane = tuple[str, int]
# Labels of events outside transactions: FREE pass, BAD are not envelopes (one may be the event that
# a transaction lacks), BARRED stop their lane. All others are transaction ids.
FREE, BAD, BARRED = "\0free", "\0bad", "\0barred"
_MARKS = {FREE, BAD, BARRED}
# How many completed transactions are remembered, and about how many ENDs are read ahead.
REMEMBERED, AHEAD = 10_000, 2_000
REMEMBERED_UNMATCHED = 1_000


@dataclass
class _Open:
    """An open transaction.

    begin, end: (partition, offset) of its BEGIN and END. counts: by collection, once its END
    arrived. ordinals: by relation the numbers of its events that arrived. is_buffered: True if any
    of them waits in a lane. is_emitted: True if one was emitted before, and so all of them.
    """

    begin: tuple[int, int] | None = None
    end: tuple[int, int] | None = None
    counts: dict[str, int] | None = None
    ordinals: dict[str, set[int]] = field(default_factory=dict)
    is_buffered: bool = False
    is_emitted: bool = False

    @property
    def first(self) -> tuple[int, int] | None:
        """The first of its markers that is known."""
        return self.begin or self.end


class Transactions:
    """The state of all transactions.

    collections: by relation, how END names its table, perhaps after the database. bounds: by
    relation and partition of the transaction topic, where transactions that are waited for start.
    cut: by relation, other transactions that its pin cut, whose BEGIN came late.
    """

    def __init__(
        self,
        collections: Mapping[str, str],
        bounds: Mapping[str, Mapping[int, int]],
        state: Mapping[str, Any] | None = None,
        cut: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._collections = dict(collections)
        self._bounds = {name: dict(bound) for name, bound in bounds.items()}
        self._cut = {
            name: frozenset(transaction_id(id) for id in ids) for name, ids in (cut or {}).items()
        }
        self._open: OrderedDict[str, _Open] = OrderedDict()
        self._unmatched: OrderedDict[str, None] = OrderedDict()
        # With the tables that their ENDs counted.
        self._done: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        self._runs: dict[Lane, list[list[Any]]] = {}
        self._bad: dict[str, int] = {}
        # Transactions with an event that is never to be passed.
        self._barred: set[str] = set()
        for id, begin, counts, *end in (state or {}).get("open", ()):
            one = self._open.setdefault(transaction_id(id), _Open())
            one.begin = one.begin or (tuple(begin) if begin else None)
            one.counts = counts if one.counts is None else one.counts
            one.end = one.end or (tuple(end[0]) if end and end[0] else None)
        for id in (state or {}).get("loose", ()):
            self._unmatched[transaction_id(id)] = None

    def state(self) -> dict[str, Any]:
        """Return as JSON what the transaction topic has said; events are read again."""
        told = [(id, one.begin, one.counts, one.end) for id, one in self._open.items() if one.first]
        return {"open": told, "loose": list(self._unmatched)}

    @property
    def needs_more(self) -> bool:
        """Return True if more of the transaction topic should be read.

        That is: an event waits for its END, or there is space for later ones.
        """
        buffered = {run[0] for runs in self._runs.values() for run in runs} - _MARKS
        lacks = any(self._open[id].counts is None for id in buffered)
        return lacks or len(self._open) < AHEAD

    def add_event(self, lane: Lane, id: str | None, ordinal: int = 0) -> None:
        """Add an event to the end of a lane. id: its transaction's, or FREE or BAD."""
        mark = FREE if id is None else id
        if mark not in _MARKS:
            mark = self._mark_of(lane[0], mark, ordinal)
        if mark == BAD:
            self._bad[lane[0]] = self._bad.get(lane[0], 0) + 1
        runs = self._runs.setdefault(lane, [])
        if runs and runs[-1][0] == mark:
            runs[-1][1] += 1
        else:
            runs.append([mark, 1])

    def add_repeated(self, relation: str, id: str, ordinal: int) -> None:
        """Add an event that was emitted before; it counts if its END is also repeated."""
        if id not in self._done and id not in self._unmatched:
            one = self._open.setdefault(id, _Open())
            one.ordinals.setdefault(relation, set()).add(ordinal)
            one.is_emitted = True
            self._resolve(id)

    def add_marker(self, partition: int, offset: int, marker: Any) -> None:
        """Add a decoded record of the transaction topic. SourceError record.malformed."""
        found = marker if isinstance(marker, Mapping) else {}
        id, status = found.get("id"), found.get("status")
        if not isinstance(id, str) or status not in ("BEGIN", "END"):
            raise SourceError(
                "record.malformed",
                "a record of the transaction topic is not a Debezium transaction marker",
                detail=f"at {partition}:{offset} (partition:offset): {str(marker)[:200]}",
                hint="set the option transactions to the topic <prefix>.transaction",
            )
        id = transaction_id(id)
        if id in self._done or id in self._unmatched:
            return
        one = self._open.setdefault(id, _Open())
        if status == "BEGIN":
            one.begin = one.begin or (partition, offset)
            return
        one.end = one.end or (partition, offset)
        one.counts = {
            str(event["data_collection"]): int(event["event_count"])
            for event in found.get("data_collections") or ()
        }
        self._resolve(id)

    def cut(self) -> dict[Lane, int]:
        """Return {lane: events that may be emitted now}: the most that keep transactions whole."""
        marks = {run[0] for runs in self._runs.values() for run in runs}
        stuck = {mark for mark in marks - _MARKS if not self._is_whole(mark)} | {BARRED}
        stops = {lane: len(runs) for lane, runs in self._runs.items()}
        is_new = True
        while is_new:
            is_new = False
            for lane, runs in self._runs.items():
                for at in range(stops[lane]):
                    if runs[at][0] in stuck:
                        following = {run[0] for run in runs[at : stops[lane]]} - _MARKS - stuck
                        stops[lane] = at
                        stuck |= following
                        is_new = True
                        break
        return {
            lane: sum(run[1] for run in runs[: stops[lane]]) for lane, runs in self._runs.items()
        }

    def all(self) -> dict[Lane, int]:
        """Return {lane: all its events}, whether transactions are whole or not."""
        return {lane: sum(run[1] for run in runs) for lane, runs in self._runs.items()}

    def bar(self, lane: Lane, at: int) -> None:
        """Never pass the event with this number in the lane."""
        runs = self._runs[lane]
        for number, (mark, count) in enumerate(runs):
            if at < count:
                split = [[mark, at], [BARRED, 1], [mark, count - at - 1]]
                runs[number : number + 1] = [run for run in split if run[1]]
                if mark == BAD:
                    self._bad[lane[0]] -= 1
                self._barred.add(mark)
                return
            at -= count

    def drop(self, cut: Mapping[Lane, int]) -> None:
        """Remove events that were emitted.

        SourceError source.transaction_collection: an END does not list a table whose events it
        ends.
        """
        ended: dict[str, None] = {}
        for lane, count in cut.items():
            runs = self._runs[lane]
            while count:
                taken = min(count, runs[0][1])
                ended.setdefault(runs[0][0])
                if runs[0][0] == BAD:
                    self._bad[lane[0]] -= taken
                count -= taken
                runs[0][1] -= taken
                if not runs[0][1]:
                    del runs[0]
        for id in ended:
            if id in self._open:
                for name in self._open[id].ordinals:
                    self._check_listed(name, self._open[id].counts)
                self._finish(id)

    def buffered(self) -> list[str]:
        """Return the transactions with buffered events."""
        found = {run[0]: None for runs in self._runs.values() for run in runs}
        return [mark for mark in found if mark not in _MARKS]

    def lacking(self) -> dict[str, str]:
        """Return what each transaction lacks that has buffered events and is not whole."""
        return {id: self._lack_of(id) for id in self.buffered() if not self._is_whole(id)}

    def _lack_of(self, id: str) -> str:
        one = self._open[id]
        if one.counts is None:
            return "its END"
        missing = {
            name: n - len(one.ordinals.get(name, ())) - self._bad.get(name, 0)
            for name, n in self._desired(id, one).items()
        }
        parts = [f"{n} of its events of {name}" for name, n in missing.items() if n > 0]
        return ", ".join(parts) or "a record that stops the source"

    def _mark_of(self, relation: str, id: str, ordinal: int) -> str:
        if id in self._done or id in self._unmatched:
            self._check_listed(relation, self._done.get(id))
            return FREE
        one = self._open.setdefault(id, _Open())
        ordinals = one.ordinals.setdefault(relation, set())
        if ordinal in ordinals:
            return FREE
        ordinals.add(ordinal)
        one.is_buffered = True
        return id

    def _resolve(self, id: str) -> None:
        """Forget a transaction of which nothing is left to emit."""
        if not self._open[id].is_buffered and self._is_whole(id):
            self._finish(id)

    def _desired(self, id: str, one: _Open) -> dict[str, int]:
        return {
            name: n
            for name, n in self._counts_of(one).items()
            if self._is_bound(name, one) and id not in self._cut.get(name, ())
        }

    def _counts_of(self, one: _Open) -> dict[str, int]:
        """Return how many events an END counts of each relation, of those with any."""
        counts = one.counts or {}
        listed = {name: self._listed(name, counts) for name in self._collections}
        return {name: counts[as_] for name, as_ in listed.items() if as_ and counts[as_]}

    def _listed(self, relation: str, counts: Collection[str]) -> str | None:
        """Return how an END that counts these tables names the relation's; None: it does not.

        Some connectors put the database before the name that the topic has.
        """
        name = self._collections[relation]
        if name in counts:
            return name
        longer = [one for one in counts if one.endswith(f".{name}")]
        return longer[0] if len(longer) == 1 else None

    def _is_bound(self, relation: str, one: _Open) -> bool:
        """Return True if all its events of a relation come after the relation's pin."""
        if one.first is None:
            return False
        partition, offset = one.first
        return offset >= self._bounds.get(relation, {}).get(partition, 0)

    def _is_whole(self, id: str) -> bool:
        one = self._open[id]
        if one.counts is None or id in self._barred:
            return False
        return one.is_emitted or all(
            len(one.ordinals.get(name, ())) + self._bad.get(name, 0) >= n
            for name, n in self._desired(id, one).items()
        )

    def _finish(self, id: str) -> None:
        one = self._open.pop(id)
        if self._counts_of(one).keys() - self._desired(id, one).keys():
            self._unmatched[id] = None
        else:
            self._done[id] = tuple(one.counts or ())
        for remembered, most in ((self._done, REMEMBERED), (self._unmatched, REMEMBERED_UNMATCHED)):
            if len(remembered) > most:
                remembered.popitem(last=False)

    def _check_listed(self, relation: str, counts: Collection[str] | None) -> None:
        """Check that an END which counts these tables lists the relation's; None: unknown."""
        if counts is None or self._listed(relation, counts) is not None:
            return
        raise SourceError(
            "source.transaction_collection",
            f'the END of a transaction does not list the table of "{relation}"',
            detail=f"it counts {', '.join(counts) or 'nothing'}, not {self._collections[relation]}",
            hint=f"give topics.{relation}.collection the name in Debezium's data_collections",
        )
