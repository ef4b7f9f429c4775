"""Set-returning functions: each row beside the rows that functions make of it.

Invariant: a row's retraction makes the same rows as its insertion, since the functions depend on
the row alone. A series of numbers or moments has a kernel (see series); all else PostgreSQL runs
together, in FROM or in a select list, so padding and nesting are exactly PostgreSQL's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from dataflow.delta import Column, Delta
from dataflow.errors import InvariantError
from dataflow.expressions.compile import compile_expression
from dataflow.expressions.evaluator import RowErrors
from dataflow.expressions.ir import ColumnRef
from dataflow.lexer import tokens
from dataflow.operators.base import Context, Traits, kinds_of, types_of
from dataflow.operators.chunking import EVERY_ROW, in_chunks, whole
from dataflow.operators.filter import is_true
from dataflow.operators.series import make_series
from dataflow.plan.nodes import SetCall, TableFunction
from dataflow.plan.set_functions import series_of

# Input rows for which functions run at a time: their results are in memory together.
SLICE_ROWS = 10_000
# Memory of a row of a series beside its columns: its input row, its number, its offset.
_BYTES_A_ROW = 32
_TABLE_SYNTAX = ("XMLTABLE(", "JSON_TABLE(")
Answer = tuple[np.ndarray, tuple[Column, ...], RowErrors]


class TableFunctionOperator:
    """Linear: a flat map.

    State: none. Cost: O(rows of the delta and rows made of them), one query for SLICE_ROWS rows
    without a kernel; functions of constants run once. Memory for the rows made of a slice.
    NULL: as each function defines; a shorter function and an outer row are padded with NULLs.
    """

    traits = Traits(is_linear=True, has_state=False, emits_parts=True)

    def __init__(self, plan: TableFunction, context: Context) -> None:
        self._plan = plan
        self._context = context
        self._types = types_of(plan.input.fields)
        self._kinds = kinds_of(plan.fields)
        self._results = types_of(plan.fields[len(plan.input.fields) :])
        self._used = tuple(dict.fromkeys(_column(a) for c in plan.calls for a in c.arguments))
        self._query = query_of(plan, self._used)
        self._series = series_of(plan)
        self._constant: Answer | None = None
        self._condition = (
            compile_expression(plan.condition, context.evaluator) if plan.condition else None
        )

    def step(self, delta: Delta) -> Delta:
        """Return the delta's rows beside the rows that the functions make of them, with their
        weights."""
        return whole(self.parts(delta, max_rows=EVERY_ROW), self._kinds)

    def parts(self, delta: Delta, *, max_rows: int) -> Iterator[Delta]:
        yield from in_chunks(self._slices(delta, min(SLICE_ROWS, max_rows)), max_rows)

    def _slices(self, delta: Delta, max_rows: int) -> Iterator[Delta]:
        for start in range(0, len(delta), max_rows):
            part = delta.slice(start, min(start + max_rows, len(delta)))
            made, errors = self._slice(part)
            self._context.collect(self._types, part, errors)
            yield made.consolidate()

    def _slice(self, part: Delta) -> tuple[Delta, RowErrors]:
        """Return the rows made of a slice, and the slice's rows that failed."""
        n = len(part)
        rows, columns, errors = self._answer(part)
        made = _beside(part, rows, columns)
        if self._condition is not None and len(rows):
            verdict, failures = self._condition.evaluate(made.columns, len(rows))
            for at, (sqlstate, text) in failures.by_row.items():
                errors.add(int(rows[at]), sqlstate, text)
            keep = is_true(verdict) & ~errors.mask(n)[rows]
            made, rows = made.filter(keep), rows[keep]
        if not self._plan.is_outer:
            return made, errors
        alone = np.bincount(rows, minlength=n) == 0
        alone &= ~errors.mask(n)
        index = np.flatnonzero(alone)
        nulls = tuple(Column.nulls(t.physical, len(index)) for t in self._results)
        return Delta.concat([made, _beside(part, index, nulls)]), errors

    def _answer(self, part: Delta) -> Answer:
        """Return (int64[m] rows of the slice, m values of each column of the functions, errors)."""
        n = len(part)
        if self._series is not None:
            return self._make_series(self._series, part)
        if self._used:
            columns = [part.columns[i] for i in self._used]
            return self._evaluate(columns, np.arange(n))
        if self._constant is None:
            self._constant = self._evaluate([], np.zeros(1, np.int64))
        rows, columns, errors = self._constant
        failed = RowErrors({i: errors.by_row[0] for i in range(n)} if errors else {})
        index = np.tile(np.arange(len(rows)), n)
        return np.repeat(np.arange(n), len(rows)), tuple(c.take(index) for c in columns), failed

    def _make_series(self, call: SetCall, part: Delta) -> Answer:
        arguments = [part.columns[_column(a)] for a in call.arguments]
        made = make_series(call, arguments, self._require)
        columns = [Column(made.values)] * len(call.columns)
        if self._plan.has_ordinality:
            columns.append(Column(made.numbers))
        if not made.doubtful.any():
            return made.rows, tuple(columns), RowErrors()
        index = np.flatnonzero(made.doubtful)
        given = [part.columns[i].take(index) for i in self._used]
        rows, others, errors = self._evaluate(given, index)
        both = tuple(map(Column.concat, zip(columns, others, strict=True)))
        return np.concatenate([made.rows, rows]), both, errors

    def _require(self, rows: int) -> None:
        self._context.meter.check(rows)
        self._context.store.require_space(rows * _BYTES_A_ROW)

    def _evaluate(self, columns: Sequence[Column], groups: np.ndarray) -> Answer:
        types = [self._types[i] for i in self._used]
        is_numbered = self._plan.in_select and self._plan.has_ordinality
        results = self._results[:-1] if is_numbered else self._results
        answer = self._context.evaluator.evaluate_groups(
            self._query, types, columns, groups, results
        )
        if not is_numbered:
            return answer
        rows, made, errors = answer
        return rows, (*made, Column(_numbers_within(rows))), errors


def query_of(plan: TableFunction, used: Sequence[int]) -> str:
    """Return the query over `tidemark_row`, whose columns are the input's at `used`, in that
    order."""
    sqls = [_renumbered(call, used) for call in plan.calls]
    firsts = np.cumsum([0, *(call.width for call in plan.calls)]).tolist()
    width = firsts.pop()
    picked = [f + c for f, call in zip(firsts, plan.calls, strict=True) for c in call.columns]
    shown = [f"u.c{i + 1}" for i in picked]
    names = [f"c{i + 1}" for i in range(width)]
    if plan.in_select:
        source = f"(SELECT tidemark_row.g, {', '.join(sqls)} FROM tidemark_row) AS u"
        return f"SELECT {', '.join(['u.g', *shown])} FROM {source}({', '.join(['g', *names])})"
    if plan.has_ordinality:
        shown.append("u.n")
        names.append("n")
    alias = f"u({', '.join(names)})" if names else "u"
    source = f"{rows_from(sqls, has_ordinality=plan.has_ordinality)} AS {alias}"
    selected = ", ".join(["tidemark_row.g", *shown])
    return f"SELECT {selected} FROM tidemark_row, LATERAL {source}"


def rows_from(sqls: Sequence[str], *, has_ordinality: bool = False) -> str:
    """Return the calls as one entry of FROM."""
    if sqls[0].startswith(_TABLE_SYNTAX):
        return sqls[0]
    return f"ROWS FROM ({', '.join(sqls)}){' WITH ORDINALITY' if has_ordinality else ''}"


def _renumbered(call: SetCall, used: Sequence[int]) -> str:
    """Return the call's text with $k for the k-th of the columns that all calls use."""
    parts, at = [], 0
    for token in tokens(call.sql):
        if token.kind == "parameter":
            column = _column(call.arguments[int(token.text[1:]) - 1])
            parts += [call.sql[at : token.offset], f"${used.index(column) + 1}"]
            at = token.offset + len(token.text)
    return "".join(parts) + call.sql[at:]


def _numbers_within(rows: np.ndarray) -> np.ndarray:
    """Return the number of each row among those made of the same input row, which are together."""
    turns = np.flatnonzero(np.diff(rows)) + 1
    firsts = np.concatenate([[0], turns]).astype(np.int64)
    lengths = np.diff(np.concatenate([firsts, [len(rows)]]))
    return np.arange(len(rows)) - np.repeat(firsts, lengths) + 1


def _column(argument: object) -> int:
    if not isinstance(argument, ColumnRef):
        raise InvariantError("plan.operator", "an argument of a function of sets is no column")
    return argument.index


def _beside(part: Delta, rows: np.ndarray, columns: Sequence[Column]) -> Delta:
    """Return the slice's rows at these positions beside columns of as many rows."""
    return Delta([*(c.take(rows) for c in part.columns), *columns], part.weights[rows])
