"""GROUP BY with its aggregates, DISTINCT, and the one row of a global aggregate.

Invariant: after each epoch the output holds exactly one row for each group with live rows (for a
global aggregate: one row always), computed from the live rows alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import numpy as np
from tidemark_native import storage as kernels

from dataflow.delta import KIND_BYTES, KIND_INT, Column, Delta, equal_rows
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
from dataflow.operators.aggregates.sparse_sums import (
    Entry,
    Family,
    Ledger,
    SparseSums,
    entries_of,
    ledger_column,
)
from dataflow.operators.base import Context, Traits, kinds_of, types_of
from dataflow.operators.groups import Touched, columns_at, plain_columns, touch
from dataflow.plan.aggregate_functions import aggregate_function, keeps_values
from dataflow.plan.nodes import Aggregate, AggregateCall, Plan
from dataflow.plan.properties.numeric_forms import numeric_form
from dataflow.types import SqlType, TypeKind
from dataflow.values import to_text

# The input of exact sums: the columns, their feed, whether squares are summed.
SumsInput = tuple[tuple[int, ...], int, bool]
# From so many rows of a group in a delta its sums cost less than the rows (decision 34).
SUMMED_ROWS = 8
_FLOATS = (TypeKind.FLOAT4, TypeKind.FLOAT8)
_FAMILIES: dict[TypeKind, Callable[[], Family]] = {
    TypeKind.DECIMAL: DecimalSums,
    TypeKind.FLOAT4: lambda: FloatSums(is_single=True),
    TypeKind.FLOAT8: lambda: FloatSums(is_single=False),
    TypeKind.INTERVAL: IntervalSums,
}


def is_additive(plan: Plan) -> bool:
    """Return whether a plan's operator is Additive: every call needs only sums over a group."""
    return type(plan) is Aggregate and not any(
        call.sql or call.is_distinct or keeps_values(call.function) for call in plan.calls
    )


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
        if n == 0 and (self._keys or self._linear.is_emitted()):
            return Delta.empty(self._kinds)
        touched = touch(columns_at(delta, self._keys), n)
        feeds = {INPUT: Feed(dict(enumerate(delta.columns)), delta.weights, touched.group)}
        for feed, distinct in self._distinct.items():
            feeds[feed] = distinct.advance(touched, feeds[INPUT])

        def entries(source: SumsInput) -> Iterable[Entry]:
            return self._entries(source, feeds[source[1]])

        epoch = self._epoch(touched, feeds, self._linear.changes(touched, feeds), entries)
        if self._recomputed is not None:
            epoch.recomputed, epoch.failures = self._recomputed.advance(
                touched, touched.group, delta, epoch.rows[1] > 0
            )
        return self._finished(epoch)

    def _epoch(
        self,
        touched: Touched,
        feeds: dict[int, Feed],
        changes: np.ndarray,
        entries: Callable[[SumsInput], Iterable[Entry]],
    ) -> _Epoch:
        emitting = int(not self._keys and not self._linear.is_emitted())
        rows, sums = self._linear.add(touched, changes, emitting)
        if rows.min(initial=0) < 0:
            self._refuse(touched, rows[1])
        return _Epoch(self, touched, feeds, entries, (rows, sums))

    def _finished(self, epoch: _Epoch) -> Delta:
        columns, errors = [], RowErrors()
        for result in self._results:
            column, failed = result(epoch)
            columns.append(column)
            for row, error in failed.by_row.items():
                errors.add(row, *error)
        for row, error in epoch.failures.by_row.items():
            errors.add(row, *error)
        return self._turned(epoch.touched, epoch.rows > 0, columns, errors)

    def _entries(self, source: SumsInput, feed: Feed) -> Iterable[Entry]:
        return self._sparse[source].entries([feed.columns[c] for c in source[0]], feed)

    @property
    def sums_kinds(self) -> str:
        """See Additive: the key, the parts of the vector, the ledgers as text."""
        vector, ledgers = len(self._linear.summed), len(self._sparse)
        return self._key_kinds + KIND_INT * vector + KIND_BYTES * ledgers

    def partial_sums(self, delta: Delta) -> tuple[Delta, Delta]:
        """See Additive; groups of fewer than SUMMED_ROWS rows stay rows."""
        group = touch(columns_at(delta, self._keys), len(delta)).group
        is_summed = np.bincount(group)[group] >= SUMMED_ROWS
        if not is_summed.any():
            return delta, Delta.empty(self.sums_kinds)
        rows, delta = delta.take(np.flatnonzero(~is_summed)), delta.filter(is_summed)
        touched = touch(columns_at(delta, self._keys), len(delta))
        feed = Feed(dict(enumerate(delta.columns)), delta.weights, touched.group)
        vector = [Column(change) for change in self._linear.changes(touched, {INPUT: feed})]
        ledgers = [
            ledger_column(self._entries(source, feed), touched.count) for source in self._sparse
        ]
        is_changed = [*(c.values != 0 for c in vector), *(c.mask() for c in ledgers)]
        sums = Delta([*touched.keys, *vector, *ledgers], np.ones(touched.count, np.int64))
        return rows, sums.filter(np.logical_or.reduce(is_changed))

    def step_sums(self, rows: Delta, sums: Delta) -> Delta:
        """See Additive."""
        if not len(sums):
            return self.step(rows)
        n, width = len(rows), len(self._keys)
        both = zip(columns_at(rows, self._keys), sums.columns[:width], strict=True)
        touched = touch([Column.concat(pair) for pair in both], n + len(sums))
        group = touched.group[n:]
        feed = Feed(dict(enumerate(rows.columns)), rows.weights, touched.group[:n])
        changes = self._linear.changes(touched, {INPUT: feed})
        vector = sums.columns[width : width + len(changes)]
        for change, column in zip(changes, vector, strict=True):
            change += kernels.sum_by_group(group, column.values * sums.weights, touched.count)
        texts = dict(zip(self._sparse, sums.columns[width + len(changes) :], strict=True))

        def entries(source: SumsInput) -> Iterable[Entry]:
            own = self._entries(source, feed)
            return chain(own, entries_of(texts[source], sums.weights, group))

        return self._finished(self._epoch(touched, {}, changes, entries))

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
        keeps = aggregate_function(call.function).keeps
        if keeps == "pair moments":
            return self._exact(call, plain_columns(call.arguments), INPUT)
        if call.argument is None:
            linear = LinearCall(call.function, -1, None, INPUT)
            return lambda epoch: (linear.result(epoch.sums), RowErrors())
        column = plain_columns([call.argument])[0]
        type = call.argument.type
        function = call.function
        if keeps == "extremes":
            self._extremes_of(column, type).want(function)
            shown = _shown_as(type, call.field.type)
            return lambda epoch: (shown(epoch.extremes(column)[function]), RowErrors())
        if keeps == "order":
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
        is_moment = aggregate_function(function).keeps in ("moments", "pair moments")
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

    def advance_ledgers(
        self, source: SumsInput, touched: Touched, entries: Iterable[Entry]
    ) -> list[Ledger]:
        """Step the exact sums of one input, once an epoch."""
        return self._sparse[source].advance(touched, entries)


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
        entries: Callable[[SumsInput], Iterable[Entry]],
        sums: tuple[np.ndarray, Vectors],
    ) -> None:
        self._operator = operator
        self.touched = touched
        self._feeds = feeds
        self._entries = entries
        self.rows, self.sums = sums
        self.recomputed: list[Column] = []
        self.failures = RowErrors()
        self._extremes: dict[int, dict[str, Column]] = {}
        self._percentiles: dict[tuple[int, bool], dict[Desired, Column]] = {}
        self._ledgers: dict[SumsInput, list[Ledger]] = {}

    def extremes(self, column: int) -> dict[str, Column]:
        if column not in self._extremes:
            feed = self._feeds[INPUT]
            self._extremes[column] = self._operator.advance_extremes(column, self.touched, feed)
        return self._extremes[column]

    def percentiles(self, source: tuple[int, bool]) -> dict[Desired, Column]:
        if source not in self._percentiles:
            feed = self._feeds[INPUT]
            found = self._operator.advance_percentiles(source, self.touched, feed)
            self._percentiles[source] = found
        return self._percentiles[source]

    def ledgers(self, source: SumsInput) -> list[Ledger]:
        if source not in self._ledgers:
            self._ledgers[source] = self._operator.advance_ledgers(
                source, self.touched, self._entries(source)
            )
        return self._ledgers[source]
