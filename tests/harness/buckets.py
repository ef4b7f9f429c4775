"""A distributed view without Spark: a storage in memory, a scheduler with faults, a sink of rows.

Everything is drawn from a seed. Invariant: the storage is the only thing that driver and tasks have
in common, and every fault is one that a cluster has: tasks that run twice, late, in any order or in
vain, caches that are lost, replies that are lost, listings that are behind.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from connectors.objects.shared_storage import NameTakenError, pieces_of
from connectors.shuffle_storage import FolderExchange
from connectors.spark.frame import Row
from connectors.spark.maintained.bases import cut_files
from connectors.spark.maintained.imports import BackfilledState
from connectors.spark.maintained.layout import Layout, MaintainedView, Spread, spread_of
from connectors.spark.maintained.output import CommittedEpoch
from connectors.spark.maintained.scheduler import Work
from connectors.spark.maintained.tasks import STATES
from connectors.spark.stages import Stage
from dataflow.errors import TemporaryError, TidemarkError
from dataflow.operators.base import kinds_of
from storage.delta import Column, hash_columns
from storage.store import Store
from tests.harness.oracle import exact

TRIES = 4
_MEMORY = Path("/dev/shm")
# Storages of this process by name: an instance is pickled with the work.
_STORAGES: dict[str, MemoryFiles] = {}


class MemoryFiles:
    """The files of a storage; faults from a seed, none without."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.random: Random | None = None
        self.lost_replies = 0
        self.stale: set[str] = set()


@dataclass(frozen=True)
class MemoryStorage:
    """A SharedStorage in this process; equal names are one storage."""

    name: str

    @property
    def files(self) -> MemoryFiles:
        """What it holds."""
        return _STORAGES.setdefault(self.name, MemoryFiles())

    def create(self, name: str, content: bytes) -> None:
        """Write a new file; now and then the reply is lost, once or for good."""
        files = self.files
        found = files.content.setdefault(name, content)
        if found != content:
            raise NameTakenError(name)
        if files.random is not None and files.random.random() < 0.03:
            files.lost_replies += 1
            if files.random.random() < 0.5:
                raise TemporaryError("spark.storage", "a reply was lost")
            self.create(name, content)

    def put(self, name: str, content: bytes) -> None:
        """Write a file."""
        found = self.files.content.setdefault(name, content)
        assert found == content, f"{name} is written twice"

    def send(self, source: Path | Iterable[bytes], name: str) -> None:
        """Write a local file, or pieces."""
        self.put(name, b"".join(pieces_of(source)))

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return a part of a file."""
        if name not in self.files.content:
            raise FileNotFoundError(name)
        return self.files.content[name][start:stop]

    def read(self, name: str) -> Iterator[bytes]:
        """Yield a file."""
        yield self.get(name)

    def names(self, folder: str) -> list[str]:
        """Return names, without those that a stale listing has not yet."""
        hidden, prefix = self.files.stale, f"{folder}/" if folder else ""
        return sorted(n for n in self.files.content if n.startswith(prefix) and n not in hidden)

    def delete(self, name: str) -> None:
        """Remove a file."""
        self.files.content.pop(name, None)


def files_below(prefix: str) -> list[str]:
    """All files of storages whose name begins so."""
    found = [(name, files) for name, files in _STORAGES.items() if name.startswith(prefix)]
    return [f"{name}/{file}" for name, files in found for file in files.content]


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A local folder for caches, in memory if there is such a disk; states in it are closed."""
    parent = str(_MEMORY) if _MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        try:
            yield Path(folder)
        finally:
            STATES.close()


class TableSink:
    """An EpochSink: the view's rows and errors. history: the positions of each epoch."""

    def __init__(self) -> None:
        self.epoch = 0
        self.position = 0
        self.rows: Counter = Counter()
        self.errors: Counter = Counter()
        self.applied = 0

    def commit(self) -> str:
        """See EpochSink."""
        return ""

    def progress(self) -> int:
        """See EpochSink."""
        return self.epoch

    def apply(self, epoch: CommittedEpoch) -> None:
        """See EpochSink."""
        if epoch.epoch <= self.epoch:
            return
        assert epoch.epoch == self.epoch + 1, f"epoch {epoch.epoch} after {self.epoch}"
        shown = epoch.whole()
        for row, weight in shown.rows.rows():
            self.rows[exact(row)] += weight
        for row, weight in shown.errors.rows():
            self.errors[row[1].decode(), row[2].decode()] += weight
        self.rows, self.errors = _without_zeros(self.rows), _without_zeros(self.errors)
        self.epoch = epoch.epoch
        self.position = epoch.positions.get("at", 0)
        self.applied += 1


def _without_zeros(rows: Counter) -> Counter:
    found = Counter({row: weight for row, weight in rows.items() if weight})
    assert all(weight > 0 for weight in found.values()), "a row is retracted that was not out"
    return found


@dataclass
class Faults:
    """How often what happens; 0 for never."""

    twice: float = 0.15
    in_vain: float = 0.1
    late: float = 0.1
    elsewhere: float = 0.1
    cache_lost: float = 0.05
    process_lost: float = 0.05


@dataclass
class FaultyScheduler:
    """Runs tasks in one thread as a cluster might. executors: local folders."""

    folder: Path
    random: Random
    tasks: int = 2
    executors: int = 3
    faults: Faults = field(default_factory=Faults)
    done: Counter = field(default_factory=Counter)
    _late: list = field(default_factory=list)

    def run(self, work: Work) -> Sequence[Row]:
        """See Scheduler."""
        given: list[list[Row]] = [[] for _ in range(work.groups)]
        for step in range(work.steps):
            addressed: list[list[Row]] = [[] for _ in range(work.groups)]
            order = list(range(work.groups))
            self.random.shuffle(order)
            for group in order:
                for row in self._task(work, step, group, given[group]):
                    addressed[work.group_of(row[0], group)].append(row)
            for rows in addressed:
                self.random.shuffle(rows)
            given = addressed
        self._run_late()
        return [row for rows in given for row in rows]

    def _task(self, work: Work, step: int, group: int, rows: list[Row]) -> list[Row]:
        """The rows of one of the attempts."""
        faults, chance = self.faults, self.random.random
        if chance() < faults.late:
            self._late.append((work, step, group, list(rows), self._executor(group)))
            self.done["late"] += 1
        attempts = [self._attempt(work, step, group, rows)]
        if chance() < faults.in_vain:
            attempts = [self._attempt(work, step, group, rows)]
            self.done["in vain"] += 1
        if chance() < faults.twice:
            attempts.append(self._attempt(work, step, group, rows))
            self.done["twice"] += 1
        return self.random.choice(attempts)

    def _attempt(self, work: Work, step: int, group: int, rows: list[Row]) -> list[Row]:
        for number in range(TRIES):
            folder = self._executor(group)
            self._lose(folder)
            shuffled = self.random.sample(rows, len(rows))
            try:
                return list(work.run(step, group, shuffled, str(folder)))
            except (OSError, TemporaryError) as error:
                self.done["failed"] += 1
                if number + 1 == TRIES:
                    raise TemporaryError("spark.job", "tasks failed", detail=str(error)) from error
        raise AssertionError

    def _executor(self, group: int) -> Path:
        number = group % self.executors
        if self.random.random() < self.faults.elsewhere:
            number = self.random.randrange(self.executors)
        return self.folder / f"executor-{number}"

    def _lose(self, folder: Path) -> None:
        if self.random.random() < self.faults.cache_lost:
            STATES.close(str(folder))
            shutil.rmtree(folder, ignore_errors=True)
            self.done["cache lost"] += 1
        if self.random.random() < self.faults.process_lost:
            STATES.close(str(folder))
            self.done["process lost"] += 1

    def _run_late(self) -> None:
        """Run some of the late tasks: of this work, or of one that ended long ago."""
        waiting, self._late = self._late, []
        for late in waiting:
            if self.random.random() < 0.5:
                self._late.append(late)
                continue
            work, step, group, rows, folder = late
            try:
                list(work.run(step, group, rows, str(folder)))
                self.done["came late"] += 1
            except TidemarkError as error:
                # Beyond the grace period its history may be gone.
                known = ("spark.late_task", "spark.storage", "spark.state_lost")
                assert error.code in known, error
                self.done["refused"] += 1


def counted(rows: Iterable[tuple[tuple, int]]) -> Counter:
    """Rows with weights, in the form of the sink's."""
    found: Counter = Counter()
    for row, weight in rows:
        found[exact(row)] += weight
    return found


# What the keys of random plans are made of (`tests.property.plans`), by physical kind.
_KEYS: dict[str, Sequence] = {"i": range(-2, 6), "s": [b"", b"a", b"b", b"ab", b"zz"]}


def random_spread(layout: Layout, random: Random) -> Spread:
    """Some keys of every join whose keys may be spread, each of an input that may be."""
    found = []
    for stage in (stage for level in layout.levels for stage in level):
        for hash in _hashes_of_keys(layout, stage):
            sides = layout.spread_sides(stage)
            if sides and random.random() < 0.5:
                found.append((stage.number, random.choice(sides), hash))
    return spread_of(found)


def _hashes_of_keys(layout: Layout, stage: Stage) -> list[int]:
    if not layout.spread_sides(stage):
        return []
    node = layout.nodes[stage.nodes[0]]
    kinds = kinds_of(layout.nodes[node.inputs[0]].plan.fields)
    values = [_KEYS[kinds[c]] for c in node.exchange[0] or ()]
    keys = list(itertools.product(*values))
    columns = [
        Column.of(kinds[c], [key[at] for key in keys])
        for at, c in enumerate(node.exchange[0] or ())
    ]
    return hash_columns(columns, len(keys)).tolist()


def backfilled(view: MaintainedView, store: Store, buckets: int, folder: Path) -> BackfilledState:
    """The state that one store has of a view, as a backfill's tasks in so many buckets write it."""
    layout = Layout(view, buckets)
    stages = {stage.number: 0 for level in layout.levels for stage in level}
    (folder / "cut").mkdir(parents=True)
    exchange, files = FolderExchange(folder / "exchange"), []
    for found in cut_files(store, layout, stages, layout, folder / "cut").values():
        for file in found:
            name = f"files/{Path(file.path).name}"
            exchange.put(name, Path(file.path).read_bytes())
            files.append(replace(file, path=name))
    return BackfilledState(exchange, files)
