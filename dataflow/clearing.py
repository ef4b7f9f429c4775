"""Scans whose readers can retract all rows of a table by what they store themselves.

On every way from such a scan its rows pass filters and projections that fail for no row, up to an
input that is `clearable` (see `Traits`). Such an input has no other rows, and nothing else depends
on those of the table. So the retraction of what is stored of the input is what the removal of all
rows of the table changes. Invariant: what is found for the plans of some views is found again after
a restart and in later versions, since rows that were not stored cannot be had again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from dataflow.operators.base import Traits
from dataflow.plan.nodes import Filter, Plan, Project
from dataflow.plan.outer_refs import may_fail

# A node's number, and which of its inputs.
Input = tuple[int, int]


class LiveNode(Protocol):
    """What is needed of a node of the live dataflow; see `dataflow.shared.LiveNode`."""

    number: int
    cannot_fail: bool

    @property
    def traits(self) -> Traits | None:
        """The traits of its operator; None for a scan."""
        ...

    @property
    def inputs(self) -> Sequence[LiveNode]:
        """The nodes that it reads."""
        ...

    @property
    def readers(self) -> Sequence[LiveNode]:
        """The nodes that read it."""
        ...


def cannot_fail(plan: Plan) -> bool:
    """Return whether a node is a filter or projection for which no row can be an error."""
    if isinstance(plan, Filter):
        return not may_fail(plan.predicate)
    return isinstance(plan, Project) and not any(map(may_fail, plan.expressions))


def cleared_inputs(node: LiveNode, outputs: Collection[int]) -> set[Input] | None:
    """Return the clearable inputs at which rows end on every way from a scan, or None.

    outputs: the numbers of the nodes whose rows are a view's.
    """
    if node.number in outputs:
        return None
    found: set[Input] = set()
    for reader in node.readers:
        if reader.cannot_fail:
            below = cleared_inputs(reader, outputs)
            if below is None:
                return None
            found |= below
            continue
        sides = {side for side, below in enumerate(reader.inputs) if below is node}
        if reader.traits is None or not sides.issubset(reader.traits.clearable):
            return None
        found |= {(reader.number, side) for side in sides}
    return found
