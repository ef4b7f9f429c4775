"""Oracle: the same rules over Python's dictionaries, row by row, over random steps and restarts.

TIDEMARK_SEED=<seed> pytest tests/unit/operators/test_lateness.py
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.errors import ViewError
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef
from dataflow.notes import FROZEN_ROW, LATE_APPLIED, LATE_LEFT_OUT, WATERMARK, WINDOW_EDGE
from dataflow.operators.base import Context
from dataflow.operators.lateness.final_rows import FinalRowsOperator
from dataflow.operators.lateness.late_rows import LateRowsOperator
from dataflow.operators.lateness.retained_aggregate import RetainedAggregateOperator
from dataflow.operators.lateness.watermark import WatermarkOperator
from dataflow.plan.nodes import (
    AggregateCall,
    FinalRows,
    LateRows,
    RetainedAggregate,
    Values,
    Watermark,
)
from dataflow.schema import Field
from dataflow.types import INT4, INT8, TIMESTAMP, TIMESTAMPTZ, SqlType
from storage.memory import MemoryStore
from storage.rocks import RocksStore
from storage.store import Store

ID, AT, PART = Field("id", INT4), Field("at", TIMESTAMP), Field("part", INT4)
MOMENT = Field("at", TIMESTAMPTZ)
LATENESS, IDLE, RETAIN = 10, 25, 5
INFINITY = 2**63 - 1
Row = tuple[int, int | None, int]


def _seeds() -> list[int]:
    given = os.environ.get("TIDEMARK_SEED")
    return [int(given)] if given else list(range(30))


def _context(store: Store, name: str, errors: ErrorRows) -> Context:
    return Context(name, "v", store, NoEvaluator(), errors)


def _watermark(store: Store, errors: ErrorRows, idle_us: int = 0) -> WatermarkOperator:
    input, clock = Values((), (AT, PART)), Values((), (MOMENT,))
    plan = Watermark(input, clock, LATENESS, idle_us, "t.at", (AT,))
    return WatermarkOperator(plan, _context(store, "00.watermark", errors))


def _late(store: Store, errors: ErrorRows, policy: str) -> LateRowsOperator:
    input, mark = Values((), (ID, AT, PART)), Values((), (AT,))
    plan = LateRows(input, mark, ColumnRef(1, TIMESTAMP, "at"), (0,), policy, "t.at")
    return LateRowsOperator(plan, _context(store, "01.late_rows", errors))


def _final(store: Store, errors: ErrorRows, width_us: int) -> FinalRowsOperator:
    input, mark = Values((), (ID, AT, PART)), Values((), (AT,))
    plan = FinalRows(input, (mark,), ColumnRef(1, TIMESTAMP, "at"), width_us)
    return FinalRowsOperator(plan, _context(store, "02.final_rows", errors))


def _rows(changes: Counter[Row]) -> Delta:
    changes = Counter({row: n for row, n in changes.items() if n})
    return Delta.of("iii", list(changes), list(changes.values()))


def _moved(old: int | None, new: int) -> Delta:
    marks = [(new,)] if old is None else [(old,), (new,)]
    return Delta.of("i", marks, [1] if old is None else [-1, 1])


def _bag(delta: Delta) -> Counter:
    return Counter(dict(delta.rows()))


@pytest.mark.parametrize("seed", _seeds())
def test_watermarks_of_partitions_that_fall_silent(seed: int) -> None:
    random, store, errors = Random(seed), MemoryStore(), ErrorRows()
    idle_us = random.choice([0, IDLE])
    operator = _watermark(store, errors, idle_us)
    greatest: dict[int, int] = {}
    moved: dict[int, int] = {}
    just_now: set[int] = set()
    clock: int | None = None
    watched = 0
    published: int | None = None
    shown: Counter = Counter()
    for _ in range(60):
        changes = [
            (random.choice([None, INFINITY, -INFINITY - 1, *range(100)]), random.randrange(3))
            for _ in range(random.randrange(4))
        ]
        weights = [random.choice([1, 1, -1]) for _ in changes]
        delta = Delta.of("ii", changes, weights).consolidate()
        for (value, part), weight in delta.rows():
            is_known = weight > 0 and value is not None and abs(value) < 1000
            if is_known and value > greatest.get(part, -1):
                greatest[part] = value
                just_now.add(part)
        tick = Delta.empty("i")
        if random.random() < 0.5:
            before, clock = clock, (clock or 1000) + random.randrange(1, 20)
            tick = _moved(before, clock)
            watched += 0 if before is None else clock - before
            if before is not None and greatest:
                moved.update(dict.fromkeys(just_now, watched))
                just_now.clear()
                active = [
                    greatest[part]
                    for part, at in moved.items()
                    if not idle_us or watched - at <= idle_us
                ]
                if active:
                    mark = min(active) - LATENESS
                    published = mark if published is None else max(published, mark)
        shown += _bag(operator.step(delta, tick))
        assert +shown == Counter() if published is None else +shown == Counter({(published,): 1})
        if random.random() < 0.2:
            operator = _watermark(store, errors, idle_us)
    notes = _bag(errors.take())
    wanted = (b"00.watermark", WATERMARK.encode(), b"t.at", f"({published})".encode())
    assert notes == ({} if published is None else {wanted: 1})


@pytest.mark.parametrize("seed", _seeds())
def test_ticks_that_are_left_out_change_nothing(seed: int) -> None:
    """A clock that moves only when it must, beside one that moves at every moment."""
    random, second = Random(seed), 1_000_000
    idle_us = random.choice([0, 5 * second, 17 * second])
    steps = [_watermark(MemoryStore(), ErrorRows(), idle_us) for _ in range(2)]
    ticks, now, clocks = [0, 0], 10_000 * second, [0, 0]
    none = Delta.empty("ii")
    for number, operator in enumerate(steps):
        operator.step(none, _moved(None, now))
        clocks[number] = now
    shown: list[Counter] = [Counter(), Counter()]
    is_busy = True
    for _ in range(150):
        if random.random() < 0.1:
            is_busy = not is_busy
        now += second
        rows = none
        if is_busy and random.random() < 0.4:
            at = now + random.choice([-9, -3, -1, 0, 0, 4, 7]) * second
            rows = Delta.of("ii", [(at, random.randrange(3))])
        for number, operator in enumerate(steps):
            operator.step(rows, Delta.empty("i"))
            moments = np.arange(clocks[number], now + 40 * second, second)
            due = clocks[number] + second
            if number:
                first = operator.first_change(moments)
                due = moments[first] if first < len(moments) else now + second
            if due <= now:
                shown[number] += _bag(operator.step(none, _moved(clocks[number], now)))
                clocks[number], ticks[number] = now, ticks[number] + 1
        assert +shown[0] == +shown[1], (idle_us, now)
    assert ticks[0] == 150 and ticks[1] < 120


def test_time_that_nobody_watched_makes_no_partition_idle() -> None:
    second = 1_000_000
    operator = _watermark(MemoryStore(), ErrorRows(), 4 * second)
    operator.step(Delta.of("ii", [(500, 0), (100, 1)]), _moved(None, second))
    assert _bag(operator.step(Delta.empty("ii"), _moved(second, 2 * second))) == {(90,): 1}
    # Stopped for an hour; one of the partitions has come first since.
    operator.step(Delta.of("ii", [(600, 0)]), Delta.empty("i"))
    later = 3600 * second
    assert len(operator.step(Delta.empty("ii"), _moved(2 * second, later))) == 0
    operator.step(Delta.of("ii", [(601, 0)]), Delta.empty("i"))
    silent_at = later + 3 * second
    assert len(operator.step(Delta.empty("ii"), _moved(later, silent_at - second))) == 0
    found = operator.step(Delta.empty("ii"), _moved(silent_at - second, silent_at))
    assert _bag(found) == {(90,): -1, (591,): 1}


@pytest.mark.parametrize("policy", ["applied", "dead-letter"])
@pytest.mark.parametrize("seed", _seeds())
def test_late_rows_by_the_rules(seed: int, policy: str) -> None:
    random, store, errors = Random(seed), MemoryStore(), ErrorRows()
    operator = _late(store, errors, policy)
    table: dict[int, Row] = {}
    accepted: Counter = Counter()
    out: Counter = Counter()
    left_out: dict[int, Row] = {}
    ever_late: Counter[Row] = Counter()
    removed: set[int] = set()
    mark: int | None = None
    for _ in range(60):
        changes: Counter[Row] = Counter()
        for number in random.sample(range(12), random.randrange(4)):
            old = table.pop(number, None)
            new = None
            if old is None or random.random() < 0.7:
                new = (number, random.choice([None, *range(60)]), random.randrange(3))
                table[number] = new
            if old == new:
                continue
            if old is not None:
                changes[old] -= 1
            if new is not None:
                changes[new] += 1
            _decide(old, new, mark, policy, (accepted, left_out, ever_late, removed))
        move = Delta.empty("i")
        if random.random() < 0.3:
            # A transaction that writes rows anew may come in two parts.
            gone = Counter({row: n for row, n in changes.items() if n < 0})
            out.update(_bag(operator.step(_rows(gone), move)))
            changes.subtract(gone)
        if random.random() < 0.3:
            old_mark, mark = mark, (mark or 0) + random.randrange(1, 12)
            move = _moved(old_mark, mark)
            removed.clear()
        out.update(_bag(operator.step(_rows(changes), move)))
        assert Counter({row: n for row, n in out.items() if n}) == accepted
        if random.random() < 0.2:
            operator = _late(store, errors, policy)
    late = Counter(left_out.values()) if policy == "dead-letter" else ever_late
    code = (LATE_LEFT_OUT if policy == "dead-letter" else LATE_APPLIED).encode()
    found = _bag(errors.take())
    assert found == {(b"01.late_rows", code, b"t.at", _text(row)): n for row, n in late.items()}


def _decide(old, new, mark, policy, state) -> None:
    """What the rules say about one key: from its old row to its new one, None for no row."""
    accepted, left_out, ever_late, removed = state
    was_left_out = old is not None and left_out.get(old[0]) == old
    if was_left_out:
        del left_out[old[0]]
    elif old is not None:
        accepted[old] -= 1
        if not accepted[old]:
            del accepted[old]
    if new is None:
        if not was_left_out and mark is not None:
            removed.add(old[0])
        return
    is_new = (old is None and new[0] not in removed) or was_left_out
    is_late = is_new and mark is not None and new[1] is not None and new[1] < mark
    if is_late:
        ever_late[new] += 1
    if is_late and policy == "dead-letter":
        left_out[new[0]] = new
    else:
        accepted[new] += 1


def _text(row: Row) -> bytes:
    stamp = f"2000-01-01 00:00:00.{row[1]:06d}".rstrip("0").rstrip(".") if row[1] else None
    shown = "2000-01-01 00:00:00" if row[1] == 0 else stamp
    return f'({row[0]},"{shown}",{row[2]})'.encode()


def test_a_reloaded_table_has_no_late_rows() -> None:
    operator = _late(MemoryStore(), ErrorRows(), "error")
    rows: Counter[Row] = Counter({(number, number % 5, 0): 1 for number in range(20)})
    operator.step(_rows(rows), _moved(None, 10))
    none = Delta.empty("i")
    removed = Counter({row: -1 for row in rows})
    assert len(operator.step(_rows(removed), none)) == 20
    assert _bag(operator.step(_rows(rows), none)) == rows
    operator.step(_rows(removed), none)
    operator.step(Delta.empty("iii"), _moved(10, 11))
    # They were gone when the watermark moved.
    with pytest.raises(ViewError):
        operator.step(_rows(rows), none)


def test_an_error_ends_the_view() -> None:
    operator = _late(MemoryStore(), ErrorRows(), "error")
    operator.step(_rows(Counter({(1, 5, 0): 1})), _moved(None, 10))
    operator.step(_rows(Counter({(1, 5, 0): -1, (1, 4, 0): 1})), Delta.empty("i"))
    with pytest.raises(ViewError) as caught:
        operator.step(_rows(Counter({(2, 9, 0): 1})), Delta.empty("i"))
    assert caught.value.code == "view.late_row" and "t.at" in caught.value.what


@pytest.mark.parametrize("seed", _seeds())
def test_final_rows_once(seed: int) -> None:
    random, store, errors = Random(seed), MemoryStore(), ErrorRows()
    width = random.choice([0, 1, 7])
    operator = _final(store, errors, width)
    rows: Counter[Row] = Counter()
    published: Counter[Row] = Counter()
    found: Counter[Row] = Counter()
    edge: int | None = None
    for _ in range(60):
        changes: Counter[Row] = Counter()
        for _ in range(random.randrange(5)):
            row = (random.randrange(3), random.choice([None, *range(60)]), random.randrange(2))
            changes[row] += -1 if rows[row] + changes[row] > 0 and random.random() < 0.4 else 1
        move, before = Delta.empty("i"), edge
        if random.random() < 0.3:
            edge = (edge or 0) + random.randrange(1, 12)
            move = _moved(before, edge)
        for row, n in changes.items():
            rows[row] += n
        for row, n in rows.items():
            at = row[1]
            was_open = at is not None and (before is None or at + width > before)
            if edge is not None and n and was_open and at + width <= edge:
                published[row] += n
        delta = _rows(changes)
        assert _bag(operator.step(delta, move)) == _bag(delta)
        for part in errors.take_final():
            found.update(_bag(part))
        assert +found == +published
        if random.random() < 0.2:
            operator = _final(store, errors, width)
    (note,) = _bag(errors.take()) if edge is not None else [(b"", WINDOW_EDGE.encode())]
    assert note[1] == WINDOW_EDGE.encode()


def _call(function: str, argument: int | None, type: SqlType) -> AggregateCall:
    source = None if argument is None else ColumnRef(argument, (ID, AT, PART)[argument].type)
    return AggregateCall(function, source, False, None, Field(function, type))


def _retained(store: Store, errors: ErrorRows) -> RetainedAggregateOperator:
    """count, sum, min, max and a percentile of id by (part, at); windows of no length."""
    calls = (
        _call("count", None, INT8),
        _call("sum", 0, INT8),
        _call("min", 0, INT4),
        _call("max", 0, INT4),
        replace(_call("percentile_disc", 0, INT4), fraction=0.5),
    )
    groups = (ColumnRef(2, INT4, "part"), ColumnRef(1, TIMESTAMP, "at"))
    fields = (PART, AT, *(call.field for call in calls))
    input, mark = Values((), (ID, AT, PART)), Values((), (AT,))
    plan = RetainedAggregate(input, groups, calls, fields, (mark,), 1, RETAIN, "at")
    return RetainedAggregateOperator(plan, _context(store, "03.retained", errors))


def _answers(rows: Counter[Row]) -> Counter[tuple]:
    groups: dict[tuple[int, int | None], list[int]] = {}
    for (number, at, part), n in rows.items():
        groups.setdefault((part, at), []).extend([number] * n)
    out: Counter[tuple] = Counter()
    for (part, at), found in groups.items():
        found.sort()
        if found:
            middle = found[(len(found) + 1) // 2 - 1]
            out[part, at, len(found), sum(found), found[0], found[-1], middle] += 1
    return out


@pytest.mark.parametrize("seed", _seeds())
def test_frozen_groups_stay_and_the_others_follow(seed: int) -> None:
    random, store, errors = Random(seed), MemoryStore(), ErrorRows()
    operator = _retained(store, errors)
    rows: Counter[Row] = Counter()
    frozen: Counter[tuple] = Counter()
    out: Counter[tuple] = Counter()
    late, edge = 0, None

    def is_frozen(at: int | None) -> bool:
        return edge is not None and at is not None and at + RETAIN <= edge

    for _ in range(60):
        changes: Counter[Row] = Counter()
        for _ in range(random.randrange(5)):
            row = (random.randrange(6), random.choice([None, *range(60)]), random.randrange(2))
            changes[row] += -1 if rows[row] + changes[row] > 0 and random.random() < 0.4 else 1
        changes = Counter({row: n for row, n in changes.items() if n})
        move = Delta.empty("i")
        late += sum(abs(n) for row, n in changes.items() if is_frozen(row[1]))
        for row, n in changes.items():
            if not is_frozen(row[1]):
                rows[row] += n
        if random.random() < 0.3:
            before, edge = edge, (edge or 0) + random.randrange(1, 12)
            move = _moved(before, edge)
        out.update(_bag(operator.step(_rows(changes), move)))
        past = Counter({row: n for row, n in rows.items() if n and is_frozen(row[1])})
        frozen += _answers(past)
        rows -= past
        assert Counter({row: n for row, n in out.items() if n}) == frozen + _answers(+rows)
        if random.random() < 0.2:
            operator = _retained(store, errors)
    notes = _bag(errors.take())
    assert sum(n for note, n in notes.items() if note[1] == FROZEN_ROW.encode()) == late
    # Nothing is left of frozen groups.
    last = operator.step(_rows(Counter()), _moved(edge, 1000))
    assert len(last) == 0
    kept = Counter(row for row in +rows if row[1] is None)
    stored = {name: store.size(name)[0] for name in store.names() if "watermark" not in name}
    assert kept or not any(n for name, n in stored.items() if "nodes" not in name), stored


def test_a_restart_finds_all_of_it(tmp_path: Path) -> None:
    store, errors = RocksStore(tmp_path / "state", 1 << 20), ErrorRows()
    mark, late = _watermark(store, errors), _late(store, errors, "dead-letter")
    mark.step(Delta.of("ii", [(50, 0)]), _moved(None, 1))
    moved = mark.step(Delta.empty("ii"), _moved(1, 2))
    assert _bag(moved) == {(40,): 1}
    late.step(_rows(Counter({(1, 50, 0): 1})), moved)
    assert len(late.step(_rows(Counter({(2, 39, 0): 1})), Delta.empty("i"))) == 0
    store.commit()
    store.close()
    store = RocksStore(tmp_path / "state", 1 << 20)
    mark, late = _watermark(store, errors), _late(store, errors, "dead-letter")
    assert len(mark.step(Delta.empty("ii"), _moved(2, 3))) == 0
    assert len(late.step(_rows(Counter({(2, 39, 0): -1})), Delta.empty("i"))) == 0
    assert _bag(late.step(_rows(Counter({(3, 40, 0): 1})), Delta.empty("i"))) == {(3, 40, 0): 1}
    store.close()
