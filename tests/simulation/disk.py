"""The disk of the service's machine: the state as a Store, and files; what a crash leaves of both.

The store is the specification (storage/memory.py) with a memory for commits: a process that dies
loses the open epoch, a machine that dies also the newest commits since the last that was forced,
in order. What was put ahead may be left over, what was ingested is durable at once. A file that was
not forced may be whole, cut anywhere, full of zeros from anywhere, or empty.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from service.engine.state_version import STORE
from service.metrics.metrics import DATAFLOW_FILE, FILE
from storage.memory import MemoryArrangement, MemoryStore, MemorySums
from storage.store import BulkFile, Store

# Forced by what writes them, below the host.
FORCED_BY_THEMSELVES = {"parts", STORE}
# These tell of real time, and are as long as its numbers.
FIGURES = {FILE, DATAFLOW_FILE}


@dataclass
class Image:
    """The whole content of a store at one commit: arrangements by name as (spec, parts)."""

    rows: dict[str, tuple[Any, list[Any]]] = field(default_factory=dict)
    sums: dict[str, tuple[Any, list[Any]]] = field(default_factory=dict)
    values: dict[str, bytes] = field(default_factory=dict)

    @property
    def position(self) -> int:
        """The database's position that it stands at."""
        return self.positions().get("source", 0)

    def positions(self) -> dict[str, Any]:
        """All positions, by source."""
        stored = self.values.get("progress")
        return json.loads(stored)["positions"] if stored else {}

    @property
    def epoch(self) -> int:
        """The newest epoch in it."""
        stored = self.values.get("progress")
        return json.loads(stored)["epoch"] if stored else 0

    def views(self) -> set[str]:
        """The identities of the views that are live in it."""
        return {key.rsplit("/", 1)[1] for key in self.values if key.startswith("view/")}


class Disk:
    """What outlives processes. images: those that a crash of the machine may leave, the one that
    is certain first. told: of the named values of each commit."""

    def __init__(self, folder: Path, random: Random) -> None:
        self.folder = folder
        self.images: list[Image] = [Image()]
        self.ahead: dict[str, bytes] = {}
        self._random = random
        self._forced: dict[str, int] = {}
        self.told: Callable[[Mapping[str, bytes]], None] = lambda values: None

    @property
    def durable(self) -> Image:
        """What no crash takes away."""
        return self.images[0]

    def commit(self, image: Image, *, is_forced: bool) -> None:
        """One more commit; what was put ahead is part of it or of no meaning."""
        self.images = [image] if is_forced else [*self.images, image]
        self.ahead = {}

    def ingested(self, store: SimStore, names: set[str]) -> None:
        """These arrangements are durable as they are, and every commit before them."""
        newest = self.images[-1]
        rows, sums = dict(newest.rows), dict(newest.sums)
        now = store.image()
        rows |= {n: kept for n, kept in now.rows.items() if n in names}
        sums |= {n: kept for n, kept in now.sums.items() if n in names}
        self.images = [replace(newest, rows=rows, sums=sums)]

    def forced(self, file: int) -> None:
        """A file was forced to disk."""
        self._forced[os.readlink(f"/proc/self/fd/{file}")] = os.fstat(file).st_size

    def crash_process(self) -> None:
        """The open epoch is gone, but for what was put ahead of it, perhaps."""
        newest = self.images[-1]
        left = {k: v for k, v in self.ahead.items() if self._random.random() < 0.5}
        self.images[-1] = replace(newest, values={**newest.values, **left})
        self.ahead = {}

    def start(self) -> Image:
        """What a process finds that begins now."""
        return self.images[-1]

    def open_store(self, step: Callable[[str], None]) -> Store:
        """A process's handle. step: told before and after what crashes may come between."""
        return SimStore(self, step)

    def close(self) -> None:
        """The run is over."""

    def crash_machine(self) -> None:
        """Commits and writes that were not forced are gone, or some of them."""
        self.crash_process()
        self.images = [self._random.choice(self.images)]
        self._tear_files()

    def _tear_files(self) -> None:
        """Those beside the store."""
        for folder, _, names in sorted(os.walk(self.folder)):
            for name in sorted(names):
                path = Path(folder) / name
                if FORCED_BY_THEMSELVES.isdisjoint(path.parts):
                    self._tear(path)
        self._forced.clear()

    def _tear(self, path: Path) -> None:
        size, random = path.stat().st_size, self._random
        kept = min(self._forced.get(str(path), 0), size)
        how = random.choice(("whole", "cut", "zeros", "lost"))
        if how == "whole" or kept == size:
            return
        if how == "lost":
            cut = kept
        elif path.name in FIGURES:
            # How many numbers are drawn must not hang on how long they are.
            cut = kept + (random.getrandbits(32) * (size - kept + 1) >> 32)
        else:
            cut = random.randint(kept, size)
        os.truncate(path, cut)
        if how == "zeros":
            os.truncate(path, size)


class BulkStore(MemoryStore):
    """What a backfill fills; its files are pickles, which cost less than RocksDB's."""

    def write_files(self, folder: Path) -> list[BulkFile]:
        files = []
        for number, kept in enumerate(self.contents()):
            path = folder / f"rows-{number}"
            content = (kept.spec, list(kept._parts._parts))
            path.write_bytes(pickle.dumps(content, pickle.HIGHEST_PROTOCOL))
            files.append(BulkFile(kept.spec.name, str(path), 0, 1, 1, b""))
        return files


class SimStore(MemoryStore):
    """A process's handle on the disk. step: told before and after what crashes may come between."""

    def __init__(self, disk: Disk, step: Callable[[str], None]) -> None:
        super().__init__()
        self._disk = disk
        self._step = step
        image = disk.images[-1]
        for name, (spec, parts) in image.rows.items():
            rows = self._arrangements[name] = MemoryArrangement(spec)
            rows._parts._parts = list(parts)
        for name, (spec, parts) in image.sums.items():
            sums = self._sums[name] = MemorySums(spec)
            sums._parts._parts = list(parts)
        self._values.update(image.values)

    def image(self) -> Image:
        """All that is in it now."""
        return Image(
            {n: (a.spec, list(a._parts._parts)) for n, a in self._arrangements.items()},
            {n: (s.spec, list(s._parts._parts)) for n, s in self._sums.items()},
            dict(self._values),
        )

    def put_ahead(self, key: str, value: bytes) -> None:
        super().put_ahead(key, value)
        self._disk.ahead[key] = value

    def commit(self, *, sync: bool = False) -> None:
        self._step("store.commit")
        self._disk.commit(self.image(), is_forced=sync)
        self._disk.told(self._values)
        self._step("store.committed")

    def sync(self) -> None:
        self._step("store.sync")
        self._disk.images = self._disk.images[-1:]

    def ingest(self, files: Sequence[BulkFile]) -> None:
        self._step("store.ingest")
        for file in files:
            spec, parts = pickle.loads(Path(file.path).read_bytes())
            kept = self._arrangements.get(file.name) or self._sums[file.name]
            assert kept.spec == spec and not kept._parts._parts, f"{file.name} is not empty"
            kept._parts._parts = parts
        self._disk.ingested(self, {f.name for f in files})
        self._step("store.ingested")

    def close(self) -> None:
        """What was not committed is dropped."""
