"""Oracle: what PostgreSQL 15 answered for the same values (written down here)."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dataflow.collect import ErrorRows
from dataflow.delta import Column, Delta
from dataflow.expressions.evaluator import NoEvaluator, RowErrors
from dataflow.expressions.ir import ColumnRef, Literal
from dataflow.graph import ViewDataflow
from dataflow.operators.aggregates.interval_sums import IntervalSums, interval_text
from dataflow.operators.aggregates.numeric_results import average_text
from dataflow.plan.nodes import Aggregate, AggregateCall, Scan, SingleRow, Values
from dataflow.schema import Field, Relation, RelationName
from dataflow.sql.lower.lowering import lower
from dataflow.types import FLOAT4, FLOAT8, INT4, INT8, INTERVAL, NUMERIC, TEXT, SqlType
from storage.memory import MemoryStore


def _answers(type: SqlType, values: list, *calls: tuple[str, SqlType]) -> tuple:
    """One global aggregate over one column: its row, and the (sqlstate, message) of errors."""
    relation = Relation(RelationName("s", "public", "t"), 1, (Field("v", type),), is_full=True)
    scan = Scan(relation, (0,), relation.fields)
    column = ColumnRef(0, type)
    made = tuple(
        AggregateCall(function, column, False, None, Field(function, result))
        for function, result in calls
    )
    plan = Aggregate(scan, (), made, tuple(call.field for call in made))
    errors = ErrorRows()
    flow = ViewDataflow(lower(plan), "v", MemoryStore(), NoEvaluator(), errors)
    deltas = [flow.seed()]
    deltas.append(flow.step({relation.name: Delta.of(type.physical, [(v,) for v in values])}))
    rows = Delta.concat(deltas).consolidate().rows()
    return [row for row, _ in rows], [row[1:3] for row, _ in errors.take().rows()]


@pytest.mark.parametrize(
    ("total", "scale", "count", "text"),
    [
        (10, 0, 4, "2.5000000000000000"),
        (1, 0, 3, "0.33333333333333333333"),
        (2, 0, 3, "0.66666666666666666667"),
        (0, 0, 7, "0.00000000000000000000"),
        (30001, 0, 3, "10000.3333333333333333"),
        (123456789012345678, 0, 7, "17636684144620811"),
        (100, 2, 3, "0.33333333333333333333"),
        (-5, 0, 2, "-2.5000000000000000"),
        (1, 20, 1, "0.0000000000000000000100000000000000000000"),
    ],
)
def test_average_scale(total: int, scale: int, count: int, text: str) -> None:
    """SELECT total::numeric / count."""
    assert average_text(total, scale, count) == text


def test_sums_of_bigint_leave_int64() -> None:
    """SELECT sum(v), avg(v) of two greatest bigints."""
    rows, _ = _answers(INT8, [2**63 - 1, 2**63 - 1], ("sum", NUMERIC), ("avg", NUMERIC))
    assert rows == [(b"18446744073709551614", b"9223372036854775807")]


def test_floats_are_exact() -> None:
    """What was added and cancels leaves no trace."""
    rows, _ = _answers(FLOAT8, [1e300, 0.1, -1e300, 0.2], ("sum", FLOAT8))
    assert rows == [(0.1 + 0.2,)]


def test_float_overflow_is_an_error_row() -> None:
    """SELECT sum(v): value out of range: overflow."""
    for type, value in ((FLOAT8, 1.7e308), (FLOAT4, 3.4e38)):
        rows, errors = _answers(type, [value, value], ("sum", type))
        assert rows == []
        assert errors == [(b"22003", b"value out of range: overflow")]


def test_infinities() -> None:
    """inf and -inf make NaN, in numeric and in double precision."""
    rows, _ = _answers(FLOAT8, [math.inf, 1.0], ("sum", FLOAT8), ("avg", FLOAT8))
    assert rows == [(math.inf, math.inf)]
    rows, _ = _answers(NUMERIC, [b"Infinity", b"-Infinity"], ("sum", NUMERIC), ("avg", NUMERIC))
    assert rows == [(b"NaN", b"NaN")]
    rows, _ = _answers(NUMERIC, [b"-Infinity", b"1.50"], ("sum", NUMERIC))
    assert rows == [(b"-Infinity",)]


def test_order_of_intervals_and_numerics() -> None:
    """min and max by value; the text decides between equal ones."""
    values = [b"1 mon", b"29 days", b"30 days", b"720:00:00"]
    rows, _ = _answers(INTERVAL, values, ("min", INTERVAL))
    assert rows == [(b"29 days",)]
    rows, _ = _answers(NUMERIC, [b"10", b"9.5", b"NaN"], ("min", NUMERIC), ("max", NUMERIC))
    assert rows == [(b"9.5", b"NaN")]


@pytest.mark.parametrize(
    ("texts", "average"),
    [
        ([b"1 mon", b"2 days"], "16 days"),
        ([b"1 year", b"00:00:01"], "6 mons 00:00:00.5"),
        ([b"1 day", b"00:00:00", b"00:00:00"], "08:00:00"),
        ([b"-1 days", b"00:00:00"], "-12:00:00"),
    ],
)
def test_interval_average(texts: list[bytes], average: str) -> None:
    """SELECT avg(v)."""
    rows, _ = _answers(INTERVAL, texts, ("avg", INTERVAL))
    assert rows == [(average.encode(),)]


def test_interval_text_signs() -> None:
    """EncodeInterval: a plus only after a minus."""
    assert interval_text(-13, 2, 3_600_000_000) == "-1 years -1 mons +2 days 01:00:00"
    assert IntervalSums().sum({-4: 1, 0: 2**31})[1] == ("22008", "interval out of range")


def test_scalar_subquery_of_two_rows_is_an_error_row() -> None:
    """The error comes with the second row and goes with it."""
    fields = (Field("v", INT4),)
    relation = Relation(RelationName("s", "public", "t"), 1, fields, is_full=True)
    errors = ErrorRows()
    nodes = lower(SingleRow(Scan(relation, (0,), fields)))
    flow = ViewDataflow(nodes, "v", MemoryStore(), NoEvaluator(), errors)
    assert flow.seed().rows() == [((None,), 1)]
    flow.step({relation.name: Delta.of("i", [(1,)])})
    assert flow.step({relation.name: Delta.of("i", [(2,)])}).rows() == [((1,), -1)]
    text = b"more than one row returned by a subquery used as an expression"
    assert errors.take().rows() == [((b"01.single_row", b"21000", text, b"()"), 1)]
    assert flow.step({relation.name: Delta.of("i", [(1,)], -1)}).rows() == [((2,), 1)]
    assert [weight for _, weight in errors.take().rows()] == [-1]


def test_error_rows_print_as_composites() -> None:
    """SELECT ROW(...)::text."""
    errors = ErrorRows()
    rows = Delta.of("iss", [(1, 'a "b", c', None), (2, "", "x")], [1, 1])
    errors.collect("f", (INT4, TEXT, TEXT), rows, RowErrors({0: ("22012", "m"), 1: ("x", "m")}))
    texts = sorted(row[3] for row, _ in errors.take().rows())
    assert texts == [b'(1,"a ""b"", c",)', b'(2,"",x)']
    assert len(errors.take()) == 0


def test_values_come_once_in_a_state() -> None:
    """Seeded again, or on the same state after a restart, they stay out."""
    store = MemoryStore()
    plan = Values(((Literal("1", INT4),), (Literal("1", INT4),)), (Field("v", INT4),))
    flow = ViewDataflow(lower(plan), "v", store, NoEvaluator(), ErrorRows())
    assert flow.seed().rows() == [((1,), 2)]
    assert len(flow.seed()) == 0
    again = ViewDataflow(lower(plan), "v", store, NoEvaluator(), ErrorRows())
    assert len(again.seed()) == 0


def test_many_rows_of_a_group_stay_exact() -> None:
    """A million greatest bigints: limbs do not overflow."""
    n = 1_000_000
    fields = (Field("v", INT8),)
    relation = Relation(RelationName("s", "public", "t"), 1, fields, is_full=True)
    call = AggregateCall("sum", ColumnRef(0, INT8), False, None, Field("s", NUMERIC))
    plan = Aggregate(Scan(relation, (0,), fields), (), (call,), (call.field,))
    flow = ViewDataflow(lower(plan), "v", MemoryStore(), NoEvaluator(), ErrorRows())
    rows = Delta([Column(np.array([2**63 - 1, -(2**63)]))], np.array([n, n - 1]))
    total = n * (2**63 - 1) - (n - 1) * 2**63
    assert flow.step({relation.name: rows}).rows() == [((str(total).encode(),), 1)]
