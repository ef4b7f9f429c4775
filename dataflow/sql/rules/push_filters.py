"""Push filters towards the scans, and into the conditions of inner joins.

Past an outer join only into the preserved input; past GROUP BY only conditions on group columns;
past a projection only if nothing is computed twice. A WITH entry with several readers stays one
node, which no reader's filter enters. As in PostgreSQL, a condition may fail for a row that another
condition would have removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dataflow.expressions.ir import ColumnRef, Expression, columns_of, substitute
from dataflow.expressions.keys import key_form
from dataflow.plan.nodes import (
    Aggregate,
    AsOfJoin,
    Distinct,
    Filter,
    Join,
    Plan,
    Project,
    SemiJoin,
    SetOperation,
    TableFunction,
    TopK,
    UnionAll,
    Window,
    inputs_of,
)
from dataflow.plan.trees import (
    can_substitute,
    conjunction,
    conjuncts,
    in_postgres,
    shifted,
)
from dataflow.plan.walk import shared_nodes, with_inputs


def push_filters(plan: Plan) -> Plan:
    """Push every filter as far down as possible."""
    return _Pushing(plan).below(plan)


class _Pushing:
    """One application of the rule; a shared node is rewritten once, separately."""

    def __init__(self, root: Plan) -> None:
        self._shared = shared_nodes(root)
        self._done: dict[int, Plan] = {}

    def below(self, plan: Plan) -> Plan:
        """Return the plan with its own filters pushed."""
        if id(plan) not in self._shared:
            return self._moved(plan)
        if id(plan) not in self._done:
            self._done[id(plan)] = self._moved(plan)
        return self._done[id(plan)]

    def _moved(self, plan: Plan) -> Plan:
        if isinstance(plan, Filter):
            return self._push(plan.input, conjuncts(plan.predicate))
        if isinstance(plan, Join) and plan.kind == "inner" and plan.residual is not None:
            return self._push(replace(plan, residual=None), conjuncts(plan.residual))
        return with_inputs(plan, [self.below(i) for i in inputs_of(plan)])

    def _push(self, plan: Plan, parts: list[Expression]) -> Plan:
        """Return the plan's rows for which all parts hold."""
        if id(plan) in self._shared:
            return _keep(self.below(plan), parts, [])
        if isinstance(plan, Filter):
            return self._push(plan.input, conjuncts(plan.predicate) + parts)
        if isinstance(plan, Join):
            return self._push_join(plan, parts)
        if isinstance(plan, AsOfJoin):
            n = len(plan.left.fields)
            below = [p for p in parts if all(i < n for i in columns_of(p))]
            left, right = self._push(plan.left, below), self.below(plan.right)
            return _keep(replace(plan, left=left, right=right), parts, below)
        if isinstance(plan, SemiJoin):
            return replace(plan, left=self._push(plan.left, parts), right=self.below(plan.right))
        if isinstance(plan, Distinct):
            return Distinct(self._push(plan.input, parts))
        if isinstance(plan, UnionAll):
            return replace(plan, inputs=tuple(self._push(i, parts) for i in plan.inputs))
        if isinstance(plan, SetOperation):
            return self._push_set_operation(plan, parts)
        if isinstance(plan, Project):
            below = [p for p in parts if _may_pass(p, plan)]
            moved = [substitute(p, plan.expressions) for p in below]
            return _keep(replace(plan, input=self._push(plan.input, moved)), parts, below)
        if isinstance(plan, TableFunction):
            n = len(plan.input.fields)
            below = [p for p in parts if all(i < n for i in columns_of(p))]
            return _keep(replace(plan, input=self._push(plan.input, below)), parts, below)
        if isinstance(plan, Aggregate):
            groups = set(range(len(plan.groups)))
            below = [
                p
                for p in parts
                if columns_of(p) and columns_of(p) <= groups and can_substitute(p, plan.groups)
            ]
            moved = [substitute(p, plan.groups) for p in below]
            return _keep(replace(plan, input=self._push(plan.input, moved)), parts, below)
        if isinstance(plan, Window | TopK):
            partition = _columns(plan.partition)
            below = [p for p in parts if columns_of(p) and columns_of(p) <= partition]
            return _keep(replace(plan, input=self._push(plan.input, below)), parts, below)
        return _keep(with_inputs(plan, [self.below(i) for i in inputs_of(plan)]), parts, [])

    def _push_set_operation(self, plan: SetOperation, parts: list[Expression]) -> Plan:
        """Push into both inputs, if the condition cannot distinguish equal values."""
        refs = [ColumnRef(i, f.type, f.name) for i, f in enumerate(plan.fields)]
        plain = _columns(refs)
        moved = [p for p in parts if columns_of(p) <= plain]
        left, right = self._push(plan.left, moved), self._push(plan.right, moved)
        return _keep(replace(plan, left=left, right=right), parts, moved)

    def _push_join(self, plan: Join, parts: list[Expression]) -> Plan:
        n = len(plan.left.fields)
        left: list[Expression] = []
        right: list[Expression] = []
        here: list[Expression] = []
        own = conjuncts(plan.residual) if plan.kind == "inner" else []
        for part in [*own, *parts]:
            columns = columns_of(part)
            if all(i < n for i in columns) and plan.kind in ("inner", "left"):
                left.append(part)
            elif all(i >= n for i in columns) and plan.kind in ("inner", "right"):
                right.append(shifted(part, -n))
            else:
                here.append(part)
        pushed = replace(
            plan, left=self._push(plan.left, left), right=self._push(plan.right, right)
        )
        if plan.kind == "inner":
            return replace(pushed, residual=conjunction(here))
        return _keep(pushed, here, [])


def _columns(expressions: Sequence[Expression]) -> set[int]:
    """Return the expressions that are plain columns of a type whose equal values are identical."""
    return {e.index for e in expressions if isinstance(e, ColumnRef) and key_form(e) == e}


def _may_pass(part: Expression, plan: Project) -> bool:
    """Return whether a condition may pass: computing a kernel twice is worth it, a query to
    PostgreSQL is not."""
    is_remote = any(in_postgres(plan.expressions[i]) for i in columns_of(part))
    return not is_remote and can_substitute(part, plan.expressions)


def _keep(plan: Plan, parts: list[Expression], moved: list[Expression]) -> Plan:
    predicate = conjunction([p for p in parts if p not in moved])
    return plan if predicate is None else Filter(plan, predicate)
