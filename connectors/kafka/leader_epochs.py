"""The leader epoch of each partition's last record, to detect a replaced or truncated log.

A log may lose its end, or everything, and grow past our offset again under the same topic id.
Causes: a broker's disk was lost or restored, or a lagging replica was elected. Each leader has its
own term, a number that only rises (Kafka calls it the leader epoch). Invariant: an offset is stored
with the term of the last record before it and the offset after that record. A log in which that
term ends earlier, or never existed, is refused before any of its records is emitted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from connectors.kafka.records import Records

EPOCHS_NOTE = "known/"
# By partition: an offset, at the position or before it with no record between, and the term (or a
# later one) in which the record before it was written.
LeaderEpochs = dict[int, tuple[int, int]]


def learn(epochs: LeaderEpochs, records: Records) -> None:
    """Record the last emitted record of each partition."""
    last = dict(zip(records.numbers, zip(records.offsets, records.terms, strict=True), strict=True))
    epochs.update((p, (offset + 1, term)) for p, (offset, term) in last.items() if term >= 0)


def epochs_to_json(epochs: LeaderEpochs) -> dict[str, list[int]]:
    """Return the JSON form that notes hold."""
    return {str(p): [offset, term] for p, (offset, term) in sorted(epochs.items())}


def epochs_from_json(found: Mapping[str, list[int]]) -> LeaderEpochs:
    """Return the inverse of `epochs_to_json`."""
    return {int(p): (offset, term) for p, (offset, term) in found.items()}


def epochs_note(
    epochs: LeaderEpochs, relation: str, position: Mapping[str, Any]
) -> dict[str, bytes]:
    """Return the note of a pin or batch that moves to a position."""
    facts = {**position, "known": epochs_to_json(epochs)}
    return {f"{EPOCHS_NOTE}{relation}": json.dumps(facts).encode()}


def leader_epochs_of(
    notes: Mapping[str, bytes], relation: str, position: Mapping[str, Any]
) -> LeaderEpochs:
    """Return what was noted for exactly this position; nothing for another one."""
    noted = notes.get(f"{EPOCHS_NOTE}{relation}")
    facts = {} if noted is None else json.loads(noted)
    if facts.get("topic") != position["topic"]:
        return {}
    nexts = {int(p) for p, offset in position["next"].items() if facts["next"].get(p) == offset}
    return {p: one for p, one in epochs_from_json(facts["known"]).items() if p in nexts}
