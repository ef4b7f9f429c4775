"""A view's epochs in files below the state: written by the pipeline, read by any API process.

A folder per view: `log.json` names the log, and segments of two files each hold its epochs. `.rows`
has the lines of each epoch, its progress marker last (service/subscriptions/change_encoder.py).
`.index` has one record per epoch: number, end of its lines, time of writing, checksum of all that.
Invariant: an epoch counts once its record is in the index, after its lines; anything after the last
record remains from a crash and is removed. The files are not fsynced: a log that a machine crash or
the disk has damaged starts again. No process reads a log that its writer has not checked since the
machine started.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

import xxhash

from service.runtime.runtime import RUNTIME, Runtime
from storage.failpoints import failpoint

# Epoch, end of its lines, time of writing, checksum of its lines and of these three.
RECORD = struct.Struct("<QQQQ")
_FACTS = struct.Struct("<QQQ")
HEAD, ENDED, REQUESTED, CHECKED = "log.json", "ended", "wanted", "checked"
ROWS, INDEX = ".rows", ".index"
FOLDER = "changes"
# The unit in which old epochs are deleted.
SEGMENT_BYTES = 8 << 20
SEGMENTS = 8
_VERSION = 2
_CHECKED_BYTES = 1 << 20


@dataclass(frozen=True)
class LogHead:
    """name: new for each log. floor: the epoch after which it begins. retention_s: how long its
    epochs are retained, and the log itself without subscribers.
    """

    name: str
    floor: int
    retention_s: float
    version: int = _VERSION


@dataclass
class _Segment:
    """floor: the epoch after which it begins.

    newest_at: when its newest record was written, or was reopened after a restart, since the length
    of the downtime is unknown.
    """

    floor: int
    size: int = 0
    newest_at: float = 0.0


def read_head(folder: Path) -> LogHead | None:
    """Return the head of the log in a folder; None if there is no readable one."""
    try:
        head = LogHead(**json.loads((folder / HEAD).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return head if head.version == _VERSION else None


def is_checked(folder: Path, runtime: Runtime) -> bool:
    """Return True if the log's writer has started or checked it since the machine started."""
    try:
        return (folder / CHECKED).read_text() == runtime.boot()
    except FileNotFoundError:
        return False


def segment_floors(folder: Path) -> list[int]:
    """Return the segments of a log by the epochs after which they begin, oldest first."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(int(n.removesuffix(INDEX)) for n in names if n.endswith(INDEX))


def rows_path(folder: Path, floor: int) -> Path:
    """Return the path of a segment's lines."""
    return folder / f"{floor:020d}{ROWS}"


def index_path(folder: Path, floor: int) -> Path:
    """Return the path of a segment's index."""
    return folder / f"{floor:020d}{INDEX}"


class ChangeLog:
    """The writer of one log; used by one thread at a time. OSError from the disk.

    reached: the newest epoch with a record in the index, or the one after which the log begins.
    """

    def __init__(
        self, folder: Path, head: LogHead, max_bytes: int, runtime: Runtime = RUNTIME
    ) -> None:
        self._runtime = runtime
        self.folder = folder
        self.head = head
        self.reached = head.floor
        self._max_bytes = max_bytes
        self._segments: list[_Segment] = []
        self._rows = self._index = -1
        self._opened_at = self._runtime.monotonic()

    @staticmethod
    def begin(
        folder: Path, floor: int, retention_s: float, max_bytes: int, *, runtime: Runtime = RUNTIME
    ) -> ChangeLog:
        """Start a new log after epoch `floor`, replacing the one that exists."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in os.listdir(folder):
            if name != REQUESTED:
                (folder / name).unlink()
        head = LogHead(secrets.token_hex(8), floor, retention_s)
        log = ChangeLog(folder, head, max_bytes, runtime)
        log._roll()
        log._replace(CHECKED, runtime.boot())
        failpoint("changes.begin.headless")
        log._replace(HEAD, json.dumps(asdict(log.head)))
        return log

    @staticmethod
    def reopen(folder: Path, max_bytes: int, runtime: Runtime = RUNTIME) -> ChangeLog | None:
        """Reopen the log of an earlier writer, after its last complete epoch; None if there is
        none.

        ValueError: the log is damaged.
        """
        head = read_head(folder)
        floors = segment_floors(folder)
        if head is None or not floors or (folder / ENDED).exists():
            return None
        log = ChangeLog(folder, head, max_bytes, runtime)
        for floor in floors:
            log._recall(floor)
        log._replace(CHECKED, runtime.boot())
        last = floors[-1]
        log._rows = os.open(rows_path(folder, last), os.O_WRONLY | os.O_CREAT, 0o600)
        log._index = os.open(index_path(folder, last), os.O_WRONLY | os.O_APPEND)
        os.ftruncate(log._rows, log._segments[-1].size)
        os.lseek(log._rows, 0, os.SEEK_END)
        return log

    def append(self, epoch: int, lines: Iterable[bytes], marker: bytes) -> None:
        """Write an epoch: its changes and its progress marker, one line each."""
        now = self._runtime.monotonic()
        segment = self._segments[-1]
        segment_s = self.head.retention_s / SEGMENTS
        is_old = now - self._opened_at > segment_s
        if segment.size > SEGMENT_BYTES or (is_old and segment.size):
            segment = self._roll()
        check = xxhash.xxh3_64()
        for line in chain(lines, (marker,)):
            text = line + b"\n"
            check.update(text)
            segment.size += _write(self._rows, text)
        failpoint("changes.record.before")
        facts = _FACTS.pack(epoch, segment.size, int(self._runtime.time() * 1000))
        check.update(facts)
        _write(self._index, facts + check.intdigest().to_bytes(8, "little"))
        segment.newest_at = now
        self.reached = epoch

    def expire(self) -> None:
        """Delete segments beyond the retention or the size limit."""
        oldest = self._runtime.monotonic() - self.head.retention_s
        total = sum(segment.size for segment in self._segments)
        while len(self._segments) > 1:
            first = self._segments[0]
            if first.newest_at >= oldest and total <= self._max_bytes:
                return
            total -= first.size
            del self._segments[0]
            index_path(self.folder, first.floor).unlink(missing_ok=True)
            rows_path(self.folder, first.floor).unlink(missing_ok=True)

    def end(self, why: str) -> None:
        """End the log, so that its subscribers stop. why: for the service's log."""
        self.close()
        if self.folder.exists():
            self._replace(ENDED, json.dumps({"why": why}))

    def close(self) -> None:
        """Close the files; `reopen` continues the log."""
        for file in (self._rows, self._index):
            if file >= 0:
                os.close(file)
        self._rows = self._index = -1

    def _roll(self) -> _Segment:
        self.close()
        floor = self.reached
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._rows = os.open(rows_path(self.folder, floor), flags, 0o600)
        self._index = os.open(index_path(self.folder, floor), flags | os.O_APPEND, 0o600)
        self._segments.append(_Segment(floor, 0, self._runtime.monotonic()))
        self._opened_at = self._runtime.monotonic()
        return self._segments[-1]

    def _recall(self, floor: int) -> None:
        """Reopen a segment; remove an incomplete record."""
        path = index_path(self.folder, floor)
        raw = path.read_bytes()
        whole = len(raw) - len(raw) % RECORD.size
        if whole != len(raw):
            os.truncate(path, whole)
        self._segments.append(_Segment(floor, 0, self._runtime.monotonic()))
        if whole:
            epoch, size, _, _ = RECORD.unpack(raw[whole - RECORD.size : whole])
            check_lines(rows_path(self.folder, floor), raw[:whole])
            self._segments[-1] = _Segment(floor, size, self._runtime.monotonic())
            self.reached = epoch
        else:
            self.reached = max(self.reached, floor)

    def _replace(self, name: str, text: str) -> None:
        """Write a file atomically."""
        made = self.folder / f"{name}.new"
        made.write_text(text)
        made.rename(self.folder / name)


def check_lines(path: Path, records: bytes) -> None:
    """Check the lines of a segment against its records. ValueError if damaged, OSError."""
    with path.open("rb") as file:
        at = 0
        for epoch, end, at_ms, expected in RECORD.iter_unpack(records):
            check = xxhash.xxh3_64()
            while at < end and (text := file.read(min(_CHECKED_BYTES, end - at))):
                check.update(text)
                at += len(text)
            check.update(_FACTS.pack(epoch, end, at_ms))
            if at != end or check.intdigest() != expected:
                raise ValueError(f"the lines of epoch {epoch} in {path.name} are damaged")


def forget(folder: Path) -> None:
    """Delete a log."""
    shutil.rmtree(folder, ignore_errors=True)


def _write(file: int, line: bytes) -> int:
    """Write the whole line."""
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(file, rest) :]
    return len(line)
