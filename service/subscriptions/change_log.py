"""A view's epochs in files below the state: written by the pipeline, read by any API process.

A folder a view: `log.json` names the log, and segments of two files each hold its epochs: `.rows`
has the lines of each epoch, its mark last (service/subscriptions/change_encoder.py), `.index` a
record an epoch:
number, where its lines end, when it was written, a checksum of all that. Invariant: an epoch counts
once its record is in the index, after its lines; what stands behind the last record is what a
crash has left, and goes. The files are not forced to disk: a log in which a crash of the machine,
or the disk, has changed anything is begun anew; nobody reads one that its writer has not looked
through since the machine started.
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

# Epoch, where its lines end, when it was written, the checksum of its lines and of these.
RECORD = struct.Struct("<QQQQ")
_FACTS = struct.Struct("<QQQ")
HEAD, ENDED, WANTED, CHECKED = "log.json", "ended", "wanted", "checked"
ROWS, INDEX = ".rows", ".index"
FOLDER = "changes"
# A segment is what is given back at a time.
SEGMENT_BYTES = 8 << 20
SEGMENTS = 8
_VERSION = 2
_CHECKED_BYTES = 1 << 20


@dataclass(frozen=True)
class LogHead:
    """name: new for each log. floor: the epoch after which it began. retention_s: how long its
    epochs are kept, and the log itself without readers."""

    name: str
    floor: int
    retention_s: float
    version: int = _VERSION


@dataclass
class _Segment:
    """floor: the epoch after which it begins. newest_at: when its newest record was written, or
    taken over from an earlier process: nobody knows for how long that was away."""

    floor: int
    size: int = 0
    newest_at: float = 0.0


def read_head(folder: Path) -> LogHead | None:
    """Which log lies in a folder; None when there is none that can be read."""
    try:
        head = LogHead(**json.loads((folder / HEAD).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None
    return head if head.version == _VERSION else None


def is_checked(folder: Path, host: Runtime) -> bool:
    """Whether the writer of a log has begun it, or looked it through, since the machine started."""
    try:
        return (folder / CHECKED).read_text() == host.boot()
    except FileNotFoundError:
        return False


def segment_floors(folder: Path) -> list[int]:
    """The segments of a log by the epochs after which they begin, oldest first."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    return sorted(int(n.removesuffix(INDEX)) for n in names if n.endswith(INDEX))


def rows_path(folder: Path, floor: int) -> Path:
    """The lines of a segment."""
    return folder / f"{floor:020d}{ROWS}"


def index_path(folder: Path, floor: int) -> Path:
    """The index of a segment."""
    return folder / f"{floor:020d}{INDEX}"


class ChangeLog:
    """The writer of one log; used by one thread at a time. OSError when the disk refuses.

    reached: the newest epoch whose record is in the index, or the one after which it began.
    """

    def __init__(
        self, folder: Path, head: LogHead, most_bytes: int, host: Runtime = RUNTIME
    ) -> None:
        self._host = host
        self.folder = folder
        self.head = head
        self.reached = head.floor
        self._most_bytes = most_bytes
        self._segments: list[_Segment] = []
        self._rows = self._index = -1
        self._opened_at = self._host.monotonic()

    @staticmethod
    def begin(
        folder: Path, floor: int, retention_s: float, most_bytes: int, *, host: Runtime = RUNTIME
    ) -> ChangeLog:
        """A new log that begins after epoch `floor`, in place of what is there."""
        folder.mkdir(parents=True, exist_ok=True)
        for name in os.listdir(folder):
            if name != WANTED:
                (folder / name).unlink()
        head = LogHead(secrets.token_hex(8), floor, retention_s)
        log = ChangeLog(folder, head, most_bytes, host)
        log._roll()
        log._replace(CHECKED, host.boot())
        failpoint("changes.begin.headless")
        log._replace(HEAD, json.dumps(asdict(log.head)))
        return log

    @staticmethod
    def reopen(folder: Path, most_bytes: int, host: Runtime = RUNTIME) -> ChangeLog | None:
        """The log that an earlier writer has left, after its last whole epoch; None without.

        ValueError: it is not as it was written.
        """
        head = read_head(folder)
        floors = segment_floors(folder)
        if head is None or not floors or (folder / ENDED).exists():
            return None
        log = ChangeLog(folder, head, most_bytes, host)
        for floor in floors:
            log._recall(floor)
        log._replace(CHECKED, host.boot())
        last = floors[-1]
        log._rows = os.open(rows_path(folder, last), os.O_WRONLY | os.O_CREAT, 0o600)
        log._index = os.open(index_path(folder, last), os.O_WRONLY | os.O_APPEND)
        os.ftruncate(log._rows, log._segments[-1].size)
        os.lseek(log._rows, 0, os.SEEK_END)
        return log

    def append(self, epoch: int, lines: Iterable[bytes], mark: bytes) -> None:
        """Write an epoch: its changes and its mark, a line each."""
        now = self._host.monotonic()
        segment = self._segments[-1]
        share_s = self.head.retention_s / SEGMENTS
        is_old = now - self._opened_at > share_s
        if segment.size > SEGMENT_BYTES or (is_old and segment.size):
            segment = self._roll()
        check = xxhash.xxh3_64()
        for line in chain(lines, (mark,)):
            text = line + b"\n"
            check.update(text)
            segment.size += _write(self._rows, text)
        failpoint("changes.record.before")
        facts = _FACTS.pack(epoch, segment.size, int(self._host.time() * 1000))
        check.update(facts)
        _write(self._index, facts + check.intdigest().to_bytes(8, "little"))
        segment.newest_at = now
        self.reached = epoch

    def expire(self) -> None:
        """Give back the segments that are older than the retention, or too much."""
        oldest = self._host.monotonic() - self.head.retention_s
        total = sum(segment.size for segment in self._segments)
        while len(self._segments) > 1:
            first = self._segments[0]
            if first.newest_at >= oldest and total <= self._most_bytes:
                return
            total -= first.size
            del self._segments[0]
            index_path(self.folder, first.floor).unlink(missing_ok=True)
            rows_path(self.folder, first.floor).unlink(missing_ok=True)

    def end(self, why: str) -> None:
        """Nothing is written from now on; readers are told. why: for the log of the service."""
        self.close()
        if self.folder.exists():
            self._replace(ENDED, json.dumps({"why": why}))

    def close(self) -> None:
        """Close the files; `reopen` goes on."""
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
        self._segments.append(_Segment(floor, 0, self._host.monotonic()))
        self._opened_at = self._host.monotonic()
        return self._segments[-1]

    def _recall(self, floor: int) -> None:
        """Take in a segment; a record that is not whole goes."""
        path = index_path(self.folder, floor)
        raw = path.read_bytes()
        whole = len(raw) - len(raw) % RECORD.size
        if whole != len(raw):
            os.truncate(path, whole)
        self._segments.append(_Segment(floor, 0, self._host.monotonic()))
        if whole:
            epoch, size, _, _ = RECORD.unpack(raw[whole - RECORD.size : whole])
            check_lines(rows_path(self.folder, floor), raw[:whole])
            self._segments[-1] = _Segment(floor, size, self._host.monotonic())
            self.reached = epoch
        else:
            self.reached = max(self.reached, floor)

    def _replace(self, name: str, text: str) -> None:
        """A file is seen whole or not at all."""
        made = self.folder / f"{name}.new"
        made.write_text(text)
        made.rename(self.folder / name)


def check_lines(path: Path, records: bytes) -> None:
    """The lines of a segment are those that its records tell of. ValueError, OSError."""
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
    """Remove a log with all that it has."""
    shutil.rmtree(folder, ignore_errors=True)


def _write(file: int, line: bytes) -> int:
    """Write all of it."""
    rest = memoryview(line)
    while rest:
        rest = rest[os.write(file, rest) :]
    return len(line)
