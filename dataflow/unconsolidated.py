"""Which nodes may hand out rows that are not added up, since what reads them adds them up anyway.

In a loose delta rows may repeat and cancel out. Invariant: none leaves the dataflow or comes to a
node that keeps its rows; none is evaluated in PostgreSQL, where each row costs; and what changes
nothing (an update of columns that nobody reads) comes to no join and no aggregate.
"""

from __future__ import annotations

from collections.abc import Sequence

from dataflow.operators.base import Traits

# A node's traits, None for a scan, and whether its own rows are loose.
Reader = tuple[Traits | None, bool]


def is_unconsolidated(traits: Traits | None, readers: Sequence[Reader]) -> bool:
    """Whether a node with these traits (None: a scan) that only these read may be loose."""
    if not readers:
        return False
    if traits is None or traits.passes_rows:
        return all(_leads_to_sums(*reader) for reader in readers)
    return traits.may_skip_consolidation and all(_is_sums(reader) for reader, _ in readers)


def _is_sums(traits: Traits | None) -> bool:
    """Whether all that a node keeps are sums over rows."""
    return traits is not None and traits.has_state and traits.accepts_unconsolidated


def _leads_to_sums(traits: Traits | None, is_unconsolidated: bool) -> bool:
    """Whether rows are added up here, or further on before anything else is done with them."""
    if traits is None or not traits.accepts_unconsolidated:
        return False
    if traits.passes_rows:
        return is_unconsolidated
    return traits.may_skip_consolidation and not is_unconsolidated
