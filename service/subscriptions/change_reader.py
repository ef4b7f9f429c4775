"""One log of changes as an API process reads it: places in it by epoch, and the lines from there.

Invariant: nothing is read beyond what the index has, so only whole epochs are seen; files that are
given back meanwhile are not missed, as a reader that stands in them is told so.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path

from service.subscriptions.change_log import (
    ENDED,
    RECORD,
    LogHead,
    index_path,
    read_head,
    rows_path,
    segment_floors,
)

# What is read at a time; a longer line is read whole.
READ_BYTES = 128 << 10


@dataclass(frozen=True)
class Place:
    """Where a reader stands: a segment by the epoch after which it begins, and an offset."""

    floor: int
    offset: int


@dataclass
class _Segment:
    """What is known of a segment. epochs, ends: of its records."""

    floor: int
    rows: int
    index: int
    epochs: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Up to where its lines are whole epochs."""
        return self.ends[-1] if self.ends else 0

    def refresh(self) -> bool:
        """Read the records that are new; whether there are any."""
        raw = os.pread(self.index, 1 << 20, len(self.ends) * RECORD.size)
        whole = raw[: len(raw) - len(raw) % RECORD.size]
        for epoch, end, *_ in RECORD.iter_unpack(whole):
            self.epochs.append(epoch)
            self.ends.append(end)
        return bool(whole)

    def close(self) -> None:
        """Give back the files."""
        os.close(self.rows)
        os.close(self.index)


class ChangeReader:
    """Of one log in one folder; used by one thread.

    head: as it was found; is_over: nothing will come any more.
    """

    def __init__(self, folder: Path, head: LogHead) -> None:
        self.folder = folder
        self.head = head
        self.is_over = False
        self._segments: list[_Segment] = []

    @property
    def floor(self) -> int:
        """The epoch after which everything is here."""
        return self._segments[0].floor if self._segments else self.head.floor

    @property
    def newest(self) -> int:
        """The newest epoch that is here."""
        for segment in reversed(self._segments):
            if segment.epochs:
                return segment.epochs[-1]
        return self.floor

    def refresh(self) -> bool:
        """Look for what is new; whether there is anything to be told."""
        if self.is_over:
            return False
        is_replaced = read_head(self.folder) != self.head
        # Looked at first: what was written before the end must not be missed.
        self.is_over = is_replaced or (self.folder / ENDED).exists()
        floors = [] if is_replaced else segment_floors(self.folder)
        is_new = self.is_over
        for segment in self._segments[-1:]:
            is_new |= _all_of(segment)
        known = {segment.floor for segment in self._segments}
        for floor in floors:
            if floor not in known:
                is_new |= self._open(floor)
        while self._segments and self._segments[0].floor not in floors and not self.is_over:
            self._segments.pop(0).close()
        return is_new

    def place_after(self, epoch: int) -> Place | None:
        """Where the epochs after this one begin; None when some of them are not here."""
        found = None
        for segment in self._segments:
            if segment.floor <= epoch:
                found = segment
        if found is None:
            return None
        count = bisect_right(found.epochs, epoch)
        return Place(found.floor, found.ends[count - 1] if count else 0)

    def lines(self, place: Place) -> tuple[list[bytes], Place] | None:
        """Whole lines from a place on, and the place behind them; [] when there is nothing yet.

        None: the place is not here any more.
        """
        for number, segment in enumerate(self._segments):
            if segment.floor != place.floor:
                continue
            if place.offset < segment.size:
                return self._read(segment, place.offset)
            if number + 1 < len(self._segments):
                return self.lines(Place(self._segments[number + 1].floor, 0))
            return [], place
        return None

    def close(self) -> None:
        """Give back the files."""
        while self._segments:
            self._segments.pop().close()

    def _read(self, segment: _Segment, offset: int) -> tuple[list[bytes], Place] | None:
        size, left = READ_BYTES, segment.size - offset
        while True:
            text = os.pread(segment.rows, min(size, left), offset)
            end = text.rfind(b"\n")
            if end >= 0:
                return text[:end].split(b"\n"), Place(segment.floor, offset + end + 1)
            if size >= left:
                # A crash of the machine took the rows, and left their index: the log ends before.
                return None
            size *= 2

    def _open(self, floor: int) -> bool:
        """Take in a segment; one that was given back just now is passed over."""
        try:
            index = os.open(index_path(self.folder, floor), os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            rows = os.open(rows_path(self.folder, floor), os.O_RDONLY)
        except FileNotFoundError:
            os.close(index)
            return False
        segment = _Segment(floor, rows, index)
        self._segments.append(segment)
        return _all_of(segment)


def _all_of(segment: _Segment) -> bool:
    is_new = False
    while segment.refresh():
        is_new = True
    return is_new
