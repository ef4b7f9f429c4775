"""WITH RECURSIVE: reachability, paths with a depth, numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.block import Block, named
from tests.harness.features.joins import add_joined
from tests.harness.features.registry import FROM, feature
from tests.harness.grammar import Relation, Sql, plain

if TYPE_CHECKING:
    from tests.harness.query_writer import Writer


def enter_recursion(writer: Writer, block: Block, query: Sql, kinds: tuple[str, ...]) -> None:
    """The recursive query under a name, joined to the block."""
    rng = writer.rng
    name = f"w{writer.alias()}"
    columns = ", ".join(f"c{i}" for i in range(len(kinds)))
    body = Sql(tuple(_named(piece, name) for piece in query.pieces), query.kind)
    block.ctes.append(Sql((f"{name}({columns}) AS (", body, ")")))
    block.is_recursive = True
    alias = writer.alias()
    relation: Relation = named(plain(f"{name} {alias}"), kinds, alias)
    on = writer.matching(block.columns(), relation.columns)
    add_joined(block, rng.choice(("JOIN", "LEFT JOIN")), relation, on)


def _named(piece: str | Sql, name: str) -> str | Sql:
    return piece.replace("{self}", name) if isinstance(piece, str) else piece


def _edges(writer: Writer) -> tuple[str, Sql]:
    """A table, and a condition on its rows under the alias e."""
    table = writer.rng.choice(writer.table_names)
    families = writer.table_columns(table)
    atoms = [plain(f"e.{name}", family) for name, family in families.items()]
    condition: str | Sql = ""
    if writer.rng.random() < 0.4:
        condition = Sql((" AND ", writer.predicate(atoms)), can_go=True)
    return table, Sql((condition,))


@feature("recursive union", FROM)
def _reach(writer: Writer, block: Block) -> None:
    """What can be reached over the edges (a, b), which may have cycles."""
    table, condition = _edges(writer)
    start = writer.rng.choice(("e.a", "e.b % 3"))
    if writer.rng.random() < 0.5:
        query = Sql(
            (
                f"SELECT ({start})::bigint, e.b::bigint FROM {table} e WHERE true",
                condition,
                " UNION SELECT s.c0, e.b::bigint FROM {self} s ",
                f"JOIN {table} e ON e.a = s.c1",
            )
        )
        enter_recursion(writer, block, query, ("int", "int"))
        return
    query = Sql(
        (
            f"SELECT e.a::bigint FROM {table} e WHERE e.a < 2 ",
            "UNION SELECT (e.b % 7)::bigint FROM {self} s, ",
            *(f"{table} e WHERE e.a = s.c0", condition),
        )
    )
    enter_recursion(writer, block, query, ("int",))


@feature("recursive union all", FROM)
def _paths(writer: Writer, block: Block) -> None:
    """Paths of bounded length, or numbers."""
    rng = writer.rng
    table, condition = _edges(writer)
    if rng.random() < 0.35:
        query = Sql(
            (
                f"SELECT e.a::bigint, 0::bigint FROM {table} e WHERE e.a < 5",
                *(condition, " UNION ALL SELECT s.c0 + 1, s.c1 + 2 FROM {self} s WHERE s.c0 < "),
                rng.choice(("3", "5")),
            )
        )
        enter_recursion(writer, block, query, ("int", "int"))
        return
    query = Sql(
        (
            f"SELECT e.a::bigint, 1::bigint, e.b::text FROM {table} e WHERE e.a = 1",
            *(
                condition,
                " UNION ALL SELECT e.b::bigint, s.c1 + 1, s.c2 || '/' || e.b FROM {self} s ",
            ),
            f"JOIN {table} e ON e.a = s.c0 AND s.c1 < {rng.choice((2, 3))}",
        )
    )
    enter_recursion(writer, block, query, ("int", "int", "text"))
