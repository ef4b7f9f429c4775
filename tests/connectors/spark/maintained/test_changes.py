"""Oracle: the table and the dataflow of one process, given the same changes: their deltas, and
what they refuse.

Relations have the default replica identity, the full one, upserts, or only inserts; changes are
updates of keys, truncations, omitted values and rejected records, within one batch and across,
and in batches that are stored chunk by chunk."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from connectors.feed_source import rejected_row
from connectors.source import StoredInput
from connectors.spark.maintained import input_pages
from connectors.spark.maintained.changes import cut_changes, decode_changes, encode_changes
from connectors.spark.maintained.driver import Batch, Driver
from connectors.spark.maintained.layout import MaintainedView, narrowed
from connectors.spark.maintained.scheduler import InProcessScheduler
from dataflow.changes import Changes
from dataflow.collect import ErrorRows
from dataflow.delta import Column, Delta
from dataflow.errors import InvariantError, SourceError, ViewError
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef
from dataflow.graph import ViewDataflow, needed_columns
from dataflow.operators.tables.table import TableState
from dataflow.plan.nodes import Aggregate, AggregateCall, Join, Plan, Scan, scans_of
from dataflow.schema import Field, Relation, RelationName
from dataflow.sql.lower.lowering import lower
from dataflow.types import INT4, INT8, TEXT
from storage.memory import MemoryStore
from tests.harness.buckets import MemoryStorage, TableSink, counted, memory_folder

FIELDS = (Field("unread", TEXT), Field("id", INT4, False), Field("v", INT4), Field("t", TEXT))
KINDS = {"default": {}, "full": {"is_full": True}, "upsert": {}, "append": {"is_append": True}}
ID, V, T = 1, 2, 3


def relation(name: str, kind: str) -> Relation:
    return Relation(RelationName("s", "public", name), 1, FIELDS, (ID,), **KINDS[kind])


class Table:
    """A table's rows, and changes of them as its source would send them."""

    def __init__(self, name: str, kind: str, random: Random) -> None:
        self.relation, self.kind = relation(name, kind), kind
        self.rows: dict[int, tuple] = {}
        self._random = random
        self._next = 0

    def changes(self) -> Changes:
        """One batch; rows may change several times in it."""
        self._sent: list[tuple[int, tuple, set[int]]] = []
        for _ in range(self._random.choice([0, 1, 3, 8])):
            self._change()
        rows = [row for _, row, _ in self._sent]
        columns = [
            Column.of(f.type.physical, [row[i] for row in rows]) for i, f in enumerate(FIELDS)
        ]
        kinds = np.array([kind for kind, _, _ in self._sent], np.uint8)
        masks = {}
        for at in (V, T):
            mask = np.array([at in omitted for _, _, omitted in self._sent], np.bool_)
            if mask.any():
                masks[at] = mask
        letters = None
        if self.kind == "upsert":
            letters = tuple(self._letter(row) for row in rows)
        return Changes(self.relation, kinds, tuple(columns), masks, letters)

    def _letter(self, row: tuple) -> tuple:
        name = self.relation.name
        return rejected_row(name, str(row[ID]), "code", "why", key=b"k", value=None)

    def _send(self, kind: int, row: tuple, omitted: set[int] | None = None) -> None:
        gone = omitted or set()
        self._sent.append((kind, tuple(None if i in gone else x for i, x in enumerate(row)), gone))

    def _key(self, row: tuple) -> tuple:
        return (None, row[ID], None, None)

    def _new(self, key: int) -> tuple:
        return ("x", key, self._random.choice([None, 1, 2]), self._random.choice(["a", "b", None]))

    def _change(self) -> None:
        random, rows = self._random, self.rows
        choice = random.random()
        if self.kind == "append" or (not rows and self.kind != "upsert") or choice < 0.25:
            row = self._new(self._next)
            self._next += 1
            rows[row[ID]] = row
            self._send(Changes.UPSERT if self.kind == "upsert" else Changes.INSERT, row)
        elif self.kind == "upsert":
            self._upsert(random.randrange(self._next + 1))
        elif choice < 0.3:
            rows.clear()
            self._send(Changes.TRUNCATE, (None,) * len(FIELDS))
        elif choice < 0.5:
            row = rows.pop(random.choice(list(rows)))
            full = self.kind == "full"
            self._send(
                Changes.DELETE if full else Changes.DELETE_KEY, row if full else self._key(row)
            )
        else:
            self._update(random.choice(list(rows)))

    def _update(self, key: int) -> None:
        """Perhaps to another key; a value that stays may be omitted."""
        old, new = self.rows.pop(key), list(self._new(key))
        moves = self._random.random() < 0.4
        if moves:
            new[ID] = self._next
            self._next += 1
        omitted = {at for at in (V, T) if self._random.random() < 0.4}
        for at in omitted:
            new[at] = old[at]
        self.rows[new[ID]] = tuple(new)
        if self.kind == "full":
            self._send(Changes.OLD, old)
        elif moves:
            self._send(Changes.OLD_KEY, self._key(old))
        self._send(Changes.NEW, tuple(new), omitted)

    def _upsert(self, key: int) -> None:
        if self._random.random() < 0.3:
            self.rows.pop(key, None)
            self._send(Changes.REMOVE, self._key((None, key, None, None)))
            return
        new = list(self._new(key))
        omitted = {at for at in (V, T) if self._random.random() < 0.3}
        # Of an unknown row it is rejected.
        self._send(Changes.UPSERT, tuple(new), omitted)


def plan_of(left: Relation, right: Relation) -> Plan:
    """Both tables joined by a column that is no key, and counted."""
    a, b = (Scan(r, (ID, V, T), tuple(r.fields[c] for c in (ID, V, T))) for r in (left, right))
    keys = (ColumnRef(1, INT4),), (ColumnRef(0, INT4),)
    joined = Join("full", a, b, *keys, None, a.fields + b.fields)
    calls = (
        AggregateCall("count", None, False, None, Field("n", INT8)),
        AggregateCall("max", ColumnRef(5, TEXT), False, None, Field("t", TEXT)),
    )
    fields = (joined.fields[2], *(c.field for c in calls))
    return Aggregate(joined, (ColumnRef(2, TEXT),), calls, fields)


class Local:
    """One process: tables and a dataflow."""

    def __init__(self, plan: Plan) -> None:
        self.errors, store = ErrorRows(), MemoryStore()
        self.dataflow = ViewDataflow(lower(plan), "v1", store, NoEvaluator(), self.errors)
        needed = self.dataflow.needed_columns()
        relations = {s.relation.name: s.relation for s in scans_of(plan)}
        self.tables = {n: TableState(r, needed[n], store, "v1") for n, r in relations.items()}
        self.positions = needed
        self.rows = counted(self.dataflow.seed().rows())
        self.rejected: Counter = Counter()

    def step(self, changes: list[Changes]) -> None:
        """One epoch."""
        deltas: dict[Any, list[Delta]] = {}
        for change in changes:
            name = change.relation.name
            deltas.setdefault(name, []).append(self.tables[name].resolve(change))
        summed = {n: Delta.concat(parts).consolidate() for n, parts in deltas.items()}
        self.rows.update(counted(self.dataflow.step(summed).rows()))
        for table in self.tables.values():
            self.rejected.update(table.rejected)
            table.rejected = []


class RejectingSink(TableSink):
    """A sink that counts rejected records."""

    def __init__(self) -> None:
        super().__init__()
        self.rejected: Counter = Counter()

    def apply(self, epoch) -> None:
        super().apply(epoch)
        for row, weight in epoch.whole().rejected.rows():
            texts = tuple(x.decode() for x in row[:5])
            self.rejected[(*texts, *row[5:])] += weight


def stored_apart(driver: Driver, chunks: list[Changes]) -> StoredInput | None:
    """The chunks as a batch too large for the driver."""
    large = driver.large_input()
    for changes in chunks:
        large.add([changes])
    return large.finish()


@pytest.mark.parametrize("buckets", [1, 5])
@pytest.mark.parametrize("kinds", [("default", "full"), ("upsert", "default"), ("append", "full")])
def test_buckets_have_what_one_table_has(
    kinds: tuple[str, str], buckets: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_pages, "FILE_BYTES", 300)
    for seed in range(6):
        random = Random(seed)
        tables = [Table(n, kind, random) for n, kind in zip("ab", kinds, strict=True)]
        plan = plan_of(*(t.relation for t in tables))
        local, sink = Local(plan), RejectingSink()
        nodes = lower(plan)
        relations = tuple(t.relation for t in tables)
        view = MaintainedView(
            f"changes-{kinds}-{buckets}-{seed}".replace("'", ""),
            nodes,
            "v1",
            relations,
            needed_columns(nodes),
            NoEvaluator,
        )
        with memory_folder() as folder:
            storage = MemoryStorage(view.identity)
            scheduler = InProcessScheduler(str(folder), min(buckets, 2))
            driver = Driver(view, storage, scheduler, sink, buckets=buckets)
            driver.start()
            for epoch in range(12):
                batch = [t.changes() for t in tables for _ in range(random.choice([1, 1, 2]))]
                local.step([c for c in batch if len(c)])
                if random.random() < 0.5:
                    driver.step(Batch({}, batch))
                else:
                    driver.step(Batch({}, stored=stored_apart(driver, batch)))
                assert sink.rows == +local.rows, (seed, epoch)
                assert sink.rejected == local.rejected


def refuse(table: Relation, keys: Delta) -> Delta:
    """No old row is asked for."""
    raise AssertionError("an old row is looked up")


def of(table: Relation, *sent: tuple[int, tuple, set[int]]) -> Changes:
    columns = [
        Column.of(f.type.physical, [row[i] for _, row, _ in sent])
        for i, f in enumerate(table.fields)
    ]
    kinds = np.array([kind for kind, _, _ in sent], np.uint8)
    found = {i: np.array([i in omitted for _, _, omitted in sent], np.bool_) for i in (1, 2)}
    return Changes(table, kinds, tuple(columns), {i: m for i, m in found.items() if m.any()})


def test_a_chain_of_updates_takes_its_values_from_one_stored_row() -> None:
    """1 -> 2 -> 3 with a value that is never sent: one lookup, by the first key."""
    table = narrowed(relation("a", "default"), (ID, V, T))
    asked = []

    def fetch(relation: Relation, keys: Delta) -> Delta:
        asked.append(keys.rows())
        return Delta.of("iis", [(1, 7, "kept")])

    changes = of(
        table,
        (Changes.NEW, (1, 8, None), {2}),
        (Changes.OLD_KEY, (1, None, None), set()),
        (Changes.NEW, (2, 9, None), {2}),
        (Changes.OLD_KEY, (2, None, None), set()),
        (Changes.NEW, (3, None, None), {1, 2}),
    )
    [cut] = cut_changes(table, [changes], 1, fetch)
    assert asked == [[((1,), 1)]]
    rows = Delta(cut.columns, np.ones(len(cut), np.int64)).rows()
    assert [row for row, _ in rows][2::2] == [(2, 9, b"kept"), (3, 9, b"kept")]
    again = decode_changes(table, encode_changes(cut))
    assert again.kinds.tolist() == cut.kinds.tolist()
    assert {i: m.tolist() for i, m in again.unchanged.items()} == {
        2: [True, False, False, False, False]
    }


@pytest.mark.parametrize("kind", ["default", "full", "append", "upsert"])
def test_what_one_table_refuses_is_refused(kind: str, tmp_path: Path) -> None:
    table = relation("a", kind)
    row, key = ("x", 1, 1, "a"), (None, 1, None, None)
    bad = {
        "default": [(Changes.NEW, row), (Changes.DELETE_KEY, key)],
        "full": [(Changes.NEW, row), (Changes.DELETE_KEY, key)],
        "append": [(Changes.DELETE_KEY, key)],
        "upsert": [(Changes.INSERT, row)],
    }
    for number, (change, values) in enumerate(bad[kind]):
        sent = [(Changes.UPSERT, row, set())] if kind == "upsert" else []
        changes = of(table, *sent, (change, values, set()))
        codes = []
        plan = Scan(table, (ID, V, T), tuple(FIELDS[c] for c in (ID, V, T)))
        try:
            Local(plan).step([changes])
        except Exception as error:
            codes.append(getattr(error, "code", ""))
        nodes = lower(plan)
        view = MaintainedView(
            f"refused-{kind}-{number}", nodes, "v1", (table,), needed_columns(nodes), NoEvaluator
        )
        with memory_folder() as folder:
            scheduler = InProcessScheduler(str(folder))
            driver = Driver(view, MemoryStorage(view.identity), scheduler, TableSink(), buckets=3)
            driver.start()
            with pytest.raises((ViewError, InvariantError, SourceError)) as refused:
                driver.step(Batch({}, [changes]))
        assert [refused.value.code] == codes
