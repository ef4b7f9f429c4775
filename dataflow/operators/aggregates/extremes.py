"""min and max of one column, and the least text among equal values.

Invariant: the current extreme of a group is the first of its live values in the type's order; the
next one is looked up only when that value is retracted. A group's values are in one of two
arrangements: unordered, the cheapest to write; or ordered, once a large group has lost an extreme.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataflow.delta import Column, Delta, equal_rows
from dataflow.operators.aggregates.linear import Feed
from dataflow.operators.base import Context
from dataflow.operators.groups import Touched, touch
from dataflow.operators.ordered.ordered_rows import ENDLESS, Order, OrderedRows
from dataflow.operators.ordered.ordering import ranks, text_ranks
from dataflow.plan.aggregate_functions import LEAST
from dataflow.types import SqlType
from storage.store import Arrangement

# A group with more distinct values than this becomes ordered when its extreme is retracted.
MANY = 1000


class Extremes:
    """The values of one column by group, and the current extreme for each direction.

    directions: of "min", "max" and "least" (by text, whatever the type's order). State: (group,
    value) by group, or ordered for the groups marked so, each group in one of the two; (group,
    current) by group, for each direction. Cost: O(rows of the delta). When an extreme is retracted,
    the values of a group of at most MANY. A larger group is read once and becomes ordered, then
    O(log n) for each row.
    """

    def __init__(
        self, context: Context, role: str, key_kinds: str, column: tuple[int, SqlType]
    ) -> None:
        self._context = context
        self._role = role
        self._position, self._type = column
        self._kinds = key_kinds + self._type.physical
        self._key = tuple(range(len(key_kinds)))
        self._values = context.arrange(f"{role} values", self._kinds, self._key)
        self._marks = context.arrange_sums(f"{role} marks", key_kinds, 1)
        order = [Order(len(self._key), self._type)]
        self._ordered = OrderedRows(context, f"{role} ordered", self._kinds, self._key, order)
        self._current: dict[str, Arrangement] = {}

    def want(self, direction: str) -> None:
        """Add the extreme of a direction."""
        role = f"{self._role} {direction}"
        self._current[direction] = self._context.arrange(role, self._kinds, self._key)

    def forget(self, keys: Sequence[Column], n: int) -> None:
        """Free the values of n groups, each once."""
        for arrangement in (self._values, *self._current.values()):
            arrangement.apply(arrangement.lookup(keys)[1].negate())
        self._ordered.forget(keys, n)
        self._marks.add(keys, -self._marks.lookup(keys))

    def advance(self, touched: Touched, feed: Feed) -> dict[str, Column]:
        """Apply a feed; return for each direction the extremes before, then those after; NULL for
        none."""
        column = feed.columns[self._position]
        rows, weights, group = _present(column, feed)
        is_ordered = self._marks.lookup(touched.keys)[0] > 0
        if len(rows):
            keys = [k.take(group) for k in touched.keys]
            change = Delta([*keys, rows], weights)
            self._values.apply(change.filter(~is_ordered[group]))
            self._ordered.apply(change.filter(is_ordered[group]))
        moving: list[Delta] = []
        turns = {
            d: self._turn(d, touched, (rows, weights, group, is_ordered), moving)
            for d in self._current
        }
        if moving:
            self._put_in_order(moving[0])
        for both in list(turns.values())[:1]:
            self._unmark(touched, is_ordered & ~both.mask()[touched.count :])
        return turns

    def _put_in_order(self, values: Delta) -> None:
        """Move all values of some groups to the ordered arrangement."""
        groups = touch(values.columns[:-1], len(values))
        self._marks.add(groups.keys, np.ones((1, groups.count), np.int64))
        self._values.apply(values.negate())
        self._ordered.apply(values)

    def _unmark(self, touched: Touched, is_gone: np.ndarray) -> None:
        """Make groups without values unordered again."""
        gone = np.flatnonzero(is_gone)
        if len(gone):
            keys = [k.take(gone) for k in touched.keys]
            self._marks.add(keys, np.full((1, len(gone)), -1, np.int64))

    def _turn(self, direction: str, touched: Touched, change: tuple, moving: list[Delta]) -> Column:
        rows, weights, group, is_ordered = change
        current = self._current[direction]
        index, stored = current.lookup(touched.keys)
        held = np.full(touched.count, -1, np.int64)
        held[index] = np.arange(len(index))
        old = _at(stored.columns[-1], held)
        lost = self._lost(stored.columns[-1], held, change)
        arriving = np.flatnonzero((weights > 0) & ~lost[group])
        staying = np.flatnonzero((held >= 0) & ~lost)
        again = np.flatnonzero(lost)
        pool = [stored.columns[-1].take(held[staying]), rows.take(arriving)]
        owner = [staying, group[arriving]]
        if len(again):
            plain, ordered = again[~is_ordered[again]], again[is_ordered[again]]
            found, values = self._values.lookup([k.take(plain) for k in touched.keys])
            large = np.bincount(found, minlength=len(plain)) > MANY
            if large.any() and direction != LEAST and not moving:
                moving.append(values.filter(large[found]))
            first, group = self._ends(direction, [k.take(ordered) for k in touched.keys], ordered)
            pool += [values.columns[-1], first]
            owner += [plain[found], group]
        candidates = Column.concat(pool)
        best = self._best(direction, candidates, np.concatenate(owner), touched.count)
        new = _at(candidates, best)
        self._replace(direction, touched, (old, new))
        return Column.concat([old, new])

    def _ends(
        self, direction: str, keys: Sequence[Column], groups: np.ndarray
    ) -> tuple[Column, np.ndarray]:
        """Return the candidates for the extremes of ordered groups, and the group of each."""
        n = len(groups)
        low, high = np.zeros(n, np.int64), np.ones(n, np.int64)
        if direction == "max":
            high = np.maximum(self._ordered.sizes(keys, n), 1)
            low = high - 1
        elif direction == LEAST:
            high = np.full(n, ENDLESS)
        found = self._ordered.ranges(keys, low, high)
        return found.rows.columns[-1], groups[found.index]

    def _lost(self, held_values: Column, held: np.ndarray, change: tuple) -> np.ndarray:
        """Return bool[groups]: whether the current extreme is retracted."""
        rows, weights, group, _ = change
        lost = np.zeros(len(held), np.bool_)
        leaving = np.flatnonzero((weights < 0) & (held[group] >= 0))
        if len(leaving):
            at = group[leaving]
            same = equal_rows([rows], leaving, [held_values], held[at])
            lost[at[same]] = True
        return lost

    def _best(
        self, direction: str, candidates: Column, owner: np.ndarray, count: int
    ) -> np.ndarray:
        """Return int64[groups]: the position of each group's extreme among the candidates, -1 for
        none."""
        best = np.full(count, -1, np.int64)
        if len(owner) == 0:
            return best
        if direction == LEAST:
            order = text_ranks(candidates)
        else:
            order = ranks(self._type, candidates, self._context.evaluator)
        if direction == "max":
            order = ~order
        # The last write wins: the best candidate of a group comes last.
        sequence = np.argsort(order, kind="stable")[::-1]
        best[owner[sequence]] = sequence
        return best

    def _replace(self, direction: str, touched: Touched, values: Sequence[Column]) -> None:
        old, new = values
        every = np.arange(touched.count)
        moved = np.flatnonzero(~equal_rows([old], every, [new], every))
        if len(moved) == 0:
            return
        gone = moved[old.mask()[moved]]
        come = moved[new.mask()[moved]]
        keys = [k.take(np.concatenate([gone, come])) for k in touched.keys]
        column = Column.concat([old.take(gone), new.take(come)])
        weights = np.repeat(np.array([-1, 1], np.int64), [len(gone), len(come)])
        self._current[direction].apply(Delta([*keys, column], weights))


def _present(column: Column, feed: Feed) -> tuple[Column, np.ndarray, np.ndarray]:
    """Return (values, weights, groups) of the rows that are not NULL, each (group, value) once."""
    group, weights = feed.group, feed.weights
    if column.valid is not None:
        chosen = np.flatnonzero(column.valid)
        column, group, weights = column.take(chosen), group[chosen], weights[chosen]
    found = touch((Column(group), column), len(group))
    net = found.sum(weights)
    chosen = np.flatnonzero(net)
    first = found.representative[chosen]
    return column.take(first), net[chosen], group[first]


def _at(column: Column, positions: np.ndarray) -> Column:
    """Return the values at these positions, NULL at -1."""
    if len(positions) and positions.min() >= 0:
        return column.take(positions)
    pool = Column.concat([Column.nulls(column.kind, 1), column])
    return pool.take(positions + 1)
