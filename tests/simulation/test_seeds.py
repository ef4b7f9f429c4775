"""Oracle: sqlite's answer to each view's query over the prefix that the sink's progress names.

Each seed is a run of the whole pipeline in one thread, with crashes and faults of its own
(docs/contributing/SIMULATION.md). TIDEMARK_TEST_SEEDS says how many, TIDEMARK_TEST_SEED the first.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from service.metrics.metrics import DATAFLOW_FILE
from tests.harness import figures
from tests.harness.tiers import count
from tests.simulation.disk import Disk
from tests.simulation.run import run, run_all

FIRST = int(os.environ.get("TIDEMARK_TEST_SEED", "1"))
SEEDS = count("TIDEMARK_TEST_SEEDS", 60, 500)


@pytest.mark.timeout(1800)
def test_seeds() -> None:
    found, failed = run_all(range(FIRST, FIRST + SEEDS))
    assert found.pop("count") == SEEDS
    command = f"TIDEMARK_TEST_SEED={FIRST} TIDEMARK_TEST_SEEDS={SEEDS} pytest tests/simulation"
    figures.add("seeds", count=SEEDS, wrong=len(failed), command=command, **found)  # type: ignore[arg-type]
    assert not failed, "\n\n".join(failed)
    assert found["epochs"] > 20 * SEEDS, "hardly anything was compared"


def test_a_seed_is_a_run() -> None:
    """The same steps, faults and times, whatever the hashes of strings are in a process."""
    # The last one has two logs of changes that begin at once.
    seeds = [FIRST, 42]
    code = "import sys; from tests.simulation.run import run;"
    code += "print(*(run(int(s)).digest for s in sys.argv[1:]))"
    digests = []
    for salt in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": salt}
        command = [sys.executable, "-c", code, *map(str, seeds)]
        answer = subprocess.run(command, env=environment, capture_output=True, check=True)
        digests.append([int(word) for word in answer.stdout.split()])
    assert digests[0] == digests[1] == [run(seed).digest for seed in seeds]


def test_real_time_draws_no_numbers(tmp_path: Path) -> None:
    """A crash of the machine tears the figures, which are as long as real time is told."""
    for seed in range(100):
        draws = set()
        for size in (1_677, 2_143, 5_000):
            random = Random(seed)
            (tmp_path / DATAFLOW_FILE).write_bytes(b"x" * size)
            Disk(tmp_path, random).crash_machine()
            draws.add(random.random())
        assert len(draws) == 1, seed
