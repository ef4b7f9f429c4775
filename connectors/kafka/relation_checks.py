"""What can be said of a source's relations before the cluster is reached, and reading up to an end.

Both the source in a child process and what stands for it in the service use this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Event
from typing import Any

from connectors.feed_source import FeedPositions, SourceFeed
from connectors.kafka.options import UPSERT, KafkaOptions, TopicOptions
from connectors.kafka.rows import OpenFormat, RowReader
from connectors.kafka.start_offsets import position_of
from connectors.source import SourceBatch
from dataflow.errors import SourceError
from dataflow.schema import Field, Relation
from dataflow.types import TypeKind

_WAIT_S = 0.5
# Types whose equal values have equal bytes, so that they can identify the rows of an upsert topic.
_KEY_KINDS = {
    TypeKind.BOOL,
    TypeKind.INT2,
    TypeKind.INT4,
    TypeKind.INT8,
    TypeKind.FIXED,
    TypeKind.TEXT,
    TypeKind.DATE,
    TypeKind.TIME,
    TypeKind.TIMESTAMP,
    TypeKind.TIMESTAMPTZ,
    TypeKind.UUID,
    TypeKind.BYTEA,
}


def check_relations(
    options: KafkaOptions, relations: Sequence[Relation], opened: OpenFormat
) -> None:
    """Refuse keys and columns that no record can have. SourceError source.bad_option."""
    for relation in relations:
        topic = options.topic_of(relation.name.name)
        if topic.mode == UPSERT:
            for column in relation.key:
                _check_key(topic, relation.fields[column])
        RowReader(relation, topic, opened)


def read_until(
    open_feed: Callable[[Callable[[], None]], SourceFeed],
    positions: FeedPositions,
    end: Mapping[str, Any],
    max_rows: int,
) -> Iterator[SourceBatch]:
    """See BoundedSource. end: of the relations that are read."""
    if all(_reaches(positions[name], last) for name, last in end.items()):
        return
    is_ready = Event()
    feed = open_feed(is_ready.set)
    reached = dict(positions)
    try:
        while not all(_reaches(reached[name], last) for name, last in end.items()):
            is_ready.clear()
            batch = feed.poll(max_rows, until=end)
            if batch is None:
                is_ready.wait(_WAIT_S)
                continue
            reached.update(batch.positions or {})
            yield batch
    finally:
        feed.close()


def _check_key(topic: TopicOptions, field: Field) -> None:
    kind = field.type.kind
    if kind in _KEY_KINDS and field.type.is_deterministic:
        return
    raise SourceError(
        "source.bad_option",
        f'option "topics.{topic.relation}.key" names "{field.name}", which cannot be a key',
        detail=f"equal values of type {field.type.name} may have different bytes",
        hint="declare it as text, a whole number, numeric(p,s), uuid, a date or a time",
        option=f"topics.{topic.relation}.key",
    )


def _reaches(position: Mapping[str, Any], end: Mapping[str, Any]) -> bool:
    """Return whether a position is not before an end; of another topic, reading it fails."""
    (own, nexts), (other, ends) = position_of(position), position_of(end)
    return own == other and all(nexts.get(p, 0) >= offset for p, offset in ends.items())
