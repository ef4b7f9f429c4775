"""The cost of a change as the state grows, and W1 with little memory.

Each number of orders is its own run of W1 under the default replica identity, with enough memory
for all pages: epochs of 10,000 to warm up, measured epochs, then single changes. The memory run has
the largest number of orders and a cap. Its peak is that of the engine's process, without source and
sink.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from bench import engine
from bench.engine import Job, Stage
from bench.generate import prepare
from bench.plans import DEFAULT, planned
from bench.record import measuring
from bench.workloads import EPOCH, QUICK, WORKLOADS, Sizes

ORDERS = (100_000, 1_000_000, 10_000_000)
QUICK_ORDERS = (1_000, 10_000)
CHANGES = 250_000
HOT_MB = 8192
CAP_MB = 512
# To warm up, to count, one at a time.
STAGES = (Stage(EPOCH, 10), Stage(EPOCH, 10), Stage(1, 2_000), Stage(EPOCH))
QUICK_STAGES = (Stage(1_000, 2), Stage(1_000, 5), Stage(1, 50), Stage(1_000))
COUNTED, SINGLE = 1, 2
GROWTH, MEMORY = "growth", "memory"


def sizes_of(orders: int, changes: int) -> Sizes:
    """Return W1 with this many orders, five a customer."""
    return Sizes(customers=orders // 5, orders=orders, changes=changes)


def run(parts: Iterable[str], folder: Path, *, is_quick: bool) -> None:
    """Measure the parts and write their records, one for each number of orders."""
    numbers = QUICK_ORDERS if is_quick else ORDERS
    expected = [(GROWTH, n, HOT_MB) for n in numbers if GROWTH in parts]
    if MEMORY in parts:
        expected.append((MEMORY, numbers[-1], CAP_MB))
    workload = WORKLOADS["w1"]
    with planned([(workload, DEFAULT)]) as plans:
        plan = plans[workload.name, DEFAULT]
        for part, orders, memory_mb in expected:
            sizes = sizes_of(orders, 10_000 if is_quick else CHANGES)
            rows, small = prepare(workload.rows, sizes), prepare(workload.rows, QUICK)
            stages = QUICK_STAGES if is_quick else STAGES
            job = Job(workload, plan, rows, small, stages, memory_mb=memory_mb)
            with measuring(part, str(orders), asdict(sizes), folder) as record:
                result = engine.measure(job)
                record.figures = {**asdict(result), "memory_mb": memory_mb}
            print(f"{part} {orders:,}: {record.seconds:.0f} s", file=sys.stderr, flush=True)
