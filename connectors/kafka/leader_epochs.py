"""How far we know a partition's log, so that another one in its place is told from it.

A log may lose its end, or all, and grow past our place again under the same topic id: a broker's
disk that was lost or set back, an election among replicas that lagged. Each leader has a term of
its own, a number that only rises (Kafka calls it the leader's epoch). Invariant: with a place go
the offset after the last record that was told before it and the term of that record; a log in
which that term ends earlier, or never was, is refused before anything of it is told.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from connectors.kafka.records import Records

EPOCHS_NOTE = "known/"
# By partition an offset, at the place or before it with no record between, and the term (or a
# later one) in which the record before it was written.
Known = dict[int, tuple[int, int]]


def learn(known: Known, records: Records) -> None:
    """Take in that these were told, the last of each partition being what counts."""
    last = dict(zip(records.numbers, zip(records.offsets, records.terms, strict=True), strict=True))
    known.update((p, (offset + 1, term)) for p, (offset, term) in last.items() if term >= 0)


def known_as_json(known: Known) -> dict[str, list[int]]:
    """As notes hold it."""
    return {str(p): [offset, term] for p, (offset, term) in sorted(known.items())}


def known_from_json(found: Mapping[str, list[int]]) -> Known:
    """What `known_as_json` has written."""
    return {int(p): (offset, term) for p, (offset, term) in found.items()}


def epochs_note(known: Known, relation: str, place: Mapping[str, Any]) -> dict[str, bytes]:
    """The note of a pin or a batch that moves to a place, as JSON has it."""
    facts = {**place, "known": known_as_json(known)}
    return {f"{EPOCHS_NOTE}{relation}": json.dumps(facts).encode()}


def known_of(notes: Mapping[str, bytes], relation: str, place: Mapping[str, Any]) -> Known:
    """As it was noted for this very place: of another one nothing is known."""
    noted = notes.get(f"{EPOCHS_NOTE}{relation}")
    facts = {} if noted is None else json.loads(noted)
    if facts.get("topic") != place["topic"]:
        return {}
    nexts = {int(p) for p, offset in place["next"].items() if facts["next"].get(p) == offset}
    return {p: one for p, one in known_from_json(facts["known"]).items() if p in nexts}
