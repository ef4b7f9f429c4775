"""Which rows of a join may be in several places, for views that are maintained in buckets.

A key's rows of one input are spread if each is in any one place, and the key's rows of the other
input are copied if all are in each of these places. Invariant: the operators of all places then
emit together what one operator emits. Every pair of rows meets in exactly one place, and a
preserved row finds all its matches where it is. So two inputs that are both preserved cannot be
spread. Inputs in order (`ordered_rows`) are not spread either: their trees cannot be cut by row.
"""

from __future__ import annotations

from dataflow.operators.joins.pairs import LEFT, RIGHT
from dataflow.plan.nodes import AsOfJoin, Join, Plan, SemiJoin

_SPREAD = {"inner": (LEFT, RIGHT), "left": (LEFT,), "right": (RIGHT,)}
_PADDED = {"left": (LEFT,), "right": (RIGHT,), "full": (LEFT, RIGHT)}


def spread_sides(plan: Plan) -> tuple[int, ...]:
    """Return the inputs of a join of which the rows of one key may be spread; none of other plans.

    The other input's rows of the key must be copied.
    """
    if isinstance(plan, Join) and plan.bounds is None and plan.left_keys:
        return _SPREAD.get(plan.kind, ())
    if isinstance(plan, SemiJoin) and plan.kind in ("semi", "anti") and plan.bounds is None:
        return (LEFT,) if plan.left_keys else ()
    return ()


def padded_sides(plan: Plan) -> tuple[int, ...] | None:
    """Return the inputs of a join of which rows with a NULL key are output; None for other plans.

    Such rows are output in the step that they come in, wherever that is. Those of the other inputs
    have no effect. None also where a NULL may equal something or has an effect (NOT IN).
    """
    if isinstance(plan, Join | AsOfJoin):
        return _PADDED.get(plan.kind, ())
    if isinstance(plan, SemiJoin) and plan.kind in ("semi", "anti"):
        return (LEFT,) if plan.kind == "anti" else ()
    return None


def side_of_state(name: str) -> int:
    """Return the input whose rows a state of a join with spread keys is made of.

    name: "<scope>/<node>/<role>"; the role says it.

    >>> side_of_state("v1/join3/right counts")
    1
    """
    return RIGHT if name.rpartition("/")[2].startswith("right") else LEFT
