"""The position of a relation: a place in the WAL of one server, timeline and database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connectors.feed_source import FeedPosition, FeedPositions
from connectors.postgres.replication.identity import SourceIdentity
from connectors.postgres.session.lsn import format_lsn, parse_lsn


def position_at(lsn: int, identity: SourceIdentity) -> FeedPosition:
    """Return a position as JSON.

    >>> position_at(24, SourceIdentity("7", 1, "erp"))
    {'lsn': '0/18', 'system': '7', 'timeline': 1, 'database': 'erp'}
    """
    return {"lsn": format_lsn(lsn), **identity._asdict()}


def lsn_of(position: Mapping[str, Any]) -> int:
    """Return the place in the WAL."""
    return parse_lsn(position["lsn"])


def identity_of(positions: FeedPositions) -> SourceIdentity:
    """Return the server of positions; of several timelines the newest, which has all of them."""
    found = [SourceIdentity(p["system"], p["timeline"], p["database"]) for p in positions.values()]
    return max(found, key=lambda one: one.timeline)
