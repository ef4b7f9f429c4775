"""What a run has beside the plain pipeline, each part with random numbers of its own.

Invariant: a part that is not in a run draws nothing, and one that is draws from a stream that the
seed and its name give. So a run with the parts named stays what it is when others are added.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

# The share of the seeds that have each part, if nobody says which.
SHARES = {
    # Someone drops or alters the tables of views by hand: the sink refuses what is for them.
    "refusals": 0.15,
    # Views whose expressions fail for some rows: those stand among the errors.
    "errors": 0.1,
    # Sources beside the database: topics in partitions, alone and joined with tables.
    "feeds": 0.15,
    # Readers of changes, through an API that may be killed as well.
    "subscribers": 0.06,
    # RocksDB as the store, whose log a crash of the machine tears; slow.
    "rocks": 0.04,
    # A standby of the sink takes over that lacks some of what the sink had acknowledged.
    "failovers": 0.1,
    # Views go to topics too, which are added and dropped while all continues.
    "sinks": 0.15,
    # Tables of the source are changed while all continues.
    "ddl": 0.25,
    # Views that change with the time, over a machine whose clock is set.
    "clock": 0.15,
    # Their primary keys too.
    "keys": 0.3,
    # Views in time zones, over a clock that comes to where the clocks of some change.
    "zones": 0.1,
    # Rows that come late, and views that watch how late they are.
    "lateness": 0.12,
    # Views whose past is retained, compared at the end by the real sink.
    "history": 0.06,
    # What a view does in an epoch takes far too long, now and then.
    "budgets": 0.1,
}
# How likely each kind of fault of theirs is, at each occasion: one of these.
ODDS = {
    "sink.by_hand": (0.1, 0.4, 0.8),
    "source.evaluation": (0, 0.03, 0.15),
    "feed.away": (0, 0.01, 0.05),
    "feed.stall": (0, 0.01, 0.05),
    "clock.set": (0, 0.005, 0.05),
    "clock.still": (0, 0.002, 0.02),
    "clock.week": (0, 0.3, 0.6),
    "topic.away": (0, 0.01, 0.08),
    "topic.unknown": (0, 0.03, 0.15),
    "topic.answer_lost": (0, 0.02, 0.1),
    "ddl.statement": (0.2, 0.5, 0.9),
    "ddl.away": (0, 0.005, 0.03),
    "view.slow": (0.001, 0.005, 0.03),
}


def stream(seed: int, name: str) -> Random:
    """The random numbers of one part of a run."""
    return Random(f"{seed}/{name}")


def drawn(seed: int) -> tuple[str, ...]:
    """The parts that a seed has."""
    return tuple(n for n, share in SHARES.items() if stream(seed, f"has {n}").random() < share)


def named(names: Iterable[str]) -> tuple[str, ...]:
    """These parts, in their order. ValueError for one that there is not."""
    expected = set(names)
    if unknown := expected - SHARES.keys():
        raise ValueError(f"no such part: {', '.join(sorted(unknown))}; there are {list(SHARES)}")
    return tuple(name for name in SHARES if name in expected)
