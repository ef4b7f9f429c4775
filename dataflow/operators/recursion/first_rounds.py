"""UNION of a recursion: in which round each row is found first.

Invariant: once round i is resolved, the rows found in it are those derived in it and in no earlier
round. So a row that loses its first derivation moves to a later round, and a row derived only from
itself through a cycle is found in none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tidemark_native import storage as kernels

from dataflow.delta import KIND_INT, Column, Delta
from dataflow.operators.base import Context, kinds_of, types_of
from dataflow.operators.groups import columns_at, touch
from dataflow.operators.recursion.round_queue import RoundQueue
from dataflow.plan.nodes import Loop
from dataflow.types import SqlType
from dataflow.values import to_text

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class _Again:
    """Keys to examine again in a later round, because they were found or lost in an earlier one.

    was_found bool[n]: whether they were found in that round before this step.
    """

    keys: tuple[Column, ...]
    was_found: np.ndarray


class FirstRounds:
    """Resolves one round after the other, in increasing order within a step.

    State: every derived row with its rounds and weights, by key. Cost of a round: O(changed rows +
    the rounds that they are derived in).
    """

    def __init__(self, plan: Loop, context: Context) -> None:
        self._width = len(plan.fields)
        self._types = types_of(plan.fields)
        self._kinds = kinds_of(plan.fields)
        self._keys = plan.keys
        self._is_plain = plan.keys == tuple(range(self._width))
        kinds = kinds_of(plan.inputs[0].fields) + KIND_INT
        self._derived = context.arrange("derived", kinds, plan.keys)
        self._again: dict[int, list[_Again]] = {}
        self._queue = RoundQueue()

    def begin(self, queue: RoundQueue) -> None:
        """Begin a step. queue: takes the rounds in which keys must be examined again."""
        self._again, self._queue = {}, queue

    def resolve(self, number: int, derived: Delta) -> Delta:
        """Return how the rows found in a round change.

        derived: the consolidated change of the rows derived in it: fields, then key forms.
        """
        again = self._again.pop(number, [])
        given = [columns_at(derived, self._keys), *(a.keys for a in again)]
        columns = [Column.concat(parts) for parts in zip(*given, strict=True)]
        n = len(derived)
        touched = touch(columns, n + sum(len(a.was_found) for a in again))
        index, stored = self._derived.lookup(touched.keys)
        rounds = stored.columns[-1].values
        count = touched.count
        is_covered, was_found = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        is_covered[index[rounds < number]] = True
        here = np.flatnonzero(rounds == number)
        was_found[index[here]] = True
        was_found &= ~is_covered
        is_again = _overrule(was_found, touched.group[n:], again)
        before = stored.take(here)
        before = Delta(before.columns[:-1], before.weights)
        after, group = _added(before, index[here], derived, touched.group[:n])
        self._derived.apply(_in_round(derived, number))
        is_found = np.zeros(count, np.bool_)
        is_found[group] = True
        is_found &= ~is_covered
        later = np.full(count, _NEVER)
        np.minimum.at(later, index[rounds > number], rounds[rounds > number])
        # Now first found here: no longer in a later round. No longer found here: perhaps in a later
        # one.
        self._examine_later(touched.keys, later, is_found & ~was_found & ~is_again, was_found=True)
        lost = (was_found | is_again) & ~is_found & ~is_covered
        self._examine_later(touched.keys, later, lost, was_found=False)
        if self._is_plain:
            change = is_found.astype(np.int64) - was_found
            return Delta(touched.keys, change).filter(change != 0)
        old = self._shown(before, index[here], was_found).negate()
        return Delta.concat([old, self._shown(after, group, is_found)]).consolidate()

    def _examine_later(
        self, keys: Sequence[Column], later: np.ndarray, chosen: np.ndarray, *, was_found: bool
    ) -> None:
        required = np.flatnonzero(chosen & (later < _NEVER))
        for number in np.unique(later[required]).tolist():
            at = required[later[required] == number]
            again = _Again(tuple(k.take(at) for k in keys), np.full(len(at), was_found))
            self._again.setdefault(number, []).append(again)
            self._queue.add(number)

    def _shown(self, rows: Delta, group: np.ndarray, is_found: np.ndarray) -> Delta:
        """Return the least row by text of each found key, once."""
        at = np.flatnonzero(is_found[group])
        if len(at) == 0:
            return Delta.empty(self._kinds)
        columns = [c.take(at) for c in rows.columns[: self._width]]
        order = np.lexsort([*_text_ranks(self._types, columns), group[at]])
        is_first = np.ones(len(at), np.bool_)
        is_first[1:] = np.diff(group[at][order]) != 0
        chosen = order[is_first]
        return Delta([c.take(chosen) for c in columns], np.ones(len(chosen), np.int64))


def _overrule(was_found: np.ndarray, groups: np.ndarray, again: Sequence[_Again]) -> np.ndarray:
    """Correct was_found by the recorded changes; return bool[n]: the keys examined again.

    A key found in an earlier round was not found here, whatever else is recorded.
    """
    is_again = np.zeros(len(was_found), np.bool_)
    if again:
        known = np.concatenate([a.was_found for a in again])
        was_found[groups[known]] = True
        was_found[groups[~known]] = False
        is_again[groups] = True
    return is_again


def _added(
    before: Delta, before_group: np.ndarray, change: Delta, change_group: np.ndarray
) -> tuple[Delta, np.ndarray]:
    """Return the sum of the old rows and their change: the remaining rows, and their keys."""
    if len(before) == 0:
        keep = change.weights != 0
        return change.filter(keep), change_group[keep]
    both = Delta.concat([before, change])
    groups = np.concatenate([before_group, change_group]) if len(change) else before_group
    touched = touch(both.columns, len(both))
    weights = kernels.sum_by_group(touched.group, both.weights, touched.count)
    keep = np.flatnonzero(weights)
    chosen = touched.representative[keep]
    return both.take(chosen).weighted(weights[keep]), groups[chosen]


def _in_round(rows: Delta, number: int) -> Delta:
    column = Column(np.full(len(rows), number, np.int64))
    return Delta((*rows.columns, column), rows.weights)


def _text_ranks(types: Sequence[SqlType], columns: Sequence[Column]) -> list[np.ndarray]:
    """Sort keys for np.lexsort: the first column counts most, its NULLs come last."""
    ranks = []
    for type, column in zip(types, columns, strict=True):
        texts = to_text(type, column).to_list()
        order = {t: i for i, t in enumerate(sorted({t for t in texts if t is not None}))}
        ranks.append(np.array([len(order) if t is None else order[t] for t in texts], np.int64))
    return ranks[::-1]
