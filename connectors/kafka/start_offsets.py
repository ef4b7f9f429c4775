"""Positions of topics as JSON, and the note of where a relation starts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

START_NOTE = "start/"


def position_of(position: Mapping[str, Any]) -> tuple[str, dict[int, int]]:
    """Return (topic id, next offset by partition) of a position as JSON."""
    return position["topic"], {int(p): offset for p, offset in position["next"].items()}


def starts_of(notes: Mapping[str, bytes], relation: str, topic_id: str) -> dict[int, int]:
    """Return {partition: first offset} of a relation, as `pin` noted; partitions without a note
    start at 0.
    """
    noted = notes.get(f"{START_NOTE}{relation}")
    if noted is None:
        return {}
    found_id, starts = position_of(json.loads(noted))
    return starts if found_id == topic_id else {}
