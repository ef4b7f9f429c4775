"""A filter by one value that moves: rows on one side of a threshold.

Invariant: after each epoch the output is exactly the rows whose value is on the passing side of the
threshold. In the order of their values these are all rows before a position, or all from it on. So
when the threshold moves, the rows between two positions are the change.
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

# Whether the rows that pass follow the threshold, and whether its peers are among them.
_PASSING = {"<": (False, False), "<=": (False, True), ">": (True, False), ">=": (True, True)}


class ThresholdFilterOperator:
    """Group: one group of all rows, which emits the rows between the old and the new threshold.

    The value is a plain column (lowering ensures that).
    State: the rows whose value is not NULL, in its order (see OrderedRows); the threshold's rows.
    Cost: O(log n) for each changed row; O(log n + rows between) for each move of the threshold;
    memory for a part of the rows between.
    NULL: a row whose value is NULL never passes; no row does while the threshold is NULL or has no
    row. Of several rows the least counts, so that a new one may come before the old one goes.
    """

    traits = Traits(emits_parts=True)

    def __init__(self, plan: ThresholdFilter, context: Context) -> None:
        (self._value,) = plain_columns([plan.value])
        self._type = plan.value.type
        self._kinds, self._out_kinds = kinds_of(plan.input.fields), kinds_of(plan.fields)
        self._evaluator = context.evaluator
        self._is_after, self._has_peers = _PASSING[plan.operator]
        order = [Order(self._value, self._type)]
        self._rows = OrderedRows(context, "kept", self._kinds, (), order)
        self._threshold = context.arrange("threshold", kinds_of(plan.threshold.fields), ())

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
            yield self._passing(rows)
            self._rows.apply(rows)

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
