"""Buffer Debezium's events until their transactions are complete.

Invariant: a relation's position is its first buffered event. The note of the transaction topic
holds everything that was read of it and is still needed. An interrupted feed therefore continues
with both as if it had never stopped. Used by the thread that polls the feed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from connectors.formats.debezium_order import DedupState
from connectors.formats.record_format import BadRecord
from connectors.kafka.client import Client
from connectors.kafka.leader_epochs import epochs_from_json, epochs_to_json, learn
from connectors.kafka.options import FAIL
from connectors.kafka.reader import Chunk, Reader, Span
from connectors.kafka.records import Records
from connectors.kafka.rows import RowReader
from connectors.kafka.start_offsets import position_of
from connectors.kafka.topics import Topics, missing
from connectors.kafka.transactions import BAD, Lane, Transactions
from dataflow.errors import SourceError

NOTE = "transactions"
START_NOTE = "begun/"
# Records before a pin that are read for ENDs whose events came late.
SLACK = 200
# The note is stored at this interval even without changes, so that retention never passes the
# position.
NOTE_EVERY_S = 60.0
TAKE_S = 0.5


def start_note(
    topics: Topics, topic: str, relation: str, cut: Sequence[str] = ()
) -> dict[str, bytes]:
    """Return the note of the transaction topic's position while a relation is pinned.

    cut: transactions that have events before the pin.
    """
    event = topics.describe([topic]).get(topic)
    if event is None:
        raise missing(topic)
    ends = topics.ends(topic, range(event.partitions))
    first = topics.begins(topic, ends)
    facts = {
        "topic": event.id,
        "next": ends,
        "cut": list(cut),
        "from": {p: max(first[p], end - SLACK) for p, end in ends.items()},
    }
    return {f"{START_NOTE}{relation}": json.dumps(facts).encode()}


def newest_transactions(
    client: Client,
    rows: RowReader,
    topic_id: str,
    begins: Mapping[int, int],
    ends: Mapping[int, int],
) -> list[str]:
    """Return the transaction ids of the newest records before `ends`: their BEGIN may
    come later.
    """
    remaining = {p: end for p, end in ends.items() if begins[p] < end}
    first = {p: max(begins[p], end - SLACK) for p, end in remaining.items()}
    if not remaining:
        return []
    span = Span(rows.relation.name, rows.options.topic, topic_id, first, remaining)
    reader = Reader(client, [span], wait_ms=20)
    found: dict[str, None] = {}
    try:
        while not reader.is_done:
            for chunk in reader.take(TAKE_S):
                event = rows.envelopes(chunk.records) if len(chunk.records) else None
                found |= {one[0]: None for one in (event.transactions if event else ()) if one}
    finally:
        reader.close()
    return list(found)


@dataclass
class _Lane:
    """Events that wait, in order, and the offset up to which they were read."""

    records: Records = field(default_factory=Records)
    next: int = 0
    newest_ms: int = 0


@dataclass
class _Wait:
    """How long a transaction has been incomplete.

    until_read: how much is read once all is read that the topics held when it came. since: when
    that was so. error: the report of what it lacks.
    """

    until_read: int
    since: float | None = None
    lack: str = ""
    error: SourceError | None = None


class TransactionBuffer:
    """The buffer of one feed. rows: readers of the relations."""

    def __init__(
        self,
        client: Client,
        topic: str,
        rows: Sequence[RowReader],
        notes: Mapping[str, bytes],
    ) -> None:
        self._client = client
        self._topic = topic
        self._rows = {one.relation.name.name: one for one in rows if one.options.is_debezium}
        begun = {}
        for name in self._rows:
            if f"{START_NOTE}{name}" not in notes:
                # The option is new: transactions that are open now are not waited for.
                notes = {**notes, **start_note(Topics(client), topic, name)}
            begun[name] = json.loads(notes[f"{START_NOTE}{name}"])
        self.fresh_notes = {k: v for k, v in notes.items() if k.startswith(START_NOTE)}
        bounds = {name: position_of(one)[1] for name, one in begun.items()}
        collections = {name: one.options.collection for name, one in self._rows.items()}
        state = json.loads(notes[NOTE]) if NOTE in notes else None
        if state is None:
            self._topic_id = next(iter(begun.values()))["topic"]
            starts = [{int(p): o for p, o in one["from"].items()} for one in begun.values()]
            known = set.intersection(*(set(one) for one in starts))
            # A partition that a pin lacks was created since: it is read from its start.
            self._nexts = {p: min(one[p] for one in starts) for p in known}
        else:
            self._topic_id, self._nexts = position_of(state)
        cut = {name: one["cut"] for name, one in begun.items()}
        self._leader_epochs = epochs_from_json((state or {}).get("known", {}))
        self._transactions = Transactions(collections, bounds, state, cut)
        self._lanes: dict[Lane, _Lane] = {}
        self._relations: dict[str, Any] = {}
        self._bytes = 0
        self._read = 0
        self._waits: dict[str, _Wait] = {}
        self._is_moved = False
        self._noted = time.monotonic()

    def span(self) -> Span:
        """Return the span of the transaction topic to read."""
        known = dict(self._leader_epochs)
        return Span(None, self._topic, self._topic_id, dict(self._nexts), leader_epochs=known)

    @property
    def needs_more(self) -> bool:
        """Return True if more of the transaction topic should be read."""
        return self._transactions.needs_more

    def is_full(self, max_bytes: int) -> bool:
        """Return True if no more events may be buffered."""
        return self._bytes >= max_bytes

    @property
    def waiting(self) -> int:
        """How many events are buffered."""
        return sum(len(lane.records) for lane in self._lanes.values())

    def add_markers(self, chunks: Sequence[Chunk]) -> None:
        """Add records of the transaction topic. SourceError record.malformed."""
        for chunk in chunks:
            records = chunk.records
            self._read += len(records)
            for at, value in enumerate(records.values):
                if value is None:
                    continue
                try:
                    marker = orjson.loads(value)
                except ValueError:
                    marker = value
                if isinstance(marker, dict) and "payload" in marker:
                    marker = marker["payload"]
                self._transactions.add_marker(records.numbers[at], records.offsets[at], marker)
            self._nexts.update(chunk.nexts)
            learn(self._leader_epochs, records)
            self._is_moved = True

    def add_events(self, chunk: Chunk, dedup: DedupState | None) -> None:
        """Add records of a relation. dedup: the dedup state of emitted records; it is
        not changed.
        """
        name = chunk.relation.name if chunk.relation is not None else ""
        self._relations[name] = chunk.relation
        self._read += len(chunk.records)
        numbers = chunk.records.numbers
        for number, next_offset in chunk.nexts.items():
            mine = chunk.records.where([one == number for one in numbers])
            lane = self._lanes.setdefault((name, number), _Lane())
            lane.next, lane.newest_ms = next_offset, chunk.newest_ms
            self._mark((name, number), mine, dedup)
            lane.records.add(mine)
            self._bytes += mine.nbytes()

    def _mark(self, lane: Lane, records: Records, dedup: DedupState | None) -> None:
        """Assign the events at the end of a lane to their transactions."""
        name, number = lane
        rows = self._rows.get(name)
        found = rows.envelopes(records) if rows is not None and len(records) else None
        if found is None:
            for _ in range(len(records)):
                self._transactions.add_event(lane, None)
            return
        known = DedupState(None if dedup is None else dedup.state())
        is_fresh = known.fresh(number, found.orders).tolist()
        for at, event in enumerate(found.transactions):
            if at in found.fields.bad:
                self._transactions.add_event(
                    lane, event[0] if event else BAD, event[1] if event else 0
                )
            elif event is None or not is_fresh[at]:
                self._transactions.add_event(lane, None)
                if event is not None:
                    self._transactions.add_repeated(name, *event)
            else:
                self._transactions.add_event(lane, *event)

    def take(self, bad_at: Callable[[str, Records], int | None], *, all: bool) -> list[Chunk]:
        """Return the events that may be emitted now.

        bad_at: returns the first of a relation's records that stops the source. all: emit
        incomplete transactions too (they were emitted before).
        """
        cut = self._transactions.all() if all else self._transactions.cut()
        while not all:
            barred = self._bar(cut, bad_at)
            if not barred:
                break
            cut = self._transactions.cut()
        self._transactions.drop(cut)
        chunks = []
        for key, lane in self._lanes.items():
            count = cut.get(key, 0)
            event = lane.records.head(count)
            lane.records = lane.records.tail(count) if count else lane.records
            self._bytes -= event.nbytes()
            next_offset = lane.records.offsets[0] if len(lane.records) else lane.next
            if count or not len(lane.records):
                chunks.append(
                    Chunk(self._relations[key[0]], event, {key[1]: next_offset}, lane.newest_ms)
                )
        self._lanes = {key: lane for key, lane in self._lanes.items() if len(lane.records)}
        return chunks

    def _bar(self, cut: Mapping[Lane, int], bad_at: Callable[[str, Records], int | None]) -> bool:
        for key, count in cut.items():
            lane = self._lanes.get(key)
            if not count or lane is None:
                continue
            at = bad_at(key[0], lane.records.head(count))
            if at is not None:
                self._transactions.bar(key, at)
                return True
        return False

    def check_size(self, max_bytes: int) -> None:
        """Fail with SourceError source.transaction_too_large if the buffer can never be emptied.

        That is: all of the transaction topic was read and nothing can be emitted.
        """
        topics = Topics(self._client)
        ends = topics.ends(self._topic, self._nexts)
        if any(self._nexts[p] < end for p, end in ends.items()):
            return
        buffered = self._transactions.buffered()
        raise SourceError(
            "source.transaction_too_large",
            f'transactions of kafka source "{self._client.name}" do not fit in memory',
            detail=f"{self._bytes} bytes wait for the end of {', '.join(buffered[:3])}",
            hint=f"raise transaction_buffer_bytes, which is {max_bytes}",
        )

    def overdue(self, wait_s: int, unread: int) -> SourceError | None:
        """Return source.transaction_incomplete if a transaction has waited for too long.

        unread: how many records of all topics were not added yet. Until those are that were there
        before it, a transaction may be incomplete for as long as that takes.
        """
        lacking, now = self._transactions.lacking(), time.monotonic()
        due = self._read + unread
        self._waits = {id: self._waits.get(id) or _Wait(due) for id in lacking}
        for id, wait in self._waits.items():
            if wait.since is None and (not unread or self._read >= wait.until_read):
                wait.since = now
            if wait.since is not None and now - wait.since > wait_s:
                if wait.error is None or wait.lack != lacking[id]:
                    wait.lack, wait.error = lacking[id], self._incomplete(id, lacking[id], wait_s)
                return wait.error
        return None

    def _incomplete(self, id: str, lack: str, wait_s: int) -> SourceError:
        return SourceError(
            "source.transaction_incomplete",
            f'a transaction of kafka source "{self._client.name}" stays incomplete',
            detail=f"transaction {id} has waited more than {wait_s} s for {lack}; it and the events"
            " behind it are not applied",
            hint=f'check that Debezium runs and writes "{self._topic}"; if what lacks is lost, '
            "pause all views that read the source, and resume them",
        )

    def is_due(self) -> bool:
        """Return True if the note must be stored although nothing else is emitted."""
        return self._is_moved and time.monotonic() - self._noted > NOTE_EVERY_S

    def note(self) -> dict[str, bytes]:
        """Return the note for the batch that is emitted now."""
        self._is_moved, self._noted = False, time.monotonic()
        position = {"topic": self._topic_id, "next": {str(p): o for p, o in self._nexts.items()}}
        position["known"] = epochs_to_json(self._leader_epochs)
        text = json.dumps({**position, **self._transactions.state()}).encode()
        return {**self.fresh_notes, NOTE: text}


def bad_of(rows: RowReader, records: Records) -> BadRecord | None:
    """Return the first record that stops a source whose `on_error` is `fail`."""
    if rows.options.on_error != FAIL:
        return None
    found = rows.read(records)
    return found.bad[0] if found.bad else None
