"""What one view may do in an epoch before the epoch continues without it.

All live views of a group are stepped in one epoch, so the work of one holds up the others. A meter
measures the time of each view's operators and counts the rows that each of them makes. Beyond the
budget the operator's step is abandoned with `OverBudgetError`, and every view that has it leaves
the dataflow. Invariant: whether a view is over its budget depends on its own work and on the size
of the epoch alone. One thread uses a meter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.errors import OverBudgetError
from storage.store import Arrangement, ArrangementSpec, Sums, SumsSpec

Clock = Callable[[], float]
# An epoch of more changed rows has as many budgets as it has times this number.
BUDGET_CHANGES = 500


@dataclass(frozen=True)
class WorkBudget:
    """What one view may do in an epoch of up to BUDGET_CHANGES changed rows.

    seconds: of the meter's clock, for all its operators. rows: made by any one of them.
    """

    seconds: float = math.inf
    rows: float = math.inf


class WorkMeter:
    """Measures the views' work in the open epoch; between epochs nothing is limited.

    clock: seconds of work, which leave out what a view is not to blame for. waiting: what is work
    although this thread only waits for it. Views are named by any key.
    """

    def __init__(
        self,
        budget: WorkBudget | None = None,
        clock: Clock = lambda: 0.0,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.waiting = waiting
        self._budget = budget or WorkBudget()
        self._clock = clock
        self._is_open = False
        self._announced = self._changes = 0
        self._spent: dict[object, float] = {}
        self._made: dict[str, int] = {}
        # Of the operator that is stepped.
        self._running = ""
        self._started = 0.0
        self._until = math.inf

    @contextmanager
    def epoch(self, changes: int = 0) -> Iterator[None]:
        """Limit the work within: that of one epoch. changes: as far as is known beforehand."""
        self._announced, self._changes, self._spent, self._made = changes, 0, {}, {}
        self._is_open = True
        try:
            yield
        finally:
            self._is_open = False

    def announce(self, changes: int) -> None:
        """Note changed rows that the epoch will have beyond those announced."""
        self._announced += changes

    def take(self, changes: int) -> None:
        """Note changed rows that are stepped."""
        self._changes += changes

    @contextmanager
    def step(self, views: Collection[object], operator: str) -> Iterator[None]:
        """Measure a step of an operator for the views that have it; none: for nobody's account.

        operator: the prefix of its state. Steps do not overlap.
        OverBudgetError once it is beyond the budget of all of these views.
        """
        if not (views and self._is_open):
            yield
            return
        assert self._until == math.inf, "a step within a step"
        spent = self._spent
        self._running, self._started = operator, self._clock()
        least = min(spent.get(view, 0.0) for view in views)
        self._until = self._started + self._budget.seconds * self._scale - least
        try:
            self.check()
            yield
            self.check()
        finally:
            self._until = math.inf
            used = self._clock() - self._started
            for view in views:
                spent[view] = spent.get(view, 0.0) + used

    @property
    def _size(self) -> int:
        return max(self._announced, self._changes)

    @property
    def _scale(self) -> float:
        return max(1.0, self._size / BUDGET_CHANGES)

    def check(self, rows: int = 0) -> None:
        """Raise OverBudgetError if the operator that is stepped is beyond its budget. rows: so many
        has it found so far in this step."""
        if self._until == math.inf:
            return
        if self._clock() > self._until:
            raise self.exceeded()
        if rows > self._budget.rows * self._scale:
            raise self._too_many(rows)

    def made(self, rows: int) -> None:
        """Note rows that the operator has made; OverBudgetError."""
        if self._until == math.inf:
            return
        total = self._made[self._running] = self._made.get(self._running, 0) + rows
        if total > self._budget.rows * self._scale:
            raise self._too_many(total)

    def parts(
        self, parts: Iterator[Delta], step: Callable[[], AbstractContextManager[None]]
    ) -> Iterator[Delta]:
        """Yield an operator's output in parts, each made within `step`."""
        while True:
            with step():
                part = next(parts, None)
                self.made(0 if part is None else len(part))
            if part is None:
                return
            yield part

    def seconds_left(self) -> float:
        """Return how long the operator that is stepped may still take; infinity if unlimited."""
        return self._until if self._until == math.inf else self._until - self._clock()

    def exceeded(self) -> OverBudgetError:
        """Return the error of an operator that has taken too long."""
        seconds = self._budget.seconds * self._scale
        return self._over(f"more than {seconds:.1f} s of work")

    def _too_many(self, rows: int) -> OverBudgetError:
        most = round(self._budget.rows * self._scale)
        return self._over(f"{rows} rows made, and at most {most} may be")

    def _over(self, what: str) -> OverBudgetError:
        title = self._running.rstrip("/").rpartition("/")[2]
        return OverBudgetError(
            "view.over_budget",
            f'operator "{title}" does more work in one epoch than one view may',
            detail=f"{what}, for {self._size} changed rows",
            hint="nothing to do: the view shows its last rows while it is rebuilt beside the "
            "others. If this comes again and again, change the query, give the view a group of "
            "its own, or raise TIDEMARK_VIEW_BUDGET_S or TIDEMARK_VIEW_BUDGET_ROWS",
        )


UNLIMITED = WorkMeter()


class CheckedArrangement:
    """An arrangement of which each use checks its operator's budget."""

    def __init__(self, inner: Arrangement, meter: WorkMeter) -> None:
        self.spec: ArrangementSpec = inner.spec
        self._inner = inner
        self._meter = meter

    def apply(self, delta: Delta) -> None:
        """See Arrangement."""
        self._meter.check()
        self._inner.apply(delta)

    def lookup(self, keys: Sequence[Column]) -> tuple[np.ndarray, Delta]:
        """See Arrangement."""
        self._meter.check()
        return self._inner.lookup(keys)

    def lookup_parts(
        self, keys: Sequence[Column], max_rows: int
    ) -> Iterator[tuple[np.ndarray, Delta]]:
        """See Arrangement."""
        for part in self._inner.lookup_parts(keys, max_rows):
            self._meter.check()
            yield part

    def scan(self) -> Iterator[Delta]:
        """See Arrangement."""
        for rows in self._inner.scan():
            self._meter.check()
            yield rows

    def scan_from(self, start: int) -> Iterator[tuple[int, Delta]]:
        """See Arrangement."""
        for part in self._inner.scan_from(start):
            self._meter.check()
            yield part

    def clear(self) -> None:
        """See Arrangement."""
        self._inner.clear()

    def row_count(self) -> int:
        """See Arrangement."""
        return self._inner.row_count()


class CheckedSums:
    """Sums of which each use checks their operator's budget."""

    def __init__(self, inner: Sums, meter: WorkMeter) -> None:
        self.spec: SumsSpec = inner.spec
        self._inner = inner
        self._meter = meter

    def add(self, keys: Sequence[Column], sums: np.ndarray) -> None:
        """See Sums."""
        self._meter.check()
        self._inner.add(keys, sums)

    def lookup(self, keys: Sequence[Column]) -> np.ndarray:
        """See Sums."""
        self._meter.check()
        return self._inner.lookup(keys)

    def scan(self) -> Iterator[tuple[tuple[Column, ...], np.ndarray]]:
        """See Sums."""
        for part in self._inner.scan():
            self._meter.check()
            yield part

    def clear(self) -> None:
        """See Sums."""
        self._inner.clear()

    def key_count(self) -> int:
        """See Sums."""
        return self._inner.key_count()
