"""GROUP BY with its aggregates, DISTINCT, and the one row of a global aggregate.

Invariant: after each epoch the output holds exactly one row for each group with live rows (for a
global aggregate: one row always), computed from the live rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dataflow.delta import Column, Delta, equal_rows
from dataflow.errors import InvariantError
from dataflow.expressions.evaluator import RowErrors
from dataflow.operators.aggregates.decimal_sums import DecimalSums
from dataflow.operators.aggregates.distinct_values import DistinctValues
from dataflow.operators.aggregates.extremes import Extremes
from dataflow.operators.aggregates.float_moments import FloatMoments
from dataflow.operators.aggregates.float_sums import FloatSums
from dataflow.operators.aggregates.interval_sums import IntervalSums
from dataflow.operators.aggregates.linear import (
    EMITTED,
    INPUT,
    ROWS,
    Feed,
    LinearCall,
    LinearSums,
    Part,
    Vectors,
    is_linear,
    text_form,
)
from dataflow.operators.aggregates.number_moments import NumberMoments
from dataflow.operators.aggregates.percentiles import Desired, Percentiles
from dataflow.operators.aggregates.recomputed import Recomputed
from dataflow.operators.aggregates.sparse_sums import Family, Ledger, SparseSums
from dataflow.operators.base import Context, Traits, kinds_of, types_of
from dataflow.operators.groups import Touched, columns_at, plain_columns, touch
from dataflow.plan.aggregate_functions import LEAST, PAIR_FUNCTIONS, PERCENTILES
from dataflow.plan.nodes import Aggregate, AggregateCall
from dataflow.plan.properties.numeric_forms import numeric_form
from dataflow.types import SqlType, TypeKind
from dataflow.values import to_text

# The input of exact sums: the columns, their feed, whether squares are summed.
SumsInput = tuple[tuple[int, ...], int, bool]
_EXTREMES = ("min", "max", LEAST)
_MOMENTS = ("var_pop", "var_samp", "stddev_pop", "stddev_samp")
_FLOATS = (TypeKind.FLOAT4, TypeKind.FLOAT8)
_FAMILIES: dict[TypeKind, Callable[[], Family]] = {
    TypeKind.DECIMAL: DecimalSums,
    TypeKind.FLOAT4: lambda: FloatSums(is_single=True),
    TypeKind.FLOAT8: lambda: FloatSums(is_single=False),
    TypeKind.INTERVAL: IntervalSums,
}


class AggregateOperator:
    """Group: touched groups are re-evaluated, new minus old.

    Groups and arguments are plain columns (lowering ensures it), groups in key form. Besides
    PostgreSQL's functions there is "least", the least value by text. Calls with `sql` are
    recomputed (see Recomputed). State: one vector of sums for each group (rows, counts, sums of
    integers, of fixed point and of numerics whose digits the plan knows); ledgers of exact sums for
    other numbers; the distinct values of each group for min, max and DISTINCT, the ordered ones for
    percentiles. Cost: O(rows of the delta); min and max read a group again when its extreme is
    retracted. NULL: a group of its own as a key; ignored by every aggregate but count(*).
    """

    def __init__(self, plan: Aggregate, context: Context) -> None:
        self._context = context
        self._keys = plain_columns(plan.groups)
        self._kinds = kinds_of(plan.fields)
        self._types = types_of(plan.fields[: len(self._keys)])
        self._input = plan.input
        self._input_types = types_of(plan.input.fields)
        self._key_kinds = "".join(t.physical for t in self._types)
        self._distinct: dict[int, DistinctValues] = {}
        self._sparse: dict[SumsInput, SparseSums] = {}
        self._extremes: dict[int, Extremes] = {}
        self._percentiles: dict[tuple[int, bool], Percentiles] = {}
        parts: list[Part] = [ROWS] if self._keys else [ROWS, EMITTED]
        self._recomputed_count = 0
        self._results = [self._result(call, parts) for call in plan.calls]
        self._linear = LinearSums(context, self._key_kinds, parts)
        calls = [call for call in plan.calls if call.sql]
        self._recomputed = None
        if calls:
            self._recomputed = Recomputed(context, self._types, calls, self._input_types)
        stored = (self._distinct, self._sparse, self._extremes, self._percentiles, self._recomputed)
        # Sums over rows accept unconsolidated input.
        self.traits = Traits(accepts_unconsolidated=not any(stored))

    def step(self, delta: Delta) -> Delta:
        """Return the change of the groups' rows: key columns, then one column for each call."""
        n = len(delta)
        if self._keys:
            if n == 0:
                return Delta.empty(self._kinds)
            emitting = 0
        else:
            emitting = 0 if self._linear.is_emitted() else 1
            if n == 0 and not emitting:
                return Delta.empty(self._kinds)
        touched = touch(columns_at(delta, self._keys), n)
        feeds = {INPUT: Feed(dict(enumerate(delta.columns)), delta.weights, touched.group)}
        for feed, distinct in self._distinct.items():
            feeds[feed] = distinct.advance(touched, feeds[INPUT])
        rows, sums = self._linear.advance(touched, feeds, emitting)
        if rows.min(initial=0) < 0:
            self._refuse(touched, rows[1])
        epoch = _Epoch(self, touched, feeds, sums)
        if self._recomputed is not None:
            epoch.recomputed, epoch.failures = self._recomputed.advance(
                touched, touched.group, delta, rows[1] > 0
            )
        columns, errors = [], RowErrors()
        for result in self._results:
            column, failed = result(epoch)
            columns.append(column)
            for row, error in failed.by_row.items():
                errors.add(row, *error)
        for row, error in epoch.failures.by_row.items():
            errors.add(row, *error)
        return self._turned(touched, rows > 0, columns, errors)

    def forget(self, keys: Sequence[Column], n: int) -> None:
        """Free the state of n groups, each once, without a change of the output.

        Not for aggregates of distinct values, whose state is not found by group (`can_forget`).
        """
        self._linear.forget(keys)
        for sparse in self._sparse.values():
            sparse.forget(keys)
        for extremes in self._extremes.values():
            extremes.forget(keys, n)
        for percentiles in self._percentiles.values():
            percentiles.forget(keys, n)
        if self._recomputed is not None:
            self._recomputed.forget(keys)

    def _turned(
        self, touched: Touched, live: np.ndarray, columns: list[Column], errors: RowErrors
    ) -> Delta:
        """Return new minus old, from int and bool [2 * groups] results: all old ones, then all
        new."""
        groups = touched.count
        shown = live.copy()
        if errors:
            failed = errors.mask(2 * groups).reshape(2, -1)
            self._collect(touched, live & failed, errors)
            shown &= ~failed
        every = np.arange(groups)
        same = shown[0] & shown[1] & equal_rows(columns, every, columns, every + groups)
        shown &= ~same
        chosen = np.flatnonzero(shown.reshape(-1))
        owner = chosen % groups
        out = [k.take(owner) for k in touched.keys] + [c.take(chosen) for c in columns]
        return Delta(out, np.where(chosen < groups, -1, 1))

    def _collect(self, touched: Touched, failed: np.ndarray, errors: RowErrors) -> None:
        chosen = np.flatnonzero(failed.reshape(-1))
        keys = [k.take(chosen % touched.count) for k in touched.keys]
        weights = np.where(chosen < touched.count, -1, 1)
        found = RowErrors({i: errors.by_row[int(row)] for i, row in enumerate(chosen)})
        self._context.collect(self._types, Delta(keys, weights), found)

    def _refuse(self, touched: Touched, rows: np.ndarray) -> None:
        worst = int(rows.argmin())
        key = [c.take(np.array([worst])).to_list()[0] for c in touched.keys]
        raise InvariantError(
            "state.negative_weight",
            f'operator "{self._context.name}" would keep group {key} with {rows[worst]} rows',
            hint="rebuild the view",
        )

    def _result(self, call: AggregateCall, parts: list[Part]) -> Callable:
        """Return a function of the epoch that computes the call's column and errors; register its
        state."""
        if call.sql:
            source = self._recomputed_count
            self._recomputed_count += 1
            return lambda epoch: (epoch.recomputed[source], RowErrors())
        if call.function in PAIR_FUNCTIONS:
            return self._exact(call, plain_columns(call.arguments), INPUT)
        if call.argument is None:
            linear = LinearCall(call.function, -1, None, INPUT)
            return lambda epoch: (linear.result(epoch.sums), RowErrors())
        column = plain_columns([call.argument])[0]
        type = call.argument.type
        function = call.function
        if function in _EXTREMES:
            self._extremes_of(column, type).want(function)
            shown = _shown_as(type, call.field.type)
            return lambda epoch: (shown(epoch.extremes(column)[function]), RowErrors())
        if function in PERCENTILES:
            return self._percentile(call, column, type)
        feed = self._feed(call, column, type)
        form = None
        if type.kind is TypeKind.DECIMAL and function in ("sum", "avg"):
            form = text_form(numeric_form(self._input, call.argument))
        if is_linear(function, type, form):
            linear = LinearCall(function, column, type, feed, form)
            parts.extend(linear.parts)
            return lambda epoch: (linear.result(epoch.sums), RowErrors())
        return self._exact(call, (column,), feed)

    def _percentile(self, call: AggregateCall, column: int, type: SqlType) -> Callable:
        source, required = (column, call.is_descending), (call.function, call.fraction)
        if source not in self._percentiles:
            self._percentiles[source] = Percentiles(
                self._context, self._key_kinds, (column, type), is_descending=source[1]
            )
        self._percentiles[source].want(*required)
        shown = _shown_as(type, call.field.type)
        return lambda epoch: (shown(epoch.percentiles(source)[required]), RowErrors())

    def _exact(self, call: AggregateCall, columns: tuple[int, ...], feed: int) -> Callable:
        """Return the result of a call whose state is a ledger of exact sums."""
        function, result_type = call.function, call.field.type
        is_moment = function in _MOMENTS or function in PAIR_FUNCTIONS
        source = (columns, feed, is_moment)
        if source not in self._sparse:
            type = self._input_types[columns[-1]]
            role = f"exact {' '.join(map(str, columns))}" + ("" if feed == INPUT else " distinct")
            role += " moments" if is_moment else ""
            family = _moments_of(type) if is_moment else _family_of(type)
            self._sparse[source] = SparseSums(self._context, role, self._key_kinds, family)
        sparse = self._sparse[source]
        return lambda epoch: sparse.result(function, epoch.ledgers(source), result_type)

    def _feed(self, call: AggregateCall, column: int, type: SqlType) -> int:
        if not call.is_distinct or call.function.startswith("bool"):
            return INPUT
        # count needs no representative of equal values, only their number.
        is_counted = call.function == "count"
        feed = 2 * column + is_counted
        if feed not in self._distinct:
            source = (column, type)
            self._distinct[feed] = DistinctValues(
                self._context, self._key_kinds, source, is_counted
            )
        return feed

    def _extremes_of(self, column: int, type: SqlType) -> Extremes:
        if column not in self._extremes:
            role = f"extremes {column}"
            self._extremes[column] = Extremes(self._context, role, self._key_kinds, (column, type))
        return self._extremes[column]

    def advance_extremes(self, column: int, touched: Touched, feed: Feed) -> dict[str, Column]:
        """Step the extremes of a column, once an epoch."""
        return self._extremes[column].advance(touched, feed)

    def advance_percentiles(
        self, source: tuple[int, bool], touched: Touched, feed: Feed
    ) -> dict[Desired, Column]:
        """Step the percentiles of a column in a direction, once an epoch."""
        return self._percentiles[source].advance(touched, feed)

    def advance_ledgers(self, source: SumsInput, touched: Touched, feed: Feed) -> list[Ledger]:
        """Step the exact sums of one input, once an epoch."""
        return self._sparse[source].advance(touched, [feed.columns[c] for c in source[0]], feed)


def _family_of(type: SqlType) -> Family:
    if type.kind not in _FAMILIES:
        raise InvariantError("plan.aggregate", f"no exact sums of type {type.name}")
    return _FAMILIES[type.kind]()


def _moments_of(type: SqlType) -> Family:
    return FloatMoments() if type.kind in _FLOATS else NumberMoments(type)


def _shown_as(type: SqlType, result: SqlType) -> Callable[[Column], Column]:
    """Return extremes as PostgreSQL types them: those of numeric(p,s) are plain numeric."""
    if type.kind is TypeKind.FIXED and result.kind is TypeKind.DECIMAL:
        return lambda column: to_text(type, column)
    return lambda column: column


class _Epoch:
    """The results of one step so far: state shared by several calls is stepped once."""

    def __init__(
        self,
        operator: AggregateOperator,
        touched: Touched,
        feeds: dict[int, Feed],
        sums: Vectors,
    ) -> None:
        self._operator = operator
        self._touched = touched
        self._feeds = feeds
        self.sums = sums
        self.recomputed: list[Column] = []
        self.failures = RowErrors()
        self._extremes: dict[int, dict[str, Column]] = {}
        self._percentiles: dict[tuple[int, bool], dict[Desired, Column]] = {}
        self._ledgers: dict[SumsInput, list[Ledger]] = {}

    def extremes(self, column: int) -> dict[str, Column]:
        if column not in self._extremes:
            feed = self._feeds[INPUT]
            self._extremes[column] = self._operator.advance_extremes(column, self._touched, feed)
        return self._extremes[column]

    def percentiles(self, source: tuple[int, bool]) -> dict[Desired, Column]:
        if source not in self._percentiles:
            feed = self._feeds[INPUT]
            found = self._operator.advance_percentiles(source, self._touched, feed)
            self._percentiles[source] = found
        return self._percentiles[source]

    def ledgers(self, source: SumsInput) -> list[Ledger]:
        if source not in self._ledgers:
            feed = self._feeds[source[1]]
            self._ledgers[source] = self._operator.advance_ledgers(source, self._touched, feed)
        return self._ledgers[source]
