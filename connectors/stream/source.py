"""WebSockets and server-sent events as a source (see the contract `connectors/<type>/source`).

A stream has no history: reading begins when a relation's first view does, and what it has sent is
stored with the state. So the source is not replayable: the state is synced before the sink sees an
epoch. Nothing is reached before the first use.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from connectors.feed_source import (
    REJECTED_KINDS,
    DeclaredRelation,
    FeedPositions,
    FeedStart,
    undeclared,
)
from connectors.formats.declared import declare_columns
from connectors.formats.discover import propose_columns
from connectors.pages import decode_delta
from connectors.polled.rows import SAMPLES
from connectors.source import SourceBatch
from connectors.stream.feed import StreamFeed
from connectors.stream.inbox import Inbox, InboxOptions, Item, wait_for_items
from connectors.stream.messages import MessageReader, changes_of, rows_of
from connectors.stream.options import StreamRelation, read_options
from connectors.stream.row_log import in_order, newest, pages_of, repaired_page
from connectors.stream.server_events import ServerEvents
from connectors.stream.transport import Transport
from connectors.stream.websocket import WebSocket
from dataflow.delta import Delta
from dataflow.errors import SourceError
from dataflow.schema import Relation

# How long samples are awaited.
SAMPLING_S = 10.0
_START = Item(0, 0, 0, 0, "", False)


def declare(options: Mapping[str, Any]) -> Sequence[DeclaredRelation]:
    """Return the relations that the options declare."""
    return [_declared(relation) for relation in read_options(options)]


def make(name: str, options: Mapping[str, Any], relations: Sequence[Relation]) -> StreamSource:
    """Return the source, with its declared relations. SourceError source.bad_option."""
    return StreamSource(name, read_options(options), relations)


def discover(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with columns proposed from messages that come now."""
    found = read_options(options)
    given: Mapping[str, Any] = options["relations"]
    proposed = dict(given)
    for relation in found:
        if not relation.columns:
            columns = propose_columns({"format": relation.format}, _samples(relation))
            proposed[relation.name] = {**given[relation.name], "columns": columns}
    return {**options, "relations": proposed}


def transport_of(relation: StreamRelation) -> Transport:
    """Return what opens the relation's connections."""
    own = relation.connecting
    return WebSocket(own) if own.is_websocket else ServerEvents(own)


class StreamSource:
    """See FeedSource. relations: with resolved types."""

    is_replayable = False

    def __init__(
        self, name: str, declared: Sequence[StreamRelation], relations: Sequence[Relation]
    ) -> None:
        self.name = name
        self._relations = list(relations)
        self._declared = {one.name: one for one in declared}
        for relation in relations:
            if relation.name.name not in self._declared:
                raise undeclared(name, relation)

    def relations(self) -> Sequence[Relation]:
        """Return the declared relations."""
        return self._relations

    def check(self) -> None:
        """Connect once for each relation. SourceError, TemporaryError."""
        for relation in self._relations:
            declared = self._declared[relation.name.name]
            MessageReader(declared, relation, "")
            with transport_of(declared).open(""):
                continue

    def start_position(self, relation: Relation) -> FeedStart:
        """Return the position before the first message, which the feed will receive."""
        return FeedStart(_START.position(uuid.uuid4().hex[:12]))

    def open_snapshot(
        self, relations: Sequence[Relation], positions: FeedPositions, notes: Mapping[str, bytes]
    ) -> StreamSnapshot:
        """Return the rows in the notes."""
        names = {relation.name.name for relation in relations}
        return StreamSnapshot(
            [r for r in self._relations if r.name.name in names], positions, notes
        )

    def open_feed(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
    ) -> StreamFeed:
        """Return what was received after these positions, and what comes."""
        declared = [self._declared[relation.name.name] for relation in relations]
        reading = [
            (own, relation, transport_of(own))
            for own, relation in zip(declared, relations, strict=True)
        ]
        return StreamFeed(self.name, reading, positions, notes, on_ready)

    def decode_again(self, relation: Relation, rows: Delta) -> SourceBatch:
        """See FeedSource. SourceError stream.no_retry: of a relation with a key, in which a newer
        message may have replaced the row."""
        if relation.key:
            what = f'messages of "{relation.name}" cannot be retried'
            hint = "drop the dead letters; a later message of the key sets the row right"
            raise SourceError("stream.no_retry", what, hint=hint, relation=relation.name)
        notes: dict[str, bytes | None] = {}
        parts, resolved = [], []
        for pin, own in _by_relation(rows).items():
            declared = self._declared[relation.name.name]
            found, stored = MessageReader(declared, relation, pin).read_rejected(own)
            if len(found):
                notes |= repaired_page(relation.name.name, pin, found)
                parts.append(found)
            resolved += stored
        changes = changes_of(relation, Delta.concat(parts)) if parts else None
        return SourceBatch(
            0,
            [] if changes is None else [changes],
            0 if changes is None else 1,
            len(resolved),
            source=self.name,
            notes=notes,
            rejected=Delta.of(REJECTED_KINDS, resolved, -1) if resolved else None,
        )


@dataclass
class StreamPart:
    """Some pages of a relation. relation: with its key, of which only the newest rows are read."""

    name: str
    columns: tuple[int, ...]
    pages: tuple[bytes, ...]
    relation: Relation | None

    def read(self) -> Iterator[Delta]:
        """See FeedPart."""
        pages = map(decode_delta, self.pages)
        if self.relation is not None:
            pages = iter([newest(self.relation, list(pages))] if self.pages else [])
        for page in pages:
            yield page.project(self.columns)

    def rejected(self) -> Delta:
        """See FeedPart: what was rejected was reported when it came."""
        return Delta.empty(REJECTED_KINDS)


class StreamSnapshot:
    """Relations as the notes have them. declared: with all columns."""

    def __init__(
        self,
        declared: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
    ) -> None:
        self._declared = {relation.name.name: relation for relation in declared}
        self._positions = positions
        self._notes = notes

    def parts(
        self,
        relation: Relation,
        columns: Sequence[int],
        count: int,
        known: Sequence[str] = (),
    ) -> Sequence[StreamPart]:
        """See FeedSnapshot; the pages alone determine the parts."""
        name = relation.name.name
        declared, position = self._declared[name], self._positions[name]
        fields = [f.name for f in declared.fields]
        at_columns = tuple(fields.index(relation.fields[c].name) for c in columns)
        pages = in_order(pages_of(name, str(position["pin"]), self._notes))
        # Rows of one key may be in any page.
        whole = declared if declared.key else None
        size = max(1, len(pages) if whole is not None else -(-len(pages) // max(1, count)))
        title = f"{name}-{position['pin']}-{position['number']}-{size}"
        return [
            StreamPart(f"{title}-{at}", at_columns, tuple(pages[at : at + size]), whole)
            for at in (range(0, len(pages), size) if pages else [0])
        ]

    def close(self) -> None:
        """Do nothing: the snapshot holds nothing."""


def _declared(relation: StreamRelation) -> DeclaredRelation:
    if not relation.columns:
        option = f"relations.{relation.name}.columns"
        what, hint = f'option "{option}" is missing', "declare them, or discover them"
        raise SourceError("source.bad_option", what, hint=hint, option=option)
    columns = [(c.field.name, c.field.type.name) for c in declare_columns(relation.columns)]
    return DeclaredRelation(relation.name, tuple(columns), relation.key, is_append=not relation.key)


def _samples(relation: StreamRelation) -> list[bytes]:
    """Return some rows that come now. SourceError source.bad_sample."""
    inbox = Inbox(transport_of(relation), InboxOptions(relation.buffer_bytes, False), _START)
    inbox.start()
    try:
        items = wait_for_items(inbox, SAMPLES, SAMPLING_S)
    finally:
        inbox.close()
    texts = rows_of(relation, items)
    if not texts:
        what = f'no columns can be proposed for relation "{relation.name}"'
        detail = f"no message has come within {SAMPLING_S:g} s"
        raise SourceError("source.bad_sample", what, detail=detail, hint="declare the columns")
    return texts[:SAMPLES]


def _by_relation(rows: Delta) -> dict[str, Delta]:
    """Return rejected rows by the beginning of the relation that they are of."""
    starts = [(text or "").partition(":")[0] for text in rows.columns[2].texts()]
    return {
        start: rows.filter(np.array([one == start for one in starts], np.bool_))
        for start in dict.fromkeys(starts)
    }
