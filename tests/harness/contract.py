"""An operator wrapped in the checks of its contract and of its traits (dataflow.operators.base).

It steps like the operator that it wraps. What it finds it raises from the step, so that the
dataflow names the operator, as it names one that fails by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.expressions.evaluator import Evaluator
from dataflow.operators.base import (
    ErrorCollector,
    Operator,
    parts_of,
    skip_consolidation,
    stored_rows,
)
from storage.memory import MemoryStore
from storage.store import Store
from tests.harness.oracle import exact

Make = Callable[[Store, Evaluator, ErrorCollector], Operator]
_SMALL_PARTS = 2


class Counting:
    """An evaluator that counts how often it is asked."""

    def __init__(self, within: Any) -> None:
        self.asked = 0
        self._within = within

    def __getattr__(self, name: str) -> Any:
        self.asked += 1
        return getattr(self._within, name)


class Twin:
    """The same operator over a store of its own, to be stepped otherwise."""

    def __init__(self, make: Make, evaluator: Evaluator) -> None:
        self.store = MemoryStore()
        self.errors = ErrorRows()
        self.operator = make(self.store, evaluator, self.errors)

    def step(self, *inputs: Delta) -> Counter:
        """What a step gives, as a multiset."""
        return summed([self.operator.step(*inputs)])

    def parts(self, *inputs: Delta) -> list[Delta]:
        """What a step gives, in small parts if it has them."""
        make_parts = parts_of(self.operator)
        if make_parts is None:
            return [self.operator.step(*inputs)]
        return list(make_parts(*inputs, max_rows=_SMALL_PARTS))

    def clear(self, side: int, empty: Sequence[Delta]) -> Counter:
        """What the retraction of all that is stored of an input gives."""
        outputs = []
        for rows in stored_rows(self.operator, side):
            assert is_consolidated(rows) and (rows.weights > 0).all(), "stores no multiset"
            for row in range(len(rows)):
                inputs = list(empty)
                inputs[side] = rows.slice(row, row + 1).negate()
                outputs.append(self.operator.step(*inputs))
        assert not list(stored_rows(self.operator, side)), "stores rows after their retraction"
        return summed(outputs)


class Checked:
    """An operator, and twins of it that are stepped in every way that the contract allows."""

    def __init__(self, make: Make, store: Store, evaluator: Evaluator, errors: Any) -> None:
        self._make = make
        self._evaluator = evaluator
        self.counting = Counting(evaluator)
        self._operator = make(store, self.counting, errors)
        self.traits = self._operator.traits
        self.kind = type(self._operator)
        self._again, self._in_two, self._in_parts = (Twin(make, evaluator) for _ in range(3))
        self._unconsolidated, self._skipping = Twin(make, evaluator), Twin(make, evaluator)
        skip_consolidation(self._skipping.operator, is_unconsolidated=True)
        self._so_far: list[Delta] = []

    def _check_shape(self) -> None:
        traits = self.traits
        assert not (traits.is_linear and traits.has_state), "is linear and has state"
        assert traits.has_state or not self.keeps, f"has no state, and keeps {self.keeps}"
        assert traits.emits_parts == hasattr(self._operator, "parts"), "emits_parts"
        skips = hasattr(self._operator, "is_unconsolidated")
        assert traits.may_skip_consolidation == skips, "may_skip"

    @property
    def keeps(self) -> list[str]:
        """The names of its arrangements and sums."""
        return self._again.store.names()

    def parts(self, *inputs: Delta, max_rows: int) -> Iterator[Delta]:
        """The whole in one."""
        yield self.step(*inputs)

    def step(self, *inputs: Delta) -> Delta:
        """As the operator. AssertionError names what is broken."""
        self._check_shape()
        given = [summed([delta]) for delta in inputs]
        for position, delta in enumerate(inputs):
            assert is_consolidated(delta), f"input {position} is not consolidated"
        out = self._operator.step(*inputs)
        found = summed([out])
        assert is_consolidated(out), "the output is not consolidated"
        assert given == [summed([delta]) for delta in inputs], "a step changed its input"
        assert self._again.step(*inputs) == found, "is not deterministic"
        self._check_traits(inputs, found)
        self._check_in_parts(inputs, found)
        self._check_clearable(inputs)
        return out

    def _check_in_parts(self, inputs: Sequence[Delta], found: Counter) -> None:
        come = self._in_two.step(*(d.filter(d.weights > 0) for d in inputs))
        gone = self._in_two.step(*(d.filter(d.weights < 0) for d in inputs))
        assert added(come, gone) == found, "two steps do not add up to one"
        parts = self._in_parts.parts(*inputs)
        assert all(map(is_consolidated, parts)), "a part is not consolidated"
        assert summed(parts) == found, "parts do not add up to the whole"

    def _check_clearable(self, inputs: Sequence[Delta]) -> None:
        before = self._so_far or [delta.slice(0, 0) for delta in inputs]
        pairs = zip(before, inputs, strict=True)
        self._so_far = [Delta.concat(pair).consolidate() for pair in pairs]
        empty = [delta.slice(0, 0) for delta in inputs]
        for side in self.traits.clearable:
            cleared, without = (Twin(self._make, self._evaluator) for _ in range(2))
            found = added(cleared.step(*self._so_far), cleared.clear(side, empty))
            rest = [empty[i] if i == side else rows for i, rows in enumerate(self._so_far)]
            assert found == without.step(*rest), f"input {side} is not cleared"
            errors = [summed([twin.errors.take()]) for twin in (cleared, without)]
            assert errors[0] == errors[1], f"input {side} leaves error rows"

    def _check_traits(self, inputs: Sequence[Delta], found: Counter) -> None:
        traits = self.traits
        assert traits.needs_evaluator or not self.counting.asked, "asks the evaluator"
        if traits.is_linear:
            fresh = Twin(self._make, self._evaluator)
            assert fresh.step(*inputs) == found, "is not linear: what came before has a say"
        if traits.may_skip_consolidation:
            assert self._skipping.step(*inputs) == found, "skips more than consolidation"
        if traits.passes_rows:
            rows = summed(inputs)
            assert all(rows[row] == weight for row, weight in found.items()), "changes rows"
        if traits.accepts_unconsolidated:
            torn = [torn_apart(delta) for delta in inputs]
            assert self._unconsolidated.step(*torn) == found, "does not add up its input"


def summed(deltas: Sequence[Delta]) -> Counter:
    """The sum of deltas as a multiset; rows of weight zero are not in it."""
    total: Counter = Counter()
    for delta in deltas:
        for row, weight in delta.rows():
            total[exact(row)] += weight
    return Counter({row: weight for row, weight in total.items() if weight})


def added(left: Counter, right: Counter) -> Counter:
    """The sum of two multisets."""
    total = Counter(left)
    for row, weight in right.items():
        total[row] += weight
    return Counter({row: weight for row, weight in total.items() if weight})


def is_consolidated(delta: Delta) -> bool:
    """Whether each row comes once, with a weight that is not zero."""
    rows = [exact(row) for row, _ in delta.rows()]
    return len(set(rows)) == len(rows) and bool((delta.weights != 0).all())


def torn_apart(delta: Delta) -> Delta:
    """The same sum: each row twice too often, then taken back, and rows that cancel out."""
    if not len(delta):
        return delta
    again = delta.weighted(np.abs(delta.weights))
    return Delta.concat([again, delta, again.negate()])
