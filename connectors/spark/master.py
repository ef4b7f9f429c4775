"""What the URL of a Spark master says; imports nothing of Spark."""

from __future__ import annotations

_CONNECT = "sc://"


def is_local(master: str) -> bool:
    """Return whether a master's tasks run on this machine."""
    return master.startswith("local")


def is_connect(master: str) -> bool:
    """Return whether a master is a Spark Connect server."""
    return master.startswith(_CONNECT)
