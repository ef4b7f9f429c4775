"""Oracle: the texts that PostgreSQL prints: two values are one exactly when their texts are."""

from __future__ import annotations

import numpy as np
import pytest

from dataflow import types
from dataflow.delta import Column
from dataflow.expressions.compile import compile_expression
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import Call, ColumnRef
from dataflow.types import BOOL, TEXT, SqlType
from dataflow.values import from_text, to_text

TEXTS = [
    (types.NUMERIC, ["1.5", "1.50", None, "0", "0.00", "NaN", "-1000000000000000000.5"]),
    (types.fixed(6, 2), ["1.50", None, "0.00", "-3.25", "1.50"]),
    (types.FLOAT8, ["0", "-0", "NaN", None, "1e-300", "Infinity", "0"]),
    (types.INT4, ["1", None, "-5", "1"]),
    (TEXT, ["", "'", None, "é\t", "a", "a "]),
    (BOOL, ["t", "f", None, "t"]),
    (types.TIMESTAMPTZ, ["2024-01-01 00:00:00+00", None, "infinity"]),
    (types.INTERVAL, ["1 day", "24:00:00", None]),
]


def evaluated(function: str, type: SqlType, column: Column, source: SqlType) -> Column:
    call = Call(function, (ColumnRef(0, source),), type)
    found, errors = compile_expression(call, NoEvaluator()).evaluate((column,), len(column))
    assert not errors
    return found


@pytest.mark.parametrize(("type", "texts"), TEXTS, ids=lambda p: getattr(p, "name", ""))
def test_identities_differ_as_texts_do_and_lead_back(
    type: SqlType, texts: list[str | None]
) -> None:
    column = from_text(type, Column.of("s", texts))
    keys = evaluated("identity", TEXT, column, type)
    assert keys.valid is None
    shown = to_text(type, column).to_list()
    same = [[a == b for b in keys.to_list()] for a in keys.to_list()]
    assert same == [[a == b for b in shown] for a in shown]
    back = evaluated("value of", type, keys, TEXT)
    assert to_text(type, back).to_list() == shown


def test_a_part_of_a_column_has_the_identities_of_its_rows() -> None:
    column = from_text(TEXT, Column.of("s", ["abc", None, "", "de"])).slice(1, 4)
    keys = evaluated("identity", TEXT, column, TEXT)
    assert evaluated("value of", TEXT, keys.slice(1, 3), TEXT).to_list() == [b"", b"de"]
    assert len(evaluated("identity", TEXT, column.slice(0, 0), TEXT)) == 0


def test_only_row_fails_where_there_are_more() -> None:
    call = Call("only row", (ColumnRef(0, types.INT4), ColumnRef(1, BOOL)), types.INT4)
    columns = (Column.of("i", [1, 2, None, 4]), Column.of("b", [False, True, True, None]))
    found, errors = compile_expression(call, NoEvaluator()).evaluate(columns, 4)
    assert errors.by_row == {
        row: ("21000", "more than one row returned by a subquery used as an expression")
        for row in (1, 2)
    }
    assert np.array(found.to_list())[[0, 3]].tolist() == [1, 4]
