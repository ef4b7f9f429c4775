"""Oracle: the rows that the history has after each epoch, and the arrangements of an undamaged run.

One file of a state, as a kill has left it, is damaged; then the state is started again. It gives
the right answer to the end, or a refusal with a code and a way out: never a wrong row.
TIDEMARK_TEST_FILES sets how many files are damaged, TIDEMARK_TEST_SEED where the seeds begin.
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rocksdict import Options, Rdict

from connectors.partition_cache import CachedPartition
from connectors.shuffle_storage import FolderExchange
from dataflow.delta import Column, Delta
from dataflow.errors import TemporaryError, TidemarkError
from service.backfill.spool import Spool
from service.subscriptions.change_log import ChangeLog
from storage.errors import StorageError
from storage.rocks import RocksStore
from storage.runs import PAGE
from storage.seal import Seal, mark_key
from tests.harness import figures
from tests.harness.tiers import count
from tests.harness.verdicts import WrongStateError
from tests.recovery.damage import DAMAGES, Damage, damage, damage_file
from tests.recovery.history import World, go_on, make, read_world
from tests.unit.service.test_engine import OWNERS, THINGS

FILES = count("TIDEMARK_TEST_FILES", 8, 30)
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "0"))
CODES = {"state.corrupt", "state.version", "source.slot_advanced"}
# A state stands for so many cases.
CASES_A_STATE = 60

pytestmark = pytest.mark.timeout(60 + 5 * FILES)


class State:
    """A state that was killed, and what it comes to when nothing is damaged."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.folder = folder / f"seed {seed}"
        self.folder.mkdir()
        self.world = World(seed)
        child = [sys.executable, "-m", "tests.recovery.history", str(seed), str(self.folder)]
        subprocess.run(child, check=True, timeout=120)
        self.good = self.start(self.copy())
        # A history may end with a table truncated.
        assert any(self.good.values())

    def copy(self) -> Path:
        copy = self.folder / "case"
        shutil.rmtree(copy, ignore_errors=True)
        return Path(shutil.copytree(self.folder / "state", copy))

    def start(self, copy: Path) -> dict[str, Counter]:
        return go_on(copy, read_world(self.folder), self.world)


def _outcome(state: State, copy: Path, told: str) -> str:
    """ "right", or the code of the refusal."""
    try:
        found = state.start(copy)
    except (StorageError, TidemarkError) as error:
        assert error.code in CODES, f"{told}: {error}"
        assert error.hint, f"{told}: {error}"
        return error.code
    if found != state.good:
        raise WrongStateError(f"{told}: other rows are kept")
    return "right"


def test_a_damaged_file_is_refused_or_makes_no_difference(tmp_path: Path) -> None:
    command = f"TIDEMARK_TEST_SEED={SEED} TIDEMARK_TEST_FILES={FILES} pytest {Path(__file__).name}"
    with figures.counted("corrupted_files", command) as run:
        outcomes: Counter[str] = Counter()
        state = None
        for number in range(FILES):
            seed = SEED + number
            if state is None or number % CASES_A_STATE == 0:
                state = State(seed, tmp_path)
            copy = state.copy()
            pick = random.Random(seed)
            done = Damage("", "", is_none=True)
            while done.is_none:
                done = damage(pick, copy, state.folder / "older")
            first = SEED + number // CASES_A_STATE * CASES_A_STATE
            again = f"TIDEMARK_TEST_SEED={first} TIDEMARK_TEST_FILES={seed - first + 1}"
            outcomes[_outcome(state, copy, f"{done} ({again})")] += 1
            run.count, run.told["outcomes"] = number + 1, dict(outcomes)
        assert outcomes["right"] < FILES


def _raw(folder: Path) -> Rdict:
    return Rdict(str(folder), Options(raw_mode=True))


def _keys(db: Rdict) -> list[bytes]:
    return [bytes(key) for key in db.keys()]  # type: ignore[arg-type] # noqa: SIM118


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> State:
    return State(SEED + 7, tmp_path_factory.mktemp("killed"))


def _refused(state: State, copy: Path, words: str) -> None:
    with pytest.raises(StorageError, match=words) as refused:
        state.start(copy)
    assert refused.value.code == "state.corrupt"
    assert "tidemark restore" in refused.value.hint


def test_a_commit_that_is_missing_in_between_is_noticed(killed: State) -> None:
    """As when one of two logs of writes is gone: RocksDB finds nothing wrong with that."""
    copy = killed.copy()
    db = _raw(copy / "store")
    numbers = [key for key in _keys(db) if key[:1] == b"c"]
    db.delete(numbers[len(numbers) // 2])
    db.close()
    _refused(killed, copy, "1 commits before commit .* are missing")


def test_lost_commits_that_were_on_disk_are_noticed(killed: State) -> None:
    """As when the end of the log of writes is gone, and with it views that have no slot."""
    copy = killed.copy()
    sealed = Seal(copy / "store")._sealed
    assert sealed > 50
    db = _raw(copy / "store")
    db.delete_range(mark_key(sealed), mark_key(1 << 62))
    db.close()
    _refused(killed, copy, f"ends with commit {sealed - 1}, but commit {sealed} was durable")


def test_a_manifest_whose_end_is_gone_is_noticed(killed: State) -> None:
    """RocksDB takes it for one that was cut by a crash, and forgets tables."""
    copy = killed.copy()
    (manifest,) = (copy / "store").glob("MANIFEST-*")
    os.truncate(manifest, manifest.stat().st_size // 2)
    _refused(killed, copy, "manifest .* bytes, but .* are sealed")


@pytest.mark.parametrize("files", ["MANIFEST-*", "*.log"])
def test_what_rocksdb_would_read_for_ever_is_noticed(killed: State, files: str) -> None:
    """Records of logs that are used again, at the end and in place of others."""
    for kind, is_appended in ((5, True), (8, True), (11, True), (6, False), (11, False)):
        copy = killed.copy()
        path = max(copy.rglob(files), key=lambda p: p.stat().st_size)
        content = bytearray(path.read_bytes())
        if is_appended:
            content += b"\x11\x22\x33\x44\x08\x00" + bytes([kind]) + b"12345678"
        else:
            content[6] = kind
        path.write_bytes(content)
        _refused(killed, copy, "there is an invalid record")


def test_a_page_under_the_key_of_another_is_noticed(killed: State) -> None:
    """Each is whole by itself."""
    copy = killed.copy()
    db = _raw(copy / "store")
    pages = [key for key in _keys(db) if key[:1] == PAGE and len(key) == 21]
    both = next((a, b) for a, b in pairwise(pages) if a[:13] == b[:13])
    db[both[0]], db[both[1]] = db[both[1]], db[both[0]]
    db.close()
    _refused(killed, copy, "belongs to another position|is missing")


def test_a_state_from_before_there_were_seals_is_opened(tmp_path: Path) -> None:
    store = RocksStore(tmp_path / "store")
    store.put("name", b"value")
    store.commit(sync=True)
    store.close()
    db = _raw(tmp_path / "store")
    db.delete_range(mark_key(0), mark_key(1 << 62))
    db.close()
    (tmp_path / "store" / "seal").unlink(missing_ok=True)
    store = RocksStore(tmp_path / "store")
    assert store.get("name") == b"value"
    store.close()


def test_marks_do_not_gather(tmp_path: Path) -> None:
    """Once their commits are in tables, which the seal vouches for, they go."""
    make(SEED, tmp_path, is_closed=True)
    db = _raw(tmp_path / "state" / "store")
    numbers = [int.from_bytes(key[1:], "big") for key in _keys(db) if key[:1] == b"c"]
    db.close()
    assert numbers == list(range(numbers[0], numbers[-1] + 1))
    assert 1 < numbers[0] < numbers[-1]


# --- files of our own, beside the store ---------------------------------------------------------


def _spooled(folder: Path) -> list[bytes] | None:
    spool = Spool(folder / "spool", [OWNERS.name, THINGS.name])
    try:
        if not spool.restore(40):
            return None
        return [pickle.dumps(batch) for _ in range(40) if (batch := spool.pop()) is not None]
    finally:
        spool.close()


def _logged(folder: Path) -> list[bytes] | None:
    try:
        log = ChangeLog.reopen(folder, 1 << 30)
    except (OSError, ValueError):
        return None
    if log is None:
        return None
    log.close()
    return [path.read_bytes() for path in sorted(folder.glob("*.rows"))]


def _kept(folder: Path) -> list[list[tuple]] | None:
    exchange = FolderExchange(folder)
    try:
        return [chunk.rows() for chunk in CachedPartition(Part(), exchange, "part").read()]
    except TemporaryError:
        # The next try reads from the source.
        assert [c.rows() for c in CachedPartition(Part(), exchange, "part").read()] == PART_ROWS
        return None


PART_ROWS = [[((i, b"text %d" % i), 1) for i in range(n)] for n in (3, 1, 20)]


class Part:
    """A share of a snapshot."""

    name = "part"

    def read(self) -> Iterator[Delta]:
        for rows in PART_ROWS:
            numbers = Column.of("i", [row[0] for row, _ in rows])
            texts = Column.of("s", [row[1] for row, _ in rows])
            yield Delta([numbers, texts], np.ones(len(rows), np.int64))


def _make_own_files(folder: Path) -> dict[str, Callable[[Path], Any]]:
    """A folder of each kind; what reads it gives None for what it refuses."""
    world = World(SEED)
    for name in ("spooled", "kept"):
        (folder / name).mkdir()
    spool = Spool(folder / "spooled" / "spool", [OWNERS.name, THINGS.name])
    for position in range(1, 41):
        spool.append(world.batch(position))
    spool.close()
    log = ChangeLog.begin(folder / "logged", 0, 600, 1 << 30)
    for epoch in range(1, 30):
        log.append(epoch, [b'{"row": %d}' % i for i in range(epoch)], b'{"mark": %d}' % epoch)
    log.close()
    for _ in CachedPartition(Part(), FolderExchange(folder / "kept"), "part").read():
        pass
    return {"spooled": _spooled, "logged": _logged, "kept": _kept}


def _is_shorter(name: str, found: Any, good: Any) -> bool:
    """A log of changes may lack its newest epochs: the outbox has them, or its readers are told."""
    return name == "logged" and good[0].startswith(found[0])


def test_a_damaged_file_of_our_own_is_never_read_as_rows(tmp_path: Path) -> None:
    readers = _make_own_files(tmp_path)
    pick = random.Random(SEED)
    refused = 0
    for number in range(20 * FILES):
        name = pick.choice(list(readers))
        good = readers[name](Path(shutil.copytree(tmp_path / name, tmp_path / "one")))
        shutil.rmtree(tmp_path / "one")
        copy = Path(shutil.copytree(tmp_path / name, tmp_path / "one"))
        paths = [p for p in sorted(copy.iterdir()) if p.suffix != ".json"]
        path = pick.choice(paths)
        kind = pick.choice([k for k in DAMAGES if k != "older"])
        done = damage_file(pick, path, path, kind, path.name)
        found = readers[name](copy)
        shutil.rmtree(copy)
        refused += found is None
        told = f"{name}: {done} (TIDEMARK_TEST_SEED={SEED}, case {number})"
        assert found is None or found == good or _is_shorter(name, found, good), told
    assert refused > FILES
