"""The identity of a source server, and whether a promoted one can continue from our position.

Positions belong to one server and one timeline. A promoted standby shares the old timeline's WAL up
to the point where it left it. Invariant: a promoted server is accepted only when everything the
views show lies before that point. Otherwise it may lack what was shown, and may have other changes
instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from connectors.postgres.replication.wal_connection import WalConnection
from connectors.postgres.session.lsn import format_lsn, parse_lsn
from dataflow.errors import SourceError


class SourceIdentity(NamedTuple):
    """What must stay the same for positions to keep their meaning."""

    system: str
    timeline: int
    database: str


def identify(wal: WalConnection) -> tuple[SourceIdentity, int]:
    """Return the server's identity, and how far its WAL is flushed."""
    system, timeline, flushed, database = wal.identify()
    return SourceIdentity(system, timeline, database), flushed


def check_identity(
    wal: WalConnection, actual: SourceIdentity, expected: Sequence[object], position: int
) -> None:
    """Require that everything up to `position` of `expected` is the same on this server.

    SourceError source.identity_changed, source.promoted_behind.
    """
    before = SourceIdentity(*expected)  # type: ignore[arg-type]
    if actual == before:
        return
    is_later = actual == before._replace(timeline=actual.timeline)
    left_at = None
    if is_later and actual.timeline > before.timeline:
        left_at = end_of(wal.timeline_history(actual.timeline), before.timeline)
    if left_at is None:
        raise SourceError(
            "source.identity_changed",
            "the source is not the server that the state was built from",
            detail=f"system identifier, timeline, database: {tuple(actual)} instead of"
            f" {tuple(before)}",
            hint="connect to the old server, or run tidemark rebuild --all to recompute the views",
        )
    if position > left_at:
        raise SourceError(
            "source.promoted_behind",
            "the promoted server lacks changes that the views show",
            detail=f"it left timeline {before.timeline} at {format_lsn(left_at)}, the views are at"
            f" {format_lsn(position)}",
            hint="connect to the server that has them, or run tidemark rebuild --all to recompute"
            " the views; synchronized_standby_slots prevents this",
        )


def end_of(history: str, timeline: int) -> int | None:
    r"""Return where a timeline was left, from a later one's history; None if it is no ancestor.

    >>> end_of("1\t0/3000148\tno recovery target specified\n\n2\t0/5000000\tbefore x", 1)
    50331976
    >>> end_of("", 1)
    """
    for line in history.splitlines():
        words = line.split("\t")
        if len(words) > 1 and words[0].strip() == str(timeline):
            return parse_lsn(words[1].strip())
    return None
