"""Rows with the number of their shard, by a hash of their bits."""

from __future__ import annotations

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.operators.base import Context, Traits
from dataflow.plan.nodes import Shard
from storage.delta import hash_columns


class ShardOperator:
    """Linear.

    State: none. Cost: O(rows of the delta). NULL: as any other value.
    """

    traits = Traits(is_linear=True, has_state=False, needs_evaluator=False)

    def __init__(self, plan: Shard, context: Context) -> None:
        del context
        self._count = np.uint64(plan.count)

    def step(self, delta: Delta) -> Delta:
        """Return the rows with one more column, int8."""
        hashes = hash_columns(delta.columns, len(delta))
        # The low bits choose the bucket of a row elsewhere.
        numbers = ((hashes >> np.uint64(32)) % self._count).astype(np.int64)
        return Delta([*delta.columns, Column(numbers)], delta.weights)
