"""Which keys of joins are so frequent that they are spread over the buckets.

Tasks count the rows that joins are given, by key; a driver adds up the counts of the last epochs.
Rule: a key is spread once its rows of one input are as many as the rows that a bucket has on
average, if copying its other rows to all buckets costs less than these rows do. Its bucket then had
about twice the work of the others, or more. Invariant: a key that is spread stays so. Only at the
limit of keys is one gathered, if it has become rare by a factor; so no key goes back and forth.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from connectors.spark.maintained.bases import Rows, rows_of
from connectors.spark.maintained.layout import Layout, Spread, spread_of
from connectors.spark.stages import Spec, Stage, key_columns
from dataflow.delta import Delta
from dataflow.operators.groups import columns_at, split_nulls
from dataflow.operators.joins.spreading import side_of_state
from storage.delta import hash_columns
from storage.store import Store

# No key is spread before a join was given so many rows, since an epoch of its own rewrites state.
HEAVY_ROWS = 100_000
# So many keys of a stage are spread at most.
MAX_KEYS = 64
# The counts of a stage are halved when they exceed so many times HEAVY_ROWS: older rows count less.
_WINDOW = 8
# A key that was spread is rare with fewer rows than this part of a bucket's average.
_RARE = 8
# A task reports the keys that have this part of its rows, and at least so many rows.
_REPORTED_PART, _REPORTED_ROWS = 32, 4
# The driver knows so many keys of a stage at most.
_KNOWN = 1024


@dataclass(frozen=True)
class KeyReport:
    """How many rows the inputs of a join have been given, and those of frequent keys, by hash."""

    stage: int
    rows: tuple[int, int]
    keys: Mapping[int, tuple[int, int]]

    def facts(self) -> list:
        """Return it as JSON."""
        return [self.stage, self.rows, [[hash, *rows] for hash, rows in self.keys.items()]]

    @classmethod
    def from_facts(cls, facts: Sequence) -> KeyReport:
        """Return what `facts` gave."""
        stage, (left, right), keys = facts
        return cls(stage, (left, right), {hash: (a, b) for hash, a, b in keys})


class _Counts:
    """The rows of some hashes: all of them, or about the `most` most frequent ones.

    Counts are too small by the rows / most at most (Misra and Gries, 1982; merged as by Agarwal and
    others, 2012).
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self.rows = 0
        self.hashes = np.zeros(0, np.uint64)
        self.counts = np.zeros(0, np.int64)

    def add(self, hashes: np.ndarray, rows: int) -> None:
        """Count rows, of which those with keys have these uint64 hashes."""
        self.rows += rows
        found, counts = np.unique(hashes, return_counts=True)
        if len(self.hashes):
            every = np.concatenate([self.hashes, found])
            found, group = np.unique(every, return_inverse=True)
            total = np.zeros(len(found), np.int64)
            np.add.at(total, group, np.concatenate([self.counts, counts]))
            counts = total
        if self._most is not None and len(found) > self._most:
            at = len(found) - self._most - 1
            counts = counts - np.partition(counts, at)[at]
            found, counts = found[counts > 0], counts[counts > 0]
        self.hashes, self.counts = found, counts

    def frequent(self) -> np.ndarray:
        """Return the hashes to report."""
        least = max(_REPORTED_ROWS, self.rows // _REPORTED_PART)
        return self.hashes[self.counts >= least]

    def of(self, hashes: np.ndarray) -> np.ndarray:
        """Return int64[n]: the counts of these hashes."""
        if not len(self.hashes):
            return np.zeros(len(hashes), np.int64)
        at = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        return np.where(self.hashes[at] == hashes, self.counts[at], 0)


def _report(stage: Stage, sides: Sequence[_Counts]) -> KeyReport:
    """Return the counts of both inputs; those of spread keys in any case."""
    spread = np.zeros(0, np.uint64) if stage.routing is None else stage.routing.hashes
    reported = np.unique(np.concatenate([spread, *(counts.frequent() for counts in sides)]))
    left, right = (counts.of(reported).tolist() for counts in sides)
    found = zip(reported.tolist(), left, right, strict=True)
    keys = {hash: (a, b) for hash, a, b in found if a or b}
    return KeyReport(stage.number, (sides[0].rows, sides[1].rows), keys)


def count_rows(
    layout: Layout, stage: Stage, bucket: int, slices: Sequence[Mapping[int, Delta]]
) -> KeyReport | None:
    """Return how many rows of which keys a bucket of a join is given; None of another stage.

    slices: its rows by input. Of copies, those in the bucket of their key count.
    """
    if not layout.spread_sides(stage) or stage.routing is None or stage.buckets < 2:
        return None
    sides = (_Counts(), _Counts())
    exchange = layout.nodes[stage.nodes[0]].exchange
    for side, counts in enumerate(sides):
        found, n = [np.zeros(0, np.uint64)], 0
        for delta in (inputs[side] for inputs in slices if side in inputs):
            rows, _ = split_nulls(delta, exchange[side] or ())
            hashes = hash_columns(columns_at(rows, exchange[side] or ()), len(rows))
            once = stage.routing.counted_once(hashes, side, stage.buckets, bucket)
            found.append(hashes[once])
            n += len(delta) - len(once) + int(np.count_nonzero(once))
        if n:
            counts.add(np.concatenate(found), n)
    return _report(stage, sides)


class StateCounts:
    """How many rows of which keys the joins of a view have stored, of the rows that pass by."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._sides: dict[int, tuple[_Counts, _Counts]] = {}

    def counted(self, number: int, state: tuple[Spec, int], rows: Iterable[Rows]) -> Iterator[Rows]:
        """Yield rows of a stage's state, and count them if its keys can be spread.

        state: with how many columns of its key decide the bucket.
        """
        stage, (spec, width) = self._layout.cut.stages[number], state
        if not self._layout.spread_sides(stage) or stage.buckets < 2:
            yield from rows
            return
        sides = self._sides.setdefault(number, (_Counts(_KNOWN), _Counts(_KNOWN)))
        key = key_columns(spec)[:width]
        for columns, values in rows:
            n = values.shape[1]
            hashes = hash_columns([columns[c] for c in key], n)
            sides[side_of_state(spec.name)].add(hashes, n)
            yield columns, values

    def reports(self) -> Iterator[KeyReport]:
        """Yield what was counted."""
        for number, sides in self._sides.items():
            yield _report(self._layout.cut.stages[number], sides)


def count_state(store: Store, layout: Layout) -> Iterator[KeyReport]:
    """Yield how many rows of which keys the joins of a view have stored, if one store has all."""
    counts = StateCounts(layout)
    for level in layout.levels:
        for stage in level:
            if not layout.spread_sides(stage):
                continue
            for spec, width in layout.specs[stage.number]:
                for _ in counts.counted(stage.number, (spec, width), rows_of(store, spec)):
                    pass
    yield from counts.reports()


class KeyCounts:
    """The rows that the joins of a view were given lately, and which of their keys to spread.

    least_rows: see HEAVY_ROWS. Only in memory: another driver begins to count again.
    """

    def __init__(self, least_rows: int = HEAVY_ROWS) -> None:
        self._least = least_rows
        self._stages: dict[int, _StageCounts] = {}

    def add(self, reports: Iterable[KeyReport]) -> None:
        """Add what the tasks of an epoch have counted."""
        for report in reports:
            counts = self._stages.setdefault(report.stage, _StageCounts())
            counts.add(report)
        for counts in self._stages.values():
            counts.forget(_WINDOW * self._least)

    def spread(self, layout: Layout) -> Spread:
        """Return the keys to spread from now on; those of the layout if nothing is to change."""
        found = list(layout.spread)
        for number, counts in self._stages.items():
            stage = layout.cut.stages[number]
            if layout.buckets < 2 or sum(counts.rows) < max(self._least, 1):
                continue
            average = sum(counts.rows) / layout.buckets
            known = {hash: side for at, side, hash in layout.spread if at == number}
            heavy = counts.heavy(layout.spread_sides(stage), average, layout.buckets)
            new = {hash: side for hash, side in heavy.items() if hash not in known}
            gone = counts.rarest(known, average / _RARE, len(known) + len(new) - MAX_KEYS)
            for hash in gone:
                del known[hash]
            free = max(0, MAX_KEYS - len(known))
            kept = {**known, **dict(list(new.items())[:free])}
            found = [key for key in found if key[0] != number]
            found += [(number, side, hash) for hash, side in kept.items()]
        return spread_of(found)


class _StageCounts:
    """The counts of one stage. rows: of both inputs. keys: by hash, those of both inputs."""

    def __init__(self) -> None:
        self.rows = [0, 0]
        self.keys: dict[int, list[int]] = {}

    def add(self, report: KeyReport) -> None:
        for side in (0, 1):
            self.rows[side] += report.rows[side]
        for hash, rows in report.keys.items():
            known = self.keys.setdefault(hash, [0, 0])
            for side in (0, 1):
                known[side] += rows[side]

    def forget(self, most_rows: int) -> None:
        """Let older rows count less, and rare keys nothing."""
        while sum(self.rows) > max(most_rows, 1):
            self.rows = [rows // 2 for rows in self.rows]
            halved = {hash: [rows // 2 for rows in known] for hash, known in self.keys.items()}
            self.keys = {hash: known for hash, known in halved.items() if any(known)}
        if len(self.keys) > 2 * _KNOWN:
            largest = sorted(self.keys.items(), key=lambda item: -sum(item[1]))
            self.keys = dict(largest[:_KNOWN])

    def heavy(self, sides: Sequence[int], average: float, buckets: int) -> dict[int, int]:
        """Return the input to spread of each heavy key, the key with most rows first."""
        found = {}
        for hash, rows in sorted(self.keys.items(), key=lambda item: (-max(item[1]), item[0])):
            for side in sorted(sides, key=lambda side: -rows[side]):
                if rows[side] >= average and rows[1 - side] * buckets <= rows[side]:
                    found[hash] = side
                    break
        return found

    def rarest(self, known: Mapping[int, int], most_rows: float, count: int) -> list[int]:
        """Return up to so many spread keys with the fewest rows, fewer than `most_rows`."""
        rows = {hash: self.keys.get(hash, [0, 0])[side] for hash, side in known.items()}
        rare = sorted((n, hash) for hash, n in rows.items() if n < most_rows)
        return [hash for _, hash in rare[: max(count, 0)]]
