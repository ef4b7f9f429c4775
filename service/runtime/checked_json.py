"""Facts in JSON with a checksum of their own: read as they were written, or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def checked(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts with their checksum, to be written as JSON.

    >>> as_written(json.dumps(checked({"b": 1, "a": [2]})))
    {'b': 1, 'a': [2]}
    """
    return {**facts, "check": _digest(facts)}


def as_written(content: str | bytes) -> dict[str, Any] | None:
    """The facts; None when the content is not as it was written.

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
