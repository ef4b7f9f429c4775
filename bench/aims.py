"""Targets of the figures, and whether they are met. Ratios are ours over the peer's."""

from __future__ import annotations

from dataclasses import dataclass

# Ours at least, in changes/s: (workload, identity, epoch size).
LEAST_CHANGES_S = {
    ("w1", "full", 10_000): 700_000,
    ("w1", "full", 100): 150_000,
    ("w2r", "full", 10_000): 370_000,
}
LEAST_LOAD_ROWS_S = {"w1": 500_000}
# Times the peer's changes/s.
LEAST_RATIOS = {
    ("w1", "flink-hashmap"): 5.0,
    ("w1", "flink-rocksdb"): 15.0,
    ("w1", "flink-rocksdb-checkpoints"): 15.0,
    ("w1", "pathway"): 10.0,
    ("w1", "dictionaries"): 2.4,
    ("w2", "flink-hashmap"): 1.0,
    ("w2", "flink-rocksdb"): 1.0,
    ("w2r", "flink-hashmap"): 3.0,
    ("w2r", "flink-rocksdb"): 3.0,
    ("w2r", "pathway"): 5.0,
    **{(w, r): 3.0 for w in ("q1", "q2", "q3") for r in ("flink-hashmap", "pathway")},
    ("q3", "flink-rocksdb"): 3.0,
}
MAX_SINGLE_MS = {"p50": 0.25, "p99": 2.0}
MAX_VISIBLE_MS = {"p50": 3.0, "p99": 8.0}
VISIBLE_RATES = (1, 100, 1_000)
LEAST_RECORDS_S = {"json": 150_000}  # in batches of 10,000, to columns
# From a topic through a view, and out into a topic, in records a second of CPU time.
LEAST_TOPIC_RECORDS_S = 150_000
LEAST_TOPIC_DELTAS_S = 50_000
MAX_GROWTH = 1.6
MAX_MEMORY_MB = 512.0
MAX_CORES = 1.0
LEAST_SUSTAINED = 0.95  # of what the source can be written at

MET, NOT_MET, BY_CPU = "met", "**not met**", "by CPU time only"


@dataclass(frozen=True)
class Judged:
    """aim: in words. verdict: MET, NOT_MET, or BY_CPU if only CPU time, which other load distorts
    less, reaches it.
    """

    aim: str = ""
    verdict: str = ""


def at_least(least: float | None, wall: float, cpu: float | None = None, unit: str = "") -> Judged:
    """Return the verdict of a figure with a minimum; `cpu` is the same figure by CPU time."""
    if least is None:
        return Judged()
    verdict = NOT_MET
    if wall >= least:
        verdict = MET
    elif cpu is not None and cpu >= least:
        verdict = BY_CPU
    shown = f"{least:,.0f}" if least >= 100 else f"{least:g}"
    return Judged(f"{shown}{unit}", verdict)


def at_most(most: float | None, value: float, unit: str = "") -> Judged:
    """Return the verdict of a figure with a maximum."""
    if most is None:
        return Judged()
    return Judged(f"at most {most:g}{unit}", MET if value <= most else NOT_MET)
