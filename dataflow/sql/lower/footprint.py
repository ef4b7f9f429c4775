"""Estimates of a dataflow's state, of the work that a change causes, and of risks.

Derived from the estimated rows of each node. A model for users' decisions; answers never depend on
it. `bench/estimate.py` measures the constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from dataflow.expressions.ir import Expression, InPostgres, children
from dataflow.operators.windows.window_reach import is_followed
from dataflow.plan.aggregate_functions import keeps_values
from dataflow.plan.nodes import (
    Aggregate,
    Apply,
    AsOfJoin,
    Distinct,
    Filter,
    FinalRows,
    Join,
    LateRows,
    Loop,
    Project,
    RecursionRef,
    Recursive,
    Remember,
    Scan,
    SemiJoin,
    SetOperation,
    Shard,
    SingleRow,
    TableFunction,
    ThresholdFilter,
    TopK,
    UnionAll,
    Values,
    Watermark,
    Window,
)
from dataflow.plan.set_functions import series_of
from dataflow.schema import RelationName
from dataflow.sql.lower.lowering import Node
from dataflow.types import TypeKind

# Nodes that store no rows, or few. Lowering removes the last three, but for bodies of loops.
_FewRows = (
    Scan
    | Values
    | Filter
    | Project
    | UnionAll
    | Shard
    | TableFunction
    | Watermark
    | LateRows
    | Apply
    | Recursive
    | RecursionRef
)
# Bytes of a row in an arrangement beside its values: hashes of key and row, weight.
ROW_BYTES = 12
_SUM_BYTES = 8
# Bytes of the tree over ordered rows, for each row.
_TREE_BYTES = 4
_WIDE = 4
_FAN_OUT = 500
_PARTITION = 10_000
_BY_KIND = {
    **dict.fromkeys((TypeKind.INT2, TypeKind.INT4, TypeKind.DATE, TypeKind.FLOAT4), 4),
    TypeKind.BOOL: 1,
}


@dataclass
class Size:
    """Rows of a node, bytes of one, and its number of partitions, if any."""

    rows: float
    width: float
    groups: float = 1.0


@dataclass(frozen=True)
class StoredRows:
    """One arrangement. bytes_: before compression."""

    node: str
    rows: float
    raw_bytes: float


@dataclass
class Effect:
    """The effect of one changed row of a relation: changed rows of the view, and rows read or
    passed on."""

    rows_out: float = 0.0
    rows_touched: float = 0.0


@dataclass(frozen=True)
class Risk:
    """An expensive operator, and what to do about it."""

    operator: str
    why: str
    hint: str


@dataclass
class _Flow:
    """Delta rows at a node by relation; the rows touched up to there."""

    delta: dict[RelationName, float] = field(default_factory=dict)


def stored_by(nodes: Sequence[Node], sizes: Sequence[Size]) -> list[StoredRows]:
    """Return the arrangements of the operators, without those of the base tables."""
    found: list[StoredRows] = []
    for node, size in zip(nodes, sizes, strict=True):
        inputs = [sizes[i] for i in node.inputs]
        plan = node.plan
        if isinstance(plan, Join):
            store = _kept if plan.bounds is None else _ordered
            found += [store(node, i) for i in inputs]
        elif isinstance(plan, AsOfJoin):
            found += [_ordered(node, i) for i in inputs]
        elif isinstance(plan, SemiJoin):
            found += [_kept(node, inputs[0]), _sums(node, inputs[1].rows, inputs[1].width, 1)]
            if plan.residual is not None:
                found.append(_kept(node, inputs[1]))
        elif isinstance(plan, Aggregate):
            found += _aggregate(node, plan, size, inputs[0])
        elif isinstance(plan, Distinct):
            found.append(_sums(node, size.rows, size.width, 1))
        elif isinstance(plan, SetOperation):
            rows = inputs[0].rows + inputs[1].rows
            found.append(_sums(node, rows, size.width, 2))
        elif isinstance(plan, TopK | Window | ThresholdFilter | FinalRows):
            found.append(_ordered(node, inputs[0]))
            if isinstance(plan, Window) and is_followed(plan):
                found.append(_kept(node, size))
        elif isinstance(plan, Remember | Loop):
            found.append(_kept(node, size))
        elif isinstance(plan, SingleRow):
            found.append(_kept(node, inputs[0]))
        elif not isinstance(plan, _FewRows):
            assert_never(plan)
    return found


def effects_of(nodes: Sequence[Node], sizes: Sequence[Size]) -> dict[RelationName, Effect]:
    """Return the effect of one inserted or deleted row of each relation; an update is two of
    them."""
    found: dict[RelationName, Effect] = {}
    flows: list[_Flow] = []
    for node, size in zip(nodes, sizes, strict=True):
        flow = _Flow()
        plan = node.plan
        if isinstance(plan, Scan):
            flow.delta[plan.relation.name] = 1.0
            found.setdefault(plan.relation.name, Effect())
        for side, i in enumerate(node.inputs):
            for name, rows in flows[i].delta.items():
                out, touched = _through(node, side, rows, size, [sizes[j] for j in node.inputs])
                flow.delta[name] = flow.delta.get(name, 0.0) + out
                found[name].rows_touched += touched
        flows.append(flow)
    for name, rows in flows[-1].delta.items():
        found[name].rows_out = rows
    return found


def risks_of(nodes: Sequence[Node], sizes: Sequence[Size], why_no_key: str) -> list[Risk]:
    """Return the expensive operators, by name."""
    found: list[Risk] = []
    for node, size in zip(nodes, sizes, strict=True):
        inputs = [sizes[i] for i in node.inputs]
        found += _risks(node, size, inputs)
    if why_no_key:
        hint = "select the key's columns, and a change of a row is one update by its key"
        found.append(
            Risk("output", f"the view is a multiset view (no unique key): {why_no_key}", hint)
        )
    return found


def width_of(node: Node) -> float:
    """Return a rough number of bytes of a row, without statistics."""
    return float(sum(_BY_KIND.get(f.type.kind, 8) + _WIDE for f in node.plan.fields))


def _kept(node: Node, size: Size) -> StoredRows:
    return StoredRows(node.name, size.rows, size.rows * (size.width + ROW_BYTES))


def _ordered(node: Node, size: Size) -> StoredRows:
    row = size.width + ROW_BYTES + _TREE_BYTES
    return StoredRows(node.name, size.rows, size.rows * row)


def _sums(node: Node, rows: float, width: float, sums: int) -> StoredRows:
    return StoredRows(node.name, rows, rows * (width + ROW_BYTES + sums * _SUM_BYTES))


def _aggregate(node: Node, plan: Aggregate, size: Size, rows: Size) -> list[StoredRows]:
    """Return the arrangements of an aggregate: sums of each group, and the values or rows of calls
    that need all of them."""
    share = len(plan.groups) / max(1, len(plan.fields))
    found = [_sums(node, size.rows, size.width * share, 1 + 2 * len(plan.calls))]
    for call in plan.calls:
        operands = len(call.operands)
        each = rows.width * (operands + len(plan.groups)) / max(1, len(plan.input.fields))
        if call.sql:
            found.append(StoredRows(node.name, rows.rows, rows.rows * (each + ROW_BYTES)))
        elif call.is_distinct or keeps_values(call.function):
            found.append(_sums(node, rows.rows, each, 1))
    return found


def _through(
    node: Node, side: int, rows: float, size: Size, inputs: Sequence[Size]
) -> tuple[float, float]:
    """Return (delta rows passed on, rows touched) for delta rows of one input."""
    plan, own = node.plan, max(inputs[side].rows, 1.0)
    if isinstance(plan, Join):
        matches = rows * max(size.rows, 1.0) / own
        return matches, matches + rows
    if isinstance(plan, AsOfJoin):
        # A right row is the answer of its share of the left rows, and takes it from another one.
        answers = 1.0 if side == 0 else 2.0 * inputs[0].rows / own
        return rows * answers, rows * (1.0 + answers)
    if isinstance(plan, SemiJoin) and side == 1:
        met = rows * min(1.0, inputs[0].rows / own)
        return met * min(1.0, size.rows / max(inputs[0].rows, 1.0)), met + rows
    if isinstance(plan, LateRows | FinalRows) and side:
        return 0.0, rows
    if isinstance(plan, ThresholdFilter) and side == 1:
        # A threshold that moves often moves past few rows each time.
        return rows, rows
    if isinstance(plan, Aggregate | Distinct):
        groups = min(rows, max(size.rows, 1.0))
        is_new = min(1.0, size.rows / own)
        if not getattr(plan, "calls", ()):
            return rows * is_new, rows
        read = own / max(size.rows, 1.0) if any(c.sql for c in plan.calls) else 1.0  # type: ignore[union-attr]
        return groups * (2.0 - is_new), rows + groups * read
    if isinstance(plan, Window):
        partition = own / max(size.groups, 1.0)
        reached = partition / 2 if is_followed(plan) else partition
        return rows * min(own, 1 + reached), rows * (1 + reached)
    if isinstance(plan, TopK):
        chance = min(1.0, size.rows / own)
        return rows * chance * (2.0 if chance < 1 else 1.0), rows * 2
    if isinstance(plan, Project | UnionAll | Shard):
        return rows, rows
    return rows * max(size.rows, 0.0) / own, rows


def _risks(node: Node, size: Size, inputs: Sequence[Size]) -> list[Risk]:
    plan, found = node.plan, []
    if isinstance(plan, Join) and not plan.left_keys and plan.bounds is None:
        few = min(i.rows for i in inputs)
        if few > 1.5:
            why = "without an equality every row pairs with every row of the other input"
            found.append(
                Risk(node.name, why, "join on an equality, or filter one input to few rows")
            )
    elif isinstance(plan, Join):
        most = max(size.rows / max(i.rows, 1.0) for i in inputs)
        if most > _FAN_OUT:
            why = f"a changed row pairs with about {most:,.0f} rows"
            found.append(Risk(node.name, why, "aggregate one input before the join, or add a key"))
    if isinstance(plan, Window):
        partition = inputs[0].rows / max(size.groups, 1.0)
        if partition > _PARTITION and not is_followed(plan):
            why = f"a change recomputes its whole partition, about {partition:,.0f} rows"
            hint = "use a frame that ends at CURRENT ROW, or a finer PARTITION BY (docs/SQL.md)"
            found.append(Risk(node.name, why, hint))
    if isinstance(plan, Aggregate) and any(c.sql for c in plan.calls):
        group = inputs[0].rows / max(size.rows, 1.0)
        names = ", ".join(dict.fromkeys(c.function for c in plan.calls if c.sql))
        why = f"{names}: PostgreSQL recomputes each changed group, about {group:,.0f} rows"
        found.append(Risk(node.name, why, "use aggregates that are native (docs/SQL.md)"))
    if isinstance(plan, Loop):
        why = "a change may cause many rounds of the recursion"
        found.append(Risk(node.name, why, "bound the depth by a condition"))
    if _in_postgres(node):
        why = "expressions are computed by PostgreSQL, in batches: a round trip each epoch"
        found.append(Risk(node.name, why, "use functions that are native (docs/SQL.md)"))
    return found


def _in_postgres(node: Node) -> bool:
    plan = node.plan
    if isinstance(plan, TableFunction):
        return series_of(plan) is None
    if isinstance(plan, Filter):
        return _has_postgres(plan.predicate)
    if isinstance(plan, Project | Remember):
        return any(map(_has_postgres, plan.expressions))
    residual = plan.residual if isinstance(plan, Join | SemiJoin) else None
    return residual is not None and _has_postgres(residual)


def _has_postgres(expression: Expression) -> bool:
    return isinstance(expression, InPostgres) or any(map(_has_postgres, children(expression)))


def groups_in(nodes: Sequence[Node]) -> Mapping[int, Sequence[Expression]]:
    """Return the positions of nodes that partition their input, with the partition expressions."""
    return {
        i: node.plan.partition
        for i, node in enumerate(nodes)
        if isinstance(node.plan, Window | TopK) and node.plan.partition
    }
