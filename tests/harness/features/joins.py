"""Joins of all kinds, derived tables, VALUES and CTEs in FROM."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tests.harness.block import Block, derived, named
from tests.harness.features.registry import FEATURES, FROM, Feature, feature
from tests.harness.grammar import Relation, Sql, plain

if TYPE_CHECKING:
    from tests.harness.query_writer import Writer

# How far an interval around a moment goes.
LONG = ("0", "90 minutes", "1 day", "1 month")
KINDS = ("JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN")


def add_joined(block: Block, kind: str, relation: Relation, on: Sql) -> None:
    """Join a relation whose part has no join word yet."""
    part = Sql((f"{kind} ", relation.part, " ON ", on), can_go=True)
    block.relations.append(replace(relation, part=part))


def condition(writer: Writer, block: Block, relation: Relation) -> Sql:
    """An equality, with more at times."""
    on = writer.matching(block.columns(), relation.columns)
    if writer.rng.random() < 0.3:
        more = writer.predicate([*block.columns(), *relation.columns])
        on = Sql((on, Sql((" AND ", more), can_go=True)), "bool")
    return on


def _of_kind(kind: str) -> None:
    def join(writer: Writer, block: Block) -> None:
        relation = writer.table()
        on = condition(writer, block, relation)
        if kind == "FULL JOIN":
            on = writer.matching(block.columns(), relation.columns)
        add_joined(block, kind, relation, on)

    name = kind.lower().replace(" join", "").replace("join", "inner") + " join"
    FEATURES[name] = Feature(name, FROM, "", join)


for _kind in KINDS:
    _of_kind(_kind)


@feature("self join", FROM)
def _self_join(writer: Writer, block: Block) -> None:
    name = writer.rng.choice(writer.table_names)
    first = writer.table(name=name)
    add_joined(block, writer.rng.choice(KINDS[:2]), first, condition(writer, block, first))
    second = writer.table(name=name)
    on = Sql((f"({first.alias}.a = {second.alias}.b)",), "bool")
    add_joined(block, writer.rng.choice(KINDS[:2]), second, on)


@feature("cross join", FROM)
def _cross_join(writer: Writer, block: Block) -> None:
    if writer.rng.random() < 0.5:
        block.relations.append(writer.table("CROSS JOIN "))
        return
    inner = writer.small_block()
    inner.groups = []
    inner.outputs = [plain("count(*)", "int"), writer.filled("max({int})", "int", inner.columns())]
    block.relations.append(derived(inner.build(), ["int", "int"], writer.alias(), "CROSS JOIN "))


@feature("non-equi join", FROM)
def _non_equi_join(writer: Writer, block: Block) -> None:
    relation = writer.table()
    kind = writer.rng.choice(KINDS[:3])
    form = writer.rng.choice(("{} < {}", "{} <> {}", "{} + 1 >= {}", "{} IS NOT DISTINCT FROM {}"))
    left = writer.term(block.columns(), writer.rng.choice(("int", "int", "date", "num")), 0)
    right = writer.term(relation.columns, left.kind, 0)
    if left.kind == "num":
        form = "{} < {}"
    before, middle, after = form.split("{}")
    on = Sql(
        (f"({before}", left, middle, right, f"{after} AND ", f"{relation.alias}.a < 4)"), "bool"
    )
    add_joined(block, kind, relation, on)


@feature("interval join", FROM)
def _interval_join(writer: Writer, block: Block) -> None:
    """A value of one side between two of the other, often with an equality."""
    relation = writer.table()
    sides = [block.columns(), list(relation.columns)]
    if writer.rng.random() < 0.3:
        sides.reverse()
    family = writer.rng.choice(("int", "int", "date", "num", "time"))
    value, low, high = (writer.term(sides[at], family, 0) for at in (1, 0, 0))
    if family == "time":
        low = Sql(("(", low, f" - interval '{writer.rng.choice(LONG)}')"), "time")
        high = Sql(("(", high, f" + interval '{writer.rng.choice(LONG)}')"), "time")
    on = Sql(("(", value, " BETWEEN ", low, " AND ", high, ")"), "bool")
    if writer.rng.random() < 0.5:
        on = Sql(("(", value, " >= ", low, " AND ", value, " < ", high, ")"), "bool")
    kind = writer.rng.choice(KINDS[:3])
    if writer.rng.random() < 0.7:
        on = Sql((writer.matching(block.columns(), relation.columns), " AND ", on), "bool")
    else:
        on = Sql((on, f" AND {relation.alias}.a < 4"), "bool")
    add_joined(block, kind, relation, on)


@feature("using", FROM)
def _using(writer: Writer, block: Block) -> None:
    """Two tables joined by USING, as one relation under an alias of its own."""
    left, right = writer.table(), writer.table()
    kind = writer.rng.choice(KINDS)
    alias = writer.alias()
    using = writer.rng.choice(("a", "a, b", "b"))
    query = Sql(
        (
            f"SELECT {using}, {left.alias}.id AS c0, {right.alias}.id AS c1, ",
            f"{left.alias}.a AS c2, {right.alias}.b AS c3 FROM ",
            *(left.part, f" {kind} ", right.part, f" USING ({using})"),
        )
    )
    names = ("c2", "c3", *using.split(", "))
    columns = tuple(plain(f"{alias}.{name}", "int") for name in names)
    ties = tuple(f"{alias}.{name}::text" for name in ("c0", "c1", *names))
    relation = Relation(Sql(("(", query, f") {alias}")), alias, columns, ties)
    on = condition(writer, block, relation)
    add_joined(block, writer.rng.choice(KINDS[:2]), relation, on)


@feature("natural join", FROM)
def _natural(writer: Writer, block: Block) -> None:
    names = [writer.rng.choice(writer.table_names) for _ in range(2)]
    alias = writer.alias()
    kind = writer.rng.choice(("NATURAL JOIN", "NATURAL LEFT JOIN", "NATURAL FULL JOIN"))
    text = (
        f"(SELECT a AS c0, b AS c1, x AS c2, y AS c3 FROM (SELECT a, b, id AS x FROM {names[0]}) l "
        f"{kind} (SELECT a, id AS y FROM {names[1]}) r) {alias}"
    )
    ids = [writer.table_columns(name)["id"] for name in names]
    relation = named(Sql((text,)), ("int", "int", *ids), alias)
    add_joined(block, writer.rng.choice(KINDS[:2]), relation, condition(writer, block, relation))


@feature("values", FROM)
def _values(writer: Writer, block: Block) -> None:
    families = ["int", writer.rng.choice(("text", "num", "date", "bool"))]
    rows = []
    for _ in range(writer.rng.randint(1, 4)):
        cells = [writer.common(writer.literal(f), f).text() for f in families]
        rows.append(f"({', '.join(cells)})")
    alias = writer.alias()
    part = Sql((f"(VALUES {', '.join(rows)}) {alias} (c0, c1)",))
    relation = named(part, families, alias)
    add_joined(block, writer.rng.choice(KINDS[:3]), relation, condition(writer, block, relation))


def grouped_or_flat(writer: Writer) -> Block:
    """A small SELECT with outputs, as subqueries in FROM are."""
    inner = writer.small_block()
    if writer.rng.random() < 0.5:
        inner.groups = [writer.key(inner.columns(), 0)]
        inner.outputs = [*inner.groups, plain("count(*)", "int")]
        inner.outputs.append(writer.filled("max({int})", "int", inner.columns()))
    else:
        inner.outputs = [writer.term(inner.columns(), "int", 0)]
        inner.outputs += [writer.any_term(inner.columns()) for _ in range(2)]
    return inner


@feature("derived table", FROM)
def _derived(writer: Writer, block: Block) -> None:
    inner = grouped_or_flat(writer)
    kinds = [o.kind for o in inner.outputs]
    relation = derived(inner.build(), kinds, writer.alias())
    add_joined(block, writer.rng.choice(KINDS[:3]), relation, condition(writer, block, relation))


@feature("cte used twice", FROM)
def _cte(writer: Writer, block: Block) -> None:
    inner = grouped_or_flat(writer)
    name = f"w{writer.alias()}"
    word = writer.rng.choice(("", "", "MATERIALIZED ", "NOT MATERIALIZED "))
    block.ctes.append(Sql((f"{name} AS {word}(", inner.build(), ")")))
    kinds = [o.kind for o in inner.outputs]
    for _ in range(2):
        alias = writer.alias()
        relation = named(plain(f"{name} {alias}"), kinds, alias)
        on = writer.matching(block.columns(), relation.columns)
        add_joined(block, writer.rng.choice(KINDS[:2]), relation, on)
