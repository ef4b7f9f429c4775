"""Subqueries in every place, correlated or not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.harness.block import Block, canonical, derived
from tests.harness.features.registry import FEATURES, FROM, HAVING, OUTPUT, WHERE, Feature, feature
from tests.harness.grammar import Sql, plain

if TYPE_CHECKING:
    from tests.harness.query_writer import Writer

Maker = Callable[["Writer", list[Sql], str], Sql]
MAKERS: list[tuple[Maker, str]] = []
_SINGLE = (
    ("count(*)", "int"),
    ("count({text})", "int"),
    ("max({int})", "int"),
    ("sum({int} % 1000)", "num"),
    ("min({text})", "text"),
    ("max({date})", "date"),
    ("bool_and({bool})", "bool"),
    ("avg({int} % 1000)", "num"),
)


def correlate(writer: Writer, inner: Block, outer: list[Sql]) -> None:
    """Tie the inner block to the rows around it, by an equality or otherwise."""
    match = writer.matching(inner.columns(), outer)
    if writer.rng.random() < 0.25:
        left = writer.term(inner.columns(), "int", 0)
        right = writer.term(outer, "int", 0)
        match = Sql(("(", left, writer.rng.choice((" < ", " <> ", " >= ")), right, ")"), "bool")
    inner.where.append(match)


def scalar(writer: Writer, outer: list[Sql], is_correlated: bool) -> Sql:
    """A scalar subquery that never has two rows."""
    rng = writer.rng
    inner = writer.small_block()
    if is_correlated:
        correlate(writer, inner, outer)
    if rng.random() < 0.7:
        form, family = rng.choice(_SINGLE)
        inner.groups = []
        atoms = (
            inner.columns()
            if rng.random() < 0.8 or not is_correlated
            else [*inner.columns(), *outer]
        )
        inner.outputs = [writer.filled(form, family, atoms, 0)]
    else:
        inner.outputs = [writer.any_term(inner.columns())]
        first = writer.term(inner.columns(), "int", 0).text()
        inner.tail = f"{inner.order(first + rng.choice(('', ' DESC')))} LIMIT 1"
    query = inner.build()
    return Sql(("(", query, ")"), inner.outputs[0].kind)


@feature("scalar subquery in select", OUTPUT)
def _scalar_in_select(writer: Writer, block: Block) -> None:
    block.outputs.append(scalar(writer, [], False))


@feature("correlated scalar in select", OUTPUT)
def _correlated_in_select(writer: Writer, block: Block) -> None:
    outer = block.around()
    block.outputs.append(scalar(writer, outer, bool(outer)))


@feature("scalar subquery in where", WHERE)
def _scalar_in_where(writer: Writer, block: Block) -> None:
    is_correlated = writer.rng.random() < 0.5
    found = scalar(writer, block.columns(), is_correlated)
    if found.kind in ("int", "num", "text", "date", "bool"):
        other = writer.term(block.columns(), found.kind, 1)
        word = writer.rng.choice((" <= ", " >= ", " <> ", " IS DISTINCT FROM "))
        block.where.append(Sql(("(", other, word, found, ")"), "bool"))
    else:
        block.where.append(Sql(("(", found, " IS NOT NULL)"), "bool"))


@feature("subquery in having", HAVING)
def _in_having(writer: Writer, block: Block) -> None:
    ensure_grouped(writer, block)
    outer = block.around()
    found = scalar(writer, outer, bool(outer) and writer.rng.random() < 0.5)
    if found.kind == "int":
        block.having.append(Sql(("(count(*) <> ", found, ")"), "bool"))
    else:
        block.having.append(Sql(("(", found, " IS NOT NULL)"), "bool"))


@feature("subquery in on", FROM)
def _in_on(writer: Writer, block: Block) -> None:
    relation = writer.table()
    both = [*block.columns(), *relation.columns]
    match = writer.matching(block.columns(), relation.columns)
    if writer.rng.random() < 0.5:
        found = scalar(writer, both, writer.rng.random() < 0.3)
        more = Sql(("(", found, " IS NOT NULL)"), "bool")
    else:
        more = _exists(writer, list(relation.columns), writer.rng.choice(("EXISTS", "NOT EXISTS")))
    kind = writer.rng.choice(("JOIN", "LEFT JOIN"))
    part = Sql((f"{kind} ", relation.part, " ON ", match, " AND ", more), can_go=True)
    block.relations.append(replace(relation, part=part))


def _exists(writer: Writer, outer: list[Sql], word: str) -> Sql:
    inner = writer.small_block()
    correlate(writer, inner, outer)
    if writer.rng.random() < 0.2:
        inner.groups = [writer.key(inner.columns(), 0)]
        inner.having = [Sql(("(count(*) > 1)",), "bool")]
    inner.outputs = [plain("1", "int")]
    return Sql((f"{word} (", inner.build(), ")"), "bool")


def _membership(writer: Writer, outer: list[Sql], word: str) -> Sql:
    rng = writer.rng
    inner = writer.small_block()
    family = rng.choice(("int", "int", "text", "num", "date"))
    right = writer.term(inner.columns(), family, 1)
    left = writer.term(outer, family, 1)
    if rng.random() < 0.3:
        correlate(writer, inner, outer)
    if rng.random() < 0.25:
        right = canonical(writer.term(inner.columns(), family, 0))
        inner.groups = [right]
        inner.having = [Sql(("(count(*) < 3)",), "bool")]
    inner.outputs = [right]
    return Sql(("(", left, f" {word} (", inner.build(), "))"), "bool")


def _row_in(writer: Writer, outer: list[Sql], word: str) -> Sql:
    inner = writer.small_block()
    lefts, rights = [], []
    for family in ("int", writer.rng.choice(("int", "text", "date"))):
        lefts.append(writer.term(outer, family, 0))
        rights.append(writer.term(inner.columns(), family, 0))
    inner.outputs = rights
    return Sql(("((", lefts[0], ", ", lefts[1], f") {word} (", inner.build(), "))"), "bool")


def _in_conditions(name: str, word: str, make: Maker) -> None:
    """A feature in WHERE, alone or within a larger condition."""

    def add(writer: Writer, block: Block) -> None:
        found = make(writer, block.columns(), word)
        if writer.rng.random() < 0.3:
            other = writer.predicate(block.columns())
            found = Sql(("(", found, " OR ", other, ")"), "bool")
        block.where.append(found)

    FEATURES[name] = Feature(name, WHERE, "", add)
    MAKERS.append((make, word))


_in_conditions("exists", "EXISTS", _exists)
_in_conditions("not exists", "NOT EXISTS", _exists)
_in_conditions("in subquery", "IN", _membership)
_in_conditions("not in subquery", "NOT IN", _membership)
_in_conditions("any subquery", "< ANY", _membership)
_in_conditions("all subquery", ">= ALL", _membership)
_in_conditions("row in", "IN", _row_in)
_in_conditions("row not in", "NOT IN", _row_in)


@feature("condition subquery in select", OUTPUT)
def _condition_in_select(writer: Writer, block: Block) -> None:
    make, word = writer.rng.choice(MAKERS)
    outer = block.around()
    block.outputs.append(make(writer, outer or [plain("1::integer", "int")], word))


@feature("array subquery", OUTPUT)
def _array(writer: Writer, block: Block) -> None:
    outer = block.around()
    inner = writer.small_block()
    if outer and writer.rng.random() < 0.7:
        correlate(writer, inner, outer)
    inner.outputs = [writer.term(inner.columns(), "int", 0)]
    inner.tail = inner.order(inner.outputs[0].text())
    block.outputs.append(Sql(("ARRAY(", inner.build(), ")"), "other"))


@feature("lateral subquery", FROM)
def _lateral(writer: Writer, block: Block) -> None:
    rng = writer.rng
    outer = block.columns()
    inner = writer.small_block()
    correlate(writer, inner, outer)
    choice = rng.random()
    if choice < 0.4:
        inner.groups = []
        inner.outputs = [
            plain("count(*)", "int"),
            writer.filled("max({int})", "int", inner.columns()),
        ]
    else:
        inner.outputs = [writer.term([*inner.columns(), *outer], "int")]
        inner.outputs.append(writer.any_term(inner.columns()))
        if choice < 0.75:
            first = writer.term(inner.columns(), "int", 0).text()
            inner.tail = f"{inner.order(first)} LIMIT {rng.randint(1, 3)}"
    join, on = rng.choice((("CROSS JOIN", ""), ("LEFT JOIN", " ON true"), ("JOIN", " ON true")))
    relation = derived(inner.build(), [o.kind for o in inner.outputs], writer.alias())
    part = Sql((f"{join} LATERAL ", relation.part, on), can_go=True)
    block.relations.append(replace(relation, part=part))


@feature("as-of join", FROM)
def _as_of_join(writer: Writer, block: Block) -> None:
    """The last row up to a value of the rows around, or the first one from there."""
    rng = writer.rng
    inner = writer.small_block()
    family = rng.choice(("int", "int", "date", "num", "time"))
    value = writer.term(inner.columns(), family, 0)
    own = writer.term(block.columns(), family, 0)
    word, way = rng.choice(((" <= ", " DESC"), (" < ", " DESC"), (" >= ", ""), (" > ", "")))
    inner.where.append(Sql(("(", value, word, own, ")"), "bool"))
    if rng.random() < 0.7:
        inner.where.append(writer.matching(inner.columns(), block.columns()))
    inner.outputs = [writer.any_term(inner.columns()), writer.term(inner.columns(), "int", 0)]
    inner.tail = f"{inner.order(value.text() + way)} LIMIT 1"
    join, on = rng.choice((("CROSS JOIN", ""), ("LEFT JOIN", " ON true"), ("JOIN", " ON true")))
    relation = derived(inner.build(), [o.kind for o in inner.outputs], writer.alias())
    part = Sql((f"{join} LATERAL ", relation.part, on), can_go=True)
    block.relations.append(replace(relation, part=part))


def ensure_grouped(writer: Writer, block: Block) -> None:
    """Group a block that is not grouped yet, by nothing up to two keys."""
    if block.groups is None:
        count = writer.rng.choice((0, 1, 1, 1, 2))
        keys = [writer.key(block.columns()) for _ in range(count)]
        block.groups = list({key.text(): key for key in keys}.values())
