"""Functions that return rows, in FROM and in the select list."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.block import Block, tie
from tests.harness.features.registry import FROM, TAIL, feature
from tests.harness.grammar import Relation, Sql, plain

if TYPE_CHECKING:
    from tests.harness.query_writer import Writer

# (call, families of its columns)
CALLS = (
    ("generate_series(1, 3)", ("int",)),
    ("generate_series(1, ({int} % 4)::integer)", ("int",)),
    ("generate_series(({int} % 3)::bigint, 4, 2)", ("int",)),
    ("unnest({ints})", ("int",)),
    ("unnest({texts})", ("text",)),
    ("unnest({ints}, {texts})", ("int", "text")),
    ("jsonb_each({json_object})", ("text", "json")),
    ("jsonb_object_keys({json_object})", ("text",)),
    ("jsonb_array_elements({json_array})", ("json",)),
    ("jsonb_array_elements_text({json_array})", ("text",)),
    ("regexp_split_to_table(left({text}, 9), 'a')", ("text",)),
    ("string_to_table(left({text}, 9), ' ')", ("text",)),
    ("jsonb_path_query({json}, '$.b[*]')", ("json",)),
)
SELECTED = (
    ("generate_series(1, ({int} % 3)::integer)", "int"),
    ("unnest({ints})", "int"),
    ("unnest({texts})", "text"),
    ("jsonb_object_keys({json_object})", "text"),
    ("regexp_split_to_table(left({text}, 9), 'a')", "text"),
)
JOINS = ("CROSS JOIN", "CROSS JOIN LATERAL", "LEFT JOIN LATERAL")


def _relation(writer: Writer, call: Sql, kinds: tuple[str, ...], end: str = "") -> Relation:
    alias = writer.alias()
    names = ", ".join(f"c{i}" for i in range(len(kinds)))
    columns = tuple(plain(f"{alias}.c{i}", kind) for i, kind in enumerate(kinds))
    join = writer.rng.choice(JOINS)
    on = " ON true" if join.startswith("LEFT") else ""
    part = Sql((f"{join} ", call, f"{end} {alias}({names}){on}"), can_go=True)
    return Relation(part, alias, columns, tuple(tie(column) for column in columns))


def _call(writer: Writer, block: Block) -> tuple[Sql, tuple[str, ...]]:
    form, kinds = writer.rng.choice(CALLS)
    return writer.filled(form, "", block.columns()), kinds


@feature("function in from", FROM)
def _in_from(writer: Writer, block: Block) -> None:
    block.relations.append(_relation(writer, *_call(writer, block)))


@feature("with ordinality", FROM)
def _ordinality(writer: Writer, block: Block) -> None:
    call, kinds = _call(writer, block)
    block.relations.append(_relation(writer, call, (*kinds, "int"), " WITH ORDINALITY"))


@feature("rows from", FROM)
def _rows_from(writer: Writer, block: Block) -> None:
    (first, left), (second, right) = _call(writer, block), _call(writer, block)
    call = Sql(("ROWS FROM (", first, ", ", second, ")"))
    ordinal = writer.rng.random() < 0.5
    kinds = (*left, *right, *(("int",) if ordinal else ()))
    end = " WITH ORDINALITY" if ordinal else ""
    block.relations.append(_relation(writer, call, kinds, end))


@feature("function in select", TAIL, "tail")
def _in_select(writer: Writer, block: Block) -> None:
    for _ in range(writer.rng.choice((1, 1, 2))):
        form, family = writer.rng.choice(SELECTED)
        block.outputs.append(writer.filled(form, family, block.atoms()))
