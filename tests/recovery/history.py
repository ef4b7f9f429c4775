"""A service's state without its processes: real engine, store and recovery, between a source and
a sink in memory.

`python -m tests.recovery.history SEED FOLDER` makes a state as a kill leaves it, in
FOLDER/state, an earlier copy of it in FOLDER/older, and what source and sink knew in
FOLDER/world. `go_on` starts over such a state, as the service would, and demands the right answer
after every epoch; what it raises must be a refusal with a code.
"""

from __future__ import annotations

import os
import pickle
import random
import shutil
import sys
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connectors.sink import Progress, SinkEpoch
from connectors.source import MAIN_SOURCE, SourceBatch
from dataflow.errors import SourceError
from dataflow.expressions.evaluator import NoEvaluator
from service.engine.definition import View
from service.engine.engine import Engine
from service.metrics.metrics import PipelineMetrics
from service.pipeline.recovery import recover
from storage import seal
from storage.errors import StorageError
from storage.pages import Tuning
from storage.rocks import RocksStore, StoreBudget
from tests.unit.service.test_engine import ABOVE, COUNTED, JOINED, Model

TUNING = Tuning(
    page_rows=8, memory_rows=60, file_rows=100, fan=3, fuel=3, merge_pages=1, scan_pages=4
)
BUDGET = StoreBudget(run_bytes=3_000, ahead_bytes=1_000, write_buffer_bytes=64 << 10)
VIEWS = (JOINED, COUNTED, ABOVE)
BATCHES, MORE = 150, 25

Rows = dict[str, Counter[tuple[Any, ...]]]


class World:
    """The source's history: batch n ends at position n, and what the views are after it."""

    def __init__(self, seed: int) -> None:
        model = Model(seed)
        pick = random.Random(seed)
        self.changes: list[list[Any]] = [[]]
        self.answers: list[list[Counter]] = [[Counter(), Counter(), Counter()]]
        for position in range(BATCHES + MORE):
            # The first one is empty: a view that reads another one comes an epoch later.
            size = pick.choice((1, 5, 40, 120)) if position else 0
            self.changes.append(model.changes(size))
            self.answers.append(model.views())

    def batch(self, position: int) -> SourceBatch:
        """The transactions that end there."""
        changes = self.changes[position]
        return SourceBatch(position, list(changes), 1, sum(map(len, changes)))


@dataclass
class MemorySink:
    """Rows of views by name, and the progress, moved together. written: epochs so far."""

    rows: Rows = field(default_factory=dict)
    progress: Progress | None = None

    def read_progress(self) -> Progress | None:
        """See Sink."""
        return self.progress

    def write(self, epoch: SinkEpoch) -> None:
        """See Sink; no epoch is left out or written twice."""
        before = 0 if self.progress is None else self.progress.epoch
        assert epoch.progress.epoch == before + 1, (before, epoch.progress.epoch)
        for part in epoch.rows.parts():
            for table, delta in part.deltas:
                rows = self.rows.setdefault(table.name, Counter())
                for row, weight in delta.rows():
                    rows[row] += weight
                    assert rows[row] >= 0, (table.name, row)
        self.progress = epoch.progress

    def interrupt(self) -> None:
        """See Sink."""

    def check(self, world: World) -> None:
        """What is shown is the answer at the position that it claims."""
        position = 0 if self.progress is None else self.progress.positions.get(MAIN_SOURCE, 0)
        found = [
            Counter({r: w for r, w in self.rows.get(d.table.name, Counter()).items() if w})
            for d in VIEWS
        ]
        assert found == world.answers[position], f"wrong rows at {position}"


@dataclass
class Known:
    """What the world beside the state knows. confirmed: what the source was told."""

    seed: int
    sink: MemorySink
    confirmed: int = 0


def open_engine(folder: Path) -> Engine:
    """The state of a folder, views of before included. StorageError."""
    store = RocksStore(folder / "store", tuning=TUNING, budget=BUDGET, cache_bytes=40_000)
    try:
        return Engine(store, NoEvaluator(), MAIN_SOURCE)
    except BaseException:
        store.close()
        raise


def arrangements(engine: Engine) -> dict[str, Counter]:
    """Every row of every arrangement."""
    found = {}
    for name, (_, runs) in engine.store._open.items():  # type: ignore[attr-defined]
        rows: Counter = Counter()
        for selection in runs.scan():
            columns = [c.to_list() for c in runs.layout.columns(selection.hits)]
            values = [tuple(v) for v in selection.totals.tolist()]
            rows.update(zip(*columns, values, strict=True))
        found[name] = rows
    return found


def make(seed: int, folder: Path, *, is_closed: bool = False) -> None:
    """Stream, sync and confirm now and then, with a sink that is a few epochs behind.

    is_closed: let go of the state in the end; else whoever calls this is to die. What the disk
    refuses is raised; what the world knows then is written down, and the state is released.
    """
    known = Known(seed, MemorySink())
    # As if there were a second between two that are forced to disk.
    seal.OBSERVE_S = 0.0
    opened: list[Engine] = []
    try:
        _stream(seed, folder, known, opened)
    except BaseException:
        is_closed = True
        raise
    finally:
        (folder / "world").write_bytes(pickle.dumps(known))
        if is_closed and opened:
            _let_go(opened[-1])


def _let_go(engine: Engine) -> None:
    """What a broken disk says to that is no news."""
    with suppress(StorageError):
        engine.store.close()


def _stream(seed: int, folder: Path, known: Known, opened: list[Engine]) -> None:
    pick, world = random.Random(seed), World(seed)
    state = folder / "state"
    engine = open_engine(state)
    opened.append(engine)
    for definition in VIEWS[:-1]:
        engine.add(View(definition, engine.store, NoEvaluator()))
    engine.positions.begin(MAIN_SOURCE, 0)
    copied_at, last = pick.randrange(20, BATCHES - 20), BATCHES - pick.randrange(20)
    waiting: list[SinkEpoch] = []
    for position in range(1, last + 1):
        epoch = engine.step(world.batch(position))
        is_synced = pick.random() < 0.1
        written = 0 if known.sink.progress is None else known.sink.progress.epoch
        if position == 1:
            engine.add(View(VIEWS[-1], engine.store, NoEvaluator()))
        engine.commit(epoch, written=written, sync=is_synced)
        if is_synced:
            known.confirmed = engine.position
        waiting.append(epoch)
        while len(waiting) > pick.randrange(4):
            known.sink.write(waiting.pop(0))
        if position == copied_at:
            opened.clear()
            engine.store.close()
            shutil.copytree(state, folder / "older")
            engine = open_engine(state)
            opened.append(engine)
            waiting = engine.outbox(known.sink.progress.epoch if known.sink.progress else 0)


def go_on(folder: Path, known: Known, world: World) -> dict[str, Counter]:
    """Start over the state and stream to the end of history; the arrangements then.

    What the service would refuse is raised: StorageError, TidemarkError.
    """
    sink = known.sink
    engine = open_engine(folder)
    writer = None
    try:
        if not engine.views:
            # The catalog knows them: they are rebuilt (`CatalogReconciler.rebuild_lost`).
            return {}
        writer, mute = recover(engine, sink, PipelineMetrics(folder), (), 1 << 20)  # type: ignore[arg-type]
        writer.drain()
        if known.confirmed > engine.position:
            raise SourceError("source.slot_advanced", "the slot is ahead", hint="rebuild")
        until, in_sink = mute.get(MAIN_SOURCE, 0), writer.written
        if not until and engine.epoch < in_sink:
            engine.positions.set_epoch(in_sink)
        while engine.position < BATCHES + MORE:
            before = engine.epoch
            epoch = engine.step(world.batch(engine.position + 1))
            if engine.position <= until:
                # As `Epochs` does: where the sink is, with the epoch of the sink.
                engine.positions.set_epoch(before if engine.position < until else in_sink)
                engine.commit(None, written=engine.epoch)
                continue
            engine.commit(epoch, written=writer.written, sync=engine.position % 7 == 0)
            writer.submit(epoch)
            writer.drain()
            sink.check(world)
        assert sink.progress is not None
        assert sink.progress.positions[MAIN_SOURCE] == BATCHES + MORE
        return arrangements(engine)
    finally:
        if writer is not None:
            writer.close()
        _let_go(engine)


def read_world(folder: Path) -> Known:
    """What `make` left beside the state."""
    return pickle.loads((folder / "world").read_bytes())


if __name__ == "__main__":
    # Not as __main__: what is pickled is read by others.
    from tests.recovery import history

    history.make(int(sys.argv[1]), Path(sys.argv[2]))
    # As after a kill: nothing is closed, nothing is flushed.
    os._exit(0)
