"""Oracle: PostgreSQL's own answers over the rows that the source had; and, of what an upgrade
writes, what one writes that nobody has interrupted.

The states of `tests/recovery/states` were left by earlier versions of the program, killed while the
sink lacked epochs (`tests/recovery/older_state.py`).
"""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from connectors.sink import SinkEpoch
from connectors.source import MAIN_SOURCE, SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Column
from dataflow.schema import Relation
from service.checkpoint.checkpoints import Checkpoints
from service.checkpoint.restore import Desired, restore
from service.engine import state_version
from service.engine.encoding import version_1
from service.engine.engine import Engine
from service.engine.outbox import Outbox
from service.runtime.service_key import FILE as KEY_FILE
from service.runtime.service_key import read_key
from service.runtime.settings import Settings
from storage.errors import StorageError
from storage.failpoints import VARIABLE
from storage.rocks import RocksStore
from tests.harness.postgres import Database
from tests.harness.trap import Trap
from tests.recovery.older_state import FUNCTION, RENAMED, SCHEMA, VIEWS, odd_epochs, shown
from tests.recovery.test_checkpoints import Slot

pytestmark = pytest.mark.timeout(600)

STATES = Path(__file__).with_name("states")
VERSIONS = sorted(STATES.iterdir())
ONE = STATES / "version_1"
NAMES = {RENAMED.get(name, name): query for name, query in VIEWS.items()}
CODES = {"state.corrupt", "state.unknown_type", "state.unknown_field"}

Rows = dict[str, Counter[tuple[Any, ...]]]


def unpacked(version: Path, folder: Path) -> Path:
    """The state's directory."""
    with tarfile.open(version / "state.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / "state"


def values_of(state: Path) -> dict[str, bytes]:
    """All named values of a store."""
    store = RocksStore(state / "store")
    found = dict(store.items(""))
    store.close()
    return found


# --- views go on --------------------------------------------------------------------------------


class Started:
    """Today's engine over an older state, beside a database with what the source had then.

    shown: what the sink shows, with each epoch of the outbox that it lacked."""

    def __init__(self, version: Path, database: Database, folder: Path) -> None:
        facts = json.loads((version / "facts.json").read_text())
        self.database, self.state = database, unpacked(version, folder)
        self._fill(facts)
        self.before = arrangements_of(self.state)
        state_version.claim(self.state)
        self.store = RocksStore(self.state / "store")
        self._evaluator = PostgresEvaluator(database.dsn)
        self.engine = Engine(self.store, self._evaluator, MAIN_SOURCE)
        self.shown: Rows = {
            name: Counter(as_kept(row) for row in rows) for name, rows in facts["views"].items()
        }
        self.unsent = self.engine.outbox(facts["epoch"])
        for epoch in self.unsent:
            self.apply(epoch)
        relations = [r for d in self.engine.views.values() for r in d.relations()]
        self.relations: dict[str, Relation] = {r.name.name: r for r in relations}

    def _fill(self, facts: dict[str, Any]) -> None:
        self.database.execute(SCHEMA + FUNCTION)
        for table in ("people", "orders"):
            columns = f"json_populate_recordset(NULL::{table}, %s)"
            names = [
                name for (name,) in self.database.rows(
                    "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass"
                    " AND attnum > 0 ORDER BY attnum", (table,))
            ]  # fmt: skip
            rows = [dict(zip(names, row, strict=True)) for row in facts[table]]
            self.database.execute(
                f"INSERT INTO {table} SELECT * FROM {columns}", (json.dumps(rows),)
            )
        self.database.execute(f"CREATE VIEW totals AS {VIEWS['totals']}")

    def apply(self, epoch: SinkEpoch) -> None:
        """As the sink does."""
        for part in epoch.rows.parts():
            for table, delta in part.deltas:
                rows = self.shown[table.name]
                for row, weight in delta.rows():
                    rows[row] += weight
                    assert rows[row] >= 0, (table.name, row)

    def step(self, sql: str, *changes: tuple[str, str, list[tuple[Any, ...]]]) -> None:
        """What a transaction does, at the source and in the stream."""
        self.database.execute(sql)
        batch = SourceBatch(self.engine.position + 1, [], 1, len(changes))
        for table, kinds, rows in changes:
            relation = self.relations[table]
            columns = tuple(
                Column.of(f.type.physical, [row[i] for row in rows])
                for i, f in enumerate(relation.fields)
            )
            letters = np.frombuffer(kinds.encode(), np.uint8)
            batch.changes.append(Changes(relation, letters, columns))
        epoch = self.engine.step(batch)
        assert not self.engine.refused()
        self.engine.commit(epoch, written=0)
        self.apply(epoch)

    def check(self) -> None:
        """Every view shows PostgreSQL's answer."""
        for name, query in NAMES.items():
            wanted = Counter(as_kept(row) for row in self.database.rows(query))
            assert +self.shown[name] == wanted, name

    def open_again(self) -> None:
        """As the next process does."""
        self.store.close()
        self.store = RocksStore(self.state / "store")
        self.engine = Engine(self.store, self._evaluator, MAIN_SOURCE)

    def close(self) -> None:
        self.store.close()
        self._evaluator.close()


def as_kept(row: Any) -> tuple[Any, ...]:
    """A row of the sink as deltas have it."""
    return tuple(v.encode() if isinstance(v, str) else v for v in row)


def arrangements_of(state: Path) -> set[str]:
    store = RocksStore(state / "store")
    names = set(store.names())
    store.close()
    return names


@pytest.fixture(params=VERSIONS, ids=[version.name for version in VERSIONS])
def started(
    request: pytest.FixtureRequest, database: Database, tmp_path: Path
) -> Iterator[Started]:
    made = Started(request.param, database, tmp_path)
    yield made
    made.close()


def test_live_views_continue_and_no_epoch_is_lost(started: Started) -> None:
    """Nothing is rebuilt: the state of before is the state of now."""
    engine = started.engine
    assert sorted(d.table.name for d in engine.views.values()) == sorted(NAMES)
    assert set(started.store.names()) == started.before
    numbers = [epoch.progress.epoch for epoch in started.unsent]
    assert len(numbers) >= 3 and numbers[-1] == engine.epoch
    started.check()
    for _ in range(2):
        started.step(
            "INSERT INTO orders VALUES (900, 4, 'west', 77), (901, 31, NULL, 2)",
            ("orders", "II", [(900, 4, "west", 77), (901, 31, None, 2)]),
        )
        started.check()
        started.step(
            "UPDATE orders SET amount = 99 WHERE id = 900; DELETE FROM orders WHERE id = 3",
            ("orders", "NE", [(900, 4, "west", 99), (3, None, None, None)]),
        )
        started.check()
        started.step(
            "UPDATE people SET name = 'other', boss = NULL WHERE id = 4;"
            "INSERT INTO people VALUES (77, 'new', 4)",
            ("people", "NI", [(4, "other", None), (77, "new", 4)]),
        )
        started.check()
        started.step(
            "DELETE FROM people WHERE id = 77; DELETE FROM orders WHERE id IN (900, 901);"
            "INSERT INTO orders VALUES (3, 21, 'north', 10)",
            ("people", "E", [(77, None, None)]),
            ("orders", "EEI", [(900, *[None] * 3), (901, *[None] * 3), (3, 21, "north", 10)]),
        )
        started.check()
        started.open_again()


def test_views_that_share_state_still_do_and_may_be_dropped(started: Started) -> None:
    engine = started.engine
    names = {d.table.name: name for name, d in engine.views.items()}
    nodes = {n: engine.dataflow.views[name].nodes for n, name in names.items()}
    assert nodes["totals"][-1] is nodes["totals_again"][-1]
    assert any(
        node.location is not None and "remember" in node.location.name for node in nodes["shouted"]
    )
    for name in ("above", "totals"):
        engine.remove(names[name])
        started.shown.pop(name)
    engine.commit(None, written=0)
    started.open_again()
    assert len(started.engine.views) == len(NAMES) - 2
    started.step(
        "INSERT INTO orders VALUES (950, 4, 'west', 9)", ("orders", "I", [(950, 4, "west", 9)])
    )
    wanted = Counter(as_kept(row) for row in started.database.rows(VIEWS["totals_again"]))
    assert +started.shown["totals_again"] == wanted


@pytest.mark.parametrize("version", VERSIONS, ids=[version.name for version in VERSIONS])
def test_epochs_of_every_kind_are_still_there(version: Path, tmp_path: Path) -> None:
    folder = unpacked(version, tmp_path) / "odd"
    (folder / state_version.FILE).write_text((folder.parent / state_version.FILE).read_text())
    state_version.claim(folder)
    store = RocksStore(folder / "store")
    outbox = Outbox(store)
    for epoch in odd_epochs():
        found = outbox.find(epoch.progress.epoch)
        assert found is not None and shown(found) == shown(epoch)
    store.close()


# --- the step from version 1 --------------------------------------------------------------------


@pytest.fixture(scope="module")
def upgraded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The values of a state that was brought up at once."""
    state = unpacked(ONE, tmp_path_factory.mktemp("upgraded"))
    state_version.claim(state)
    return values_of(state)


POINTS = [
    *("state.upgrade.value=kill@1", "state.upgrade.value=kill@5", "state.upgrade.value=kill@12"),
    *("state.commit.before=kill", "state.commit.after=kill"),
    *("state.upgrade.after=kill", "state.version.before=kill"),
]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("commit_bytes", [version_1._COMMIT_BYTES, 1_000])
def test_a_step_that_is_killed_is_done_again(
    point: str, commit_bytes: int, tmp_path: Path, upgraded: dict[str, bytes]
) -> None:
    """With all in one commit, and with many of them."""
    state = unpacked(ONE, tmp_path)
    program = (
        "from pathlib import Path; from service.engine import state_version;"
        f"from service.engine.encoding import version_1; version_1._COMMIT_BYTES = {commit_bytes};"
        f"state_version.claim(Path({str(state)!r}))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, VARIABLE: point},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    assert json.loads((state / state_version.FILE).read_text())["version"] == 1
    state_version.claim(state)
    assert json.loads((state / state_version.FILE).read_text())["version"] == state_version.VERSION
    assert values_of(state) == upgraded


def test_no_pickle_is_left(upgraded: dict[str, bytes]) -> None:
    before = {key for key in upgraded if key.startswith(("view/", "outbox", "layout", "tables"))}
    assert len(before) > len(VIEWS)
    assert not [key for key, value in upgraded.items() if value.startswith(b"\x80")]


def test_what_was_spooled_for_builds_is_given_up(tmp_path: Path) -> None:
    """They begin again: their spool is not there."""
    state = unpacked(ONE, tmp_path)
    spool = state / "builds" / "v1" / "changes-2.spool"
    spool.parent.mkdir(parents=True)
    spool.write_bytes(b"changes")
    (spool.parent / "manifest.json").write_text("{}")
    state_version.claim(state)
    assert not spool.exists() and (spool.parent / "manifest.json").exists()


def test_a_checkpoint_of_version_1_goes_the_same_way(
    tmp_path: Path, upgraded: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, place, restored = unpacked(ONE, tmp_path), tmp_path / "place", tmp_path / "restored"
    settings = Settings(source="-", state=state, checkpoint_to=str(place))  # type: ignore[call-arg]
    store = RocksStore(state / "store")
    with monkeypatch.context() as patched:
        patched.setattr(state_version, "VERSION", 1)
        checkpoints = Checkpoints(settings, store, lambda: None, Slot())  # type: ignore[arg-type]
        checkpoints._list()
        checkpoints._make()
        checkpoints.close()
    store.close()
    restore(Desired(str(place), restored, key=read_key(state / KEY_FILE)), lambda _: None)
    assert state_version.check(restored) == 1
    state_version.claim(restored)
    assert values_of(restored) == upgraded


def test_what_is_not_in_the_list_is_refused_and_never_run(tmp_path: Path) -> None:
    state, marker = unpacked(ONE, tmp_path), tmp_path / "ran"
    store = RocksStore(state / "store")
    store.put("view/trap", pickle.dumps(Trap(marker)))
    store.commit(sync=True)
    store.close()
    before = values_of(state)
    with pytest.raises(StorageError) as refused:
        state_version.claim(state)
    assert refused.value.code == "state.unknown_type" and "pathlib" in refused.value.detail
    assert not marker.exists()
    assert values_of(state) == before
    assert state_version.check(state) == 1


def test_damaged_values_of_version_1_are_refused_with_a_code(tmp_path: Path) -> None:
    pick = random.Random(0)
    for key, stored in values_of(unpacked(ONE, tmp_path)).items():
        if not key.startswith(tuple(version_1._VALUES)):
            continue
        assert version_1.rewritten(key, stored)
        for _ in range(60):
            changed = bytearray(stored)
            if pick.random() < 0.3:
                del changed[pick.randrange(len(stored)) :]
            for _ in range(pick.randint(1, 4)):
                if changed:
                    changed[pick.randrange(len(changed))] = pick.randrange(256)
            try:
                version_1.rewritten(key, bytes(changed))
            except StorageError as error:
                assert error.code in CODES
