"""Reorder inner joins so that each has a condition with earlier inputs.

FROM a, b, c WHERE a.x = c.x AND b.y = c.y would cross a with b first. Chains of inner joins with
such a cross join are reordered; all others stay as written.
"""

from __future__ import annotations

from dataclasses import dataclass

from dataflow.expressions.ir import ColumnRef, Expression, columns_of, remap
from dataflow.plan.nodes import Join, Plan, Project, inputs_of
from dataflow.plan.trees import conjunction, conjuncts, shifted
from dataflow.plan.walk import shared_nodes, with_inputs
from dataflow.sql.rules.find_join_keys import equal_sides


@dataclass(frozen=True)
class _Part:
    """One joined input: its columns in the chain's own order begin at `start`."""

    plan: Plan
    start: int

    @property
    def columns(self) -> set[int]:
        return set(range(self.start, self.start + len(self.plan.fields)))


def connect_joins(plan: Plan) -> Plan:
    """Return the plan without avoidable cross joins in chains of inner joins."""
    return _Chains(plan).connected(plan)


class _Chains:
    """One application of the rule; a join with several readers begins its own chain."""

    def __init__(self, root: Plan) -> None:
        self._shared = shared_nodes(root)
        self._done: dict[int, Plan] = {}

    def connected(self, plan: Plan) -> Plan:
        """Return the plan with all chains in it rebuilt, each object once."""
        if id(plan) not in self._done:
            self._done[id(plan)] = self._chain(plan)
        return self._done[id(plan)]

    def _chain(self, plan: Plan) -> Plan:
        if not _is_link(plan):
            return with_inputs(plan, [self.connected(i) for i in inputs_of(plan)])
        parts: list[_Part] = []
        conditions: list[Expression] = []
        self._collect(plan, 0, parts, conditions)
        order = _order(parts, conditions)
        if order == parts:
            return _rebuilt(parts, conditions)[0]
        joined, positions = _rebuilt(order, conditions)
        refs = tuple(ColumnRef(positions[i], f.type, f.name) for i, f in enumerate(plan.fields))
        return Project(joined, refs, plan.fields)

    def _collect(
        self, plan: Plan, start: int, parts: list[_Part], conditions: list[Expression]
    ) -> None:
        """Collect the inputs and conditions of the chain that ends in the join `plan`."""
        assert isinstance(plan, Join)
        for side, at in ((plan.left, start), (plan.right, start + len(plan.left.fields))):
            if _is_link(side) and id(side) not in self._shared:
                self._collect(side, at, parts, conditions)
            else:
                parts.append(_Part(self.connected(side), at))
        conditions.extend(shifted(c, start) for c in conjuncts(plan.residual))


def _is_link(plan: Plan) -> bool:
    return isinstance(plan, Join) and plan.kind == "inner" and not plan.left_keys


def _order(parts: list[_Part], conditions: list[Expression]) -> list[_Part]:
    """Return the written order, except that an input waits until an earlier one connects it."""
    rest, done = list(parts), []
    visited: set[int] = set()
    while rest:
        linked = [p for p in rest if any(_connects(c, visited, p.columns) for c in conditions)]
        chosen = (linked or rest)[0]
        rest.remove(chosen)
        done.append(chosen)
        visited |= chosen.columns
    return done


def _connects(condition: Expression, visited: set[int], columns: set[int]) -> bool:
    used = columns_of(condition)
    if not used & visited or not used & columns or not used <= visited | columns:
        return False
    # Positions of the new input after those of the others: only its own operand is compared.
    moved = {i: i + 1_000_000 if i in columns else i for i in used}
    return equal_sides(remap(condition, moved), 1_000_000) is not None


def _rebuilt(order: list[_Part], conditions: list[Expression]) -> tuple[Plan, dict[int, int]]:
    """Return left-deep joins in this order, and the new position of each column of the chain."""
    positions: dict[int, int] = {}
    waiting = list(conditions)
    plan: Plan | None = None
    for part in order:
        width = len(plan.fields) if plan else 0
        positions.update({c: c - part.start + width for c in part.columns})
        ready = [c for c in waiting if columns_of(c) <= set(positions)]
        if plan is None:
            plan = part.plan
            continue
        waiting = [c for c in waiting if c not in ready]
        residual = conjunction([remap(c, positions) for c in ready])
        fields = plan.fields + part.plan.fields
        plan = Join("inner", plan, part.plan, (), (), residual, fields)
    assert plan is not None and not waiting
    return plan, positions
