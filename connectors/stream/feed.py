"""Changes of streams: what the inboxes have received, as rows, with the notes that store them.

Invariant: a batch's position is that of the last message whose rows it has. What an inbox has
received and no batch has held yet is not stored: a crash loses it, and the next connection says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from connectors.feed_source import REJECTED_KINDS, FeedPositions
from connectors.source import SourceBatch
from connectors.stream.inbox import INBOXES, Inbox, InboxKey, InboxOptions, Item
from connectors.stream.messages import MessageReader, MessageRows, changes_of
from connectors.stream.options import FAIL, StreamRelation
from connectors.stream.row_log import RowLog, owner_of, pages_of
from connectors.stream.transport import Transport
from dataflow.delta import Delta
from dataflow.errors import SourceError, TidemarkError
from dataflow.schema import Relation


@dataclass
class _Reading:
    """A relation that is read. last: the last item that a batch has held."""

    options: StreamRelation
    relation: Relation
    pin: str
    last: Item
    inbox: Inbox
    rows: MessageReader
    log: RowLog
    failure: TidemarkError | None = None


class StreamFeed:
    """See SourceFeed. gaps: connections before which messages may have been lost."""

    def __init__(
        self,
        source: str,
        relations: Sequence[tuple[StreamRelation, Relation, Transport]],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
    ) -> None:
        self.skipped = 0
        self.gaps = 0
        self._source = source
        self._turn = 0
        self._has_emitted = False
        owners = {(name, str(position["pin"])) for name, position in positions.items()}
        self._dropped = {name: None for name in notes if owner_of(name) not in owners}
        self._readings = []
        for options, relation, transport in relations:
            position = positions[options.name]
            pages = pages_of(options.name, str(position["pin"]), notes)
            log = RowLog(relation, str(position["pin"]), pages, options.retain_rows)
            self._readings.append(self._reading(options, log, transport, position, on_ready))

    def _reading(
        self,
        options: StreamRelation,
        log: RowLog,
        transport: Transport,
        position: Mapping[str, Any],
        on_ready: Callable[[], None],
    ) -> _Reading:
        pin, last = str(position["pin"]), Item.of(position)
        inbox = INBOXES.attach(
            InboxKey(self._source, options.name, pin),
            transport,
            InboxOptions(options.buffer_bytes, options.replays),
            last,
            on_ready,
        )
        reader = MessageReader(options, log.relation, pin)
        return _Reading(options, log.relation, pin, last, inbox, reader, log)

    @property
    def lag(self) -> int:
        """Messages that no batch has held yet."""
        return sum(one.inbox.unread for one in self._readings)

    @property
    def has_succeeded(self) -> bool:
        """See SourceFeed: each connection is open, and nothing that it sent stops a relation."""
        return all(one.inbox.is_open and one.failure is None for one in self._readings) and (
            self._has_emitted or not self.lag
        )

    def poll(self, max_rows: int, *, until: FeedPositions | None = None) -> SourceBatch | None:
        """Return messages of one relation, in turn; see SourceFeed."""
        failures: list[TidemarkError] = []
        for step in range(len(self._readings)):
            at = (self._turn + step) % len(self._readings)
            one = self._readings[at]
            try:
                batch = self._poll_one(one, max_rows, (until or {}).get(one.options.name))
            except TidemarkError as error:
                failures.append(error)
                continue
            if batch is not None:
                self._turn = (at + 1) % len(self._readings)
                return batch
        if failures:
            raise failures[0]
        return self._batch({}, None, []) if self._dropped else None

    def close(self) -> None:
        """Leave the connections to the next feed; without one they end after a while."""
        for one in self._readings:
            one.inbox.detach()

    def _poll_one(
        self, one: _Reading, max_rows: int, until: Mapping[str, Any] | None
    ) -> SourceBatch | None:
        if one.failure is not None:
            raise one.failure
        last = int(until["number"]) if until is not None and until["pin"] == one.pin else None
        items = one.inbox.take(max_rows, last)
        if one.options.on_gap == FAIL:
            items = self._up_to_gap(one, items)
        if not items:
            return None
        rows = one.rows.read(items)
        one.failure = one.failure or rows.failure
        if not rows.passed:
            assert one.failure is not None
            raise one.failure
        return self._passed(one, items[: rows.passed], rows)

    def _up_to_gap(self, one: _Reading, items: list[Item]) -> list[Item]:
        """Return the items before one that says that messages may have been lost."""
        at = next((n for n, item in enumerate(items) if item.is_gap), len(items))
        if at == len(items):
            return items
        one.failure = SourceError(
            "stream.gap",
            f'messages of "{one.relation.name}" may have been lost',
            detail=f"connection {items[at].connection} began after another one had ended",
            hint="rebuild the views that read it, or set on_gap to continue",
            relation=one.relation.name,
        )
        if not at:
            raise one.failure
        return items[:at]

    def _passed(self, one: _Reading, items: Sequence[Item], rows: MessageRows) -> SourceBatch:
        one.last, self._has_emitted = items[-1], True
        self.gaps += sum(item.is_gap for item in items)
        self.skipped += rows.skipped
        position = {one.options.name: one.last.position(one.pin)}
        batch = self._batch(position, changes_of(one.relation, rows.rows), rows.rejected)
        batch.notes = {**batch.notes, **one.log.add(rows.rows)}
        batch.commit_time_us = one.last.received_us
        return batch

    def _batch(
        self, positions: dict[str, Any], changes: Any, rejected: Sequence[tuple[Any, ...]]
    ) -> SourceBatch:
        dropped, self._dropped = self._dropped, {}
        return SourceBatch(
            0,
            [] if changes is None else [changes],
            0 if changes is None else 1,
            0 if changes is None else len(changes),
            source=self._source,
            positions=positions,
            notes=dict(dropped),
            rejected=Delta.of(REJECTED_KINDS, rejected) if rejected else None,
        )
