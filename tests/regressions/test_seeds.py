"""Oracle: as of tests/simulation; seeds that have found a fault of the product, replayed.

A seed is a run of the simulation as it was when the fault was found: once the simulation draws
otherwise it is another run. What it found is also broken again in tests/simulation/test_mutations.
"""

from __future__ import annotations

import pytest

from tests.simulation.run import run

# What each has found, by seed.
SEEDS = {
    6: "a second crash before the state had caught up with the sink forgot that it was behind",
    26: "a view was replaced while it was being paused, and stayed between the two",
    79: "a spool that a crash had filled with zeros was taken for batches",
    94: "the sink's progress was forgotten before the state that needs none was on disk",
    109: "a view was paused while one that reads it was being built",
    114: "a view that was being dropped was called live again",
    303: "that a view is live was told late, after its pause",
}


@pytest.mark.parametrize("seed", SEEDS, ids=str)
def test_seed_is_right_now(seed: int) -> None:
    outcome = run(seed)
    assert outcome.failure is None, "\n".join([*outcome.trace, repr(outcome.failure)])
