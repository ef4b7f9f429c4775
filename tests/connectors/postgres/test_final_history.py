"""The final rows that epochs have published, read again from a view's history.

Oracle: at each epoch, the rows of the view's table whose window an edge has closed in that epoch,
decided by dataflow.window_close.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator

import pytest

from connectors.postgres.catalog.catalog import Control, ViewRow
from connectors.postgres.query.history_rows import read_changes
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.sink import Progress, SinkEpoch, SinkRows, SinkTable, Swap, ViewDdl
from dataflow import types
from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from dataflow.notes import WINDOW_EDGE
from dataflow.schema import Field
from dataflow.types import SqlType
from dataflow.window_close import is_closed
from tests.harness.postgres import Database
from tests.harness.sink_rows import Row, delta_of

HOUR_US = 3_600_000_000
MOMENTS = ["infinity", "-infinity", "0044-03-15 12:00:00 BC", "294276-12-31 23:00:00"]
# Where edges begin, in microseconds since 2000, and how far they move: 2024-03-01, and 2024-03-30
# with the hour that Berlin does not have.
STEPS_US = {True: (8_826 * 24 * HOUR_US, 60 * HOUR_US), False: (8_855 * 24 * HOUR_US, 3 * HOUR_US)}


@pytest.fixture
def sink(database: Database) -> Iterator[PostgresSink]:
    database.execute("SET timezone = 'Europe/Berlin'")
    sink = PostgresSink(database.dsn)
    sink.prepare()
    yield sink
    sink.close()


def _windows(type: SqlType) -> list[str | None]:
    """Texts of the beginnings of windows, as PostgreSQL prints them in UTC."""
    if type == types.DATE:
        days = [f"2024-{month:02}-{day:02}" for month in (3, 4) for day in range(1, 30, 3)]
        return [None, "infinity", "-infinity", "0044-03-15 BC", *days]
    zone = "+00" if type == types.TIMESTAMPTZ else ""
    moments = [f"2024-03-{30 + h // 24} {h % 24:02}:30:00.000001" for h in range(0, 48, 2)]
    found = [*MOMENTS, *moments]
    shown = [m if m.endswith("y") else _zoned(m, zone) for m in found]
    return [None, *shown]


def _zoned(moment: str, zone: str) -> str:
    return moment.replace(" BC", f"{zone} BC") if moment.endswith("BC") else moment + zone


def _table(type: SqlType, *, is_keyed: bool) -> SinkTable:
    names = Field("epoch", types.INT8, False), Field("number", types.TEXT), Field("w", type)
    return SinkTable("public", "minutes", names, (0,) if is_keyed else (), (2, HOUR_US))


class _World:
    """A view with its edge, changed at random. published: by epoch, as the oracle has it."""

    def __init__(self, sink: PostgresSink, table: SinkTable, seed: int) -> None:
        self._sink, self._final = sink, table
        self._table = SinkTable(table.schema, table.name, table.fields, table.key)
        self._draw = random.Random(seed)
        self._rows: Counter[Row] = Counter()
        self._edge_us: int | None = None
        self.epoch = 0
        self.published: dict[int, Counter] = {}

    def begin(self) -> None:
        """Show the view with its first rows."""
        self._sink.stage(self._table, [self._change()], "t")
        self._write(SinkRows(), ViewDdl((), (Swap(self._table, "t"),)))

    def step(self) -> None:
        """Write one epoch."""
        before = self._edge_us
        deltas = [(self._table, self._change())] if self._draw.random() < 0.7 else []
        notes = self._move() if self._draw.random() < 0.6 else None
        window = self._final.fields[2].type
        closed = Counter()
        rises = self._edge_us is not None and (before is None or self._edge_us > before)
        if rises:
            rows = delta_of(self._table, self._rows)
            column = rows.columns[2]
            was, is_now = (is_closed(column, window, HOUR_US, us) for us in (before, self._edge_us))
            found = rows.filter(is_now & ~was)
            closed = _counted(found)
            if len(found):
                deltas.append((self._final, found))
        self._write(SinkRows([d for d in deltas if len(d[1])], notes), ViewDdl())
        if closed:
            self.published[self.epoch] = closed

    def _write(self, rows: SinkRows, ddl: ViewDdl) -> None:
        self.epoch += 1
        progress = Progress(self.epoch, {"source": self.epoch * 10})
        self._sink.write(SinkEpoch(progress, rows, ddl))

    def _move(self) -> Delta | None:
        """Move the edge, mostly on; as notes."""
        old = self._edge_us
        draw = self._draw.random()
        start_us, step_us = STEPS_US[self._table.fields[2].type == types.DATE]
        if draw < 0.05:
            self._edge_us = None
        elif draw < 0.1 and old is not None:
            self._edge_us = old - self._draw.randrange(2 * step_us)
        elif draw < 0.12:
            self._edge_us = 2**62
        else:
            near = start_us if old is None or old > 2**60 else old
            self._edge_us = near + self._draw.randrange(step_us)
        if self._edge_us == old:
            return None
        changes = [(us, w) for us, w in ((old, -1), (self._edge_us, 1)) if us is not None]
        title, code = self._table.title.encode(), WINDOW_EDGE.encode()
        rows = [(title, b"final", code, b"", f"({us})".encode()) for us, _ in changes]
        return Delta.of("sssss", rows, [w for _, w in changes])

    def _change(self) -> Delta:
        windows = _windows(self._table.fields[2].type)
        change: Counter[Row] = Counter()
        for _ in range(self._draw.randrange(1, 12)):
            key = str(self._draw.randrange(40))
            row = (key, self._draw.choice(["a", "b", None]), self._draw.choice(windows))
            old = [r for r in self._rows if r[0] == key]
            if self._table.key:
                for found in old:
                    change[found] -= 1
                    del self._rows[found]
            if not old or self._draw.random() < 0.6:
                weight = 1 if self._table.key else self._draw.randrange(1, 4)
                change[row] += weight
                self._rows[row] += weight
        return delta_of(self._table, change).consolidate()


def _counted(delta: Delta) -> Counter:
    counted: Counter = Counter()
    for row, weight in delta.rows():
        counted[repr(row)] += weight
    return counted


def name_of(type: SqlType) -> str:
    """The id of a case."""
    return type.kind.value


@pytest.mark.parametrize("is_keyed", [True, False], ids=["keyed", "multiset"])
@pytest.mark.parametrize("type", [types.DATE, types.TIMESTAMP, types.TIMESTAMPTZ], ids=name_of)
def test_final_rows_of_past_epochs(
    database: Database, sink: PostgresSink, type: SqlType, *, is_keyed: bool
) -> None:
    table = _table(type, is_keyed=is_keyed)
    _retain(database, table)
    world = _World(sink, table, seed=11 + is_keyed)
    world.begin()
    for _ in range(50):
        world.step()
    assert len(world.published) > 4, "too little was published to compare"
    for after in (1, 2, 17, 40, world.epoch):
        expected = {n: rows for n, rows in world.published.items() if n > after}
        for max_epochs in (7, 1_000) if after < 40 else (1,):
            assert _read(database.dsn, table, after, max_epochs, world.epoch) == expected


def _retain(database: Database, table: SinkTable) -> None:
    control = Control(database.dsn)
    options = {"history": "1 hour"}
    control.insert_view(ViewRow(table.schema, table.name, "SELECT 1", table.name, options=options))
    control.close()


def _read(dsn: str, table: SinkTable, after: int, max_epochs: int, newest: int) -> dict:
    """The final rows by epoch, read so many epochs at a time."""
    found: dict[int, Counter] = {}
    at = after
    while at < newest:
        before = at
        for number, positions, delta in read_changes(dsn, table, at, max_epochs):
            assert number >= at and positions == {"source": number * 10}
            at = number
            if delta is not None:
                found.setdefault(number, Counter()).update(_counted(delta))
        assert at > before
    return found


def test_edges_are_pruned_with_their_history(database: Database, sink: PostgresSink) -> None:
    table = _table(types.TIMESTAMPTZ, is_keyed=True)
    _retain(database, table)
    world = _World(sink, table, seed=3)
    world.begin()
    for _ in range(30):
        world.step()
    [(before,)] = database.rows("SELECT count(*) FROM tidemark.window_edges")
    database.execute("UPDATE tidemark.histories SET oldest_epoch = 20")
    edges = database.rows("SELECT epoch FROM tidemark.window_edges ORDER BY epoch")
    # The newest one until the oldest epoch says what was closed then.
    assert edges[0][0] <= 20 and all(epoch > 20 for (epoch,) in edges[1:])
    assert 1 < len(edges) < before
    expected = {n: rows for n, rows in world.published.items() if n > 20}
    assert expected and _read(database.dsn, table, 20, 100, world.epoch) == expected
    sink.drop([table])
    assert database.rows("SELECT count(*) FROM tidemark.window_edges") == [(0,)]


def test_epochs_of_an_earlier_version_are_refused(database: Database, sink: PostgresSink) -> None:
    table = _table(types.DATE, is_keyed=True)
    _retain(database, table)
    world = _World(sink, table, seed=5)
    world.begin()
    for _ in range(9):
        world.step()
    database.execute("DELETE FROM tidemark.window_edges WHERE epoch < 6")
    with pytest.raises(TidemarkError) as caught:
        list(read_changes(database.dsn, table, 2, 100))
    assert caught.value.code == "history.too_old", caught.value
    assert "earlier version" in caught.value.detail
