"""Which runs are merged, when, and how much of a merge an epoch does.

Writes pay for merges that bound the number of runs. Page reads pay for merges that would have saved
them, once the reads have cost as much as the merge (the ski rental rule). Invariant: a merge is
done in steps of a few pages, and an epoch does no more of them than `MergeMeter` allows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from tidemark_native.storage import page_bound

EVERYTHING = np.zeros(5, np.uint64)
# So many keys searched in the pages of a run that are in memory, or rows found there or in another
# run, which are compared with it, take as long as one row in a merge.
KEYS_A_ROW = 6
# What nothing has paid for is merged up to so many rows: a large state is not read from disk.
IDLE_ROWS = 1 << 22
_NO_PAGE = (1 << 64, 0)


class MergeMeter:
    """The rows that merges may handle in the open epoch, over all arrangements of a store.

    The allowance is epoch_rows, plus fuel for each applied row, plus one for two rows of pages that
    had to be read. merged_rows counts all rows so far. worst_excess_rows is the most by which an
    epoch exceeded its allowance; the last step of a merge may, by its own length.
    """

    def __init__(self, epoch_rows: int, fuel: int) -> None:
        self.merged_rows = 0
        self.worst_epoch_rows = 0
        self.worst_excess_rows = 0
        self._epoch_rows = epoch_rows
        self._fuel = fuel
        self._allowed = epoch_rows
        self._done = 0
        # Rows that were applied in the open epoch.
        self.applied_rows = 0

    def take_in(self, rows: int) -> None:
        """Count rows that were applied in the open epoch."""
        self._allowed += self._fuel * rows
        self.applied_rows += rows

    def read(self, rows: int) -> None:
        """Count rows of pages that had to be read in the open epoch."""
        self._allowed += rows // 2

    def is_open(self) -> bool:
        """Return True if the epoch may do another step."""
        return self._done < self._allowed

    def count(self, rows: int) -> None:
        """Count rows that a step handled."""
        self._done += rows
        self.merged_rows += rows

    def end_epoch(self) -> None:
        """Reset at the commit of the epoch; its unused allowance is lost."""
        self.worst_epoch_rows = max(self.worst_epoch_rows, self._done)
        self.worst_excess_rows = max(self.worst_excess_rows, self._done - self._allowed)
        self._allowed = self._epoch_rows
        self._done = 0
        self.applied_rows = 0


def choose_merge(sizes: Sequence[int], fan: int) -> tuple[int, int] | None:
    """Return which neighbours to merge: the first `fan` or more of like size, small sizes first.

    A run is rewritten only if that at least doubles it, unless there are many runs.

    >>> choose_merge([4000, 70, 60, 80, 90], 4)
    (1, 5)
    >>> choose_merge([4000, 700, 60, 80], 4) is None
    True
    """
    if len(sizes) < fan:
        return None
    least_growth = 2 if len(sizes) <= 4 * fan else 0
    base = (fan - 1).bit_length()
    classes = [size.bit_length() // base for size in sizes]
    for most in sorted(set(classes)):
        start = 0
        for at in range(len(classes) + 1):
            if at < len(classes) and classes[at] <= most:
                continue
            some = sizes[start:at]
            if len(some) >= fan and sum(some) >= least_growth * max(some):
                return start, at
            start = at + 1
    return None


def choose_tail(sizes: Sequence[int], fan: int) -> int | None:
    """Return where the tail of runs begins that `choose_merge` would merge, after a new last run.

    A new run can only complete neighbours that end with it, so one look backwards is enough.

    >>> choose_tail([4000, 70, 60, 80, 90], 4)
    1
    >>> choose_tail([4000, 700, 60, 80], 4) is None
    True
    """
    count = len(sizes)
    if count < fan:
        return None
    least_growth = 2 if count <= 4 * fan else 0
    base = (fan - 1).bit_length()
    total = largest = 0
    most = sizes[-1].bit_length() // base
    for at in range(count - 1, -1, -1):
        size = sizes[at]
        if size.bit_length() // base > most:
            if count - 1 - at >= fan and total >= least_growth * largest:
                return at + 1
            most = size.bit_length() // base
        total += size
        largest = max(largest, size)
    return 0 if total >= least_growth * largest else None


def choose_by_reads(sizes: Sequence[int], reads: Sequence[int]) -> tuple[int, int] | None:
    """Return the longest tail of runs whose merge costs no more rows than searches read for it.

    sizes, reads: rows of each run, oldest first, and what searches in it took, in rows of a merge:
    those of its pages that had to be read, and a share of each key and of each row found.
    Merging a tail would have saved the reads of all but its largest run.

    >>> choose_by_reads([4000, 300, 100], [9000, 2000, 2500])
    (0, 3)
    >>> choose_by_reads([4000, 300, 100], [9000, 200, 450])
    (1, 3)
    >>> choose_by_reads([4000, 300, 100], [9000, 90, 90]) is None
    True
    """
    for start in range(len(sizes) - 1):
        tail = sizes[start:]
        largest = start + tail.index(max(tail))
        if sum(reads[start:]) - reads[largest] >= sum(tail):
            return start, len(sizes)
    return None


def choose_when_idle(sizes: Sequence[int], most: int = IDLE_ROWS) -> int | None:
    """Return where the longest tail of runs, of at most so many rows, begins whose merge makes its
    largest run half larger.

    So each row is written again a few times at most, however often nothing comes.

    >>> choose_when_idle([4000, 700, 60, 80])
    2
    >>> choose_when_idle([4000, 1500, 600]), choose_when_idle([4000, 1500, 800], 5000)
    (0, 1)
    >>> choose_when_idle([4000, 700, 140]) is None
    True
    """
    for start in range(len(sizes) - 1):
        tail = sizes[start:]
        total = sum(tail)
        if total <= most and 2 * total >= 3 * max(tail):
            return start
    return None


def windows(tracks: Sequence[tuple[np.ndarray, np.ndarray]], step: int) -> Iterator[np.ndarray]:
    """Yield windows of row identities, in order and without gaps, of at most `step` pages of some
    run.

    tracks: for each run (key hash, row hash) of the first row of each page, uint64[pages]. A window
    is uint64[5]: lower pair, upper pair (excluded), 1 if there is an upper bound.
    """
    window = EVERYTHING.copy()
    positions = [0] * len(tracks)
    while tracks:
        ends = [
            _page_start(track, position + step)
            for track, position in zip(tracks, positions, strict=True)
        ]
        end = min(ends)
        if end == _NO_PAGE:
            break
        window[2:] = *end, 1
        if end != (int(window[0]), int(window[1])):
            yield window
        window = window.copy()
        window[:2] = end
        for at, (first, first_row) in enumerate(tracks):
            bound = int(page_bound(first, first_row, window[0], window[1]))
            positions[at] = max(bound, positions[at] + (ends[at] == end))
    window[2:] = 0
    yield window


def _page_start(track: tuple[np.ndarray, np.ndarray], page: int) -> tuple[int, int]:
    first, first_row = track
    return (int(first[page]), int(first_row[page])) if page < len(first) else _NO_PAGE
