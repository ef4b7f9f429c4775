"""Deduplication state of Debezium topics, stored in a note beside the position.

Invariant: a relation's note and its position move in one batch. Without a note, the records before
the position are read once more for their orders, because the snapshot held exactly those.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

from connectors.formats.debezium_order import LastSeen
from connectors.kafka.client import Client
from connectors.kafka.reader import Reader, Span
from connectors.kafka.records import Records
from connectors.kafka.rows import RowReader
from connectors.kafka.topics import Topics

TAKE_S = 0.5
DEDUP_NOTE = "seen/"
# For a newly pinned relation: an earlier reading's state belongs to another position.
UNSEEN = b"null"


def seen_of(notes: Mapping[str, bytes], relation: str, topic_id: str) -> LastSeen | None:
    """Return the state from the notes; None if no batch has noted it."""
    noted = json.loads(notes.get(f"{DEDUP_NOTE}{relation}", UNSEEN))
    return LastSeen(noted["newest"]) if noted and noted["topic"] == topic_id else None


def dedup_note(seen: LastSeen, relation: str, topic_id: str) -> dict[str, bytes]:
    """Return the note of a batch."""
    state = {"topic": topic_id, "newest": seen.state()}
    return {f"{DEDUP_NOTE}{relation}": json.dumps(state).encode()}


def read_seen(
    client: Client, rows: RowReader, span: Span, is_desired: Callable[[], bool]
) -> LastSeen | None:
    """Return the state after a snapshot of this span; None as soon as it is no longer needed."""
    seen = LastSeen()
    for records in _records(client, span, is_desired):
        found = rows.read(records)
        if found.orders is not None:
            found.fresh(records, seen)
    return seen if is_desired() else None


def _records(client: Client, span: Span, is_desired: Callable[[], bool]) -> Iterator[Records]:
    ends = span.ends or {}
    first = Topics(client).begins(span.topic, ends)
    # Records that retention removed meanwhile are unknown; a copy of one counts as new.
    begins = {p: max(first[p], span.begins.get(p, 0)) for p in ends}
    begins = {p: begin for p, begin in begins.items() if begin < ends[p]}
    if not begins:
        return
    wants = (span.wants_times, span.wants_headers)
    kept = {p: ends[p] for p in begins}
    part = Span(span.relation, span.topic, span.topic_id, begins, kept, *wants)
    reader = Reader(client, [part], wait_ms=20)
    try:
        while is_desired() and not reader.is_done:
            for chunk in reader.take(TAKE_S):
                if len(chunk.records):
                    yield chunk.records
    finally:
        reader.close()
