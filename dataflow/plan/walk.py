"""Walks over plans that see each object once: plans are graphs, see dataflow.plan.nodes.

Pure functions; an unchanged node is returned as the same object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from dataflow.expressions.ir import Call, ColumnRef, Expression
from dataflow.plan.nodes import Plan, fold, input_fields, inputs_of


def with_inputs(plan: Plan, inputs: Sequence[Plan]) -> Plan:
    """Return the same node over other inputs of the same fields."""
    if all(new is old for new, old in zip(inputs, inputs_of(plan), strict=True)):
        return plan
    rest = iter(inputs)
    changed = {
        name: tuple(islice(rest, len(getattr(plan, name)))) if is_many else next(rest)
        for name, is_many in input_fields(type(plan))
    }
    return replace(plan, **changed)


def copied(plan: Plan) -> Plan:
    """Return an equal copy of the nodes."""
    if not inputs_of(plan):
        return replace(plan)
    return with_inputs(plan, [copied(i) for i in inputs_of(plan)])


def nodes_of(plan: Plan) -> tuple[Plan, ...]:
    """Return every object of a plan once, inputs before their readers, left to right."""
    found: list[Plan] = []
    fold(plan, lambda node, _: found.append(node))
    return tuple(found)


def shared_nodes(plan: Plan) -> frozenset[int]:
    """Return the ids of the objects that several nodes read, or one node twice.

    They are valid only while the plan lives.
    """
    readers = Counter(id(i) for node in nodes_of(plan) for i in inputs_of(node))
    return frozenset(node for node, count in readers.items() if count > 1)


def with_equal_parts_shared(plan: Plan) -> Plan:
    """Return the same plan with equal parts merged into one object."""
    known: dict[Plan, Plan] = {}

    def visit(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
        # Comparing two nodes is cheap, since equal inputs are one object.
        over = with_inputs(node, inputs)
        return known.setdefault(over, over)

    return fold(plan, visit)


def conjuncts(predicate: Expression | None) -> list[Expression]:
    """Return the operands of a conjunction; [] for None."""
    if predicate is None:
        return []
    if isinstance(predicate, Call) and predicate.function == "and":
        return [c for a in predicate.arguments for c in conjuncts(a)]
    return [predicate]


def refs(plan: Plan) -> tuple[ColumnRef, ...]:
    """Return a reference to each output column."""
    return tuple(ColumnRef(i, f.type, f.name) for i, f in enumerate(plan.fields))
