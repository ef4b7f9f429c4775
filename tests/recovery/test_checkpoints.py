"""Oracle: the model of tests.recovery.prefix, and PostgreSQL's own answers, after the state was
brought back from a checkpoint elsewhere: restore and stream give the same answer as stream alone.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dataflow.errors import TidemarkError
from service.checkpoint.checkpoint_repository import Manifest, groups_in, open_repository
from service.checkpoint.checkpoints import Checkpoints
from service.checkpoint.restore import Desired, restore
from service.runtime.service_key import FILE as KEY_FILE
from service.runtime.service_key import read_key
from service.runtime.settings import Settings
from tests.harness import figures
from tests.harness.object_store import object_store
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.tiers import count, is_fast
from tests.harness.verdicts import WrongStateError, differing_rows
from tests.recovery.damage import DAMAGES, damage_file
from tests.recovery.history import World as History
from tests.recovery.history import go_on, make, open_engine, read_world
from tests.recovery.prefix import SCHEMA, VIEWS, Checker, Writer

pytestmark = pytest.mark.timeout(600)

# Made by one state, taken in by others.
FILES = count("TIDEMARK_TEST_FILES", 9, 30) // 3
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "0"))
# Of the sink, that are compared from one fault to the next.
STATES = 5 if is_fast() else 15
FILE = "tests/recovery/test_checkpoints.py"
OFTEN = {"checkpoint_every_s": 0.5, "checkpoint_keep": 2}


def _checkpoints(url: str, state: Path) -> list[Manifest]:
    """Those that the key of a state vouches for."""
    path = state / KEY_FILE
    place = open_repository(url, "tidemark", "default", read_key(path) if path.exists() else None)
    return [manifest for manifest, refusal in place.listed() if refusal is None]


class World:
    """A service that copies its state, a writer beside it, and what the views must show."""

    def __init__(self, database: Database, folder: Path, place: str) -> None:
        database.execute(SCHEMA)
        self.database, self.place, self.key = database, place, folder / "copied.key"
        self.writer = Writer(database, 5)
        self.checker = Checker(database, self.writer)
        self.service = RunningService(database.dsn, folder, checkpoint_to=place, **OFTEN)

    def create(self, name: str, query: str) -> None:
        self.service.create(name, query, backfill="local")

    def go_on(self, states: int = STATES) -> None:
        wanted = self.checker.distinct + states
        self.service.await_so(lambda: self.checker.check() and self.checker.distinct > wanted, 180)

    def await_checkpoints(self, epoch: int) -> None:
        """As many as are kept, none of them older than an epoch."""

        def is_done() -> bool:
            found = _checkpoints(self.place, self.service.state)
            return len(found) == 2 and found[0].epoch > epoch

        self.service.await_so(is_done, 180)

    def start_without_copies(self) -> None:
        self.service._environment["TIDEMARK_CHECKPOINT_EVERY_S"] = "3600"
        self.service.start()

    def lose_the_machine(self) -> None:
        """But for the key, which somebody has copied."""
        self.service.kill()
        shutil.copy(self.service.state / KEY_FILE, self.key)
        shutil.rmtree(self.service.state)

    def restore(self, *options: str) -> subprocess.CompletedProcess[str]:
        state = str(self.service.state)
        command = [
            sys.executable,
            "-m",
            "service.cli.main",
            "restore",
            self.place,
            "--state",
            state,
        ]
        command += ["--key", str(self.key)]
        environment = {**os.environ, "TIDEMARK_SOURCE": self.database.dsn}
        return subprocess.run(
            [*command, *options],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def settle(self, views: Iterable[str]) -> None:
        """Everything is live and shows the last commit."""
        position = self.database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
        for name in views:
            self.service.await_status(name)
            self.service.wait(name, position, timeout_s=60)

    def is_equal(self, name: str, query: str) -> bool:
        return differing_rows(self.database, name, query) == []


def test_a_state_is_restored_and_catches_up(database: Database, tmp_path: Path) -> None:
    """The machine is lost with its disk, long after the checkpoint: meanwhile views were created
    and renamed."""
    world = World(database, tmp_path, str(tmp_path / "elsewhere"))
    service = world.service
    with figures.counted("restores", f"pytest {FILE}", case="a machine is lost") as run, service:
        for name, query in VIEWS.items():
            world.create(name, query)
        world.create("before", "SELECT max(id) AS id FROM entries")
        world.writer.start()
        world.go_on()
        world.await_checkpoints(epoch=5)
        assert "tidemark_checkpoint_age_seconds" in _metrics(service)
        service.kill()
        world.start_without_copies()
        assert service.call("POST", "/views/before/rename", {"name": "after"}).status_code < 300
        world.create("late", "SELECT count(*) AS n FROM accounts")
        world.go_on()
        world.lose_the_machine()
        done = world.restore()
        assert done.returncode == 0, done.stderr
        assert "restore.not_empty" in world.restore().stderr
        service.start()
        world.go_on()
        last = world.writer.stop()
        world.settle((*VIEWS, "after", "late"))
        assert world.checker.check() == last
        assert world.is_equal("after", "SELECT max(id) AS id FROM entries")
        assert world.is_equal("late", "SELECT count(*) AS n FROM accounts")
        assert not database.rows("SELECT FROM pg_class WHERE relname = 'before'")
        told = service.log_tail(1_000_000)
        assert "recover.replay" in told
        assert not _rebuilt(told) & {f"public.{name}" for name in VIEWS}, "restored, not rebuilt"
        run.count, run.epochs = 1, world.checker.states
        world.checker.close()


@pytest.mark.whole
def test_what_the_source_cannot_replay_is_rebuilt(database: Database, tmp_path: Path) -> None:
    world = World(database, tmp_path, str(tmp_path / "elsewhere"))
    service = world.service
    with service:
        world.create("total", VIEWS["total"])
        world.await_checkpoints(epoch=0)
        world.lose_the_machine()
        database.execute("INSERT INTO accounts VALUES (99, 'late', 7)")
        ours = f"tidemark_{database.name}_source"
        slot = f"pg_replication_slot_advance('{ours}', pg_current_wal_flush_lsn())"
        database.execute(f"SELECT {slot}")
        assert "checkpoint.too_old" in world.restore().stderr
        assert not service.state.exists()
        done = world.restore("--rebuild")
        assert done.returncode == 0, done.stderr
        service.start()
        world.settle(["total"])
        assert database.rows("SELECT total::bigint FROM total") == [(7,)]


def test_a_group_without_a_completed_copy_is_rebuilt(database: Database, tmp_path: Path) -> None:
    """The machine is lost while the first copy of a new group is sent."""
    world = World(database, tmp_path, str(tmp_path / "elsewhere"))
    service, query = world.service, "SELECT count(*) AS n FROM accounts"
    with service:
        world.create("total", VIEWS["total"])
        service.create("number", query, backfill="local", group="reports")
        first = open_repository(world.place, "tidemark", "reports", None)
        service.await_so(lambda: first.numbers() != [])
        world.await_checkpoints(epoch=0)
        world.lose_the_machine()
        manifests = list(Path(world.place).glob("*/reports/checkpoints/*.json"))
        for manifest in manifests:
            manifest.unlink()
        assert manifests and "reports" in groups_in(world.place, "tidemark")
        database.execute("INSERT INTO accounts VALUES (99, 'late', 7)")
        done = world.restore()
        assert done.returncode == 0, done.stderr
        assert "; views of reports are rebuilt;" in " ".join(done.stdout.split())
        service.start()
        world.settle(["total", "number"])
        assert world.is_equal("total", VIEWS["total"]) and world.is_equal("number", query)
        assert "public.total" not in _rebuilt(service.log_tail(1_000_000)), "restored, not rebuilt"


def _metrics(service: RunningService) -> str:
    return service.call("GET", "/metrics").text


def _rebuilt(told: str) -> set[str]:
    events = ("view.state_lost", "view.state_outdated")
    lines = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
    return {line["view"] for line in lines if line.get("event") in events}


# --- without a service ------------------------------------------------------------------------


@dataclass
class Slot:
    """What a source has been told."""

    confirmed: int = 0

    def confirmed_position(self) -> int:
        return self.confirmed

    def close(self) -> None:
        pass


class Copied:
    """A state of tests.recovery.history, and what copies it to a folder, or to the URL `place`."""

    def __init__(self, folder: Path, seed: int = 0, place: str = "") -> None:
        self.folder, self.place = folder, folder / "elsewhere"
        self.url = place or str(self.place)
        self.world, self.slot = History(seed), Slot()
        self.engine = open_engine(folder / "state")
        settings = Settings(
            source="-",
            state=folder / "state",
            checkpoint_to=self.url,
            checkpoint_keep=2,
        )  # type: ignore[call-arg]
        self.checkpoints = Checkpoints(settings, self.engine.store, lambda: None, self.slot)  # type: ignore[arg-type]

    def step(self, count: int) -> None:
        for _ in range(count):
            epoch = self.engine.step(self.world.batch(self.engine.position + 1))
            self.engine.commit(epoch, written=0)

    def kept(self) -> list[Manifest]:
        """The checkpoints that count."""
        return _checkpoints(self.url, self.folder / "state")

    def copy(self) -> Manifest:
        """One more checkpoint, in this thread."""
        self.checkpoints._list()
        return self.checkpoints._make()[0]

    def close(self) -> None:
        self.checkpoints.close()
        self.engine.store.close()

    def restored(self, number: int | None = None, **options: Any) -> dict[str, Counter]:
        """What comes of a copy when it is brought back and continues to the end of history."""
        state = self.folder / "restored"
        shutil.rmtree(state, ignore_errors=True)
        wanted = {"key": read_key(self.folder / "state" / KEY_FILE), **options}
        restore(Desired(self.url, state, number=number, **wanted), lambda _: None)
        known = read_world(self.folder)
        known.confirmed = 0
        return go_on(state, known, self.world)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state, closed."""
    folder = tmp_path_factory.mktemp("stopped")
    make(0, folder, is_closed=True)
    return folder


@pytest.fixture
def copied(stopped: Path, tmp_path: Path) -> Iterator[Copied]:
    made = Copied(Path(shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)))
    yield made
    made.close()


def test_each_retained_copy_is_complete_and_only_new_files_are_sent(copied: Copied) -> None:
    first = copied.copy()
    copied.step(3)
    second = copied.copy()
    assert second.position == first.position + 3
    assert {f.sha256 for f in first.files} & {f.sha256 for f in second.files}
    good = copied.restored(1)
    assert copied.restored() == good
    copied.step(3)
    third = copied.copy()
    assert [m.number for m in copied.kept()] == [2, 3]
    used = {f.sha256 for m in (second, third) for f in m.files}
    assert {p.name for p in (copied.place / "tidemark/default/files").iterdir()} == used
    assert copied.restored(2) == good


def test_a_bucket_works_like_a_folder(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    with object_store(monkeypatch) as url:
        made = Copied(tmp_path, place=url)
        for _ in range(3):
            made.copy()
            made.step(1)
        assert [m.number for m in made.kept()] == [2, 3]
        assert groups_in(url, "tidemark") == ["default"]
        made.restored(2)
        newest = made.kept()[-1]
        made.checkpoints._repository.exchange.put(newest.files[0].location, b"other")  # type: ignore[union-attr]
        with pytest.raises(TidemarkError, match=r"\[checkpoint.corrupt\]"):
            made.restored()
        made.close()


def test_the_source_keeps_what_comes_after_the_oldest_copy(copied: Copied) -> None:
    checkpoints = copied.checkpoints
    assert checkpoints.confirmable(1000) == 0, "nobody knows yet which copies there are"
    checkpoints._list()
    checkpoints._is_listed = True
    assert checkpoints.confirmable(1000) == 1000
    first = copied.copy()
    assert checkpoints.confirmable(1000) == first.position
    copied.step(2)
    copied.copy()
    assert checkpoints.confirmable(1000) == first.position
    copied.step(2)
    # Someone has moved the slot: copies from before lead nowhere, and hold up nothing.
    copied.slot.confirmed = first.position + 3
    third = copied.copy()
    assert checkpoints.confirmable(1000) == third.position
    assert [m.number for m in copied.kept()] == [third.number]


def test_a_damaged_copy_is_refused(copied: Copied) -> None:
    copied.copy()
    copied.step(2)
    copied.copy()
    good = copied.restored()
    pick = random.Random(SEED)
    whole = shutil.copytree(copied.place, copied.folder / "whole")
    command = f"TIDEMARK_TEST_SEED={SEED} TIDEMARK_TEST_FILES={3 * FILES} pytest {FILE}"
    with figures.counted("restores", command, case="damaged copies") as run:
        outcomes = run.told["outcomes"] = Counter()
        for number in range(max(FILES, 10)):
            shutil.rmtree(copied.place)
            shutil.copytree(whole, copied.place)
            done = _damage_copy(copied.place, pick)
            outcome = _restored_or_refused(copied, good, f"{done} ({command}, case {number})")
            outcomes[outcome] += 1
            run.count += 1


def _damage_copy(place: Path, pick: random.Random) -> str:
    """Damage one of the files of a copy; what was done to which."""
    paths = sorted(p for p in place.rglob("*") if p.is_file())
    manifests = [p for p in paths if p.suffix == ".json"]
    path = pick.choice(pick.choice((paths, manifests)))
    other = pick.choice([p for p in paths if p != path])
    return damage_file(pick, path, other, pick.choice(DAMAGES), path.name)


def _restored_or_refused(copied: Copied, good: dict[str, Counter], told: str) -> str:
    """`right`, or the code of the refusal."""
    try:
        found = copied.restored()
    except TidemarkError as error:
        assert error.code in ("checkpoint.corrupt", "checkpoint.format"), told
        assert not (copied.folder / "restored").exists(), told
        return error.code
    if found != good:
        raise WrongStateError(f"{told}: other rows are restored")
    return "right"


@pytest.mark.parametrize("where", ["copied", "sent", "finished", "pruned"])
def test_a_kill_leaves_no_half_copy(stopped: Path, tmp_path: Path, where: str) -> None:
    shutil.copytree(stopped, tmp_path, dirs_exist_ok=True)
    child = subprocess.run(
        [sys.executable, "-c", _CHILD, str(tmp_path)],
        env={**os.environ, "TIDEMARK_FAILPOINTS": f"checkpoints.{where}=kill@2"},
        check=False,
        timeout=60,
    )
    assert child.returncode == -signal.SIGKILL
    after = Copied(tmp_path)
    numbers = [m.number for m in after.kept()]
    assert numbers == ([1] if where in ("copied", "sent") else [1, 2])
    after.restored()
    after.copy()
    used = {f.sha256 for m in after.kept() for f in m.files}
    assert {p.name for p in (after.place / "tidemark/default/files").iterdir()} == used
    after.close()


_CHILD = """
import sys
from pathlib import Path
from tests.recovery.test_checkpoints import Copied
made = Copied(Path(sys.argv[1]))
made.copy()
made.step(3)
made.copy()
"""
