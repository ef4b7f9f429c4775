"""Which nodes may hand out rows that are not added up, since what reads them adds them up anyway.

In a loose delta rows may repeat and cancel out. Invariant: none leaves the dataflow or comes to a
node that keeps its rows; none is evaluated in PostgreSQL, where each row costs; and what changes
nothing (an update of columns that nobody reads) comes to no join and no aggregate.
"""

from __future__ import annotations

from collections.abc import Sequence

from dataflow.operators.aggregate import AggregateOperator
from dataflow.operators.base import Operator
from dataflow.operators.filter import FilterOperator
from dataflow.operators.project import ProjectOperator

# A node's operator, None for a scan, and whether its own rows are loose.
Reader = tuple[Operator | None, bool]


def is_loose(operator: Operator | None, readers: Sequence[Reader]) -> bool:
    """Whether a node with this operator (None: a scan) that only these read may be loose."""
    if not readers:
        return False
    if operator is None or isinstance(operator, FilterOperator):
        return all(_leads_to_sums(*reader) for reader in readers)
    return isinstance(operator, ProjectOperator) and all(
        isinstance(reader, AggregateOperator) and reader.is_additive for reader, _ in readers
    )


def _leads_to_sums(operator: Operator | None, is_loose: bool) -> bool:
    """Whether rows are added up here, or further on before anything else is done with them."""
    if isinstance(operator, FilterOperator):
        return operator.is_native and is_loose
    return isinstance(operator, ProjectOperator) and operator.adds_up and not is_loose
