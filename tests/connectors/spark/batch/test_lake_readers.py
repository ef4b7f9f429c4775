"""Oracle: the rows of a dictionary after each epoch; pyiceberg, DuckDB and Spark SQL show them at
the epoch's snapshot, however it was written."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest

from connectors.feed_source import REJECTED_KINDS
from connectors.spark.batch import compaction, iceberg_sink
from connectors.spark.batch.iceberg_sink import Deletes, IcebergSink
from connectors.spark.batch.planning import PlannedView
from connectors.spark.maintained.output import CommittedEpoch
from connectors.spark.session import LazySession
from dataflow.collect import ERROR_KINDS
from dataflow.delta import Delta
from dataflow.errors import SinkError, TidemarkError
from dataflow.schema import Field
from dataflow.types import INT8, TEXT
from storage.failpoints import set_failpoints
from tests.connectors.spark.batch.lake import (
    Lake,
    lake_session,
    newest_metadata,
    pyiceberg_rows,
)
from tests.harness.lake_readers import ICEBERG_PACKAGE, Rows, read_with

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None, reason="no Java on this machine, Spark needs it"
)
TABLE = "shop.v"
UNUSED: Any = None
VIEW = PlannedView(
    "v",
    "of-this-test",
    (Field("id", INT8), Field("said", TEXT), Field("n", INT8)),
    (0,),
    UNUSED,
    (),
)
POINTS = ("batch.lake.written", "batch.lake.committed", "batch.lake.compacted")
Row = tuple[int, bytes | None, int]


@dataclass
class Life:
    """A table, its rows now, and what it had at each snapshot."""

    warehouse: Path
    rows: dict[int, Row] = field(default_factory=dict)
    epoch: int = 0
    shown: dict[int, Rows] = field(default_factory=dict)

    def sink(self, session: LazySession, deletes: Deletes = "position") -> IcebergSink:
        catalog = {"type": "hadoop", "warehouse": str(self.warehouse)}
        return IcebergSink(session.get(), catalog, TABLE, VIEW, deletes)

    def change(self, gone: Sequence[int], come: Sequence[Row]) -> CommittedEpoch:
        """The next epoch: rows of these keys go, and others come."""
        old = [self.rows.pop(key) for key in gone]
        self.rows.update({row[0]: row for row in come})
        self.epoch += 1
        weights = [-1] * len(old) + [1] * len(come)
        nothing = Delta.empty(ERROR_KINDS), Delta.empty(REJECTED_KINDS)
        return CommittedEpoch(Delta.of("isi", [*old, *come], weights), *nothing, epoch=self.epoch)

    def texts(self) -> Rows:
        return Counter(
            (str(id), None if said is None else said.decode(), str(n))
            for id, said, n in self.rows.values()
        )

    def note(self, sink: IcebergSink) -> None:
        """Remember what the newest snapshot must show."""
        assert sink.progress() == self.epoch
        table: Any = sink._table
        self.shown[table.currentSnapshot().snapshotId()] = self.texts()


def epochs(life: Life, random: Random, count: int) -> Iterator[CommittedEpoch]:
    """Inserts, updates, deletes, and all rows gone at once."""
    new = lambda key: (key, random.choice([None, b"", "grüße".encode()]), random.randrange(9))  # noqa: E731
    yield life.change([], [new(key) for key in range(200)])
    for number in range(count):
        held = sorted(life.rows)
        if number == count // 2:
            yield life.change(held, [])
            yield life.change([], [new(key) for key in range(100, 300)])
            continue
        gone = random.sample(held, random.choice([0, 1, 5, 30]))
        come = [new(key) for key in gone if random.random() < 0.7]
        free = [key for key in range(400) if key not in life.rows]
        come += [new(key) for key in random.sample(free, random.choice([0, 1, 10]))]
        yield life.change(gone, come)


@pytest.fixture(scope="module")
def session() -> Iterator[LazySession]:
    with lake_session() as lazy:
        yield lazy


@pytest.fixture(scope="module", params=["copied", "positions"])
def life(
    request: pytest.FixtureRequest, session: LazySession, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Life]:
    """A table that was written by epochs which stopped now and then; its folder has a space."""
    made = Life(tmp_path_factory.mktemp("a lake") / "w h")
    random = Random(request.param)
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "positions":
            patch.setattr(iceberg_sink, "COPIED_BYTES", 0)
            patch.setattr(compaction, "MOST_DELETES", 3)
            patch.setattr(compaction, "MERGED_FILES", 3)
        sink = made.sink(session)
        for number, epoch in enumerate(epochs(made, random, 9)):
            if number % 3 == 1:
                set_failpoints(f"{POINTS[number // 3 % 3]}=error")
            try:
                sink.apply(epoch)
            except (TidemarkError, OSError):
                sink = made.sink(session)
            finally:
                set_failpoints("")
            sink.apply(epoch)
            made.note(sink)
    yield made


def test_pyiceberg_reads_every_epoch(life: Life) -> None:
    for snapshot, rows in life.shown.items():
        assert pyiceberg_rows(life.warehouse, TABLE, snapshot) == rows


@pytest.mark.whole
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("reader", ["duckdb", "spark"])
def test_others_read_every_epoch(life: Life, reader: str) -> None:
    found = read_with(
        reader,
        metadata=str(newest_metadata(life.warehouse, TABLE)),
        catalog={"type": "hadoop", "warehouse": str(life.warehouse)},
        package=ICEBERG_PACKAGE,
        table=TABLE,
        columns="id, said, n",
        snapshots=list(life.shown),
    )
    assert found == list(life.shown.values())


def test_the_run_keeps_its_files_few(life: Life, session: LazySession) -> None:
    table = Lake(session.get(), life.warehouse).table(TABLE)
    facts = dict(table.currentSnapshot().summary())
    assert int(facts["total-equality-deletes"]) == 0
    # Eleven epochs that change rows, one file of rows and one of deletes each.
    assert int(facts["total-data-files"]) < 7 and int(facts["total-delete-files"]) <= 4


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_a_table_with_equality_deletes_becomes_readable(
    tmp_path: Path, session: LazySession
) -> None:
    made, random = Life(tmp_path / "lake"), Random(8)
    assert get_args(Deletes) == ("position", "equality")
    writer = made.sink(session, "equality")
    steps = epochs(made, random, 8)
    for _ in range(4):
        writer.apply(next(steps))
        assert Lake(session.get(), made.warehouse).rows(TABLE) == made.texts()
    with pytest.raises(ValueError, match="equality deletes"):
        pyiceberg_rows(made.warehouse, TABLE)
    reader = made.sink(session)
    for epoch in steps:
        reader.apply(epoch)
        made.note(reader)
        assert pyiceberg_rows(made.warehouse, TABLE) == made.texts()


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_another_writer_is_noticed(
    tmp_path: Path, session: LazySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that are not there, and files that another job has merged meanwhile."""
    monkeypatch.setattr(iceberg_sink, "COPIED_BYTES", 0)
    made = Life(tmp_path / "lake [1]")
    sink, other = made.sink(session), made.sink(session)
    first = [(key, b"x", 1) for key in range(50)]
    sink.apply(made.change([], first))
    sink.apply(made.change([], [(key, b"x", 1) for key in range(50, 60)]))

    def merge() -> None:
        other.progress()
        contents = other._files.contents()
        other._rewrite(contents, contents.data, False, {})

    _after(monkeypatch, sink, "_change", merge)
    epoch = made.change([3, 55], [(3, b"y", 2)])
    with pytest.raises(TidemarkError, match=r"batch\.lake") as raised:
        sink.apply(epoch)
    assert raised.value.is_temporary
    monkeypatch.undo()
    monkeypatch.setattr(iceberg_sink, "COPIED_BYTES", 0)
    sink.apply(epoch)
    assert pyiceberg_rows(made.warehouse, TABLE) == made.texts()
    table: Any = other._table
    table.refresh()
    key = Lake(session.get(), made.warehouse)._iceberg.expressions.Expressions.alwaysTrue()
    table.newDelete().deleteFromRowFilter(key).commit()
    with pytest.raises(SinkError, match=r"batch\.row_missing"):
        sink.apply(made.change([4], []))


def _after(
    patch: pytest.MonkeyPatch, sink: IcebergSink, name: str, act: Callable[[], None]
) -> None:
    """Do something after a step of the sink."""
    step = getattr(sink, name)

    def both(*given: Any) -> Any:
        found = step(*given)
        act()
        return found

    patch.setattr(sink, name, both)


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_a_table_of_version_3_is_refused(tmp_path: Path, session: LazySession) -> None:
    made = Life(tmp_path / "lake")
    sink = made.sink(session)
    sink.apply(made.change([], [(1, b"x", 1)]))
    table: Any = sink._table
    table.updateProperties().set("format-version", "3").commit()
    with pytest.raises(SinkError, match=r"sink\.bad_metadata.*equality|version 3"):
        made.sink(session)
