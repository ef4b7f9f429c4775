"""Oracle: the store: which runs it has, and what it has read."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from dataflow.expressions.evaluator import NoEvaluator
from service.engine.engine import Engine
from service.pipeline.epochs import Epochs
from service.pipeline.idle_work import IDLE_S, PAUSE_S, IdleWork
from service.runtime.runtime import Runtime
from storage.delta import Delta
from storage.memory import MemoryStore
from storage.pages import Tuning
from storage.rocks import RocksStore
from storage.store import ArrangementSpec


class _Clock(Runtime):
    now = 100.0

    def monotonic(self) -> float:
        return self.now


class _Commits:
    """The one thing of an Epochs that is used."""

    def __init__(self, store: RocksStore) -> None:
        self.count = 0
        self._store = store

    def commit(self) -> None:
        self.count += 1
        self._store.commit()


def test_runs_are_merged_once_sources_have_nothing(tmp_path: Path) -> None:
    tuning = Tuning(page_rows=32, memory_rows=100, fan=64, epoch_merge_rows=512, merge_pages=2)
    store = RocksStore(tmp_path, 1 << 24, tuning)
    rows = store.arrange(ArrangementSpec("a", "ii", (0,)))
    clock, commits = _Clock(), _Commits(store)
    engine = Engine(store, NoEvaluator(), "source")
    work = IdleWork(store, engine, cast(Epochs, commits), cast(Any, clock))

    def grow() -> None:
        for at in range(0, 4000, 200):
            rows.apply(Delta.of("ii", [(key, -key) for key in range(at, at + 200)]))
            store.commit()

    def idle(seconds: float) -> None:
        end = clock.now + seconds
        while clock.now < end:
            clock.now += 0.02
            work.step()

    grow()
    while clock.now < 105:
        # Never without changes for long.
        clock.now += IDLE_S / 2
        work.put_off()
        work.step()
    assert commits.count == 0 and len(rows.runs.run_rows()) == 20
    idle(5)
    assert commits.count > 1 and rows.runs.run_rows() == [4000]
    before = commits.count
    idle(1)
    assert commits.count == before
    grow()
    idle(PAUSE_S + 5)
    # The same rows again: their weights are added up.
    assert rows.runs.run_rows() == [4000]
    store.close()


class _ColdStore(MemoryStore):
    """Has pages that nobody has read, and never anything to merge."""

    cold = 40

    def warm(self, pages: int) -> bool:
        self.cold -= min(pages, self.cold)
        return self.cold > 0


def test_what_the_next_change_needs_is_prepared_once_there_is_a_view() -> None:
    store = _ColdStore()
    engine = Engine(store, NoEvaluator(), "source")
    work = IdleWork(store, engine, cast(Epochs, None), cast(Any, _Clock()))
    for _ in range(9):
        work.step()
    assert store.cold == 40
    engine.views[cast(Any, "a view")] = cast(Any, None)
    seen = []
    for _ in range(4):
        work.step()
        seen.append(store.cold)
    # A little a step: a change that comes meanwhile waits for no more.
    assert seen == [24, 8, 0, 0]
