"""What a feature is: a name, and what it adds to a SELECT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.harness.block import Block
    from tests.harness.query_writer import Writer

FROM, WHERE, GROUP, CALLS, HAVING, OUTPUT, WINDOW, TAIL, SETS = range(9)


@dataclass(frozen=True)
class Feature:
    """phase: features of lower phases are applied first. slot: one of a slot in a SELECT.

    is_temporal: it reads the clock, and so do conditions of other features in its query.
    """

    name: str
    phase: int
    slot: str
    apply: Callable[[Writer, Block], None]
    is_temporal: bool = False


FEATURES: dict[str, Feature] = {}


def feature(
    name: str, phase: int, slot: str = ""
) -> Callable[[Callable[[Writer, Block], None]], Callable[[Writer, Block], None]]:
    """Enter a function as a feature."""

    def enter(apply: Callable[[Writer, Block], None]) -> Callable[[Writer, Block], None]:
        assert name not in FEATURES, f"two features are named {name}"
        FEATURES[name] = Feature(name, phase, slot, apply)
        return apply

    return enter
