"""Oracle: the rows and rejected records that the parts themselves give, read one by one; both roads
are given the same parts, fresh and kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from connectors.feed_source import REJECTED_KINDS, rejected_row
from connectors.partition_cache import CachedPartition, Progress, file_name_of
from connectors.shuffle_storage import FolderExchange
from connectors.source import SnapshotPart
from connectors.spark.result import BackfillResult
from dataflow.delta import Delta
from dataflow.errors import TemporaryError
from dataflow.plan.nodes import Plan
from service.backfill.local_backfill import BackfillJob, backfill
from tests.connectors.spark import test_backfill as distributed
from tests.connectors.spark.test_backfill import PLANS, bag, kept_of, parts_of, relations_of
from tests.connectors.spark.views import DrawnPart, no_evaluator


@dataclass
class TopicPart:
    """Leaves out the first row of what another part draws, and rejects it; counts its readings."""

    drawn: DrawnPart
    log: Path
    found: list[tuple] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Which rows."""
        return self.drawn.name

    def read(self) -> Iterator[Delta]:
        """All rows but one."""
        with self.log.open("a") as file:
            file.write(f"{self.name}\n")
        whole = Delta.concat(list(self.drawn.read()))
        place = f"0:{self.drawn.keys.start}"
        name = self.drawn.relation.name
        self.found = [rejected_row(name, place, "test.bad", "bad", key=None, value=b"\x00{")]
        yield whole.slice(1, len(whole))

    def rejected(self) -> Delta:
        """The one that was left out."""
        return Delta.of(REJECTED_KINDS, self.found)


def topic_parts(plan: Plan, folder: Path) -> dict[object, list[SnapshotPart]]:
    """Parts of a feed source, kept in the folder as they are read."""
    exchange, log = FolderExchange(folder), folder / "log"
    folder.mkdir(exist_ok=True)
    return {
        name: [
            CachedPartition(TopicPart(part, log), exchange, file_name_of(1, str(name), part.name))
            for part in parts
        ]
        for name, parts in parts_of(plan).items()
    }


def run_local(plan: Plan, parts: dict, folder: Path) -> tuple[BackfillResult, list[Progress]]:
    folder.mkdir()
    relations, calls = tuple(relations_of(plan)), []
    job = BackfillJob(plan, "v1", relations, kept_of(plan), parts, no_evaluator, folder)
    return backfill(job, calls.append), calls


def answer(result: BackfillResult) -> tuple[Counter, Counter, Counter, int]:
    pages = [bag(page) for page in result.read_output()]
    return sum(pages, Counter()), bag(result.errors), bag(result.rejected), result.rows


@pytest.mark.parametrize("name", ["grouped join", "failing rows", "words"])
def test_parts_that_reject_and_parts_that_are_stored(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, kept = PLANS[name], tmp_path / "kept"
    read = {n: [list(p.read()) for p in parts] for n, parts in topic_parts(plan, kept).items()}
    (kept / "log").unlink()
    rows = sum(len(d) for parts in read.values() for deltas in parts for d in deltas)

    first, calls = run_local(plan, topic_parts(plan, kept), tmp_path / "first")
    monkeypatch.setattr(distributed, "parts_of", lambda p, **_: topic_parts(p, kept))
    third = distributed.run_here(plan, tmp_path / "third", 2)
    assert not (kept / "log").exists(), "what is kept is not read again"
    monkeypatch.setattr(distributed, "parts_of", lambda p, **_: topic_parts(p, tmp_path / "new"))
    fourth = distributed.run_here(plan, tmp_path / "fourth", 2)
    second, _ = run_local(plan, topic_parts(plan, tmp_path / "newer"), tmp_path / "second")

    wanted = answer(first)
    assert wanted[3] == rows
    parts = sum(map(len, read.values()))
    assert len(wanted[2]) == parts
    assert all(answer(result) == wanted for result in (second, third, fourth))
    assert len((tmp_path / "new" / "log").read_text().splitlines()) == parts
    assert (calls[-1].parts_done, calls[-1].rows) == (parts, rows)


def test_a_torn_file_is_not_read_as_a_part(tmp_path: Path) -> None:
    [part, *_] = next(iter(topic_parts(PLANS["words"], tmp_path).values()))
    assert isinstance(part, CachedPartition)
    list(part.read())
    path = tmp_path / part.file_name
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(TemporaryError, match=r"backfill\.torn"):
        list(part.read())
