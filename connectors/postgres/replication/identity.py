"""Which server a source is, and whether one that was promoted can be followed from where we stand.

Positions mean something on one server and one timeline. A standby that is promoted shares the old
timeline's WAL up to the point where it left it: what lies before is the same on both. Invariant:
a promoted server is followed only when all that was shown lies before that point; otherwise what
was shown may be missing there, and other changes may stand in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from connectors.postgres.replication.wal_connection import WalConnection
from connectors.postgres.session.lsn import format_lsn, parse_lsn
from dataflow.errors import SourceError


class SourceIdentity(NamedTuple):
    """What must stay the same for positions to mean the same."""

    system: str
    timeline: int
    database: str


def identify(wal: WalConnection) -> tuple[SourceIdentity, int]:
    """The server, and how far its WAL is flushed."""
    system, timeline, flushed, database = wal.identify()
    return SourceIdentity(system, timeline, database), flushed


def check_identity(
    wal: WalConnection, actual: SourceIdentity, expected: Sequence[object], position: int
) -> None:
    """Whether everything up to `position` of `expected` is the same on this server.

    SourceError source.identity_changed, source.promoted_behind.
    """
    known = SourceIdentity(*expected)  # type: ignore[arg-type]
    if actual == known:
        return
    is_later = actual == known._replace(timeline=actual.timeline)
    left_at = None
    if is_later and actual.timeline > known.timeline:
        left_at = end_of(wal.timeline_history(actual.timeline), known.timeline)
    if left_at is None:
        raise SourceError(
            "source.identity_changed",
            "the source is not the server that the state was built from",
            detail=f"system identifier, timeline, database: {tuple(actual)} instead of"
            f" {tuple(known)}",
            hint="connect the old server, or tidemark rebuild --all: the views are computed anew",
        )
    if position > left_at:
        raise SourceError(
            "source.promoted_behind",
            "the promoted server lacks changes that the views show",
            detail=f"it left timeline {known.timeline} at {format_lsn(left_at)}, the views are at"
            f" {format_lsn(position)}",
            hint="connect the server that has them, or tidemark rebuild --all: the views are"
            " computed anew; synchronized_standby_slots keeps this from happening",
        )


def end_of(history: str, timeline: int) -> int | None:
    """Where a timeline was left, by the history of a later one; None when it is no ancestor.

    >>> end_of("1\\t0/3000148\\tno recovery target specified\\n\\n2\\t0/5000000\\tbefore x", 1)
    50331976
    >>> end_of("", 1)
    """
    for line in history.splitlines():
        words = line.split("\t")
        if len(words) > 1 and words[0].strip() == str(timeline):
            return parse_lsn(words[1].strip())
    return None
