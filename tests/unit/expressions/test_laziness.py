"""Oracle: PostgreSQL's left-to-right rule, written down by hand for each case.

A branch that PostgreSQL would not have evaluated in a row raises no error in that row, and an
evaluator sees only the rows that need it.
"""

from __future__ import annotations

import numpy as np
import pytest

from dataflow.delta import Column
from dataflow.errors import InvariantError
from dataflow.expressions.compile import compile_expression
from dataflow.expressions.evaluator import NoEvaluator, RowErrors
from dataflow.expressions.ir import Call, ColumnRef, Expression, InPostgres, Literal
from dataflow.types import BOOL, INT4, NUMERIC, TEXT

A, B = ColumnRef(0, INT4), ColumnRef(1, INT4)
ONE, ZERO = Literal("1", INT4), Literal("0", INT4)
DIVISION = ("22012", "division by zero")


def call(function: str, *arguments: Expression, type=BOOL) -> Call:
    return Call(function, arguments, type)


QUOTIENT = call("/", ONE, B, type=INT4)


def evaluate(expression: Expression, *columns: list, evaluator=None):
    inputs = [Column.of("i", c) for c in columns]
    compiled = compile_expression(expression, evaluator or NoEvaluator())
    column, errors = compiled.evaluate(inputs, len(columns[0]))
    return column.to_list(), errors.by_row


class Recorder:
    """Answers x + 1 and notes the rows it was asked for; negative x fails."""

    def __init__(self) -> None:
        self.asked: list[list[int | None]] = []

    def evaluate(self, sql, types, columns, n, result):
        rows = columns[0].to_list()
        self.asked.append(rows)
        errors = RowErrors()
        for row, x in enumerate(rows):
            if x is not None and x < 0:
                errors.add(row, "P0001", f"negative {x}")
        return Column.of("i", [None if x is None or x < 0 else x + 1 for x in rows]), errors

    def rank(self, type, column):
        raise AssertionError


def test_and_stops_at_false() -> None:
    test = call("and", call("<>", B, ZERO), call(">", QUOTIENT, ZERO))
    assert evaluate(test, [0, 0, 0], [0, 1, -1]) == ([False, True, False], {})


def test_and_continues_after_null() -> None:
    test = call("and", call("=", A, ONE), call(">", QUOTIENT, ZERO))
    values, errors = evaluate(test, [None, 2, None, 1], [0, 0, 1, 1])
    assert (values, errors) == ([None, False, None, True], {0: DIVISION})


def test_or_stops_at_true() -> None:
    test = call("or", call("=", B, ZERO), call(">", QUOTIENT, ZERO))
    assert evaluate(test, [0, 0, 0], [0, 1, None]) == ([True, True, None], {})


def test_an_error_comes_before_what_would_have_decided() -> None:
    test = call("and", call(">", QUOTIENT, ZERO), call("=", A, ONE))
    assert evaluate(test, [0, 0], [0, 1]) == ([None, False], {0: DIVISION})


def test_case_computes_a_branch_on_its_rows() -> None:
    test = call("case", call("=", B, ZERO), Literal("-1", INT4), QUOTIENT, type=INT4)
    assert evaluate(test, [0, 0, 0], [0, 1, None]) == ([-1, 1, None], {})


def test_case_does_not_continue_after_a_failed_condition() -> None:
    test = call("case", call(">", QUOTIENT, ZERO), A, call("/", A, ZERO, type=INT4), type=INT4)
    values, errors = evaluate(test, [7, 8, 9], [0, 1, 1])
    assert (values, errors) == ([None, 8, 9], {0: DIVISION})


def test_nested_parts_put_errors_on_the_right_rows() -> None:
    inner = call("case", call(">", A, ONE), QUOTIENT, ZERO, type=INT4)
    test = call("case", call("is not null", A), inner, type=INT4)
    values, errors = evaluate(test, [None, 1, 2, None, 3, 4], [0, 0, 0, 0, 1, 0])
    assert values == [None, 0, None, None, 1, None]
    assert errors == {2: DIVISION, 5: DIVISION}


def test_coalesce_stops_at_the_first_value() -> None:
    test = call("coalesce", A, QUOTIENT, ONE, type=INT4)
    values, errors = evaluate(test, [5, None, None, None], [0, 0, None, 1])
    assert (values, errors) == ([5, None, 1, 1], {1: DIVISION})


def test_postgres_sees_only_the_rows_that_need_it() -> None:
    recorder = Recorder()
    remote = InPostgres("f($1)", (A,), INT4)
    test = call("and", call(">", B, ZERO), call(">", remote, ONE))
    values, errors = evaluate(test, [1, -2, -3, 0], [1, 1, 0, 1], evaluator=recorder)
    assert recorder.asked == [[1, -2, 0]]
    assert (values, errors) == ([True, None, False, False], {1: ("P0001", "negative -2")})


def test_postgresql_is_not_called_for_no_row() -> None:
    recorder = Recorder()
    test = call("and", call(">", B, ZERO), call(">", InPostgres("f($1)", (A,), INT4), ONE))
    assert evaluate(test, [1, 2], [0, -1], evaluator=recorder) == ([False, False], {})
    assert recorder.asked == []


def test_a_constant_that_fails_fails_in_every_row() -> None:
    test = call("/", ONE, ZERO, type=INT4)
    values, errors = evaluate(test, [1, 2], [1, 2])
    assert (values, errors) == ([None, None], {0: DIVISION, 1: DIVISION})


def test_a_constant_that_fails_in_a_branch_not_taken_is_no_error() -> None:
    test = call("case", call("=", A, ONE), call("/", ONE, ZERO, type=INT4), A, type=INT4)
    assert evaluate(test, [2, 1], [0, 0]) == ([2, None], {1: DIVISION})


def test_constants_are_folded_and_spread() -> None:
    test = call("+", ONE, ONE, type=INT4)
    assert evaluate(test, [0, 0, 0]) == ([2, 2, 2], {})
    assert evaluate(Literal(None, TEXT), [0, 0]) == ([None, None], {})


def test_null_slots_hold_nothing() -> None:
    test = call("cast", call("+", A, B, type=INT4), type=TEXT)
    compiled = compile_expression(test, NoEvaluator())
    column, _ = compiled.evaluate([Column.of("i", [1, None]), Column.of("i", [2, 3])], 2)
    assert column.to_list() == [b"3", None]
    assert np.diff(column.values).tolist() == [1, 0]


def test_what_has_no_kernel_is_refused() -> None:
    with pytest.raises(InvariantError):
        compile_expression(call("no such function", A), NoEvaluator())


def test_numeric_column_passes_through() -> None:
    column = Column.of("s", ["1.50", None])
    out, errors = compile_expression(ColumnRef(0, NUMERIC), NoEvaluator()).evaluate([column], 2)
    assert out is column and not errors
