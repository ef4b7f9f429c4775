"""LIMIT, OFFSET, WITH TIES, DISTINCT, DISTINCT ON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.block import Block, comparable
from tests.harness.families import CARRIED, ORDERED
from tests.harness.features.registry import TAIL, feature
from tests.harness.features.windows import counting, over, some_order, total_order
from tests.harness.grammar import Sql

if TYPE_CHECKING:
    from tests.harness.query_writer import Writer


@feature("limit", TAIL, "tail")
def _limit(writer: Writer, block: Block) -> None:
    count = writer.rng.choice(("0", "1", "2", "3", "5", "20"))
    writer.finish(block)
    block.tail = f"{total_order(writer, block)} LIMIT {count}"


@feature("offset", TAIL, "tail")
def _offset(writer: Writer, block: Block) -> None:
    writer.finish(block)
    order = total_order(writer, block)
    limit = writer.rng.choice(("", " LIMIT 2", " LIMIT 6"))
    block.tail = f"{order}{limit} OFFSET {writer.rng.choice(('1', '2', '5'))}"


@feature("with ties", TAIL, "tail")
def _with_ties(writer: Writer, block: Block) -> None:
    order = some_order(writer, block)
    if block.groups == []:
        # PostgreSQL fails where it has nothing but min and max to compute (docs/SQL.md).
        order += ", count(*)"
    block.tail = f"{order} FETCH FIRST {writer.rng.choice(('1', '2', '4'))} ROWS WITH TIES"


@feature("order by", TAIL, "tail")
def _order_by(writer: Writer, block: Block) -> None:
    block.tail = some_order(writer, block)


@feature("distinct", TAIL, "tail")
def _distinct(writer: Writer, block: Block) -> None:
    writer.finish(block)
    block.outputs = [comparable(term) for term in block.outputs]
    block.distinct = "DISTINCT"
    if writer.rng.random() < 0.3:
        names = [f"c{i}" for i in range(len(block.outputs))]
        block.tail = f"ORDER BY {', '.join(names)} LIMIT {writer.rng.choice((2, 4))}"


@feature("distinct on", TAIL, "tail")
def _distinct_on(writer: Writer, block: Block) -> None:
    writer.finish(block)
    atoms = [a for a in block.atoms() if a.kind not in CARRIED]
    keys = [writer.key(atoms, 0) for _ in range(writer.rng.choice((1, 1, 2)))]
    texts = list(dict.fromkeys(key.text() for key in keys))
    term = writer.term(block.atoms(), writer.rng.choice(ORDERED), 0).text()
    block.distinct = f"DISTINCT ON ({', '.join(texts)})"
    block.tail = block.order(*texts, term + writer.rng.choice(("", " DESC")))
    if writer.rng.random() < 0.2:
        block.tail += " LIMIT 3"


@feature("top of each", TAIL, "tail")
def _top_of_each(writer: Writer, block: Block) -> None:
    """The idiom row_number() <= k, as a condition on the next SELECT out."""
    window = counting(writer, block)
    number = writer.rng.choice(("row_number()", "rank()", "dense_rank()"))
    writer.finish(block)
    block.outputs.append(Sql((number, over(window)), "int"))
    block.wrap = (len(block.outputs) - 1, writer.rng.choice(("<= 2", "= 1", "< 4")))
