"""The disk of the service's machine with the product's own store on it: RocksDB, real files.

A process that dies leaves the files as they are, an open epoch is nowhere. A machine that dies may
tear the end of the log of writes: behind what was forced it is whole, cut anywhere, or full of
zeros from anywhere. Invariant: what is opened then is the state after some commit, and not one
before the newest that was forced; that is checked each time.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

from service.engine.state_version import STORE
from storage.rocks import RocksStore
from storage.store import BulkFile
from tests.simulation.disk import Disk, Image
from tests.simulation.faults import Violation

# Within so long RocksDB's own threads come to rest once nobody writes.
REST_S = 60.0


class RocksDisk(Disk):
    """As Disk. torn: the random numbers of how logs are torn."""

    def __init__(self, folder: Path, random: Random, torn: Random) -> None:
        super().__init__(folder, random)
        self.images = [Image(values={"commits": b"0"})]
        self._torn = torn
        self._path = folder / STORE
        self._store: SimRocksStore | None = None
        self._forced_logs: dict[str, int] = {}
        self._is_committing = self._is_machine_down = False

    def start(self) -> Image:
        self._store = SimRocksStore(self, self._path)
        found = self._store.values()
        images = [image for image in self.images if image.values == found]
        if not images:
            raise Violation(f"the store has {found}, which no commit has left")
        self.images = [images[-1]]
        return images[-1]

    def open_store(self, step: Callable[[str], None]) -> SimRocksStore:
        assert self._store is not None
        self._store.step = step
        return self._store

    def begin_commit(self, values: dict[str, bytes]) -> None:
        """From now on the store may have it."""
        self._is_committing = True
        self.commit(Image(values=values), is_forced=False)

    def end_commit(self, values: dict[str, bytes], *, is_forced: bool) -> None:
        """It has it."""
        self._is_committing = False
        self.images[-1] = Image(values=values)
        if is_forced:
            self.forced_all()

    def forced_all(self) -> None:
        """Every commit so far is on disk."""
        self.images = self.images[-1:]
        self.note_logs()

    def note_logs(self) -> None:
        """What the logs have now is forced."""
        files = _files(self._path)
        self._forced_logs = {name: files[name] for name in files if name.endswith(".log")}

    def crash_process(self) -> None:
        """The files stay as they are; the store is closed only once they are aside."""
        if self._store is None:
            return
        aside = self._path.with_name("aside")
        _copy_as_it_stands(self._path, aside)
        self._store.give_up()
        self._store = None
        shutil.rmtree(self._path)
        aside.rename(self._path)
        if not self._is_machine_down:
            self.images = self.images[-2:] if self._is_committing else self.images[-1:]
        self._is_committing = False

    def close(self) -> None:
        if self._store is not None:
            self._store.give_up()

    def crash_machine(self) -> None:
        self._is_machine_down = True
        self.crash_process()
        self._is_machine_down = False
        self._tear_files()
        for path in sorted(self._path.glob("*.log"))[-1:]:
            size = path.stat().st_size
            kept = min(self._forced_logs.get(path.name, 0), size)
            how = self._torn.choice(("whole", "cut", "cut", "zeros"))
            if how != "whole":
                os.truncate(path, self._torn.randint(kept, size))
            if how == "zeros":
                os.truncate(path, size)


class SimRocksStore(RocksStore):
    """A process's handle. step: told before and after what crashes may come between."""

    def __init__(self, disk: RocksDisk, path: Path) -> None:
        super().__init__(path)
        self._disk = disk
        self._is_closed = False
        self.step: Callable[[str], None] = lambda name: None
        observe = self._seal.observe

        def observe_after_write() -> None:
            # What is sealed has just been forced, with the log up to here.
            disk.note_logs()
            observe()

        self._seal.observe = observe_after_write  # type: ignore[method-assign]

    def values(self, further: int = 0) -> dict[str, bytes]:
        """Return the named values that say where it stands as they are now, and the number of the
        newest commit, or of one that is further on."""
        found = {key: b"" for key, _ in self.items("view/")}
        found["commits"] = str(self._seal.commits + further).encode()
        progress = self.get("progress")
        return found if progress is None else {**found, "progress": progress}

    def commit(self, *, sync: bool = False) -> None:
        self.step("store.commit")
        self._disk.begin_commit(self.values(1))
        super().commit(sync=sync)
        self._disk.told({**self.values(), **dict(self.items("view/"))})
        self._disk.end_commit(self.values(), is_forced=sync)
        self.step("store.committed")

    def sync(self) -> None:
        self.step("store.sync")
        super().sync()
        self._disk.forced_all()

    def ingest(self, files: Sequence[BulkFile]) -> None:
        self.step("store.ingest")
        self._disk.begin_commit(self.values(1))
        super().ingest(files)
        # The log has all earlier commits, and was forced with what was taken in.
        self._disk.end_commit(self.values(), is_forced=True)
        self.step("store.ingested")

    def close(self) -> None:
        """The files are put aside first, as they are; see RocksDisk.crash_process."""

    def give_up(self) -> None:
        """The process is gone."""
        if not self._is_closed:
            self._is_closed = True
            super().close()


def _copy_as_it_stands(store: Path, aside: Path) -> None:
    """A copy of all files as they were at one moment, though RocksDB's own threads continue. Nobody
    writes to the store any more, so they come to rest."""
    until = time.monotonic() + REST_S
    while True:
        before = _files(store)
        with suppress(FileNotFoundError):
            for name in before:
                (aside / name).parent.mkdir(parents=True, exist_ok=True)
                _link_or_copy(store / name, aside / name)
            if _files(store) == before:
                return
        if time.monotonic() > until:
            raise TimeoutError(f"RocksDB still changes its files after {REST_S:.0f} s")
        shutil.rmtree(aside)


def _files(store: Path) -> dict[str, int]:
    """Return the files by name. Of those that say what belongs to the store the size; a table, or
    the log for human readers, may grow while others are copied."""
    found = {}
    for folder, _, names in os.walk(store):
        for path in (Path(folder) / name for name in names):
            with suppress(FileNotFoundError):
                has_size = path.name.startswith("MANIFEST") or path.suffix == ".log"
                found[str(path.relative_to(store))] = path.stat().st_size if has_size else 0
    return found


def _link_or_copy(source: Path, target: Path) -> None:
    """Tables never change."""
    if source.suffix == ".sst":
        os.link(source, target)
    else:
        shutil.copyfile(source, target)
