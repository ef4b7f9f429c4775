"""What a service has made somewhere, as things that are removed, kept, or removed by hand.

Invariant: finding them changes nothing. A plan is a list of them; carrying it out runs the actions
in its order, and prints the same words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

REMOVE, KEEP, BY_HAND = "remove", "keep", "by hand"


@dataclass(frozen=True)
class Removal:
    """One thing of a service.

    location: where it is: source, sink, state ... what: its kind and name. act: removes it, may be
    repeated, and raises TidemarkError; None for what stays, or is left to a person. note: what
    becomes of it, or why it stays. command: what a person runs where this program cannot.
    """

    location: str
    what: str
    act: Callable[[], None] | None = None
    note: str = ""
    command: str = ""

    @property
    def outcome(self) -> str:
        """Return REMOVE, KEEP or BY_HAND."""
        if self.act is not None:
            return REMOVE
        return BY_HAND if self.command else KEEP
