"""The clock as a source: a relation of one row, (id, at), whose `at` advances.

A view that reads `at` in place of now() equals its query run in PostgreSQL with now() at the row's
value, epoch by epoch. The position of the relation is the value itself, so it is committed with the
epoch, and a restart continues from it. Invariants: `at` never goes backwards, whatever happens to
the machine's clock; read up to a position, it stops at exactly that position.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from connectors.feed_source import DeclaredRelation, FeedPositions, FeedStart
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import KIND_BYTES, KIND_INT, Column, Delta
from dataflow.errors import SourceError
from dataflow.schema import Relation
from dataflow.types import EPOCH_2000_US
from storage import clock

RELATION = "now"
COLUMNS = (("id", "integer"), ("at", "timestamp with time zone"))
RESOLUTION = "resolution_s"
DEFAULT_RESOLUTION_S = 1.0
LEAST_RESOLUTION_S = 0.1
MAX_RESOLUTION_S = 86_400.0
# The longest that a feed sleeps at a time.
LONGEST_S = 60.0
_US = "us"
_ONLY_ROW = 1


class Machine:
    """What a clock needs of its machine; a simulation has another one."""

    def now_us(self) -> int:
        """Return the wall clock in microseconds since 1970; it may be set back at any moment."""
        return clock.wall_ns() // 1000

    def condition(self) -> Any:
        """Return a new condition, as threading.Condition."""
        return threading.Condition()

    def start(self, run: Callable[[], None], name: str) -> None:
        """Start a thread that does not keep the process alive."""
        threading.Thread(target=run, name=name, daemon=True).start()


MACHINE = Machine()


def declare(options: Mapping[str, Any]) -> Sequence[DeclaredRelation]:
    """Return the one relation. SourceError source.bad_option."""
    _resolution_of(options)
    return [DeclaredRelation(RELATION, COLUMNS, key=("id",))]


def make(name: str, options: Mapping[str, Any], relations: Sequence[Relation]) -> ClockSource:
    """Return the source, with its declared relation."""
    return ClockSource(name, _resolution_of(options), relations)


def discover(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options: there is nothing to find out."""
    _resolution_of(options)
    return options


def timestamp_of(positions: FeedPositions) -> int | None:
    """Return a clock's value in microseconds since 1970; None if no view reads it."""
    position = positions.get(RELATION)
    return None if position is None else int(position[_US])


class ClockSource:
    """A FeedSource of one row. resolution_s: the least time between two values.

    Any value between two positions may be left out when it is read again: a view depends on the
    newest value alone.
    """

    is_replayable = True
    reaches_nothing = True

    def __init__(
        self,
        name: str,
        resolution_s: float,
        relations: Sequence[Relation],
        machine: Machine = MACHINE,
    ) -> None:
        self.name = name
        self.machine = machine
        self.resolution_us = round(resolution_s * 1e6)
        self._relations = list(relations)

    def relations(self) -> Sequence[Relation]:
        """Return the declared relation."""
        return self._relations

    def check(self) -> None:
        """Do nothing: a clock can always be reached."""

    def start_position(self, relation: Relation) -> FeedStart:
        """Return the present moment, cut to the resolution."""
        return FeedStart({_US: _cut(self.machine, self.resolution_us)})

    def open_snapshot(
        self, relations: Sequence[Relation], positions: FeedPositions, notes: Mapping[str, bytes]
    ) -> ClockSnapshot:
        """Return the row as of its position."""
        return ClockSnapshot(positions)

    def open_feed(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
    ) -> ClockFeed:
        """Return the values after the position."""
        return ClockFeed(self, positions, on_ready)

    def decode_again(self, relation: Relation, rows: Delta) -> SourceBatch:
        """Never called: a clock has no rejected rows."""
        raise SourceError("source.bad_record", f'source "{self.name}" rejects no rows')


@dataclass(frozen=True)
class ClockPart:
    """The one row of a snapshot."""

    name: str
    columns: tuple[int, ...]
    us: int

    def read(self) -> Iterator[Delta]:
        """Yield the row, with the requested columns."""
        row = (_ONLY_ROW, self.us - EPOCH_2000_US)
        yield Delta.of(KIND_INT * len(self.columns), [tuple(row[c] for c in self.columns)])

    def rejected(self) -> Delta:
        """Return no rows."""
        return Delta.of(KIND_BYTES * 7, [])


class ClockSnapshot:
    """The row as of a position."""

    def __init__(self, positions: FeedPositions) -> None:
        self._us = int(positions[RELATION][_US])

    def parts(
        self,
        relation: Relation,
        columns: Sequence[int],
        count: int,
        known: Sequence[str] = (),
    ) -> Sequence[ClockPart]:
        """Return the one part there is."""
        return [ClockPart(f"at {self._us}", tuple(columns), self._us)]

    def close(self) -> None:
        """Nothing is held."""


class ClockFeed:
    """Values after a position, each at least the resolution after the one before.

    `wait_until` skips the values that change nothing. A thread of its own calls `on_ready` when a
    value may be due; `poll` alone decides whether there is one.
    """

    skipped = 0
    lag = 0
    has_succeeded = True

    def __init__(
        self, source: ClockSource, positions: FeedPositions, on_ready: Callable[[], None]
    ) -> None:
        self._name = source.name
        [self._relation] = source.relations()
        self._us = int(positions[RELATION][_US])
        self._resolution_us = source.resolution_us
        self._on_ready = on_ready
        self._machine = source.machine
        self._moved = self._machine.condition()
        self._is_ended = False
        # No value before this, and whether there is one at all then.
        self._wait_us = self._us
        self._is_due = True
        self._machine.start(self._remind, f"clock {self._name}")

    def candidates(self, count: int) -> np.ndarray:
        """Return the present value and the next ones that may come, int64 microseconds since 2000.

        A value whose time has passed cannot come any more, except the newest of these.
        """
        first = self._earliest_us()
        later = first + self._resolution_us * np.arange(count - 1, dtype=np.int64)
        return np.concatenate([np.array([self._us], np.int64), later]) - EPOCH_2000_US

    def may_come_before(self, at: int) -> bool:
        """Return whether a value before `at`, in microseconds since 2000, may come next.

        Of a candidate, the earliest later one: the machine's clock was set back since.
        """
        return self._earliest_us() - EPOCH_2000_US < at

    def _earliest_us(self) -> int:
        return max(self._us + self._resolution_us, _cut(self._machine, self._resolution_us))

    def wait_until(self, at: int, *, is_due: bool) -> None:
        """Pass over all values before `at`, in microseconds since 2000.

        is_due: a value comes then. Otherwise none does before the next call.
        """
        with self._moved:
            self._wait_us, self._is_due = at + EPOCH_2000_US, is_due
            self._moved.notify_all()

    @property
    def has_waited(self) -> bool:
        """Return whether the time has come that `wait_until` was given."""
        return _cut(self._machine, self._resolution_us) >= self._wait_us

    def poll(self, max_rows: int, *, until: FeedPositions | None = None) -> SourceBatch | None:
        """Return the present value where it is due; with `until`, exactly that position."""
        if until is None:
            to_us = _cut(self._machine, self._resolution_us)
            if to_us <= self._us or not (self._is_due and self.has_waited):
                return None
        else:
            to_us = timestamp_of(until) or self._us
        if to_us <= self._us:
            return None
        self._us = to_us
        columns = (
            Column(np.array([_ONLY_ROW], np.int64)),
            Column(np.array([to_us - EPOCH_2000_US], np.int64)),
        )
        kinds = np.array([Changes.UPSERT], np.uint8)
        return SourceBatch(
            0,
            [Changes(self._relation, kinds, columns)],
            1,
            1,
            commit_time_us=to_us,
            source=self._name,
            positions={RELATION: {_US: to_us}},
        )

    def close(self) -> None:
        """End the thread."""
        with self._moved:
            self._is_ended = True
            self._moved.notify_all()

    def _remind(self) -> None:
        while True:
            with self._moved:
                # Somebody may set the machine's clock meanwhile.
                rest_s = (self._wait_us - self._machine.now_us()) / 1e6
                self._moved.wait(min(max(rest_s, self._resolution_us / 1e6), LONGEST_S))
                if self._is_ended:
                    return
                is_time = self._machine.now_us() >= self._wait_us
            if is_time:
                self._on_ready()


def _cut(machine: Machine, resolution_us: int) -> int:
    """Return the present moment, down to a multiple of the resolution."""
    now_us = machine.now_us()
    return now_us - now_us % resolution_us


def _resolution_of(options: Mapping[str, Any]) -> float:
    unknown = sorted(options.keys() - {RESOLUTION})
    if unknown:
        raise SourceError(
            "source.bad_option",
            f'a clock has no option "{unknown[0]}"',
            hint=f'its only option is "{RESOLUTION}"',
            option=unknown[0],
        )
    found = options.get(RESOLUTION, DEFAULT_RESOLUTION_S)
    is_number = isinstance(found, int | float) and not isinstance(found, bool)
    if not is_number or not LEAST_RESOLUTION_S <= found <= MAX_RESOLUTION_S:
        raise SourceError(
            "source.bad_option",
            f'option "{RESOLUTION}" is {found!r}',
            hint=f"give seconds between {LEAST_RESOLUTION_S:g} and {MAX_RESOLUTION_S:g}",
            option=RESOLUTION,
        )
    return float(found)
