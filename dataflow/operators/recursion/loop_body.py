"""The operators inside a loop: a dataflow over named sources, stepped once a round.

Invariant: an operator without input is not stepped, so a round that touches little costs little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dataflow.delta import Delta
from dataflow.operators.base import Operator


@dataclass(frozen=True)
class Part:
    """One node of a body. leaf: the name of a source, "" for an operator; inputs: earlier parts."""

    leaf: str
    operator: Operator | None
    inputs: tuple[int, ...]
    kinds: str


class Body:
    """Nodes in topological order, the output last; each has its own state."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = tuple(parts)
        self._empty = [Delta.empty(part.kinds) for part in parts]
        self.leaves = frozenset(part.leaf for part in parts if part.leaf)

    def step(self, feeds: Mapping[str, Delta]) -> Delta:
        """Return the output's change for changes of the sources, by name; a missing source is
        unchanged."""
        deltas: list[Delta] = []
        for position, part in enumerate(self._parts):
            out = self._empty[position]
            if part.operator is None:
                out = feeds.get(part.leaf, out)
            else:
                inputs = [deltas[i] for i in part.inputs]
                if any(map(len, inputs)):
                    out = part.operator.step(*inputs)
            deltas.append(out)
        return deltas[-1]
