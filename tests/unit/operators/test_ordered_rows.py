"""Oracle: a plain sorted list of the same rows, in Python; for collated text PostgreSQL itself.

To repeat a failure: TIDEMARK_FIRST_SEED=<seed> pytest tests/unit/operators/test_ordered_rows.py
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from math import isnan
from pathlib import Path
from random import Random
from typing import Any, cast

import numpy as np
import pytest

from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from dataflow.collect import ErrorRows
from dataflow.delta import Column, Delta
from dataflow.expressions.evaluator import Evaluator, NoEvaluator
from dataflow.operators.base import Context
from dataflow.operators.ordered import ordered_change
from dataflow.operators.ordered.ordered_nodes import INNER, LEAF, ROOT_MOST
from dataflow.operators.ordered.ordered_rows import (
    AFTER_PEERS,
    AFTER_ROW,
    BEFORE_PEERS,
    BEFORE_ROW,
    ENDLESS,
    Order,
    OrderedRows,
    OrderedSearch,
)
from dataflow.types import FLOAT8, INT8, INTERVAL, NUMERIC, SqlType, sql_type
from storage.errors import NegativeWeightError
from storage.memory import MemoryStore
from storage.rocks import RocksStore
from storage.store import ArrangementSpec, Store, SumsSpec
from tests.harness.counting_store import CountingStore
from tests.harness.postgres import Database

FIRST_SEED = int(os.environ.get("TIDEMARK_FIRST_SEED", "1"))
KINDS = "iis"
Row = tuple[Any, ...]


def _open(
    store: Store,
    kinds: str = KINDS,
    *order: Order,
    partition: tuple[int, ...] = (0,),
    evaluator: Evaluator | None = None,
) -> OrderedRows:
    context = Context("03.topk", "v", store, evaluator or NoEvaluator(), ErrorRows())
    parts = order or (Order(1, INT8, is_descending=True, nulls_first=True),)
    return OrderedRows(context, "rows", kinds, partition, parts)


def _peer_key(row: Row) -> tuple:
    return (False, 0) if row[1] is None else (True, -row[1])


def _key(row: Row) -> tuple:
    """Partition; the column descending with NULLs first; then all columns, NULLs last."""
    ties = tuple(
        (v is None, v if v is not None else (b"" if i == 2 else 0)) for i, v in enumerate(row)
    )
    return (row[0], _peer_key(row), ties)


@pytest.mark.parametrize("is_descending", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 6))
def test_rows_that_come_at_one_end(seed: int, is_first: bool, is_descending: bool) -> None:
    """As the newest orders do: nodes at the end are cut, at the front with rows that are all from
    before the one that they are known by; and rows of any age go."""
    random = Random(seed)
    order = Order(1, INT8, is_descending=is_descending)
    rows = _open(MemoryStore(), "ii", order)
    kept: set[int] = set()
    newest = 0
    keys, from_0 = [Column.of("i", [1])], np.zeros(1, np.int64)
    for _ in range(60):
        count = random.choice((1, 20, LEAF.most, INNER.fill, ROOT_MOST, 3 * ROOT_MOST))
        come = range(newest + 1, newest + count + 1)
        newest += count
        gone = random.sample(sorted(kept), random.randrange(len(kept) // 2 + 1))
        sign = 1 if is_descending == is_first else -1
        told = [(1, sign * v) for v in (*come, *gone)]
        weights = [*[1] * count, *[-1] * len(gone)]
        rows.apply(Delta.of("ii", told, weights))
        kept = kept.union(come).difference(gone)
        found = rows.ranges(keys, from_0, np.full(1, ENDLESS)).rows.rows()
        expected = sorted(kept, reverse=is_first)
        assert [row for row, _ in found] == [(1, sign * v) for v in expected]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(("batch", "most"), [(1, 4.0), (10, 1.8), (100, 1.1)])
def test_rows_that_come_in_order_move_few(batch: int, most: float, is_first: bool) -> None:
    """A node at the end is cut near that end. A row that comes alone is written, and the entry
    of its leaf changes; the rest is moved rows. Cut in the middle, nodes would move three times
    as many."""
    store = CountingStore()
    rows = _open(cast(Store, store), "ii", Order(1, INT8, is_descending=is_first))
    written = []
    for start in range(0, 3000, batch):
        rows.apply(Delta.of("ii", [(1, value) for value in range(start, start + batch)]))
        written.append(store.written)
    half = len(written) // 2
    assert written[-1] - written[half - 1] <= most * batch * half


def _change(random: Random, model: Counter, span: int) -> Counter:
    """Some rows come, some leave; now and then whole stretches, or nearly all."""
    change: Counter = Counter()
    draw = random.random()
    if model and draw < 0.2:
        rows = sorted(model, key=_key)
        start = random.randrange(len(rows))
        leaving = rows[start : start + len(rows) // 2]
        if draw < 0.08:
            leaving = random.sample(rows, len(rows) * 9 // 10)
        change.update({row: -model[row] for row in leaving})
    elif model and draw < 0.4:
        for row in random.sample(list(model), min(len(model), 5)):
            change[row] = -random.randint(1, model[row])
    for _ in range(random.choice([0, 1, 5, 100, 1500])):
        value = None if random.random() < 0.05 else random.randrange(span)
        text = random.choice([None, b"", b"b", b"%d" % random.randrange(span)])
        change[random.choice([1, 1, 1, 2, 3]), value, text] += random.randint(1, 2)
    return Counter({row: weight for row, weight in change.items() if weight})


def _compare(rows: OrderedRows, model: Counter, random: Random) -> None:
    parts = [*sorted({row[0] for row in model}), 99]
    keys, n = [Column.of("i", parts)], len(parts)
    flat = {p: [] for p in parts}
    for row in sorted(model, key=_key):
        flat[row[0]] += [row] * model[row]
    sizes = [len(flat[p]) for p in parts]
    assert rows.sizes(keys, n).tolist() == sizes
    whole = rows.ranges(keys, np.zeros(n, np.int64), np.full(n, ENDLESS))
    assert whole.rows.rows() == [(r, model[r]) for r in sorted(model, key=_key)]
    low = np.array([random.randrange(s + 3) for s in sizes])
    high = low + np.array([random.randrange(12) for _ in sizes])
    part = rows.ranges(keys, low, high)
    found = [
        (i, row)
        for i, (row, weight) in zip(part.index.tolist(), part.rows.rows(), strict=True)
        for _ in range(weight)
    ]
    assert found == [(i, r) for i, p in enumerate(parts) for r in flat[p][low[i] : high[i]]]
    assert [flat[r[0]].index(r) for r, _ in part.rows.rows()] == part.start.tolist()
    assert [model[r] for r, _ in part.rows.rows()] == part.weights.tolist()
    asked = random.sample(list(model), min(len(model), 25))
    asked += [(2, random.randrange(50), b"new"), (98, 1, None)]
    positions: dict[Any, Callable[[Row, Row], bool]] = {
        BEFORE_ROW: lambda other, row: _key(other) < _key(row),
        AFTER_ROW: lambda other, row: _key(other) <= _key(row),
        BEFORE_PEERS: lambda other, row: _peer_key(other) < _peer_key(row),
        AFTER_PEERS: lambda other, row: _peer_key(other) <= _peer_key(row),
    }
    for bound, is_before in positions.items():
        wanted = [sum(is_before(other, row) for other in flat.get(row[0], ())) for row in asked]
        assert rows.ranks(Delta.of(KINDS, asked), bound).tolist() == wanted
    spans = rows.spans(Delta.of(KINDS, asked))
    for span, bound in zip(spans, (BEFORE_ROW, AFTER_ROW), strict=True):
        assert span.tolist() == rows.ranks(Delta.of(KINDS, asked), bound).tolist()


@pytest.mark.parametrize("kind", ["memory", "rocks"])
@pytest.mark.parametrize("number", range(4))
def test_equal_to_a_sorted_list(
    number: int, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random changes, the rows reopened each time; all gone at the end, and all state too.

    With odd numbers an earlier version with larger leaves has written the first half.
    """
    seed = FIRST_SEED + number
    random = Random(seed)
    store: Store = MemoryStore() if kind == "memory" else RocksStore(tmp_path / "state")
    span, model = random.choice([3, 50, 100_000]), Counter()
    for epoch in range(20):
        change = _change(random, model, span)
        monkeypatch.setattr(ordered_change, "LEAF", INNER if number % 2 and epoch < 10 else LEAF)
        _open(store).apply(Delta.of(KINDS, list(change), list(change.values())))
        model.update(change)
        model = +model
        store.commit()
        if kind == "rocks" and epoch % 7 == 3:
            store.close()
            store = RocksStore(tmp_path / "state")
        _compare(_open(store), model, random)
    _open(store).apply(Delta.of(KINDS, list(model), [-w for w in model.values()]))
    store.commit()
    for role, kinds in (("rows rows", "iisi"), ("rows nodes", "iisiiiii")):
        left = store.arrange(ArrangementSpec(f"v/03.topk/{role}", kinds, (0, 3)))
        assert sum(len(rows) for rows in left.scan()) == 0, f"seed {seed}"
    numbers = store.arrange_sums(SumsSpec("v/03.topk/rows numbers", "i", 1))
    assert sum(len(keys[0]) for keys, _ in numbers.scan()) == 0, f"seed {seed}"
    store.close()


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 8))
def test_searches_that_share_what_they_read(seed: int) -> None:
    """Positions and covers in any sequence, and then a change, each as if it had come first."""
    random = Random(seed)
    store = CountingStore()
    rows, model = _open(cast(Store, store)), Counter()
    span, parts = random.choice([3, 50, 100_000]), [1, 2, 3, 99]
    keys = [Column.of("i", parts)]
    for _ in range(12):
        search, flat = rows.search(keys), {p: [] for p in parts}
        for row in sorted(model, key=_key):
            flat[row[0]] += [row] * model[row]
        for _ in range(random.randrange(5)):
            if random.random() < 0.5:
                _compare_positions(search, flat, random, span)
            else:
                _compare_cover(search, flat, random)
        change = _change(random, model, span)
        delta = Delta.of(KINDS, list(change), list(change.values()))
        part = np.array([parts.index(row[0]) for row in change], np.int64)
        if len(delta):
            rows.apply_after(search, part, delta)
        model.update(change)
        model = +model
        _compare(rows, model, random)


def test_a_search_reads_a_node_once() -> None:
    store = CountingStore()
    rows = _open(cast(Store, store), "ii", Order(1, INT8), partition=())
    n = 3000
    rows.apply(Delta.of("ii", [(1, value) for value in range(n)]))
    values = np.arange(5, n, 100)
    part, asked = np.zeros(len(values), np.int64), {0: Column(np.ones(len(values), np.int64))}
    asked[1] = Column(values)
    store.reset()
    search = rows.search(())
    assert search.positions(part, asked, AFTER_ROW).tolist() == (values + 1).tolist()
    assert store.reset() > 0
    assert search.positions(part, asked, AFTER_ROW).tolist() == (values + 1).tolist()
    assert search.covering(part, values, values + 1).rows.columns[1].values.tolist() == list(values)
    assert store.reset() == 0
    assert len(search.covering(part[:1], values[:1], values[:1] + 100).rows) == 100
    assert store.reset() > 0


def _compare_positions(
    search: OrderedSearch, flat: dict[int, list[Row]], random: Random, span: int
) -> None:
    parts = list(flat)
    asked = [random.randrange(len(parts)) for _ in range(random.choice([1, 40]))]
    values = [random.randrange(-1, span + 1) for _ in asked]
    found = search.positions(np.array(asked), {1: Column.of("i", values)}, BEFORE_PEERS)
    expected = [
        sum(row[1] is None or row[1] > value for row in flat[parts[p]])
        for p, value in zip(asked, values, strict=True)
    ]
    assert found.tolist() == expected


def _compare_cover(search: OrderedSearch, flat: dict[int, list[Row]], random: Random) -> None:
    parts = list(flat)
    asked = [random.randrange(len(parts)) for _ in range(random.choice([0, 1, 8]))]
    low = np.array([random.randrange(len(flat[parts[p]]) + 2) for p in asked], np.int64)
    high = low + np.array([random.randrange(20) for _ in asked], np.int64)
    part = np.array(asked, np.int64)
    cover = search.covering(part, low, high)
    copies = [row for row, weight in cover.rows.rows() for _ in range(weight)]
    for p, start, end in zip(asked, low.tolist(), high.tolist(), strict=True):
        at = np.arange(start, min(end, len(flat[parts[p]])))
        index = cover.index(np.full(len(at), p), at)
        plain = [row for row, _ in cover.rows.rows()]
        assert [plain[i] for i in index.tolist()] == flat[parts[p]][start:end]
    every = {
        i
        for p, a, b in zip(asked, low.tolist(), high.tolist(), strict=True)
        for i in [(p, row) for row in flat[parts[p]][a:b]]
    }
    assert {(parts.index(row[0]), row) for row in copies} == every


def test_partition_of_no_columns() -> None:
    """One partition of all rows."""
    store = MemoryStore()
    rows = _open(store, partition=())
    n = 1000
    given = [(i % 3, (i * 7919) % n, None) for i in range(n)]
    rows.apply(Delta.of(KINDS, given))
    found = rows.ranges((), np.array([10, 0]), np.array([13, 1]))
    assert [r[1] for r, _ in found.rows.rows()] == [n - 11, n - 12, n - 13, n - 1]
    assert found.index.tolist() == [0, 0, 0, 1]
    assert rows.sizes((), 1).tolist() == [n]


def test_a_row_that_is_not_there_cannot_leave() -> None:
    """As with any arrangement, in small and large partitions."""
    for n in (1, 1000):
        rows = _open(MemoryStore())
        rows.apply(Delta.of(KINDS, [(1, i, b"x") for i in range(n)]))
        with pytest.raises(NegativeWeightError):
            rows.apply(Delta.of(KINDS, [(1, 0, b"y")], -1))


@pytest.mark.parametrize("n", [1000, 100_000, 1_000_000])
def test_one_row_costs_its_nodes(n: int) -> None:
    """Rows read and written for one change, one look and one rank grow with the depth alone."""
    store = CountingStore()
    rows = _open(cast(Store, store), "ii", Order(1, INT8), partition=())
    values = np.random.default_rng(1).permutation(n)
    rows.apply(Delta([Column(np.zeros(n, np.int64)), Column(values)], np.ones(n, np.int64)))
    depth, width = 1, n // LEAF.fill
    while width > 1:
        depth, width = depth + 1, width // INNER.fill
    for value in (-1, n // 2, n + 1):
        one = Delta.of("ii", [(1, value)])
        for work in (
            lambda one=one: rows.apply(one),
            lambda one=one: rows.ranks(one),
            lambda: rows.ranges((), np.array([n // 3]), np.array([n // 3 + 2])),
            lambda one=one: rows.apply(one.negate()),
        ):
            store.reset()
            work()
            assert store.reset() <= 2 * (LEAF.most + INNER.most * depth)


def _floats(value: float | None) -> tuple:
    return (value is None, isnan(value or 0), 0.0 if value is None or isnan(value) else value)


def _numbers(text: bytes | None) -> tuple:
    if text is None:
        return (True, False, Decimal(0))
    value = Decimal(text.decode())
    return (False, value.is_nan(), Decimal(0) if value.is_nan() else value)


def _spans(text: bytes | None) -> tuple:
    return (text is None, {b"1 day": 24, b"24:00:00": 24, b"01:00:00": 1}.get(text or b"", 0))


TYPES: dict[str, tuple[SqlType, list, Callable[[Any], tuple]]] = {
    "float": (
        FLOAT8,
        [None, 0.0, -0.0, float("nan"), -1.5, 2.0, float("inf"), float("-inf")],
        _floats,
    ),
    "numeric": (
        NUMERIC,
        [None, b"1.5", b"1.50", b"1.500", b"NaN", b"-7", b"0", b"0.00", b"12", b"1e3"[:1]],
        _numbers,
    ),
    "interval": (INTERVAL, [None, b"1 day", b"24:00:00", b"01:00:00"], _spans),
}


@pytest.mark.parametrize("name", list(TYPES))
def test_equal_values_are_peers(name: str) -> None:
    """-0 and 0, 1.5 and 1.50, a day and 24 hours: the next part of ORDER BY decides."""
    type, values, key = TYPES[name]
    random = Random(7)
    rows = list({(v, random.randrange(200)) for v in values for _ in range(60)})
    kinds = type.physical + "i"
    ordered = _open(MemoryStore(), kinds, Order(0, type), Order(1, INT8), partition=())
    for start in range(0, len(rows), 50):
        ordered.apply(Delta.of(kinds, rows[start : start + 50]).consolidate())
    found = ordered.ranges((), np.zeros(1, np.int64), np.array([ENDLESS])).rows.rows()
    shown = [(key(row[0]), row[1]) for row, weight in found for _ in range(weight)]
    assert shown == sorted((key(v), i) for v, i in rows)


@pytest.fixture
def evaluator(database: Database) -> Iterator[PostgresEvaluator]:
    """PostgreSQL to compare with."""
    made = PostgresEvaluator(database.dsn)
    yield made
    made.close()


@pytest.mark.parametrize("operator", ["", "OPERATOR(pg_catalog.~>~)"])
def test_orders_that_only_postgres_knows(
    database: Database, evaluator: PostgresEvaluator, operator: str
) -> None:
    """A collation, and ORDER BY ... USING."""
    type = sql_type("text", 25, is_bytewise=False, collation='"en-x-icu"')
    words = [f"{a}{b}{i % 40}" for i, a in enumerate("aAbBäÄzZéE") for b in "xXyY-_ '" * 3]
    words = list(dict.fromkeys(words + [f"{w}{i}" for i, w in enumerate(words)]))
    rows = _open(
        MemoryStore(), "s", Order(0, type, operator=operator), partition=(), evaluator=evaluator
    )
    for start in range(0, len(words), 60):
        rows.apply(Delta.of("s", [(w,) for w in words[start : start + 60]]))
    order = f'w COLLATE "en-x-icu" {f"USING {operator}" if operator else ""}, w COLLATE "C"'
    wanted = database.rows(f"SELECT w FROM unnest(%s::text[]) AS w ORDER BY {order}", (words,))
    found = rows.ranges((), np.zeros(1, np.int64), np.array([ENDLESS])).rows.rows()
    assert [row[0].decode() for row, _ in found] == [row[0] for row in wanted]
