"""Deduplication state of Debezium topics, stored in a note beside the position.

Invariant: a relation's note and its position move in one batch. Without a note, the records before
the position are read once more for their orders, because the snapshot held exactly those.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping

from connectors.formats.debezium_order import DedupState
from connectors.kafka.client import Client
from connectors.kafka.reader import Reader, Span
from connectors.kafka.records import Records
from connectors.kafka.rows import RowReader
from connectors.kafka.topics import Topics

TAKE_S = 0.5
DEDUP_NOTE = "seen/"
# For a newly pinned relation: an earlier reading's state belongs to another position.
UNSEEN = b"null"


def dedup_of(notes: Mapping[str, bytes], relation: str, topic_id: str) -> DedupState | None:
    """Return the state from the notes; None if no batch has noted it."""
    noted = json.loads(notes.get(f"{DEDUP_NOTE}{relation}", UNSEEN))
    return DedupState(noted["newest"]) if noted and noted["topic"] == topic_id else None


def dedup_note(state: DedupState, relation: str, topic_id: str) -> dict[str, bytes]:
    """Return the note of a batch."""
    facts = {"topic": topic_id, "newest": state.state()}
    return {f"{DEDUP_NOTE}{relation}": json.dumps(facts).encode()}


def read_dedup(
    client: Client, rows: RowReader, span: Span, is_desired: Callable[[], bool]
) -> DedupState | None:
    """Return the state after a snapshot of this span; None as soon as it is no longer needed."""
    state = DedupState()
    for records in _records(client, span, is_desired):
        found = rows.read(records)
        if found.orders is not None:
            found.fresh(records, state)
    return state if is_desired() else None


def _records(client: Client, span: Span, is_desired: Callable[[], bool]) -> Iterator[Records]:
    ends = span.ends or {}
    first = Topics(client).begins(span.topic, ends)
    # Records that retention removed meanwhile are unknown; a copy of one counts as new.
    begins = {p: max(first[p], span.begins.get(p, 0)) for p in ends}
    begins = {p: begin for p, begin in begins.items() if begin < ends[p]}
    if not begins:
        return
    needs = (span.needs_times, span.needs_headers)
    after = {p: ends[p] for p in begins}
    part = Span(span.relation, span.topic, span.topic_id, begins, after, *needs)
    reader = Reader(client, [part], wait_ms=20)
    try:
        while is_desired() and not reader.is_done:
            for chunk in reader.take(TAKE_S):
                if len(chunk.records):
                    yield chunk.records
    finally:
        reader.close()
