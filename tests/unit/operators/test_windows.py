"""Oracle: each value by its definition, row by row over sorted lists of the same rows in Python.

To repeat a failure: TIDEMARK_FIRST_SEED=<seed> pytest tests/unit/operators/test_windows.py
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef, Expression, Literal
from dataflow.operators.base import Context
from dataflow.operators.window import WindowOperator
from dataflow.operators.window_follow import FollowedWindowOperator
from dataflow.operators.window_reach import is_followed
from dataflow.schema import Field
from dataflow.sql.plan import Frame, FrameBound, SortKey, Values, Window, WindowCall
from dataflow.types import BOOL, FLOAT8, INT4, INT8, NUMERIC, SqlType, fixed
from storage.memory import MemoryStore
from storage.rocks import RocksStore
from storage.store import Store
from tests.harness.counting_store import CountingStore

FIRST_SEED = int(os.environ.get("TIDEMARK_FIRST_SEED", "1"))
TYPES = {"p": INT8, "o": INT8, "v": INT4, "m": fixed(12, 2), "d": NUMERIC, "x": FLOAT8, "b": BOOL}
FIELDS = tuple(Field(name, type) for name, type in TYPES.items())
KINDS = "".join(t.physical for t in TYPES.values())
COLUMN = {name: ColumnRef(i, t, name) for i, (name, t) in enumerate(TYPES.items())}
PLACE = {name: i for i, name in enumerate(TYPES)}
Row = tuple[Any, ...]

PRECEDING, FOLLOWING = "preceding", "following"
CURRENT = FrameBound("current row")
FROM_FIRST, TO_LAST = FrameBound("unbounded preceding"), FrameBound("unbounded following")
RUNNING_ROWS = Frame("rows", FROM_FIRST, CURRENT)
PEERS = Frame()


def _away(kind: str, distance: int) -> FrameBound:
    return FrameBound(kind, Literal(str(distance), INT8))


def _between(mode: str, before: int, after: int, exclude: str = "") -> Frame:
    return Frame(mode, _away(PRECEDING, before), _away(FOLLOWING, after), exclude)


def _call(
    function: str, *arguments: str | int, frame: Frame = PEERS, type: SqlType = INT8
) -> WindowCall:
    bound: list[Expression] = [
        COLUMN[a] if isinstance(a, str) else Literal(str(a), INT4) for a in arguments
    ]
    field = Field(function, type)
    is_aggregate = function in ("count", "sum", "avg", "min", "max", "bool_and", "bool_or")
    return WindowCall(function, tuple(bound), None, frame, f"{function}()", field, is_aggregate)


NUMBERS = [_call("row_number"), _call("rank"), _call("dense_rank")]
SHIFTS = [
    _call("lag", "v", type=INT4),
    _call("lead", "m", 3, type=NUMERIC),
    _call("lag", "v", -1, 7, type=INT4),
]
RUNNING = [
    *(
        _call(name, column, frame=frame, type=type)
        for frame in (RUNNING_ROWS, PEERS)
        for name, column, type in (
            *(("sum", "v", INT8), ("sum", "m", NUMERIC), ("sum", "d", NUMERIC)),
            *(("sum", "x", FLOAT8), ("avg", "x", FLOAT8), ("sum", "p", NUMERIC)),
            *(("min", "v", INT4), ("max", "d", NUMERIC), ("min", "x", FLOAT8)),
            *(("bool_and", "b", BOOL), ("bool_or", "b", BOOL), ("count", "m", INT8)),
            *(("first_value", "v", INT4), ("last_value", "v", INT4)),
        )
    ),
    _call("count"),
    _call("dense_rank"),
]
NEAR = [
    _call("sum", "m", frame=_between("rows", 2, 1), type=NUMERIC),
    _call("max", "v", frame=_between("rows", 5, 0, "current row"), type=INT4),
    _call("count", frame=Frame("rows", _away(FOLLOWING, 2), _away(FOLLOWING, 4))),
    _call("nth_value", "v", 2, frame=_between("rows", 1, 3), type=INT4),
    _call("sum", "x", frame=Frame("rows", _away(PRECEDING, 6), _away(PRECEDING, 2)), type=FLOAT8),
]
NEAR_PEERS = [
    _call("sum", "v", frame=_between("groups", 1, 1)),
    _call("count", "d", frame=_between("groups", 0, 2, "group")),
    _call("sum", "m", frame=_between("range", 3, 2), type=NUMERIC),
    _call("min", "v", frame=_between("range", 10, 0, "ties"), type=INT4),
    _call("count", frame=Frame("range", _away(FOLLOWING, 1), _away(FOLLOWING, 4))),
    _call("first_value", "v", frame=Frame("range", CURRENT, CURRENT), type=INT4),
]
WHOLE = [
    _call("ntile", 4, type=INT4),
    _call("percent_rank", type=FLOAT8),
    _call("cume_dist", type=FLOAT8),
    _call("sum", "v", frame=Frame("range", FROM_FIRST, TO_LAST, "current row")),
    _call("count", frame=Frame("groups", _away(PRECEDING, 1), TO_LAST, "ties")),
    _call("max", "d", frame=Frame("rows", CURRENT, TO_LAST), type=NUMERIC),
    _call("nth_value", "v", 3, frame=PEERS, type=INT4),
]
CALLS = {
    "numbers": NUMBERS,
    "row_number": NUMBERS[:1],
    "shifts": SHIFTS,
    "running": RUNNING,
    "near": NEAR,
    "near_peers": NEAR_PEERS,
    "mixed": [*NUMBERS, *SHIFTS, *RUNNING, *NEAR, *NEAR_PEERS],
    "whole": WHOLE,
}
ORDERS = {
    "up": SortKey(COLUMN["o"]),
    "down": SortKey(COLUMN["o"], is_descending=True, nulls_first=True),
}


def _window(calls: list[WindowCall], order: SortKey, partition: tuple[str, ...] = ("p",)) -> Window:
    fields = FIELDS + tuple(c.field for c in calls)
    keys = tuple(COLUMN[name] for name in partition)
    return Window(Values((), FIELDS), keys, (order,), tuple(calls), fields)


def _operator(plan: Window, store: Store) -> WindowOperator | FollowedWindowOperator:
    context = Context("03.window", "v", store, NoEvaluator(), ErrorRows())
    return (FollowedWindowOperator if is_followed(plan) else WindowOperator)(plan, context)


class _Partition:
    """The rows of one partition in order, copies one by one, and values by their definition."""

    def __init__(self, rows: list[Row], order: SortKey) -> None:
        self.order = order
        self.rows = sorted(rows, key=lambda row: (self._peer(row), _ties(row)))
        groups = [self._peer(row) for row in self.rows]
        self.group = [sorted(set(groups)).index(g) for g in groups]

    def _peer(self, row: Row) -> tuple:
        value = row[PLACE["o"]]
        if value is None:
            return (not self.order.nulls_first, 0)
        return (self.order.nulls_first, -value if self.order.is_descending else value)

    def frame(self, i: int, frame: Frame) -> list[int]:
        """The rows of the frame of row i."""
        inside = [
            j
            for j in range(len(self.rows))
            if self._is_behind(j, i, frame.mode, frame.start)
            and self._is_before(j, i, frame.mode, frame.end)
        ]
        peers = [j for j in inside if self.group[j] == self.group[i]]
        left_out = {
            "": [],
            "current row": [i],
            "group": peers,
            "ties": [j for j in peers if j != i],
        }[frame.exclude]
        return [j for j in inside if j not in left_out]

    def _is_behind(self, j: int, i: int, mode: str, bound: FrameBound) -> bool:
        if bound.kind == "unbounded preceding" or self._are_null(j, i, mode):
            return True
        return self._steps(j, i, mode) >= _signed(bound)

    def _is_before(self, j: int, i: int, mode: str, bound: FrameBound) -> bool:
        if bound.kind == "unbounded following" or self._are_null(j, i, mode):
            return True
        return self._steps(j, i, mode) <= _signed(bound)

    def _are_null(self, j: int, i: int, mode: str) -> bool:
        """NULLs are in the range of each other, at any distance."""
        place = PLACE["o"]
        return mode == "range" and self.rows[i][place] is None and self.rows[j][place] is None

    def _steps(self, j: int, i: int, mode: str) -> float:
        """How far row j is from row i, as the mode counts."""
        if mode == "rows":
            return j - i
        if mode == "groups":
            return self.group[j] - self.group[i]
        a, b = self._peer(self.rows[j]), self._peer(self.rows[i])
        if a[0] != b[0]:
            return float("inf") if a > b else float("-inf")
        return a[1] - b[1]

    def value(self, i: int, call: WindowCall) -> Any:
        """A call's value for row i."""
        n, own = len(self.rows), [_cell(a) for a in call.arguments]
        before = sum(g < self.group[i] for g in self.group)
        if call.function in ("lag", "lead"):
            steps = own[1](self.rows[i]) if len(own) > 1 else 1
            at = i - steps if call.function == "lag" else i + steps
            if 0 <= at < n:
                return _shown(own[0](self.rows[at]), call, "m")
            return own[2](self.rows[i]) if len(own) > 2 else None
        numbers: dict[str, Callable[[], Any]] = {
            "row_number": lambda: i + 1,
            "rank": lambda: before + 1,
            "dense_rank": lambda: self.group[i] + 1,
            "percent_rank": lambda: before / (n - 1) if n > 1 else 0.0,
            "cume_dist": lambda: sum(g <= self.group[i] for g in self.group) / n,
            "ntile": lambda: _tile(i, n, own[0](self.rows[i])),
        }
        if call.function in numbers:
            return numbers[call.function]()
        frame = [self.rows[j] for j in self.frame(i, call.frame)]
        if not call.arguments:
            return len(frame)
        return _over([own[0](row) for row in frame], call, own[1:] and own[1](self.rows[i]))


def _signed(bound: FrameBound) -> int:
    if bound.distance is None:
        return 0
    distance = int(str(bound.distance.text))
    return -distance if bound.kind == PRECEDING else distance


def _tile(i: int, n: int, buckets: int) -> int:
    sizes = [n // buckets + (b < n % buckets) for b in range(buckets)]
    return next(b + 1 for b in range(buckets) if i < sum(sizes[: b + 1]))


def _cell(argument: Expression) -> Callable[[Row], Any]:
    if isinstance(argument, Literal):
        return lambda row: int(str(argument.text))
    assert isinstance(argument, ColumnRef)
    return lambda row: row[argument.index]


def _shown(value: Any, call: WindowCall, name: str) -> Any:
    """numeric(12,2) where the result is plain numeric."""
    argument = call.arguments[0]
    if value is None or argument != COLUMN[name]:
        return value
    return f"{Decimal(value).scaleb(-2):.2f}".encode()


def _over(values: list[Any], call: WindowCall, nth: Any) -> Any:
    """An aggregate over the values of a frame, or one picked of them."""
    function = call.function
    if function in ("first_value", "last_value", "nth_value"):
        at = {"first_value": 0, "last_value": len(values) - 1}.get(function, (nth or 0) - 1)
        return values[at] if 0 <= at < len(values) else None
    values = [v for v in values if v is not None]
    if function == "count":
        return len(values)
    if not values:
        return None
    if function in ("min", "max"):
        key = Decimal if call.arguments[0] == COLUMN["d"] else lambda v: v
        best = (min if function == "min" else max)(key(_text(v)) for v in values)
        return [v for v in values if key(_text(v)) == best][-1]
    if function in ("bool_and", "bool_or"):
        return all(values) if function == "bool_and" else any(values)
    return _sum(values, call)


def _sum(values: list[Any], call: WindowCall) -> Any:
    argument = call.arguments[0]
    if argument == COLUMN["x"]:
        total = 0.0 if call.function == "avg" else values[0]
        for value in values if call.function == "avg" else values[1:]:
            total += value
        return total / len(values) if call.function == "avg" else total
    if argument == COLUMN["m"]:
        return f"{Decimal(sum(values)).scaleb(-2):.2f}".encode()
    if argument == COLUMN["d"]:
        return str(sum((Decimal(v.decode()) for v in values), Decimal(0))).encode()
    return str(sum(values)).encode() if argument == COLUMN["p"] else sum(values)


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value


def _ties(row: Row) -> tuple:
    return tuple((v is None, v if v is not None else 0) for v in row)


def _expected(plan: Window, model: Counter) -> Counter:
    partitions: dict[tuple, list[Row]] = {}
    columns = [e.index for e in plan.partition if isinstance(e, ColumnRef)]
    for row in model.elements():
        partitions.setdefault(tuple(row[c] for c in columns), []).append(row)
    out: Counter = Counter()
    for rows in partitions.values():
        found = _Partition(rows, plan.order[0])
        for i, row in enumerate(found.rows):
            out[row + tuple(found.value(i, call) for call in plan.calls)] += 1
    return out


def _row(random: Random, span: int) -> Row:
    def maybe(value: Any) -> Any:
        return None if random.random() < 0.1 else value

    return (
        maybe(random.choice([1, 1, 1, 2])),
        maybe(random.randrange(span)),
        maybe(random.randint(-9, 9)),
        maybe(random.randint(-999, 999)),
        maybe(random.choice([b"1.5", b"1.50", b"-2", b"0.125", b"7.0"])),
        maybe(random.choice([0.1, 0.25, -1e16, 1e16, 3.0])),
        maybe(random.random() < 0.7),
    )


def _change(random: Random, model: Counter, span: int) -> Counter:
    change: Counter = Counter()
    for row in random.sample(sorted(model, key=_ties), min(len(model), random.choice([0, 1, 3]))):
        change[row] = -random.randint(1, model[row])
        if random.random() < 0.5:
            # An update that leaves the order as it is.
            change[(*row[:2], random.randint(-9, 9), *row[3:])] += 1
    if model and random.random() < 0.05:
        change.update({row: -model[row] - change[row] for row in model if random.random() < 0.8})
    for _ in range(random.choice([0, 1, 1, 2, 40])):
        change[_row(random, span)] += random.choice([1, 1, 1, 3])
    return Counter({row: weight for row, weight in change.items() if weight})


def _delta(change: Counter) -> Delta:
    return Delta.of(KINDS, list(change), list(change.values()))


def _play(plan: Window, seed: int, open_store: Callable[[Store | None], Store], steps: int) -> None:
    random = Random(seed)
    store = open_store(None)
    operator = _operator(plan, store)
    model: Counter = Counter()
    shown: Counter = Counter()
    span = random.choice([12, 1000])
    for step in range(steps):
        change = _change(random, model, span)
        for row, weight in change.items():
            model[row] += weight
        model = +model
        out = operator.step(_delta(change))
        store.commit()
        rows = out.rows()
        assert len({row for row, _ in rows}) == len(rows), "not consolidated"
        for row, weight in rows:
            shown[row] += weight
        shown = Counter({row: weight for row, weight in shown.items() if weight})
        expected = _expected(plan, model)
        assert shown == expected, (
            f"seed {seed}, step {step}: missing {list((expected - shown).items())[:3]}, "
            f"surplus {list((shown - expected).items())[:3]}"
        )
        if step == steps // 2:
            store = open_store(store)
            operator = _operator(plan, store)
    store.close()


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("kind", ["memory", "rocks"])
def test_values_are_those_of_the_definition(
    name: str, order: str, kind: str, tmp_path: Path
) -> None:
    plan = _window(CALLS[name], ORDERS[order])

    def open_store(store: Store | None) -> Store:
        if kind == "memory":
            return MemoryStore() if store is None else store
        if store is not None:
            store.close()
        return RocksStore(tmp_path / "state", cache_bytes=1 << 20)

    seed = FIRST_SEED + 2 * list(CALLS).index(name) + (kind == "rocks")
    _play(plan, seed, open_store, steps=14)


def test_one_partition_of_all_rows() -> None:
    plan = _window(CALLS["mixed"], ORDERS["up"], ())
    _play(plan, FIRST_SEED, lambda store: store or MemoryStore(), steps=12)


def test_which_calls_are_followed() -> None:
    followed = {name: is_followed(_window(calls, ORDERS["up"])) for name, calls in CALLS.items()}
    assert followed == {name: name != "whole" for name in CALLS}


@cache
def _long(rows: int) -> Delta:
    """One partition of rows in the order of their numbers; every fourth shares its place."""
    columns: dict[str, Callable[[int], Any]] = {
        "p": lambda i: 1,
        "o": lambda i: 10 * (i - i % 4),
        "v": lambda i: i % 19 - 9,
        "m": lambda i: i * 7919 % 1000,
        "d": lambda i: b"%d.5" % (i % 11),
        "x": lambda i: i % 8 * 0.25,
        "b": lambda i: i % 5 > 0,
    }
    cells = [tuple(columns[name](i) for name in TYPES) for i in range(rows)]
    return Delta.of(KINDS, cells, 1)


def _one(o: int, weight: int = 1, v: int = 100) -> Delta:
    return Delta.of(KINDS, [(1, o, v, 5, b"1.25", 0.5, True)], weight)


@pytest.mark.parametrize("name", [name for name in CALLS if name != "whole"])
def test_long_partitions_as_when_all_is_computed_again(name: str) -> None:
    plan = _window(CALLS[name], ORDERS["up"])
    followed, whole = _operator(plan, MemoryStore()), _whole(plan)
    random = Random(FIRST_SEED)
    steps = [_long(1500), _one(7_000), _one(7_000, -1), _one(-1), _one(10**6, 3), _one(10**6, -2)]
    for _ in range(12):
        steps.append(_one(random.randrange(15_000), v=random.randint(-50, 50)))
    steps += [
        Delta.concat([_one(random.randrange(15_000), 2) for _ in range(5)]).consolidate(),
        _long(1500).take(np.arange(700, 720)).negate(),
        _long(1500).take(np.array([3, 800, 1498])).negate(),
    ]
    for step in steps:
        assert Counter(followed.step(step).rows()) == Counter(whole.step(step).rows())


def _whole(plan: Window) -> WindowOperator:
    context = Context("03.window", "v", MemoryStore(), NoEvaluator(), ErrorRows())
    return WindowOperator(plan, context)


APPENDED = {
    **{c.function: [c] for c in [*NUMBERS, SHIFTS[0]]},
    "running": RUNNING,
    "near": NEAR,
    "near_peers": NEAR_PEERS,
    "all": CALLS["mixed"],
}


def _touched(calls: list[WindowCall], rows: int, changes: list[Delta]) -> list[int]:
    """Rows of state read and written by each change of a partition of that many rows."""
    store = CountingStore()
    operator = _operator(_window(calls, ORDERS["up"]), store)
    operator.step(_long(rows))
    counts = []
    for change in changes:
        store.reset()
        operator.step(change)
        counts.append(store.reset())
    return counts


@pytest.mark.parametrize("name", APPENDED)
def test_an_appended_row_costs_the_logarithm_of_its_partition(name: str) -> None:
    last = 10**9
    changes = [_one(last), _one(last + 1), _one(last + 1, -1)]
    small = _touched(APPENDED[name], 1_000, changes)
    large = _touched(APPENDED[name], 100_000, changes)
    for few, many in zip(small, large, strict=True):
        assert many <= few + 1_000, f"{few} rows of state at 1,000 rows, {many} at 100,000"


def test_an_appended_row_among_a_million() -> None:
    calls = [NUMBERS[0], SHIFTS[0], _call("sum", "v", frame=RUNNING_ROWS), NEAR[0]]
    last = 10**9
    small, large = (
        max(_touched(calls, n, [_one(last), _one(last + 1), _one(last + 1, -1)]))
        for n in (1_000, 1_000_000)
    )
    assert large <= small + 2_000, f"{small} rows of state at 1,000 rows, {large} at 1,000,000"


MIDDLE = {
    "shifts": SHIFTS,
    "near": NEAR,
    "near_peers": NEAR_PEERS,
    # The running extremes behind stay what they are.
    "min": [_call("min", "v", frame=RUNNING_ROWS, type=INT4)],
}


@pytest.mark.parametrize("name", MIDDLE)
def test_a_row_in_the_middle_costs_what_looks_at_it(name: str) -> None:
    small, large = (
        _touched(MIDDLE[name], n, [_one(5 * n + 3), _one(5 * n + 3, -1)]) for n in (1_000, 100_000)
    )
    for few, many in zip(small, large, strict=True):
        assert many <= few + 1_000, f"{few} rows of state at 1,000 rows, {many} at 100,000"


def test_a_new_value_at_the_same_place_reaches_no_number() -> None:
    row = _long(100_000).take(np.array([40_000]))
    cells = list(row.rows()[0][0])
    cells[PLACE["v"]] = 77
    update = Delta.concat([row.negate(), Delta.of(KINDS, [tuple(cells)], 1)])
    (touched,) = _touched(NUMBERS[:2], 100_000, [update])
    assert touched < 4_000
