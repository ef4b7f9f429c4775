"""Aggregate functions: one record each, of what the planner and the operators know of it.

A function without a record (a user's own) is recomputed in PostgreSQL from the rows of its group.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from dataflow.types import TypeKind

# What an operator keeps for a call: sums of the values; sums of their products; their values, for
# the extreme ones; their values in order; nothing but rows, from which PostgreSQL computes it.
Keeps = Literal["sums", "moments", "pair moments", "extremes", "order", "rows"]
# The least value by text: the representative of equal values that print differently.
LEAST = "least"
NUMBERS = frozenset(
    {
        *(TypeKind.INT2, TypeKind.INT4, TypeKind.INT8, TypeKind.FLOAT4, TypeKind.FLOAT8),
        *(TypeKind.FIXED, TypeKind.DECIMAL),
    }
)
_WHOLE = frozenset({TypeKind.INT2, TypeKind.INT4, TypeKind.INT8})


@dataclass(frozen=True)
class AggregateFunction:
    """A function by its name in canonical text.

    keeps: what a maintained call needs; calls of arguments that it cannot do with are recomputed.
    kept_as: under which name, where it is another spelling of a function. kinds: of arguments that
    are maintained; None: any. of_no_rows: its value over no rows, as text, None for NULL; "unknown"
    where PostgreSQL is asked. is_ordered: the result may depend on the order of the rows.
    is_idempotent: DISTINCT changes nothing.
    """

    name: str
    keeps: Keeps = "rows"
    kinds: Collection[TypeKind] | None = None
    kept_as: str = ""
    of_no_rows: str | None = None
    is_ordered: bool = False
    is_idempotent: bool = False

    @property
    def is_maintained(self) -> bool:
        """Whether an operator can maintain calls of it."""
        return self.keeps != "rows"


def _known() -> Iterator[AggregateFunction]:
    yield AggregateFunction("count", "sums", of_no_rows="0")
    for name in ("sum", "avg"):
        yield AggregateFunction(name, "sums", NUMBERS | {TypeKind.INTERVAL})
    for name in ("bool_and", "bool_or"):
        yield AggregateFunction(name, "sums", is_idempotent=True)
    for name in ("bit_and", "bit_or"):
        yield AggregateFunction(name, "sums", _WHOLE, is_idempotent=True)
    yield AggregateFunction("bit_xor", "sums", _WHOLE)
    for name in ("min", "max"):
        yield AggregateFunction(name, "extremes", is_idempotent=True)
    yield AggregateFunction(LEAST, "extremes", is_idempotent=True, is_ordered=True)
    for name in ("var_pop", "var_samp", "stddev_pop", "stddev_samp"):
        yield AggregateFunction(name, "moments", NUMBERS)
    for name in ("covar_pop", "covar_samp", "corr", "regr_r2", "regr_slope", "regr_intercept"):
        yield AggregateFunction(name, "pair moments", {TypeKind.FLOAT8})
    for name in ("regr_sxx", "regr_syy", "regr_sxy", "regr_avgx", "regr_avgy"):
        yield AggregateFunction(name, "pair moments", {TypeKind.FLOAT8})
    yield AggregateFunction("regr_count", "pair moments", {TypeKind.FLOAT8}, of_no_rows="0")
    for name in ("percentile_cont", "percentile_disc"):
        yield AggregateFunction(name, "order", is_ordered=True)
    for name in ("string_agg", "array_agg", "json_agg", "jsonb_agg", "mode"):
        yield AggregateFunction(name, is_ordered=True)
    for name in ("json_object_agg", "jsonb_object_agg"):
        yield AggregateFunction(name, is_ordered=True)
    for name in ("range_agg", "range_intersect_agg"):
        yield AggregateFunction(name)


def _with_other_spellings() -> Iterator[AggregateFunction]:
    known = {function.name: function for function in _known()}
    yield from known.values()
    spellings = {"every": "bool_and", "variance": "var_samp", "stddev": "stddev_samp"}
    for name, kept_as in {**spellings, "any_value": LEAST}.items():
        yield replace(known[kept_as], name=name, kept_as=kept_as)


_FUNCTIONS = {function.name: function for function in _with_other_spellings()}
PAIR_FUNCTIONS = frozenset(f.name for f in _FUNCTIONS.values() if f.keeps == "pair moments")


def aggregate_function(name: str) -> AggregateFunction:
    """Return what is known of a function; of another one, nothing that helps."""
    found = _FUNCTIONS.get(name)
    return found or AggregateFunction(name, of_no_rows="unknown", is_ordered=True)


def keeps_values(name: str) -> bool:
    """Return whether each value of a group is kept, not only sums of them."""
    return aggregate_function(name).keeps in ("extremes", "order")
