"""Oracle: the runs of the store, and when they were merged."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from service.pipeline.epochs import Epochs
from service.pipeline.idle_merges import IDLE_S, PAUSE_S, IdleMerges
from service.runtime.runtime import Runtime
from storage.delta import Delta
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
    merges = IdleMerges(store, cast(Epochs, commits), cast(Any, clock))

    def grow() -> None:
        for at in range(0, 4000, 200):
            rows.apply(Delta.of("ii", [(key, -key) for key in range(at, at + 200)]))
            store.commit()

    def idle(seconds: float) -> None:
        end = clock.now + seconds
        while clock.now < end:
            clock.now += 0.02
            merges.run_if_due()

    grow()
    while clock.now < 105:
        # Never without changes for long.
        clock.now += IDLE_S / 2
        merges.put_off()
        merges.run_if_due()
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
