"""Which stored rows lose their last match or gain their first: the basis of padding and anti joins.

With M(l) the weight of the right rows that match l, the unmatched left rows change by dL * [M_old =
0] + L_new * ([M_new = 0] - [M_old = 0]); for the right input, which is applied second, by dR *
[M_new = 0] + R_old * ([M_new = 0] - [M_old = 0]). Invariant: only rows that a changed row pairs
with are examined.
"""

from __future__ import annotations

import numpy as np

from dataflow.delta import Delta
from dataflow.operators.groups import columns_at, touch
from dataflow.operators.joins.pairs import Pairs, PairState
from storage.store import Sums


def turn(old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """Return int64[n]: [new = 0] - [old = 0]: 1 where the last match goes, -1 where the first
    comes."""
    return (new == 0).astype(np.int64) - (old == 0)


class KeyTurns:
    """Without a residual, all rows of a key match alike: one count for each key of the other
    input."""

    def __init__(self, counts: Sums, key: tuple[int, ...]) -> None:
        self._counts = counts
        self._key = key

    def advance(self, delta: Delta) -> tuple[np.ndarray, np.ndarray]:
        """Apply the counted input's delta; return (first row of each key, the turn of each key)."""
        if len(delta) == 0:
            empty = np.empty(0, np.int64)
            return empty, empty
        touched = touch(columns_at(delta, self._key), len(delta))
        change = touched.sum(delta.weights)
        old = self._counts.lookup(touched.keys)[0]
        self._counts.add(touched.keys, change[np.newaxis])
        return touched.representative, turn(old, old + change)

    def by_row(self, delta: Delta) -> np.ndarray:
        """Apply the delta; return int64[n]: the turn of the key, at the first row of each key."""
        representative, turns = self.advance(delta)
        by_row = np.zeros(len(delta), np.int64)
        by_row[representative] = turns
        return by_row


def stored_turns(pairs: Pairs, by_row: np.ndarray) -> Delta:
    """Return the stored rows that turn, weighted by their turn; turns: of each changed row.

    A stored row pairs with every changed row of its key: count it at the first.
    """
    of_pair = by_row[pairs.index]
    chosen = np.flatnonzero(of_pair)
    stored = pairs.kept.take(chosen)
    return stored.weighted(stored.weights * of_pair[chosen])


def row_turns(sides: PairState, pairs: Pairs, max_rows: int) -> Delta:
    """With a residual: return the stored rows that turn, re-evaluated against the other input's new
    state.

    pairs: each stored row with all that it pairs with. The state must already hold the changed
    rows; what else the stored ones match is counted about that many at a time. weights are the kept
    ones times the turn.
    """
    touched = touch(pairs.kept.columns, len(pairs))
    change = touched.sum(pairs.changed.weights)
    chosen = np.flatnonzero(change)
    rows = pairs.kept.take(touched.representative[chosen])
    now = np.zeros(len(rows), np.int64)
    for some in sides.meet(1 - pairs.side, rows, max_rows, is_collecting=False):
        some.count_into(now)
    turns = turn(now - change[chosen], now)
    return rows.weighted(rows.weights * turns).filter(turns != 0)
