"""JSON objects with their own checksum: read exactly as written, or rejected."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def checked(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts with their checksum, ready to be written as JSON.

    >>> as_written(json.dumps(checked({"b": 1, "a": [2]})))
    {'b': 1, 'a': [2]}
    """
    return {**facts, "check": _digest(facts)}


def as_written(content: str | bytes) -> dict[str, Any] | None:
    """Return the facts, or None if the content differs from what was written.

    >>> as_written('{"b": 1}') is as_written("[]") is as_written("") is None
    True
    """
    try:
        facts = json.loads(content)
        check = facts.pop("check", "")
    except (ValueError, AttributeError, TypeError, IndexError, RecursionError):
        return None
    return facts if check == _digest(facts) else None


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
