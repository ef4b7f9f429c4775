"""Which nodes may emit unconsolidated rows, because their readers consolidate them anyway.

In an unconsolidated delta rows may repeat and cancel out. Invariant: no such delta leaves the
dataflow, reaches a node that stores its rows, or is evaluated in PostgreSQL, where each row costs.
Changes that cancel out (an update of columns without a reader) reach no join and no aggregate.
"""

from __future__ import annotations

from collections.abc import Sequence

from dataflow.operators.base import Traits

# A node's traits (None for a scan), and whether its own rows may be unconsolidated.
Reader = tuple[Traits | None, bool]


def is_unconsolidated(traits: Traits | None, readers: Sequence[Reader]) -> bool:
    """Return whether a node with these traits (None: a scan) and readers may emit unconsolidated
    rows."""
    if not readers:
        return False
    if traits is None or traits.passes_rows:
        return all(_leads_to_sums(*reader) for reader in readers)
    return traits.may_skip_consolidation and all(_is_sums(reader) for reader, _ in readers)


def _is_sums(traits: Traits | None) -> bool:
    """Return whether all state of a node is sums over rows."""
    return traits is not None and traits.has_state and traits.accepts_unconsolidated


def _leads_to_sums(traits: Traits | None, is_unconsolidated: bool) -> bool:
    """Return whether rows are summed here, or later before anything else reads them."""
    if traits is None or not traits.accepts_unconsolidated:
        return False
    if traits.passes_rows:
        return is_unconsolidated
    return traits.may_skip_consolidation and not is_unconsolidated
