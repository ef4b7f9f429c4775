"""A filter by one value that moves: rows on one side of a threshold.

Invariant: after each epoch the output is exactly the rows whose value is on the passing side of the
threshold. In the order of their values these are all rows before a position, or all from it on. So
when the threshold moves, the rows between two positions are the change.

Where the least that the threshold will ever be is known, the rows below it are settled: they pass
for ever, or never again. They are not stored. Invariant: of the rows whose value is not NULL,
exactly those that are not settled are stored.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.operators.base import Context, Traits, kinds_of
from dataflow.operators.chunking import EVERY_ROW, in_chunks, whole
from dataflow.operators.groups import plain_columns, split_nulls
from dataflow.operators.ordered.ordered_rows import (
    AFTER_PEERS,
    BEFORE_PEERS,
    Order,
    OrderedRows,
)
from dataflow.operators.ordered.ordering import peer_ranks
from dataflow.plan.nodes import ThresholdFilter

UNKNOWN = 1 << 62
# Whether the rows that pass follow the threshold, and whether its peers are among them.
_PASSING = {"<": (False, False), "<=": (False, True), ">": (True, False), ">=": (True, True)}


class ThresholdFilterOperator:
    """Group: one group of all rows, which emits the rows between the old and the new threshold.

    The value is a plain column (lowering ensures that).
    State: the rows whose value is neither NULL nor settled, in its order (see OrderedRows); the
    threshold's rows; the value up to which rows are settled, with how many were not stored.
    Cost: O(log n) for each changed row; O(log n + rows between) for each move of the threshold;
    memory for a part of the rows between.
    NULL: a row whose value is NULL never passes; no row does while the threshold is NULL or has no
    row. Of several rows the least counts, so that a new one may come before the old one goes.
    """

    traits = Traits(emits_parts=True)

    def __init__(self, plan: ThresholdFilter, context: Context) -> None:
        (self._value,) = plain_columns([plan.value])
        self.value_position = self._value
        self._type = plan.value.type
        self._kinds, self._out_kinds = kinds_of(plan.input.fields), kinds_of(plan.fields)
        self._evaluator = context.evaluator
        self._is_after, self._has_peers = _PASSING[plan.operator]
        order = [Order(self._value, self._type)]
        self._rows = OrderedRows(context, "kept", self._kinds, (), order)
        kind = kinds_of(plan.threshold.fields)
        self._threshold = context.arrange("threshold", kind, ())
        self._settling = context.arrange("settled", kind + "i", ())
        self._settled = self._settling.lookup(())[1]
        self.settled_rows = int(self._settled.columns[1].values.sum())
        # At most so many rows have become settled since the last `settle`.
        self.waiting_rows = UNKNOWN

    def step(self, rows: Delta, threshold: Delta) -> Delta:
        """The change of the rows that pass."""
        return whole(self.parts(rows, threshold, max_rows=EVERY_ROW), self._out_kinds)

    def parts(self, rows: Delta, threshold: Delta, *, max_rows: int) -> Iterator[Delta]:
        """See InParts."""
        yield from in_chunks(self._changes(rows, threshold, max_rows), max_rows)

    def first_change(self, thresholds: Column) -> int:
        """Return the position of the first of n thresholds with which other rows pass than now.

        n if the same rows pass with all of them. O(log rows + n).
        """
        n = len(thresholds)
        present, size = self._present(), int(self._rows.sizes((), 1)[0])
        known = thresholds.mask()
        if size == 0 or present is None:
            return int(known.argmax()) if size and known.any() else n
        if not known.all():
            # No row passes without a threshold.
            n = int((~known).argmax())
            thresholds = thresholds.slice(0, n)
        edge = self._edge(present)
        low, high = np.array([max(edge - 1, 0)]), np.array([min(edge + 1, size)])
        beside = self._rows.ranges((), low, high)
        values = Column.concat([thresholds, beside.rows.columns[self._value]])
        ranks = peer_ranks(self._type, values, self._evaluator)
        new, own = ranks[:n], ranks[n:]
        # A row comes before the edge if its value is less than the threshold, or its peer.
        peers_before = self._is_after != self._has_peers
        changes = np.zeros(n, np.bool_)
        for rank, is_before in zip(own, beside.start < edge, strict=True):
            before = rank <= new if peers_before else rank < new
            changes |= before != is_before
        return int(changes.argmax()) if changes.any() else n

    def settle(self, bound: Column, max_rows: int) -> int:
        """Free rows below a bound; return how many are below the threshold and remain.

        bound: one value that the threshold will never be less than, nor is now. Beyond about
        max_rows rows, the others are left for the next call.
        """
        bound = self._highest(bound)
        edge = self._edge(bound)
        if edge > max_rows:
            at = np.array([max_rows])
            value = self._rows.ranges((), at, at + 1).rows.columns[self._value]
            nearer = self._edge(value)
            if nearer:
                bound, edge = value, nearer
        for start in range(0, edge, max_rows):
            end = np.array([min(max_rows, edge - start)])
            self._rows.apply(self._rows.ranges((), np.zeros(1, np.int64), end).rows.negate())
        if edge:
            self.settled_rows += edge
            totals = Column(np.array([self.settled_rows], np.int64))
            known = Delta([bound, totals], np.ones(1, np.int64))
            self._settling.apply(Delta.concat([self._settled.negate(), known]))
            self._settled = known
        self.waiting_rows = 0
        present = self._present()
        return 0 if present is None else self._edge(present)

    @property
    def frees_failing(self) -> bool:
        """Return whether settled rows never pass again; else they pass for ever."""
        return self._is_after

    def is_settled(self, rows: Delta) -> np.ndarray:
        """Return bool[n]: which rows, of the input's columns, are settled; those with NULL are."""
        value = rows.columns[self._value]
        found = ~value.mask()
        known = np.flatnonzero(~found)
        if len(self._settled) and len(known):
            found[known] = self._is_below(value.take(known), self._settled.columns[0])
        return found

    def _is_below(self, values: Column, bound: Column) -> np.ndarray:
        """Return bool[n]: which values no threshold from the bound on tells apart."""
        ranks = peer_ranks(self._type, Column.concat([values, bound]), self._evaluator)
        own, edge = ranks[:-1], ranks[-1]
        return own < edge if self._is_after == self._has_peers else own <= edge

    def _highest(self, bound: Column) -> Column:
        """Return the bound, or the one that rows were settled by if that is higher."""
        if not len(self._settled):
            return bound
        both = Column.concat([bound, self._settled.columns[0]])
        ranks = peer_ranks(self._type, both, self._evaluator)
        return both.take(np.array([int(ranks.argmax())]))

    def _store_rows(self, rows: Delta) -> None:
        """Apply a change of rows whose value is not NULL, except for the settled ones."""
        if len(self._settled):
            is_settled = self.is_settled(rows)
            self.settled_rows += int(np.maximum(rows.weights[is_settled], 0).sum())
            rows = rows.filter(~is_settled)
        if len(rows):
            self._rows.apply(rows)

    def _changes(self, rows: Delta, threshold: Delta, max_rows: int) -> Iterator[Delta]:
        """F(rows, new) - F(rows, old) of the stored rows, then F(change of the rows, new).

        So a stored row is added before it is removed.
        """
        if len(threshold):
            old = self._present()
            self._threshold.apply(threshold)
            yield from self._between(old, self._present(), max_rows)
        rows, _ = split_nulls(rows, (self._value,))
        if len(rows):
            passing = self._passing(rows)
            yield passing
            self.waiting_rows += len(rows) - len(passing) if self._is_after else len(passing)
            self._store_rows(rows)

    def _present(self) -> Column | None:
        """Return the threshold, as a column of one value; None if there is none."""
        kept, _ = split_nulls(self._threshold.lookup(())[1], (0,))
        if len(kept) == 0:
            return None
        column = kept.columns[0]
        least = int(peer_ranks(self._type, column, self._evaluator).argmin())
        return column.take(np.array([least]))

    def _passing(self, rows: Delta) -> Delta:
        threshold = self._present()
        if threshold is None:
            return rows.slice(0, 0)
        values = Column.concat([rows.columns[self._value], threshold])
        ranks = peer_ranks(self._type, values, self._evaluator)
        own, edge = ranks[:-1], ranks[-1]
        passes = own > edge if self._is_after else own < edge
        return rows.filter(passes | (own == edge) if self._has_peers else passes)

    def _between(self, old: Column | None, new: Column | None, max_rows: int) -> Iterator[Delta]:
        """Yield the stored rows that pass one of two thresholds; those that pass the new one are
        added.
        """
        before, after = self._edge(old), self._edge(new)
        sign = 1 if (before < after) != self._is_after else -1
        low, high = min(before, after), max(before, after)
        self.waiting_rows += high - low
        for start in range(low, high, max_rows):
            end = min(start + max_rows, high)
            found = self._rows.ranges((), np.array([start]), np.array([end])).rows
            yield found.weighted(found.weights * sign)

    def _edge(self, threshold: Column | None) -> int:
        """Return how many stored rows precede the first one, or the last one, that passes."""
        if threshold is None:
            return int(self._rows.sizes((), 1)[0]) if self._is_after else 0
        columns = [Column.nulls(kind, 1) for kind in self._kinds]
        columns[self._value] = threshold
        bound = BEFORE_PEERS if self._is_after == self._has_peers else AFTER_PEERS
        return int(self._rows.ranks(Delta(columns, np.ones(1, np.int64)), bound)[0])
