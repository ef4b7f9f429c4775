"""Aggregate calls that PostgreSQL computes again for every group that changed.

All calls of a node share one arrangement of their argument rows and one query: for the touched
groups the rows are read once, weights written out, and every call runs over them. Invariant: the
last result of a group, errors included, is stored, so that exactly the emitted row is retracted.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataflow.delta import KIND_BYTES, Column, Delta, equal_rows
from dataflow.expressions.evaluator import RowErrors
from dataflow.expressions.sql_text import with_arguments
from dataflow.operators.base import Context
from dataflow.operators.groups import Touched, columns_at, plain_columns, value_at
from dataflow.plan.nodes import AggregateCall
from dataflow.types import BOOL, SqlType

_ROW = "tidemark_row"
# Their syntax has no ORDER BY, so their rows are passed in order.
UNORDERABLE = "json_objectagg"


class Recomputed:
    """The recomputed calls of one aggregate.

    State: (group, arguments of all calls) by group; (group, results, SQLSTATE, error message) by
    group. Cost: the rows of each touched group, and one round trip for about 10,000 of them. NULL:
    as each function takes it.
    """

    def __init__(
        self,
        context: Context,
        key_types: Sequence[SqlType],
        calls: Sequence[AggregateCall],
        input_types: Sequence[SqlType],
    ) -> None:
        self._evaluator = context.evaluator
        self._has_keys = bool(key_types)
        operands = [plain_columns(call.operands) for call in calls]
        self._columns = tuple(dict.fromkeys(c for columns in operands for c in columns))
        self._types = [input_types[c] for c in self._columns]
        self._results = [call.field.type for call in calls]
        self._sql = group_query(calls, self._columns, has_keys=self._has_keys)
        if not self._has_keys:
            self._types.append(BOOL)
        key_kinds = "".join(t.physical for t in key_types)
        key = tuple(range(len(key_kinds)))
        kinds = "".join(input_types[c].physical for c in self._columns)
        self._rows = context.arrange("recomputed rows", key_kinds + kinds, key)
        kinds = "".join(t.physical for t in self._results) + 2 * KIND_BYTES
        self._answers = context.arrange("recomputed answers", key_kinds + kinds, key)
        self._width = len(key_kinds)

    def forget(self, keys: Sequence[Column]) -> None:
        """Free the rows and answers of some groups, each once."""
        for arrangement in (self._rows, self._answers):
            arrangement.apply(arrangement.lookup(keys)[1].negate())

    def advance(
        self, touched: Touched, group: np.ndarray, delta: Delta, live: np.ndarray
    ) -> tuple[list[Column], RowErrors]:
        """Apply the delta's rows of the touched groups.

        group: int64[n], the touched group of each row. live: bool[groups], those that have an
        output row. Return each call's results, old ones and then new ones, and the errors.
        """
        keys = [k.take(group) for k in touched.keys]
        rows = Delta([*keys, *columns_at(delta, self._columns)], delta.weights)
        if len(rows):
            self._rows.apply(rows)
        index, stored = self._answers.lookup(touched.keys)
        held = np.full(touched.count, -1, np.int64)
        held[index] = np.arange(len(index))
        old = [value_at(c, held) for c in stored.columns[self._width :]]
        required = live & ((held < 0) | self._moved(touched, group, rows))
        new = self._answered(touched, np.flatnonzero(required), old, live & ~required)
        self._replace(touched, (old, new), held >= 0, live)
        both = [Column.concat([a, b]) for a, b in zip(old, new, strict=True)]
        errors = RowErrors()
        for row in np.flatnonzero(both[-2].mask()).tolist():
            one = np.array([row])
            errors.add(row, *(c.take(one).texts()[0] or "" for c in both[-2:]))
        return both[:-2], errors

    def _moved(self, touched: Touched, group: np.ndarray, rows: Delta) -> np.ndarray:
        """Return bool[groups]: whether the rows changed in the columns that these calls read."""
        moved = np.zeros(touched.count, np.bool_)
        numbered = Delta([Column(group), *rows.columns[self._width :]], rows.weights).consolidate()
        moved[numbered.columns[0].values] = True
        return moved

    def _answered(
        self, touched: Touched, required: np.ndarray, old: list[Column], stored: np.ndarray
    ) -> list[Column]:
        """Return the result and error columns after the epoch, recomputed for the given groups."""
        position = np.where(stored, np.arange(touched.count), -1)
        if len(required) == 0:
            return [value_at(c, position) for c in old]
        index, rows = self._rows.lookup([k.take(required) for k in touched.keys])
        index = np.repeat(index, rows.weights)
        columns = [
            c.take(np.repeat(np.arange(len(rows)), rows.weights))
            for c in rows.columns[self._width :]
        ]
        if not self._has_keys:
            index, columns = _with_no_row(index, columns)
        groups, results, errors = self._evaluator.evaluate_groups(
            self._sql, self._types, columns, required[index], self._results
        )
        failed = np.array(sorted(errors.by_row), np.int64)
        found = [errors.by_row[int(g)] for g in failed]
        position[groups] = touched.count + np.arange(len(groups))
        position[failed] = touched.count + len(groups) + np.arange(len(failed))
        nulls = [Column.nulls(t.physical, len(failed)) for t in self._results]
        states = [Column.of(KIND_BYTES, [e[part] for e in found]) for part in (0, 1)]
        no_error = Column.nulls(KIND_BYTES, len(groups))
        pools = [
            *(Column.concat(parts) for parts in zip(old[:-2], results, nulls, strict=True)),
            *(Column.concat([o, no_error, s]) for o, s in zip(old[-2:], states, strict=True)),
        ]
        return [value_at(pool, position) for pool in pools]

    def _replace(
        self,
        touched: Touched,
        values: tuple[list[Column], list[Column]],
        was: np.ndarray,
        live: np.ndarray,
    ) -> None:
        old, new = values
        every = np.arange(touched.count)
        same = was & live & equal_rows(old, every, new, every)
        gone, come = np.flatnonzero(was & ~same), np.flatnonzero(live & ~same)
        if len(gone) + len(come) == 0:
            return
        keys = [k.take(np.concatenate([gone, come])) for k in touched.keys]
        columns = [
            Column.concat([a.take(gone), b.take(come)]) for a, b in zip(old, new, strict=True)
        ]
        weights = np.repeat(np.array([-1, 1], np.int64), [len(gone), len(come)])
        self._answers.apply(Delta([*keys, *columns], weights))


def group_query(calls: Sequence[AggregateCall], columns: Sequence[int], *, has_keys: bool) -> str:
    """Return the query over `tidemark_row` that computes g and each call, by group.

    columns: the input positions that become $1, $2 ...; without keys an additional column is true
    for each row and false for a placeholder, so that there is always a group.
    """
    number = {column: i for i, column in enumerate(columns, 1)}
    shown: dict[int, str] = {}
    sorts: list[str] = []
    selected, grouped = [f"{_ROW}.g"], [f"{_ROW}.g"]
    for call in calls:
        positions = [number[c] for c in plain_columns(call.arguments)]
        for i in call.alike:
            if positions[i] not in shown:
                shown[positions[i]] = f"${len(columns) + (not has_keys) + len(shown) + 1}"
        written = {i + 1: f"${position}" for i, position in enumerate(positions)}
        written |= {i + 1: shown[positions[i]] for i in call.alike}
        grouped += [written[i + 1] for i in range(call.direct)]
        if call.function == UNORDERABLE:
            sorts += [with_arguments(text, written.__getitem__) for text in call.rows_by]
            sorts += [f'({written[i + 1]})::text COLLATE "C"' for i in range(len(positions))]
        conditions = [f"${number[c]}" for c in plain_columns([call.filter] if call.filter else [])]
        conditions += [] if has_keys else [f"${len(columns) + 1}"]
        text = with_arguments(call.sql, written.__getitem__)
        if conditions:
            text += f" FILTER (WHERE {' AND '.join(conditions)})"
        selected.append(text)
    source = _ROW
    if shown or sorts:
        parts = ["*", *(_least(f"${position}", name) for position, name in shown.items())]
        source = f"(SELECT {', '.join(parts)} FROM {_ROW}"
        if sorts:
            source += f" ORDER BY g, {', '.join(sorts)}"
        source += f") AS {_ROW}"
    groups = ", ".join(dict.fromkeys(grouped))
    return f"SELECT {', '.join(selected)} FROM {source} GROUP BY {groups}"


def _least(value: str, name: str) -> str:
    """Return the representative of equal values in a group: the least by text."""
    window = f'PARTITION BY g, {value} ORDER BY ({value})::text COLLATE "C"'
    return f"first_value({value}) OVER ({window}) AS a{name[1:]}"


def _with_no_row(index: np.ndarray, columns: list[Column]) -> tuple[np.ndarray, list[Column]]:
    """Add a placeholder row of NULLs for the one group of a global aggregate, and the column that
    marks it."""
    columns = [Column.concat([c, Column.nulls(c.kind, 1)]) for c in columns]
    is_row = np.arange(len(index) + 1) < len(index)
    return np.append(index, 0), [*columns, Column(is_row)]
