"""Places of topics as JSON has them, and the note that says where a relation begins."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

START_NOTE = "start/"


def place_of(place: Mapping[str, Any]) -> tuple[str, dict[int, int]]:
    """(topic id, next offset by partition) of a place as JSON has it."""
    return place["topic"], {int(p): offset for p, offset in place["next"].items()}


def starts_of(notes: Mapping[str, bytes], relation: str, topic_id: str) -> dict[int, int]:
    """Where a relation begins, by partition, as `pin` has noted; else at 0."""
    noted = notes.get(f"{START_NOTE}{relation}")
    if noted is None:
        return {}
    found_id, starts = place_of(json.loads(noted))
    return starts if found_id == topic_id else {}
