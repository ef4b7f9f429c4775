"""Detect lost commits, which RocksDB itself does not notice.

RocksDB takes a truncated write log for one that a crash has cut, and does not notice a missing log
or a truncated manifest. So each commit writes a numbered marker, and each synced commit notes in
the file `seal` how far markers and manifest are. Invariant: a state is opened only with every
commit up to the sealed one, and with none missing in between. Markers are removed only when a
durable seal covers the manifest that has their commits in tables. Files with damage that makes
RocksDB loop forever are found before it reads them.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

import xxhash
from rocksdict import Rdict, WriteBatch

from storage.faults import corrupt, named

MARK = b"c"
FILE = "seal"
_SLOT_BYTES = 512
_RECORD = struct.Struct("<8sQQQQ")
_MAGIC = b"tmseal01"
OBSERVE_S = 0.5
# Write logs and manifests are blocks of 32 KiB of records: checksum (4 bytes), length (2), kind
# (1), content.
_BLOCK_BYTES = 32 << 10
_HEADER = struct.Struct("<IHB")
# Kinds of recycled logs, which ours never are; RocksDB loops at them (measured with 9.8, at any
# position). It reports all other damage itself.
_ENDLESS = frozenset({5, 6, 7, 8, 11})


def mark_key(number: int) -> bytes:
    """Return the key of the marker of a commit."""
    return MARK + number.to_bytes(8, "big")


@dataclass(frozen=True)
class _Observation:
    """The folder at one moment: the manifest in use and its size, the write logs.

    commits: how many there were.
    """

    manifest: int
    manifest_bytes: int
    logs: frozenset[int]
    commits: int


class Seal:
    """The seal of the database in `folder`. commits: the number of the newest commit.

    Life: `check_files` before the database is opened, `check_commits` after; then `mark` in every
    commit's batch, and `observe` after a synced one.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = -1
        self._turn, self._sealed, self._manifest = self._read()
        self.commits = 0
        self._removable = 0
        self._observed_at = 0.0
        self._observed: list[_Observation] = []

    # --- when a state is opened ------------------------------------------------------------------

    def check_files(self) -> None:
        """Check the files before RocksDB reads or changes anything. StorageError state.corrupt."""
        for path in (*self._folder.glob("*.log"), *self._folder.glob("MANIFEST-*")):
            at = _endless_at(path)
            if at is not None:
                raise corrupt(f'"{path}": there is an invalid record at byte {at}')
        number, size = self._manifest
        if not number:
            return
        found = self._manifest_now()
        if found is None:
            raise corrupt(f'"{self._folder}": CURRENT or the manifest that it names is missing')
        if found[0] < number or (found[0] == number and found[1] < size):
            what = f"manifest {found[0]} has {found[1]} bytes, but {size} of {number} are sealed"
            raise corrupt(f'"{self._folder}": {what}')

    def check_commits(self, db: Rdict) -> None:
        """Check that no commit is missing. StorageError state.corrupt."""
        first = last = count = 0
        cursor = db.iter()
        cursor.seek(MARK)
        while cursor.valid() and cursor.key()[:1] == MARK:
            last = int.from_bytes(cursor.key()[1:], "big")
            first, count = first or last, count + 1
            cursor.next()
        try:
            cursor.status()
        except Exception as error:
            raise named(error, "cannot read the markers of commits") from error
        del cursor
        if count and last - first + 1 != count:
            missing = last - first + 1 - count
            raise corrupt(f'"{self._folder}": {missing} commits before commit {last} are missing')
        if last < self._sealed:
            what = f"ends with commit {last}, but commit {self._sealed} was durable"
            raise corrupt(f'"{self._folder}" {what}: its write log is damaged or missing')
        self.commits = last

    # --- while it is written ---------------------------------------------------------------------

    def mark(self, batch: WriteBatch) -> None:
        """Number the commit of this batch."""
        if self._removable:
            batch.delete_range(mark_key(0), mark_key(self._removable))
            self._removable = 0
        self.commits += 1
        batch.put(mark_key(self.commits), b"")

    def observe(self) -> None:
        """Seal what was just synced to disk; call it now and then, as others sync often.

        StorageError state.corrupt, state.io, state.disk_full.
        """
        now = time.monotonic()
        if now - self._observed_at < OBSERVE_S:
            return
        self._observed_at = now
        try:
            self._observe()
        except OSError as error:
            raise named(error, "cannot seal the state") from error

    def _observe(self) -> None:
        manifest = self._manifest_now()
        if manifest is None:
            raise corrupt(f'"{self._folder}": CURRENT or the manifest that it names is missing')
        self._observed.append(_Observation(*manifest, self._logs(), self.commits))
        if len(self._observed) < 2:
            return
        # The manifest at an earlier call: what was added since may not be durable.
        before = self._observed[-2]
        self._write(before)
        self._forget(before)

    def _forget(self, sealed: _Observation) -> None:
        """Remove markers whose commits are in tables that the sealed manifest covers."""
        in_tables = [
            k for k in self._observed if k.logs and max(k.logs) < min(sealed.logs, default=0)
        ]
        if in_tables:
            os.fdatasync(self._file)
            self._removable = in_tables[-1].commits
            self._observed = self._observed[self._observed.index(in_tables[-1]) + 1 :]
        elif len(self._observed) > 3:
            # Of observations of the same logs the newest says most; the first two may still be
            # needed.
            del self._observed[-3]

    def close(self) -> None:
        """Stop sealing."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    # --- files -----------------------------------------------------------------------------------

    def _manifest_now(self) -> tuple[int, int] | None:
        try:
            name = (self._folder / "CURRENT").read_text().strip()
            return int(name.rsplit("-", 1)[1]), (self._folder / name).stat().st_size
        except (OSError, ValueError, IndexError):
            return None

    def _logs(self) -> frozenset[int]:
        names = (name[:-4] for name in os.listdir(self._folder) if name.endswith(".log"))
        return frozenset(int(name) for name in names if name.isdigit())

    def _write(self, observe: _Observation) -> None:
        if self._file < 0:
            self._file = os.open(self._folder / FILE, os.O_RDWR | os.O_CREAT, 0o600)
        self._turn += 1
        facts = (self._turn, self.commits, observe.manifest, observe.manifest_bytes)
        record = _RECORD.pack(_MAGIC, *facts)
        content = record + xxhash.xxh3_64_digest(record)
        os.pwrite(self._file, content, self._turn % 2 * _SLOT_BYTES)

    def _read(self) -> tuple[int, int, tuple[int, int]]:
        """Return (turn, commits, manifest) of the newest whole record; zeros if there is none."""
        try:
            content = (self._folder / FILE).read_bytes()
        except FileNotFoundError:
            return 0, 0, (0, 0)
        except OSError as error:
            raise named(error, "cannot read the seal") from error
        best = (0, 0, (0, 0))
        for start in (0, _SLOT_BYTES):
            record = content[start : start + _RECORD.size]
            check = content[start + _RECORD.size : start + _RECORD.size + 8]
            if len(record) == _RECORD.size and check == xxhash.xxh3_64_digest(record):
                magic, turn, commits, manifest, size = _RECORD.unpack(record)
                if magic == _MAGIC and turn > best[0]:
                    best = (turn, commits, (manifest, size))
        return best


def _endless_at(path: Path) -> int | None:
    """Return where in the file RocksDB would loop; None if it would not."""
    size = path.stat().st_size
    if not size:
        return None
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        at = 0
        while at + _HEADER.size <= size:
            end = at - at % _BLOCK_BYTES + _BLOCK_BYTES
            if at + _HEADER.size > end:
                at = end
                continue
            _, length, kind = _HEADER.unpack_from(content, at)
            if kind in _ENDLESS:
                return at
            after = at + _HEADER.size + length
            # A length that does not fit ends the block, and so do the zeros after the last record.
            at = end if after > end or (kind == 0 and length == 0) else after
    return None
