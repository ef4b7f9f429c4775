"""Window plans over one schema, and their answers by definition: row by row over sorted lists.

Invariant: nothing here is shared with the operators but the plan and the physical form of values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any

from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef, Expression, Literal
from dataflow.operators.base import Context
from dataflow.operators.windows.window import WindowOperator
from dataflow.operators.windows.window_follow import IncrementalWindowOperator
from dataflow.operators.windows.window_reach import is_followed
from dataflow.plan.nodes import Frame, FrameBound, SortKey, Values, Window, WindowCall
from dataflow.schema import Field
from dataflow.types import BOOL, FLOAT8, INT4, INT8, NUMERIC, SqlType, fixed
from storage.store import Store

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


def away(kind: str, distance: int) -> FrameBound:
    """So many rows, groups or units away."""
    return FrameBound(kind, Literal(str(distance), INT8))


def between(mode: str, before: int, after: int, exclude: str = "") -> Frame:
    """A frame between two distances."""
    return Frame(mode, away(PRECEDING, before), away(FOLLOWING, after), exclude)


def call_of(
    function: str, *arguments: str | int, frame: Frame = PEERS, type: SqlType = INT8
) -> WindowCall:
    """A call over columns by name and constants."""
    bound: list[Expression] = [
        COLUMN[a] if isinstance(a, str) else Literal(str(a), INT4) for a in arguments
    ]
    field = Field(function, type)
    is_aggregate = function in ("count", "sum", "avg", "min", "max", "bool_and", "bool_or")
    return WindowCall(function, tuple(bound), None, frame, f"{function}()", field, is_aggregate)


NUMBERS = [call_of("row_number"), call_of("rank"), call_of("dense_rank")]
SHIFTS = [
    call_of("lag", "v", type=INT4),
    call_of("lead", "m", 3, type=NUMERIC),
    call_of("lag", "v", -1, 7, type=INT4),
]
RUNNING = [
    *(
        call_of(name, column, frame=frame, type=type)
        for frame in (RUNNING_ROWS, PEERS)
        for name, column, type in (
            *(("sum", "v", INT8), ("sum", "m", NUMERIC), ("sum", "d", NUMERIC)),
            *(("sum", "x", FLOAT8), ("avg", "x", FLOAT8), ("sum", "p", NUMERIC)),
            *(("min", "v", INT4), ("max", "d", NUMERIC), ("min", "x", FLOAT8)),
            *(("bool_and", "b", BOOL), ("bool_or", "b", BOOL), ("count", "m", INT8)),
            *(("first_value", "v", INT4), ("last_value", "v", INT4)),
        )
    ),
    call_of("count"),
    call_of("dense_rank"),
]
NEAR = [
    call_of("sum", "m", frame=between("rows", 2, 1), type=NUMERIC),
    call_of("max", "v", frame=between("rows", 5, 0, "current row"), type=INT4),
    call_of("count", frame=Frame("rows", away(FOLLOWING, 2), away(FOLLOWING, 4))),
    call_of("nth_value", "v", 2, frame=between("rows", 1, 3), type=INT4),
    call_of("sum", "x", frame=Frame("rows", away(PRECEDING, 6), away(PRECEDING, 2)), type=FLOAT8),
]
NEAR_PEERS = [
    call_of("sum", "v", frame=between("groups", 1, 1)),
    call_of("count", "d", frame=between("groups", 0, 2, "group")),
    call_of("sum", "m", frame=between("range", 3, 2), type=NUMERIC),
    call_of("min", "v", frame=between("range", 10, 0, "ties"), type=INT4),
    call_of("count", frame=Frame("range", away(FOLLOWING, 1), away(FOLLOWING, 4))),
    call_of("first_value", "v", frame=Frame("range", CURRENT, CURRENT), type=INT4),
]
WHOLE = [
    call_of("ntile", 4, type=INT4),
    call_of("percent_rank", type=FLOAT8),
    call_of("cume_dist", type=FLOAT8),
    call_of("sum", "v", frame=Frame("range", FROM_FIRST, TO_LAST, "current row")),
    call_of("count", frame=Frame("groups", away(PRECEDING, 1), TO_LAST, "ties")),
    call_of("max", "d", frame=Frame("rows", CURRENT, TO_LAST), type=NUMERIC),
    call_of("nth_value", "v", 3, frame=PEERS, type=INT4),
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


def window_over(
    calls: list[WindowCall], order: SortKey, partition: tuple[str, ...] = ("p",)
) -> Window:
    """The plan of calls over one order."""
    fields = FIELDS + tuple(c.field for c in calls)
    keys = tuple(COLUMN[name] for name in partition)
    return Window(Values((), FIELDS), keys, (order,), tuple(calls), fields)


def open_operator(plan: Window, store: Store) -> WindowOperator | IncrementalWindowOperator:
    """The operator that the plan is lowered to, over a store."""
    context = Context("03.window", "v", store, NoEvaluator(), ErrorRows())
    return (IncrementalWindowOperator if is_followed(plan) else WindowOperator)(plan, context)


class _Partition:
    """The rows of one partition in order, copies one by one, and values by their definition."""

    def __init__(self, rows: list[Row], order: SortKey) -> None:
        self.order = order
        self.rows = sorted(rows, key=lambda row: (self._peer(row), ties_of(row)))
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
            if self._has_unread(j, i, frame.mode, frame.start)
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

    def _has_unread(self, j: int, i: int, mode: str, bound: FrameBound) -> bool:
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


def ties_of(row: Row) -> tuple:
    """What rows that tie are sorted by: all columns, NULLs last."""
    return tuple((v is None, v if v is not None else 0) for v in row)


def expected_rows(plan: Window, model: Counter) -> Counter:
    """The answer over a multiset of rows, by definition."""
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


@cache
def long_partition(rows: int) -> Delta:
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


def one_row(o: int, weight: int = 1, v: int = 100) -> Delta:
    """A row of that partition, at a place of its own or among others."""
    return Delta.of(KINDS, [(1, o, v, 5, b"1.25", 0.5, True)], weight)
