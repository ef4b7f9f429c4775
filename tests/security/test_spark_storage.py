"""Oracle: the local dataflow of the same plan (`tests.property.test_buckets`), whatever somebody
does to the files of a view in the shared storage: the view goes on with right rows, or its state
counts as lost, with a code. A service builds it again then (end_to_end/test_spark_storage.py).

Whoever writes there has everything but the key: files of this view, of earlier moments, of another
view of the same service and of another service with the same names.
"""

from __future__ import annotations

import copy
import pickle
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from connectors.objects.folder_storage import FolderStorage
from connectors.objects.sealed_storage import SealedStorage, derived_key
from connectors.spark.maintained.commits import LOST_CODES
from connectors.spark.maintained.driver import Batch, Driver, Limits
from connectors.spark.maintained.files import Base, EpochInput, Manifest, number_of
from connectors.spark.maintained.layout import MaintainedView
from connectors.spark.maintained.scheduler import InProcessScheduler
from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from storage.failpoints import set_failpoints
from tests.connectors.spark.maintained.test_answers import TABLE, remembering
from tests.harness.buckets import TableSink, memory_folder
from tests.property.test_buckets import CheckedSink, History

KEY, OTHER_KEY = (derived_key(b"service" * 8, name) for name in ("one", "other"))
# Every kind of file: inputs apart from their documents, bases, and output in several files.
LIMITS = Limits(inline_bytes=0, min_log_bytes=1, rewritten=100, output_bytes=200)
SEED = 8
EPOCHS = 4


class RecordingSink(CheckedSink):
    """Records which commit it shows, as a service does."""

    shown = ""

    def commit(self) -> str:
        return self.shown

    def apply(self, epoch) -> None:
        super().apply(epoch)
        self.shown = epoch.commit


class RecordingTable(TableSink):
    """The same, without a check of its rows."""

    shown = ""

    def commit(self) -> str:
        return self.shown

    def apply(self, epoch) -> None:
        super().apply(epoch)
        self.shown = epoch.commit


@dataclass
class Scene:
    """A view at some moment, whose driver is gone: its files, what its sink shows, what follows."""

    view: MaintainedView
    files: Path
    sink: TableSink
    follow: Callable[[Driver], None]
    buckets: int = 4
    copies: int = field(default=0)

    def attacked(self, attack: Callable[[Path], object]) -> TidemarkError | None:
        """What the next driver raises once this was done to the files; None if all goes on.

        Its executors have no state, so everything is read.
        """
        self.copies += 1
        files = self.files.with_name(f"{self.files.name}-{self.copies}")
        shutil.copytree(self.files, files)
        attack(files)
        sink = copy.copy(self.sink)
        sink.rows, sink.errors = self.sink.rows.copy(), self.sink.errors.copy()
        scheduler = InProcessScheduler(str(files.with_name(f"{files.name}-executor")), 2)
        driver = Driver(
            self.view, sealed(files), scheduler, sink, buckets=self.buckets, limits=LIMITS
        )
        try:
            driver.start()
            self.follow(driver)
        except TidemarkError as error:
            return error
        return None


def sealed(files: Path, key: bytes = KEY) -> SealedStorage:
    return SealedStorage(FolderStorage(files), key)


@pytest.fixture
def folder() -> Iterator[Path]:
    with memory_folder() as found:
        try:
            yield found
        finally:
            set_failpoints("")


def scene(folder: Path, point: str, key: bytes = KEY, name: str = "one") -> Scene:
    """A view whose driver was killed at a point of its newest epoch."""
    history = History(Random(SEED))
    sink, view = RecordingSink(history), history.view(name)
    files = folder / name
    scheduler = InProcessScheduler(str(folder / f"{name}-executor"), 2)
    driver = Driver(view, sealed(files, key), scheduler, sink, buckets=4, limits=LIMITS)
    driver.start()

    def step(driver: Driver) -> None:
        at = driver.positions.get("at", 0)
        driver.step(history.batch(at, at + 1))

    for _ in range(EPOCHS - 1):
        step(driver)
    set_failpoints(f"spark.epoch.{point}=error@1")
    with pytest.raises(OSError, match="failpoint"):
        step(driver)
    set_failpoints("")

    def follow(driver: Driver) -> None:
        step(driver)
        step(driver)

    return Scene(view, files, sink, follow)


def answered(folder: Path) -> Scene:
    """A view that remembers what a function said, which says something else each time."""
    sink, view = RecordingTable(), remembering()
    rows = Delta.of("i", [(n,) for n in range(8)])
    scheduler = InProcessScheduler(str(folder / "executor"), 2)
    driver = Driver(view, sealed(folder / "one"), scheduler, sink, buckets=2, limits=Limits())
    driver.start()
    driver.step(Batch({}, rows={TABLE.name: rows}))

    def follow(driver: Driver) -> None:
        driver.step(Batch({}, rows={TABLE.name: rows.negate()}))
        assert not driver._sink.rows  # type: ignore[attr-defined]

    return Scene(view, folder / "one", sink, follow, buckets=2)


KINDS = {
    "manifest": "manifest/*",
    "epochs": "epochs/*",
    "input": "input/*",
    "log": "log/*/*",
    "base": "base/*/*/base",
    "state": "base/*/*/*.sst",
    "out": "out/*",
}


def forge(path: Path, files: Path) -> None:
    """A document with the MAC of another key, as whoever knows the format writes it."""
    name = str(path.relative_to(files))
    content = sealed(files).get(name)
    for kind in (Manifest, EpochInput, Base):
        try:
            document, payload = kind.decode(content)
        except TidemarkError:
            continue
        content = document.encode(payload)
    path.unlink()
    sealed(files, OTHER_KEY).put(name, content)


def strip(path: Path, files: Path) -> None:
    """The content alone, as a version without MACs wrote it."""
    content = sealed(files).get(str(path.relative_to(files)))
    path.write_bytes(content)


def flip(path: Path, files: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def cut_half(path: Path, files: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def cut_all(path: Path, files: Path) -> None:
    path.write_bytes(b"")


def cut_mac(path: Path, files: Path) -> None:
    path.write_bytes(path.read_bytes()[:-32])


def pickled(path: Path, files: Path) -> None:
    path.write_bytes(pickle.dumps(Bomb(files.parent / "exploded")))


@dataclass
class Bomb:
    """Writes a file wherever it is loaded."""

    path: Path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


CHANGES = [forge, strip, flip, cut_half, cut_all, cut_mac, pickled]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_files_that_others_have_changed_are_refused(folder: Path, change: Callable) -> None:
    """One at a time, of each kind: those that the next driver or its tasks read."""
    made = scene(folder, "committed")
    assert made.attacked(lambda files: None) is None, "untouched, it goes on"
    refused = dict.fromkeys(KINDS, 0)
    for kind, pattern in KINDS.items():
        paths = sorted(made.files.glob(pattern))
        assert paths, f"there is no file of kind {kind}"
        for path in paths[-2:]:
            found = made.attacked(
                lambda files, path=path: change(files / path.relative_to(made.files), files)
            )
            assert found is None or found.code in LOST_CODES, found
            refused[kind] += found is not None
    assert all(refused.values()), refused
    assert not (folder / "exploded").exists()


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_an_input_that_others_have_written_is_not_run(folder: Path, change: Callable) -> None:
    """A fixed epoch moves the driver on: the next one runs what it finds."""
    made = scene(folder, "fixed")
    assert made.attacked(lambda files: None) is None
    for pattern in ("epochs/*", "input/*"):
        newest = max(made.files.glob(pattern), key=lambda p: number_of(f"x/{p.name}"))
        found = made.attacked(
            lambda files, n=newest: change(files / n.relative_to(made.files), files)
        )
        assert found is not None, f"{pattern} was run"
        assert found.code in LOST_CODES, found


def test_files_of_others_are_refused(folder: Path) -> None:
    """Of the same names: another view of the service, or another service; and swapped within."""
    made = scene(folder, "committed")
    other = scene(folder, "committed", OTHER_KEY, "other")
    refused = dict.fromkeys(KINDS, 0)
    for kind, pattern in KINDS.items():
        own = sorted(made.files.glob(pattern))
        theirs = sorted(other.files.glob(pattern))

        def take(files: Path, own=own[-1], theirs=theirs[-1]) -> None:
            shutil.copy(theirs, files / own.relative_to(made.files))

        def swap(files: Path, one=own[-1], two=own[0]) -> None:
            one, two = (files / p.relative_to(made.files) for p in (one, two))
            first, second = one.read_bytes(), two.read_bytes()
            one.write_bytes(second)
            two.write_bytes(first)

        for attack in (take, swap):
            found = made.attacked(attack)
            assert found is None or found.code in LOST_CODES, found
            refused[kind] += found is not None
    assert all(refused.values()), refused


def test_a_generation_of_others_only_stops(folder: Path) -> None:
    made = scene(folder, "committed")

    def forge_generation(files: Path) -> None:
        (files / "generation" / "000000000999").write_bytes(b"mine")

    assert made.attacked(forge_generation) is None


def test_an_earlier_moment_is_refused(folder: Path) -> None:
    """All files as they once were, with MACs that were right then."""
    made = scene(folder, "committed")
    early = folder / "early"
    shutil.copytree(made.files, early)
    for kind in ("manifest", "epochs", "out"):
        newest = max(sorted((early / kind).iterdir()), key=lambda p: number_of(f"x/{p.name}"))
        number = number_of(f"x/{newest.name}")
        for path in (early / kind).iterdir():
            if number_of(f"x/{path.name}") >= number - 1:
                path.unlink()

    def replay(files: Path) -> None:
        shutil.rmtree(files)
        shutil.copytree(early, files)

    found = made.attacked(replay)
    assert found is not None
    assert found.code == "spark.state_lost"


def test_an_epoch_that_was_given_up_is_not_stepped_again(folder: Path) -> None:
    """Its input has the name of the one that was committed, and a MAC that is right."""
    history = History(Random(SEED))
    sink, view = RecordingSink(history), history.view("one")
    files, scheduler = folder / "one", InProcessScheduler(str(folder / "executor"), 2)
    driver = Driver(view, sealed(files), scheduler, sink, buckets=4)
    driver.start()
    driver.step(history.batch(0, 1))
    driver._commits.fix_input(  # as a driver does that is killed then
        EpochInput(2, "x" * 32, 4, {"at": 9}, before=driver.commit), b"", driver._committed
    )
    (name,) = driver._storage.names("epochs")[-1:]
    given_up = (files / name).read_bytes()
    driver._storage.delete(name)
    driver.step(history.batch(1, 2))

    def follow(driver: Driver) -> None:
        for number in (2, 3):
            driver.step(history.batch(number, number + 1))

    made = Scene(view, files, sink, follow)
    assert made.attacked(lambda files: None) is None
    found = made.attacked(lambda files: (files / name).write_bytes(given_up))
    assert found is not None
    assert found.code == "spark.unauthentic"


@pytest.mark.parametrize("attack", ["removed", "of another attempt", "forged"])
def test_remembered_answers_cannot_be_exchanged(folder: Path, attack: str) -> None:
    made = answered(folder)
    assert made.attacked(lambda files: None) is None
    (path, *_) = sorted(made.files.glob("answers/*/*"))

    def change(files: Path) -> None:
        found = files / path.relative_to(made.files)
        if attack == "removed":
            found.unlink()
        elif attack == "forged":
            found.write_bytes(found.read_bytes()[:-40] + bytes(40))
        else:
            # What a second attempt would have created, had somebody removed the first one's.
            name = str(path.relative_to(made.files))
            content = sealed(files).get(name)
            found.unlink()
            sealed(files).put(name, content[:-8] + bytes(8))

    found = made.attacked(change)
    assert found is not None
    assert found.code in LOST_CODES
