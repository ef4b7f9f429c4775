"""Expressions by theme: the forms of one family of functions in the select list and in WHERE."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.harness.block import Block
from tests.harness.families import EXPRESSIONS
from tests.harness.features.registry import FEATURES, OUTPUT, Feature, feature
from tests.harness.grammar import Sql, plain

if TYPE_CHECKING:
    from tests.harness.query_writer import Writer

THEMES: dict[str, Sequence[str]] = {
    "arithmetic": ("int", "num", "float", "approx"),
    "text functions": ("text",),
    "dates": ("date", "time", "clock", "span"),
    "json": ("json", "document"),
    "arrays": ("ints", "texts"),
    "other types": ("uuid", "bytes", "mood", "range", "other", "wild"),
}
LOGIC = (
    "({bool} OR {=bool})",
    "(NOT ({bool} AND {=bool}))",
    "({int} = NULL)",
    "({int} IN (1, 2, NULL))",
    "({int} NOT IN (3, NULL))",
    "(({bool} IS NOT FALSE) AND {bool})",
    "({int} = ANY (ARRAY[1, NULL]))",
    "({int} <> ALL ({ints}))",
    "(({int}, {text}) IS DISTINCT FROM ({int}, {text}))",
    "(({int}, {int}) >= ({int}, 2))",
    "({text} NOT BETWEEN 'a' AND NULL)",
)
CONDITIONALS = (
    ("CASE WHEN {bool} THEN {text} WHEN {bool} THEN 'x' END", "text"),
    ("CASE {int} WHEN 1 THEN {num} WHEN NULL THEN 0 ELSE -1 END", "num"),
    ("coalesce({int}, {int}, 9)", "int"),
    ("nullif({text}, {text})", "text"),
    ("greatest({date}, {date})", "date"),
    ("least({num}, {int}, {num})", "num"),
    ("CASE WHEN {int} <> 0 THEN 100 / ({int} % 1000000 * 0 + 7) END", "int"),
    ("coalesce(CASE WHEN {bool} THEN {time} END, {time})", "time"),
)
CASTS = (
    ("({int})::text::varchar(2)", "text"),
    ("({num})::text", "text"),
    ("({int} % 1000)::numeric(7,2)", "num"),
    ("({date})::timestamp", "time"),
    ("({text})::char(3)", "text"),
    ("({int} <> 0)::text", "text"),
    ("({bool})::integer", "int"),
    ("({float})::text", "text"),
    ("({uuid})::text", "text"),
    ("({span})::text", "text"),
    ("({int} % 1000)::real", "float"),
    ("(({int} % 1000)::text || '.5')::numeric", "num"),
    ("({ints})::text[]", "texts"),
    ("({mood})::text", "text"),
    ("cast({json} AS text)", "text"),
)
COLLATED = (
    ("({text} COLLATE \"C\" < 'b')", "bool"),
    ('({text} COLLATE "en-x-icu" >= {=text})', "bool"),
    ('upper({text} COLLATE "C")', "text"),
    ("greatest({text} COLLATE \"C\", 'b')", "text"),
    ("({text} COLLATE \"C\" BETWEEN 'A' AND 'a')", "bool"),
)


def _theme(name: str, families: Sequence[str]) -> None:
    def add(writer: Writer, block: Block) -> None:
        for _ in range(2):
            family = writer.rng.choice(families)
            form = writer.rng.choice(EXPRESSIONS[family])
            block.outputs.append(writer.filled(form, family, block.atoms(), 1))

    FEATURES[name] = Feature(name, OUTPUT, "", add)


for _name, _families in THEMES.items():
    _theme(_name, _families)


def _forms(name: str, forms: Sequence[tuple[str, str]]) -> None:
    def add(writer: Writer, block: Block) -> None:
        form, family = writer.rng.choice(forms)
        term = writer.filled(form, family, block.atoms(), 1)
        if family == "bool" and block.groups is None and writer.rng.random() < 0.5:
            block.where.append(Sql(("(", term, " IS NOT FALSE)"), "bool"))
        else:
            block.outputs.append(term)

    FEATURES[name] = Feature(name, OUTPUT, "", add)


_forms("three-valued logic", [(form, "bool") for form in LOGIC])
_forms("conditionals", CONDITIONALS)
_forms("casts", CASTS)
_forms("collations", COLLATED)


@feature("whole rows", OUTPUT)
def _whole_rows(writer: Writer, block: Block) -> None:
    rng = writer.rng
    relation = rng.choice(block.relations)
    alias = relation.alias
    if block.groups is not None:
        block.calls.append(plain(f"count({alias})", "int"))
        block.outputs.append(block.calls[-1])
        return
    form, family = rng.choice(
        (
            ("{}", "other"),
            ("to_jsonb({})", "document"),
            ("({} IS NULL)", "bool"),
            ("({} IS NOT NULL)", "bool"),
            ("({})::text", "other"),
            ("row_to_json({})", "document"),
            ("(row({0}.a, {0}.b) = row(1, 2))", "bool"),
            ("num_nulls({})", "int"),
        )
    )
    names = {column.text() for column in relation.columns}
    if any(column.kind == "approx" for column in relation.columns):
        form, family = "({} IS NULL)", "bool"
    if "{0}" in form and not {f"{alias}.a", f"{alias}.b"} <= names:
        form, family = "num_nulls({})", "int"
    block.outputs.append(plain(form.format(alias), family))
