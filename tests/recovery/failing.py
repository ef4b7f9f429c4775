"""A disk that refuses, under the state and our own files: `python -m tests.recovery.failing SEED
COUNT FOLDER` with tests/harness/failing_disk.c preloaded.

Each case goes on until the disk refuses the N-th call, with half of a write done now and then; what
it says must have its code. Then there is room again, and everything must come out as if nothing
had been, with nothing lost that was confirmed to the source. Prints the outcomes as JSON.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from connectors.partition_cache import CachedPartition
from connectors.shuffle_storage import FolderExchange
from dataflow.errors import TemporaryError
from service.backfill.spool import Spool
from service.runtime.disk_errors import disk_error
from service.subscriptions.change_log import ChangeLog
from storage.errors import StorageError
from tests.recovery.history import World, go_on, make, read_world
from tests.unit.service.test_engine import OWNERS, THINGS

_CODES = {errno.ENOSPC: "state.disk_full", errno.EIO: "state.io"}
_NAMES = {errno.ENOSPC: "ENOSPC", errno.EIO: "EIO"}
_LIBC = ctypes.CDLL(None)


@contextmanager
def failing(pick: random.Random, folder: Path, number: int, most: int) -> Iterator[int]:
    """The disk below the folder refuses from a drawn call on."""
    at = pick.randrange(1, most)
    facts = {
        "FAILING_FOLDER": str(folder),
        "FAILING_AT": str(at),
        "FAILING_ERRNO": str(number),
    }
    if pick.random() < 0.5:
        facts["FAILING_PART"] = "1"
    _LIBC.failing_reset()
    os.environ.update(facts)
    try:
        yield at
    finally:
        for name in ("FAILING_FOLDER", "FAILING_AT", "FAILING_ERRNO", "FAILING_PART"):
            os.environ.pop(name, None)


def _named(error: Exception, number: int, told: str) -> None:
    """What the service would tell people of it."""
    found = disk_error(error, "a test")
    assert found is not None, f"{told}: {error!r}"
    # A write that was refused may be seen as one that is cut short, when it is read again.
    assert found.code == _CODES[number], f"{told}: {found.code} {found.detail}"
    assert found.hint, told


def _is_for_good(error: Exception, number: int) -> bool:
    """RocksDB may delete a table although its manifest, which could not be forced to disk, has it:
    nobody knows what is on disk then. Refused, with a way out."""
    if number != errno.EIO or not isinstance(error, StorageError):
        return False
    return error.code == "state.corrupt" and "restore" in error.hint


def fail_state(pick: random.Random, seed: int, folder: Path, number: int, good: dict) -> str:
    """Stream until the disk refuses; continue with room."""
    outcome = "went on"
    with failing(pick, folder / "state", number, 3000 if number == errno.ENOSPC else 120) as at:
        told = f"{_NAMES[number]} at call {at} of the state, seed {seed}"
        try:
            make(seed, folder, is_closed=True)
        except (StorageError, OSError) as error:
            _named(error, number, told)
            outcome = "refused"
        if outcome == "refused" and pick.random() < 0.3:
            # Tried again by the supervisor, with no room yet.
            _LIBC.failing_reset()
            os.environ["FAILING_AT"] = "1"
            try:
                go_on(folder / "state", read_world(folder), World(seed))
            except (StorageError, OSError) as error:
                if not _is_for_good(error, number):
                    _named(error, number, told)
    try:
        found = go_on(folder / "state", read_world(folder), World(seed))
    except StorageError as error:
        assert _is_for_good(error, number), f"{told}: {error}"
        return "refused for good"
    # No view had been committed, or all is as it would have been.
    assert found in ({}, good), told
    return outcome


def fail_spool(pick: random.Random, seed: int, folder: Path, number: int, _: dict) -> str:
    """What the state knows to be spooled is there."""
    world, count = World(seed), 0
    spool = Spool(folder / "spool", [OWNERS.name, THINGS.name])
    with failing(pick, folder, number, 40) as at:
        told = f"{_NAMES[number]} at call {at} of the spool, seed {seed}"
        try:
            for position in range(1, 41):
                spool.append(world.batch(position))
                spool.sync()
                count = spool.count
        except OSError as error:
            _named(error, number, told)
        try:
            spool.close()
        except OSError as error:
            _named(error, number, told)
    again = Spool(folder / "spool", [OWNERS.name, THINGS.name])
    assert again.restore(count), told
    for position in range(1, count + 1):
        batch = again.pop()
        assert batch is not None and batch.position == position, told
    again.close()
    return "went on" if count == 40 else "refused"


def fail_log(pick: random.Random, seed: int, folder: Path, number: int, _: dict) -> str:
    """Whole epochs, in order, up to one."""
    made = folder / "log"
    log = ChangeLog.begin(made, 0, 600, 1 << 30)
    reached = 0
    with failing(pick, folder, errno.ENOSPC, 120) as at:
        told = f"ENOSPC at call {at} of the log of changes, seed {seed}"
        try:
            for epoch in range(1, 30):
                log.append(epoch, [b'{"row":%d}' % epoch] * 3, b'{"mark":%d}' % epoch)
                reached = epoch
        except OSError as error:
            _named(error, errno.ENOSPC, told)
        log.close()
    again = ChangeLog.reopen(made, 1 << 30)
    assert again is not None and again.reached == reached, told
    again.close()
    return "went on" if reached == 29 else "refused"


def fail_part(pick: random.Random, seed: int, folder: Path, number: int, _: dict) -> str:
    """A part that could not be kept is not there."""
    from tests.recovery.test_corruption import PART_ROWS, Part

    exchange = FolderExchange(folder)
    outcome = "went on"
    with failing(pick, folder, number, 4 if number == errno.ENOSPC else 2) as at:
        told = f"{_NAMES[number]} at call {at} of a kept part, seed {seed}"
        try:
            list(CachedPartition(Part(), exchange, "part").read())
        except OSError as error:
            _named(error, number, told)
            outcome = "refused"
    assert (folder / "part").exists() == (outcome == "went on"), told
    try:
        rows = [chunk.rows() for chunk in CachedPartition(Part(), exchange, "part").read()]
    except TemporaryError as error:
        raise AssertionError(told) from error
    assert rows == PART_ROWS, told
    return outcome


_CASES: list[Callable[[random.Random, int, Path, int, dict], str]] = [
    *[fail_state] * 6,
    fail_spool,
    fail_log,
    fail_part,
]


def main(seed: int, count: int, folder: Path) -> None:
    """All cases, from a seed on."""
    outcomes: dict[str, Counter[str]] = {name: Counter() for name in _NAMES.values()}
    good: dict = {}
    state_seed = seed
    for number in range(seed, seed + count):
        pick = random.Random(number)
        if not good or number % 50 == 0:
            state_seed = number
            base = folder / "good"
            shutil.rmtree(base, ignore_errors=True)
            base.mkdir()
            make(state_seed, base, is_closed=True)
            good = go_on(base / "state", read_world(base), World(state_seed))
        case = folder / "case"
        shutil.rmtree(case, ignore_errors=True)
        case.mkdir()
        run, kind = pick.choice(_CASES), pick.choice((errno.ENOSPC, errno.ENOSPC, errno.EIO))
        outcome = run(pick, state_seed, case, kind, good)
        outcomes[_NAMES[kind]][f"{run.__name__}: {outcome}"] += 1
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
