"""UNION, INTERSECT and EXCEPT, with and without ALL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.block import Block
from tests.harness.features.registry import FEATURES, SETS, Feature

if TYPE_CHECKING:
    from tests.harness.query_writer import Writer

WORDS = ("UNION", "UNION ALL", "INTERSECT", "INTERSECT ALL", "EXCEPT", "EXCEPT ALL")


def _of_word(word: str) -> None:
    def add(writer: Writer, block: Block) -> None:
        rng = writer.rng
        writer.finish(block)
        is_narrow = not word.startswith("UNION") and not block.distinct and block.wrap is None
        if is_narrow and len(block.outputs) > 2:
            # Wide rows seldom meet, and then these do nothing.
            block.outputs = block.outputs[:1]
        block.outputs = [writer.common(term) for term in block.outputs]
        families = [term.kind for term in block.outputs]
        other = writer.small_block()
        if rng.random() < 0.3:
            other.relations = [block.relations[0]] if len(block.relations) == 1 else other.relations
            other.where = [] if other.relations == block.relations[:1] else other.where
        other.outputs = [
            writer.common(writer.term(other.columns(), family, rng.choice((0, 0, 1))), family)
            for family in families
        ]
        if rng.random() < 0.15:
            other.tail = f"{other.order()} LIMIT 4"
        block.others.append((word, other.build()))
        if rng.random() < 0.2:
            third = writer.small_block()
            third.outputs = [
                writer.common(writer.term(third.columns(), family, 0), family)
                for family in families
            ]
            block.others.append((rng.choice(WORDS), third.build()))

    name = word.lower()
    FEATURES[name] = Feature(name, SETS, "set", add)


for _word in WORDS:
    _of_word(_word)
