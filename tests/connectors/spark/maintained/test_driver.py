"""Oracle: the local dataflow, as in tests/property/test_buckets.py; here one failure at a time,
each with what the protocol says of it (decision 34)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from connectors.objects.sealed_storage import SealedStorage
from connectors.spark.frame import Row
from connectors.spark.maintained.driver import Driver, Limits
from connectors.spark.maintained.files import number_of
from connectors.spark.maintained.scheduler import InProcessScheduler, Work
from connectors.spark.maintained.tasks import STATES, EpochWork
from dataflow.errors import SqlError, TemporaryError, TidemarkError
from storage.failpoints import set_failpoints
from tests.harness.buckets import MemoryStorage, memory_folder
from tests.property.test_buckets import EPOCHS, CheckedSink, History

# A join below an aggregate: three levels.
SEED = 6


@dataclass
class Recording(InProcessScheduler):
    """Keeps the works that it has run."""

    folder: str
    works: list[Work] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self.folder, 2)

    def run(self, work: Work) -> Sequence[Row]:
        self.works.append(work)
        return super().run(work)


class View:
    """A view, its storage, its sink, and drivers of it."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.history = History(Random(SEED))
        self.plain = MemoryStorage(f"driver-{name}")
        self.storage = SealedStorage(self.plain, b"the key of this view" * 2)
        self.sink = CheckedSink(self.history)
        self.view = self.history.view(f"driver-{name}")
        self.scheduler = Recording(str(folder / "one"))
        self.now = 0.0

    def driver(self, scheduler: Recording | None = None, **limits: float) -> Driver:
        """Another driver, which takes over."""
        found = Driver(
            self.view,
            self.storage,
            scheduler or self.scheduler,
            self.sink,
            buckets=4,
            limits=Limits(**limits),  # type: ignore[arg-type]
            clock=lambda: self.now,
        )
        found.start()
        return found

    def step(self, driver: Driver) -> None:
        """One epoch."""
        at = driver.positions.get("at", 0)
        driver.step(self.history.batch(at, at + 1))


@pytest.fixture
def view(request) -> Iterator[View]:
    with memory_folder() as folder:
        try:
            yield View(folder, request.node.name)
        finally:
            set_failpoints("")


@pytest.mark.parametrize("point", ["fixed", "computed", "stored", "committed"])
def test_a_driver_that_stops_is_continued(view: View, point: str) -> None:
    driver = view.driver()
    view.step(driver)
    set_failpoints(f"spark.epoch.{point}=error@1")
    with pytest.raises(OSError, match="failpoint"):
        view.step(driver)
    set_failpoints("")
    assert view.sink.epoch == 1
    works = len(view.scheduler.works)
    again = view.driver()
    # Fixed: nothing is read again. Committed: nothing is computed again.
    assert (again.epoch, view.sink.epoch, view.sink.position) == (2, 2, 2)
    assert len(view.scheduler.works) - works == (point != "committed")
    if point in ("computed", "stored"):
        assert sum(f.restored for f in again.figures) == 0, "the states had their output"
    view.step(again)


def test_an_epoch_that_has_failed_is_read_again(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Buckets beside and above the failed one have stepped it, without the rows of that one."""
    driver = view.driver()
    view.step(driver)
    run = EpochWork._run

    def fail(work: EpochWork, level: int, group: int, *more: object) -> list[Row]:
        if (level, group) == (0, 0):
            raise SqlError("sql.insufficient_privilege", "permission denied for table rates")
        return run(work, level, group, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(EpochWork, "_run", fail)
    with pytest.raises(SqlError, match="permission denied"):
        view.step(driver)
    # Somebody grants it.
    monkeypatch.undo()
    again = view.driver()
    assert (again.positions, view.sink.epoch) == ({"at": 1}, 1)
    view.step(again)
    view.step(again)
    assert view.sink.epoch == 3


def test_before_it_is_fixed_an_epoch_is_read_again(view: View) -> None:
    driver = view.driver()
    view.step(driver)
    assert view.driver().positions == {"at": 1}
    assert view.sink.epoch == 1


def test_of_two_drivers_the_earlier_one_is_fenced(view: View) -> None:
    old = view.driver()
    view.step(old)
    new = view.driver()
    view.step(new)
    with pytest.raises(TidemarkError) as refused:
        view.step(old)
    assert refused.value.code in ("spark.fenced", "spark.late_task")
    view.step(new)
    assert view.sink.position == 3


def test_a_manifest_is_not_written_over_and_says_who_wrote_it(view: View) -> None:
    """With executors of its own the earlier driver computes the epoch; it cannot commit it."""
    old = view.driver(Recording(str(view.folder / "old")))
    view.step(old)
    new = view.driver()
    view.step(new)
    files = dict(view.plain.files.content)
    with pytest.raises(TidemarkError, match=r"spark\.fenced"):
        view.step(old)
    name = view.storage.names("manifest")[-1]
    assert view.plain.get(name) == files[name]
    with pytest.raises(TidemarkError, match=r"spark\.fenced"):
        old.collect_garbage()


def test_a_later_driver_takes_what_an_earlier_one_commits(view: View) -> None:
    old = view.driver()
    new = view.driver(Recording(str(view.folder / "new")))
    view.step(old)
    assert view.sink.position == 1
    view.step(new)
    # Its batch was of an epoch that was fixed: it continues from there.
    assert (new.epoch, new.positions) == (1, {"at": 1})
    view.step(new)
    assert view.sink.position == 2


def test_a_late_task_is_refused_and_changes_nothing(view: View) -> None:
    driver = view.driver()
    for _ in range(4):
        view.step(driver)
    works = [w for w in view.scheduler.works if isinstance(w, EpochWork)]
    versions = {k: s.version for states in STATES._open.values() for k, s in states.items()}
    for work in works[:2]:
        with pytest.raises(TemporaryError, match=r"spark\.late_task"):
            list(work.run(0, 0, [], str(view.folder / "one")))
    assert versions == {k: s.version for ss in STATES._open.values() for k, s in ss.items()}
    # Of an earlier driver, of whatever epoch.
    view.step(view.driver())
    with pytest.raises(TemporaryError, match=r"spark\.late_task"):
        list(works[-1].run(0, 0, [], str(view.folder / "one")))


def test_a_state_is_made_again_from_its_base_and_the_logs_after_it(view: View) -> None:
    driver = view.driver(min_log_bytes=1, rewritten=100)
    for _ in range(6):
        view.step(driver)
    other = Recording(str(view.folder / "other"))
    taken = view.driver(other)
    view.step(taken)
    restored = sum(f.restored for f in taken.figures)
    replayed = sum(f.replayed for f in taken.figures)
    assert restored > 0
    # A base is at most as old as the last epoch that had rows for its bucket.
    assert replayed < 6 * restored
    view.step(taken)
    assert sum(f.restored + f.replayed for f in taken.figures) == 0


def test_files_that_nothing_needs_go_after_the_grace_period(view: View) -> None:
    driver = view.driver(min_log_bytes=1, rewritten=100, max_epochs=2, grace_s=60.0)
    deleted = []
    for _ in range(EPOCHS):
        view.step(driver)
        deleted.append(driver.collect_garbage())
        view.now += 25.0
    assert deleted[:3] == [0, 0, 0]
    for _ in range(2):
        view.now += 60.0
        deleted.append(driver.collect_garbage())
    assert sum(deleted) > EPOCHS
    assert view.storage.names("out") == []
    for folder in ("manifest", "epochs", "log"):
        assert min(map(number_of, view.storage.names(folder))) > EPOCHS - 5
    # What is left is enough for an executor that has nothing.
    other = view.driver(Recording(str(view.folder / "other")))
    assert other.epoch == EPOCHS
    other.split(2)
    assert view.sink.epoch == EPOCHS + 1


def test_a_lost_file_of_the_history_is_named(view: View) -> None:
    driver = view.driver()
    for _ in range(3):
        view.step(driver)
    for name in view.storage.names("epochs")[:1]:
        view.storage.delete(name)
    other = view.driver(Recording(str(view.folder / "other")))
    with pytest.raises(TidemarkError, match=r"spark\.state_lost"):
        view.step(other)
    # The executors of before still have it.
    view.step(view.driver())


def test_a_sink_that_is_ahead_is_waited_for(view: View) -> None:
    """The newest manifest is lost: its epoch runs again, and the sink is not told twice. If another
    epoch follows it, or the sink knows which commit it shows, it has to be that one."""
    driver = view.driver()
    for _ in range(4):
        view.step(driver)
    view.storage.delete(view.storage.names("manifest")[-1])
    applied = view.sink.applied
    again = view.driver()
    assert (again.epoch, view.sink.applied) == (4, applied)
    view.step(again)
    lost = {name: view.plain.get(name) for name in view.plain.names("manifest")[-2:]}
    for name in lost:
        view.storage.delete(name)
    with pytest.raises(TidemarkError, match=r"spark\.state_lost"):
        view.driver()
    for name in view.plain.names("manifest")[-1:]:
        view.storage.delete(name)
    for name, content in lost.items():
        view.plain.put(name, content)
    for name in view.storage.names("manifest")[-1:] + view.storage.names("epochs")[-1:]:
        view.storage.delete(name)
    with pytest.raises(TidemarkError, match=r"spark\.state_lost"):
        view.driver()
