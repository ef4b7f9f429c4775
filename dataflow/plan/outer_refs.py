"""Outer references of a plan, and moving a plan into or out of an Apply.

An OuterRef counts the Applies between itself and the row it names, so moving a plan renumbers its
free references. Invariant: shared parts of a plan stay shared.
"""

from __future__ import annotations

from dataclasses import replace

from dataflow.expressions.compile import build
from dataflow.expressions.ir import Call, ColumnRef, Expression, OuterRef, children, map_leaves
from dataflow.expressions.time_zones import ADD, INSTANT, SUBTRACT
from dataflow.plan.nodes import Apply, Plan, RecursionRef, Scan, Values, inputs_of
from dataflow.plan.trees import expressions_within, map_expressions

# The level of the removed Apply's left row, once its right side is moved out.
OWN = -1
_CONSTANT = (Scan, Values, RecursionRef)
_OVERFLOWING = ("+", "-", "*", ADD, SUBTRACT, INSTANT)


def outer_refs(expression: Expression) -> set[OuterRef]:
    """Return all outer references in an expression."""
    if isinstance(expression, OuterRef):
        return {expression}
    return set().union(*(outer_refs(child) for child in children(expression)))


class Levels:
    """The levels of outer references that are free in a plan; caches its results."""

    def __init__(self) -> None:
        # The plan is stored with the result: its id is unique only while it lives.
        self._known: dict[int, tuple[Plan, frozenset[int]]] = {}

    def of(self, plan: Plan) -> frozenset[int]:
        """Return the levels, counted from outside the plan."""
        if id(plan) not in self._known:
            self._known[id(plan)] = (plan, self._find(plan))
        return self._known[id(plan)][1]

    def _find(self, plan: Plan) -> frozenset[int]:
        if isinstance(plan, _CONSTANT):
            return frozenset()
        found = {r.level for e in expressions_within(plan) for r in outer_refs(e)}
        if isinstance(plan, Apply):
            found |= self.of(plan.left)
            found |= {level - 1 for level in self.of(plan.right) if level > 0}
            return frozenset(found)
        return frozenset(found.union(*(self.of(i) for i in inputs_of(plan))))


def moved(plan: Plan, by: int) -> Plan:
    """Return the plan with its free references `by` levels further out."""
    levels = Levels()
    known: dict[tuple[int, int], Plan] = {}

    def visit(plan: Plan, depth: int) -> Plan:
        if max(levels.of(plan), default=-1) < depth:
            return plan
        if (id(plan), depth) not in known:
            inputs = [visit(i, depth) for i in inputs_of(plan)]
            if isinstance(plan, Apply):
                inputs[1] = visit(plan.right, depth + 1)
            known[id(plan), depth] = map_expressions(plan, lambda e: _moved(e, depth, by), inputs)
        return known[id(plan), depth]

    return visit(plan, 0)


def inward(expression: Expression) -> Expression:
    """Return an expression of a block as written in the right side of an Apply over that block."""

    def change(leaf: Expression) -> Expression:
        if isinstance(leaf, ColumnRef):
            return OuterRef(0, leaf.index, leaf.type, leaf.name)
        return _moved(leaf, 0, 1)

    return map_leaves(expression, change)


def _moved(expression: Expression, depth: int, by: int) -> Expression:
    def change(leaf: Expression) -> Expression:
        if isinstance(leaf, OuterRef) and leaf.level >= depth:
            return replace(leaf, level=leaf.level + by)
        return leaf

    return map_leaves(expression, change) if outer_refs(expression) else expression


def own_columns(expression: Expression) -> set[int]:
    """Return the columns that an expression reads of the removed Apply's left row."""
    return {r.index for r in outer_refs(expression) if r.level == OWN}


class OwnReads:
    """Which plans read the removed Apply's left row; caches its results."""

    def __init__(self) -> None:
        self._levels = Levels()

    def __call__(self, plan: Plan) -> bool:
        return OWN in self._levels.of(plan)

    def columns(self, plan: Plan) -> list[int]:
        """Return the columns of that row that a plan reads, in order."""
        found: set[int] = set()
        visited: set[int] = set()

        def visit(node: Plan) -> None:
            if id(node) in visited or not self(node):
                return
            visited.add(id(node))
            found.update(i for e in expressions_within(node) for i in own_columns(e))
            for below in inputs_of(node):
                visit(below)

        visit(plan)
        return sorted(found)


def placed(expression: Expression, by: int) -> Expression:
    """Return an expression of a right side over the left row's `by` columns followed by its own."""

    def change(leaf: Expression) -> Expression:
        if isinstance(leaf, ColumnRef):
            return replace(leaf, index=leaf.index + by)
        if isinstance(leaf, OuterRef) and leaf.level == OWN:
            return ColumnRef(leaf.index, leaf.type, leaf.name)
        return leaf

    return map_leaves(expression, change)


def may_fail(expression: Expression) -> bool:
    """Return whether some row may be an error, or PostgreSQL must evaluate it."""

    def change(leaf: Expression) -> Expression:
        return ColumnRef(0, leaf.type) if isinstance(leaf, OuterRef) else leaf

    return build(map_leaves(expression, change)).can_fail


def may_fail_often(expression: Expression) -> bool:
    """Like `may_fail`, except for sums, products and moments of local times, which fail by overflow
    only."""
    if isinstance(expression, Call) and expression.function in _OVERFLOWING:
        return any(map(may_fail_often, expression.arguments))
    return may_fail(expression)
