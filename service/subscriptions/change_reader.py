"""A change log as an API process reads it: positions by epoch, and the lines from there.

Invariant: nothing is read beyond the index, so only complete epochs are seen. A deleted segment is
never skipped silently: a reader positioned in it gets None.
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

# Bytes read at a time; a longer line is read whole.
READ_BYTES = 128 << 10


@dataclass(frozen=True)
class LogPosition:
    """A reader's position: a segment, by the epoch after which it begins, and a byte offset."""

    floor: int
    offset: int


@dataclass
class _Segment:
    """The opened records of a segment. epochs, ends: of each record."""

    floor: int
    rows: int
    index: int
    epochs: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Return the end of the complete epochs."""
        return self.ends[-1] if self.ends else 0

    def refresh(self) -> bool:
        """Read new records; return whether there are any."""
        raw = os.pread(self.index, 1 << 20, len(self.ends) * RECORD.size)
        whole = raw[: len(raw) - len(raw) % RECORD.size]
        for epoch, end, *_ in RECORD.iter_unpack(whole):
            self.epochs.append(epoch)
            self.ends.append(end)
        return bool(whole)

    def close(self) -> None:
        """Close the files."""
        os.close(self.rows)
        os.close(self.index)


class ChangeReader:
    """The reader of one log in one folder; used by one thread.

    head: as first read. is_over: the log has ended.
    """

    def __init__(self, folder: Path, head: LogHead) -> None:
        self.folder = folder
        self.head = head
        self.is_over = False
        self._segments: list[_Segment] = []

    @property
    def floor(self) -> int:
        """Return the epoch after which the log is complete."""
        return self._segments[0].floor if self._segments else self.head.floor

    @property
    def newest(self) -> int:
        """Return the newest epoch in the log."""
        for segment in reversed(self._segments):
            if segment.epochs:
                return segment.epochs[-1]
        return self.floor

    def refresh(self) -> bool:
        """Read new records; return whether there is anything to report."""
        if self.is_over:
            return False
        is_replaced = read_head(self.folder) != self.head
        # Checked first: what was written before the end must not be missed.
        self.is_over = is_replaced or (self.folder / ENDED).exists()
        floors = [] if is_replaced else segment_floors(self.folder)
        is_new = self.is_over
        for segment in self._segments[-1:]:
            is_new |= _all_of(segment)
        opened = {segment.floor for segment in self._segments}
        for floor in floors:
            if floor not in opened:
                is_new |= self._open(floor)
        while self._segments and self._segments[0].floor not in floors and not self.is_over:
            self._segments.pop(0).close()
        return is_new

    def position_after(self, epoch: int) -> LogPosition | None:
        """Return where the epochs after this one begin; None if the log lacks some of them."""
        found = None
        for segment in self._segments:
            if segment.floor <= epoch:
                found = segment
        if found is None:
            return None
        count = bisect_right(found.epochs, epoch)
        return LogPosition(found.floor, found.ends[count - 1] if count else 0)

    def lines(self, position: LogPosition) -> tuple[list[bytes], LogPosition] | None:
        """Return complete lines from a position on, and the position after them; [] if nothing is
        new.

        None: the log no longer has this position.
        """
        for number, segment in enumerate(self._segments):
            if segment.floor != position.floor:
                continue
            if position.offset < segment.size:
                return self._read(segment, position.offset)
            if number + 1 < len(self._segments):
                return self.lines(LogPosition(self._segments[number + 1].floor, 0))
            return [], position
        return None

    def close(self) -> None:
        """Close the files."""
        while self._segments:
            self._segments.pop().close()

    def _read(self, segment: _Segment, offset: int) -> tuple[list[bytes], LogPosition] | None:
        size, left = READ_BYTES, segment.size - offset
        while True:
            text = os.pread(segment.rows, min(size, left), offset)
            end = text.rfind(b"\n")
            if end >= 0:
                return text[:end].split(b"\n"), LogPosition(segment.floor, offset + end + 1)
            if size >= left:
                # A machine crash lost the rows but not their index: the log ends before them.
                return None
            size *= 2

    def _open(self, floor: int) -> bool:
        """Open a segment; ignore one that was just deleted."""
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
