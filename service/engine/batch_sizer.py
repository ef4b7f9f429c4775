"""How many rows are stepped at a time, so that what one step makes stays within bounds.

A join may make a thousand rows of one, a window a whole partition: how many cannot be known
beforehand, but the rows of a table are mostly like those before them. Invariant: cutting keeps the
order of each relation's changes and never parts the two sides of an update, so every prefix is a
legal state and only the number of steps depends on the pace.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dataflow.changes import Changes, truncated
from dataflow.delta import Delta
from dataflow.operators.tables.table import TableState
from dataflow.schema import RelationName

# So many rows of a table of which nothing is known are stepped first.
FIRST_ROWS = 64
LEAST_ROWS = 8
# Tables whose rows become no more than this many are stepped together.
_TAME = 4.0
_GROWTH = 4
# What differs by no more is about as much.
_ALIKE = 1.5


class BatchSizer:
    """Learns from what each step has made. most_made: rows that one step should make at most."""

    def __init__(self, most_made: int) -> None:
        self._most_made = most_made
        # For each table: rows made of one, and rows to take next.
        self._made_of_one: dict[RelationName, float] = {}
        self._next_rows: dict[RelationName, int] = {}
        # For each table whose steps make too much: rows of the last one, what it made, whether
        # one of another size would have made about as much.
        self._last: dict[RelationName, tuple[int, int, bool]] = {}

    def slices(self, changes: Sequence[Changes]) -> Iterator[list[Changes]]:
        """The changes, those of each relation in order, as many at a time as the pace then says.

        `learn` is to be told what each has made before the next one is taken.
        """
        if sum(map(len, changes)) <= FIRST_ROWS:
            yield list(changes)
            return
        tame = {name for name, made in self._made_of_one.items() if made <= _TAME}
        together: list[Changes] = []
        room = most = max(int(self._most_made / _TAME), FIRST_ROWS)
        for change in changes:
            start = len(change) if change.relation.name not in tame else 0
            while start < len(change):
                stop = _end(change, start, room)
                together.append(_slice(change, start, stop))
                room -= stop - start
                start = stop
                if room <= 0:
                    yield together
                    together, room = [], most
        if together:
            yield together
        for change in changes:
            name = change.relation.name
            start = len(change) if name in tame else 0
            while start < len(change):
                stop = _end(change, start, self._next_rows.get(name, FIRST_ROWS))
                yield [_slice(change, start, stop)]
                start = stop

    def learn(self, changes: Sequence[Changes], made: int) -> None:
        """A step over these changes has made `made` rows at its widest place."""
        taken = sum(map(len, changes))
        names = {change.relation.name for change in changes}
        # Of a truncation one change is told, whatever it takes away.
        if not taken or (len(names) > 1 and made <= _TAME * taken) or truncated(changes):
            return
        for name in names:
            self.learn_of(name, taken, made)

    def learn_of(self, name: RelationName, taken: int, made: int) -> None:
        """A step over so many rows of one relation has made `made` rows at its widest place."""
        each = max(made / taken, self._made_of_one.get(name, 0.0) / 2)
        rows = int(self._most_made / max(each, 1.0))
        if rows < taken and self._is_alike(name, taken, made):
            rows = min(2 * taken, self._most_made)
        self._made_of_one[name] = each
        self._next_rows[name] = max(LEAST_ROWS, min(rows, _GROWTH * max(taken, FIRST_ROWS)))

    def _is_alike(self, name: RelationName, taken: int, made: int) -> bool:
        """Whether more or fewer rows make about as much, as where all of them are in one partition
        of a window: fewer at a time then only make it more often."""
        taken_before, made_before, was_alike = self._last.get(name, (0, 0, False))
        is_alike = was_alike and made <= _ALIKE * made_before
        if 2 * taken <= taken_before:
            is_alike = made_before <= _ALIKE * made
        elif taken >= 2 * taken_before:
            is_alike = made <= _ALIKE * made_before
        self._last[name] = taken, made, is_alike
        return is_alike

    def takes_whole(self, name: RelationName, rows: int) -> bool:
        """Whether so many rows of a relation are no more than one step should take."""
        made = rows * max(self._made_of_one.get(name, 1.0), 1.0)
        return rows <= FIRST_ROWS or (name in self._made_of_one and made <= self._most_made)

    def shares(self, name: RelationName, deltas: Iterable[Delta]) -> Iterator[Delta]:
        """Rows of a relation, as many at a time as the pace then says; see `learn_of`."""
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
    """Of tables that are truncated and have more rows than a step should take: all of them, taken
    away as many at a time as the pace says. (position among the tables, delta), which is to be
    stepped, and the pace told, before the next; to be read to the end."""
    names = truncated(changes)
    for position, (name, state) in enumerate(tables if names else ()):
        if name in names and not batch_sizer.takes_whole(name, state.row_count()):
            for rows in batch_sizer.shares(name, state.emptied()):
                yield position, rows


def _end(change: Changes, start: int, room: int) -> int:
    """Where to cut after about `room` rows: never between the sides of an update."""
    stop = min(start + room, len(change))
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
