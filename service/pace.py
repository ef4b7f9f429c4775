"""How many rows are stepped at a time, so that what one step makes stays within bounds.

A join may make a thousand rows of one, a window a whole partition: how many cannot be known
beforehand, but the next rows are mostly like the last ones. Invariant: cutting keeps the order of
each relation's changes and never parts the two sides of an update, so every prefix is a legal
state and only the number of steps depends on the pace.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dataflow.changes import Changes

FIRST_ROWS = 1_024
LEAST_ROWS, MOST_ROWS = 16, 1 << 20
_GROWTH = 4


class Pace:
    """Learns from what each step has made. most_made: rows that one step should make at most."""

    def __init__(self, most_made: int) -> None:
        self._most_made = most_made
        self.rows = FIRST_ROWS

    def slices(self, changes: Sequence[Changes]) -> Iterator[list[Changes]]:
        """The changes in order, as many at a time as the pace then says."""
        whole = sum(map(len, changes))
        if whole <= self.rows:
            yield list(changes)
            return
        waiting: list[Changes] = []
        room = self.rows
        for change in changes:
            start = 0
            while start < len(change):
                stop = _cut(change, start, room)
                waiting.append(_slice(change, start, stop))
                room -= stop - start
                start = stop
                if room <= 0:
                    yield waiting
                    waiting, room = [], self.rows
        if waiting:
            yield waiting

    def learn(self, taken: int, made: int) -> None:
        """A step of `taken` rows has made `made` rows, those between operators included."""
        if made > self._most_made:
            self.rows = max(LEAST_ROWS, taken * self._most_made // made)
        elif taken >= self.rows // 2 and made * _GROWTH <= self._most_made:
            self.rows = min(self.rows * _GROWTH, MOST_ROWS)


def _cut(change: Changes, start: int, room: int) -> int:
    """Where to cut after about `room` rows: never between the sides of an update."""
    stop = min(start + room, len(change))
    is_parting = stop < len(change) and change.kinds[stop] == Changes.NEW
    return stop + (is_parting and change.kinds[stop - 1] in (Changes.OLD, Changes.OLD_KEY))


def _slice(change: Changes, start: int, stop: int) -> Changes:
    if start == 0 and stop == len(change):
        return change
    unchanged = {c: mask[start:stop] for c, mask in change.unchanged.items()}
    columns = tuple(c.slice(start, stop) for c in change.columns)
    return Changes(change.relation, change.kinds[start:stop], columns, unchanged)
