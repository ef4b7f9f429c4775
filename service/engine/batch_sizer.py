"""How many rows one step takes, so that its output stays within bounds.

A join may turn one row into a thousand, a window into a whole partition. That cannot be known in
advance, but a table's rows mostly behave like earlier ones. Invariant: cutting preserves the order
of each relation's changes and never separates the old and new row of an update. So every prefix is
a legal state, and only the number of steps depends on the batch size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dataflow.changes import Changes, truncated
from dataflow.delta import Delta
from dataflow.operators.tables.table import TableState
from dataflow.schema import RelationName

# Rows in the first step of a table without history.
FIRST_ROWS = 64
LEAST_ROWS = 8
# Tables whose rows become at most this many are stepped together.
_JOINT_RATIO = 4.0
_GROWTH = 4
# Outputs within this factor count as equal.
_ALIKE = 1.5


class BatchSizer:
    """Learn from the output of each step. max_made: target maximum of rows that one step makes."""

    def __init__(self, max_made: int) -> None:
        self._max_made = max_made
        # For each table: rows made from one row, and rows to take next.
        self._made_of_one: dict[RelationName, float] = {}
        self._next_rows: dict[RelationName, int] = {}
        # For each table whose steps make too much: rows of the last one, what it made, and whether
        # another size would have made about as much.
        self._last: dict[RelationName, tuple[int, int, bool]] = {}

    def slices(self, changes: Sequence[Changes]) -> Iterator[list[Changes]]:
        """Yield the changes in batches, in order for each relation.

        Call `learn` with the output of each batch before taking the next one: it decides the next
        size.
        """
        if sum(map(len, changes)) <= FIRST_ROWS:
            yield list(changes)
            return
        joint = {name for name, made in self._made_of_one.items() if made <= _JOINT_RATIO}
        together: list[Changes] = []
        space = most = max(int(self._max_made / _JOINT_RATIO), FIRST_ROWS)
        for change in changes:
            start = len(change) if change.relation.name not in joint else 0
            while start < len(change):
                stop = _end(change, start, space)
                together.append(_slice(change, start, stop))
                space -= stop - start
                start = stop
                if space <= 0:
                    yield together
                    together, space = [], most
        if together:
            yield together
        for change in changes:
            name = change.relation.name
            start = len(change) if name in joint else 0
            while start < len(change):
                stop = _end(change, start, self._next_rows.get(name, FIRST_ROWS))
                yield [_slice(change, start, stop)]
                start = stop

    def learn(self, changes: Sequence[Changes], made: int) -> None:
        """Record that a step over these changes made `made` rows at its widest operator."""
        taken = sum(map(len, changes))
        names = {change.relation.name for change in changes}
        # A truncation is one change, however many rows it removes.
        if not taken or (len(names) > 1 and made <= _JOINT_RATIO * taken) or truncated(changes):
            return
        for name in names:
            self.learn_of(name, taken, made)

    def learn_of(self, name: RelationName, taken: int, made: int) -> None:
        """Record that a step over `taken` rows of one relation made `made` rows at its widest
        operator.
        """
        each = max(made / taken, self._made_of_one.get(name, 0.0) / 2)
        rows = int(self._max_made / max(each, 1.0))
        if rows < taken and self._is_alike(name, taken, made):
            rows = min(2 * taken, self._max_made)
        self._made_of_one[name] = each
        self._next_rows[name] = max(LEAST_ROWS, min(rows, _GROWTH * max(taken, FIRST_ROWS)))

    def _is_alike(self, name: RelationName, taken: int, made: int) -> bool:
        """Return True if a step of another size makes about as many rows.

        That is so if all rows are in one partition of a window: smaller steps only make it more
        often.
        """
        taken_before, made_before, was_alike = self._last.get(name, (0, 0, False))
        is_alike = was_alike and made <= _ALIKE * made_before
        if 2 * taken <= taken_before:
            is_alike = made_before <= _ALIKE * made
        elif taken >= 2 * taken_before:
            is_alike = made <= _ALIKE * made_before
        self._last[name] = taken, made, is_alike
        return is_alike

    def takes_whole(self, name: RelationName, rows: int) -> bool:
        """Return True if one step may take this many rows of a relation."""
        made = rows * max(self._made_of_one.get(name, 1.0), 1.0)
        return rows <= FIRST_ROWS or (name in self._made_of_one and made <= self._max_made)

    def chunks(self, name: RelationName, deltas: Iterable[Delta]) -> Iterator[Delta]:
        """Yield rows of a relation in batches of the learned size; see `learn_of`."""
        for delta in deltas:
            start = 0
            while start < len(delta):
                stop = min(start + self._next_rows.get(name, FIRST_ROWS), len(delta))
                yield delta.slice(start, stop)
                start = stop


def rows_to_go(
    tables: Iterable[tuple[RelationName, TableState]],
    changes: Sequence[Changes],
    batch_sizer: BatchSizer,
) -> Iterator[tuple[int, Delta]]:
    """Yield the removal of all rows of truncated tables too large for one step, in batches.

    Yields (position among the tables, delta). Step each delta and report it to `learn_of` before
    taking the next; read to the end.
    """
    names = truncated(changes)
    for position, (name, state) in enumerate(tables if names else ()):
        if name in names and not batch_sizer.takes_whole(name, state.row_count()):
            for rows in batch_sizer.chunks(name, state.emptied()):
                yield position, rows


def _end(change: Changes, start: int, space: int) -> int:
    """Return where to cut after about `space` rows, never within an update."""
    stop = min(start + space, len(change))
    if stop < len(change) and change.kinds[stop] == Changes.NEW:
        return stop + int(change.kinds[stop - 1] in (Changes.OLD, Changes.OLD_KEY))
    return stop


def _slice(change: Changes, start: int, stop: int) -> Changes:
    if start == 0 and stop == len(change):
        return change
    unchanged = {c: mask[start:stop] for c, mask in change.unchanged.items()}
    columns = tuple(c.slice(start, stop) for c in change.columns)
    letters = None if change.letters is None else change.letters[start:stop]
    return Changes(change.relation, change.kinds[start:stop], columns, unchanged, letters)
