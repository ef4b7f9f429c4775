"""Grouping of all kinds and the families of aggregates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tests.harness.block import Block, canonical
from tests.harness.families import GROUPED, ORDERED
from tests.harness.features.registry import CALLS, FEATURES, GROUP, HAVING, Feature, feature
from tests.harness.features.subqueries import ensure_grouped
from tests.harness.grammar import Sql

if TYPE_CHECKING:
    from tests.harness.query_writer import Writer

# Aggregates whose result does not depend on an order, by feature: (call, family of the result).
PLAIN = {
    "counts and sums": (
        ("count(*)", "int"),
        ("count({int})", "int"),
        ("count({text})", "int"),
        ("sum({int} % 1000)", "num"),
        ("sum({num})", "num"),
        ("avg({int} % 1000)", "num"),
        ("avg({num})", "num"),
        ("sum({float})", "approx"),
        ("avg({float})", "approx"),
        ("sum({span})", "span"),
        ("sum({int})", "num"),
    ),
    "extremes": (
        ("min({int})", "int"),
        ("max({num!})", "num"),
        ("min({text})", "text"),
        ("max({text})", "text"),
        ('min({text} COLLATE "C")', "text"),
        ("max({date})", "date"),
        ("min({time})", "time"),
        ("max({float!})", "float"),
        ("min({wild!})", "wild"),
        ("max({mood})", "mood"),
        ("min({span!})", "span"),
        ("max({clock})", "clock"),
        ("max({ints})", "ints"),
    ),
    "booleans and bits": (
        ("bool_and({bool})", "bool"),
        ("bool_or({bool})", "bool"),
        ("every({bool})", "bool"),
        ("bit_and(({int} % 100)::integer)", "int"),
        ("bit_or({int} % 100)", "int"),
        ("bit_xor(({int} % 100)::smallint)", "int"),
    ),
    "statistics": (
        ("stddev({int} % 1000)", "num"),
        ("variance({num})", "num"),
        ("stddev_pop({num})", "num"),
        ("var_samp({float})", "approx"),
        ("stddev_pop({float})", "approx"),
        ("corr({float_column}, {int_column} % 1000)", "approx"),
        ("covar_pop({int_column} % 1000, {float_column})", "approx"),
        ("regr_slope({int_column} % 1000, {float_column})", "approx"),
        ("regr_r2({float_column}, {int_column} % 1000)", "approx"),
        ("regr_count({float_column}, {float_column})", "int"),
        ("regr_avgx({float_column}, {int_column} % 1000)", "approx"),
        ("regr_sxy({float_column}, {int_column} % 1000)", "approx"),
    ),
    "within group": (
        ("percentile_cont(0.5) WITHIN GROUP (ORDER BY {float_column})", "approx"),
        ("percentile_cont(0.25) WITHIN GROUP (ORDER BY {int} % 1000 DESC)", "approx"),
        ("percentile_cont(ARRAY[0.1, 0.9]) WITHIN GROUP (ORDER BY {int} % 1000)", "other"),
        ("percentile_disc(0.5) WITHIN GROUP (ORDER BY {num!})", "num"),
        ("percentile_disc(0.3) WITHIN GROUP (ORDER BY {text})", "text"),
        ("percentile_disc(ARRAY[0, 0.5, 1]) WITHIN GROUP (ORDER BY {int})", "other"),
        ("mode() WITHIN GROUP (ORDER BY {int})", "int"),
        ("mode() WITHIN GROUP (ORDER BY {text} DESC)", "text"),
        ("mode() WITHIN GROUP (ORDER BY {num!})", "num"),
    ),
    "hypothetical": (
        ("rank({=int}) WITHIN GROUP (ORDER BY {int})", "int"),
        ("dense_rank({=text}) WITHIN GROUP (ORDER BY {text} DESC)", "int"),
        ("percent_rank({=int}) WITHIN GROUP (ORDER BY {int})", "approx"),
        ("cume_dist({=num}) WITHIN GROUP (ORDER BY {num})", "approx"),
        ("rank({=int}, {=text}) WITHIN GROUP (ORDER BY {int}, {text} NULLS FIRST)", "int"),
    ),
    "own aggregate": (
        ("product(({int} % 100)::integer)", "int"),
        ("range_agg({range})", "other"),
        ("range_intersect_agg({range})", "range"),
    ),
}
# Aggregates with an order inside: {order} is one that leaves nothing open.
SORTED = (
    ("string_agg({text}, ',' {order})", "text"),
    ("string_agg({bytes}, '\\x00'::bytea {order})", "bytes"),
    ("array_agg({int} {order})", "other"),
    ("array_agg({text} {order})", "other"),
    ("array_agg({num} {order})", "other"),
    ("array_agg({date} {order})", "other"),
    ("json_agg({text} {order})", "document"),
    ("jsonb_agg({int} {order})", "document"),
    ("json_agg({num} {order})", "document"),
    ("json_object_agg(coalesce({text}, '-'), {int} {order})", "document"),
    ("jsonb_object_agg(coalesce({text}, '-'), {num} {order})", "document"),
)
DISTINCT = (
    ("count(DISTINCT {key})", "int"),
    ("sum(DISTINCT {int} % 1000)", "num"),
    ("avg(DISTINCT {num!})", "num"),
    ("sum(DISTINCT {num!})", "num"),
    ("array_agg(DISTINCT {int})", "other"),
    ("array_agg(DISTINCT {text} ORDER BY {same} DESC)", "other"),
    ("string_agg(DISTINCT {text}, '|')", "text"),
    ("string_agg(DISTINCT {text}, '|' ORDER BY {same})", "text"),
    ("jsonb_agg(DISTINCT {int})", "document"),
    ("max(DISTINCT {date})", "date"),
    ("stddev(DISTINCT {int} % 1000)", "num"),
)


def call(writer: Writer, block: Block, form: str, family: str) -> Sql:
    """Return an aggregate call. {num!}: in the form in which equal values print alike;
    {int_column}: a column; {key}: what can be grouped by; {same}: the expression just before."""
    columns = block.columns()
    pieces: list[str | Sql] = []
    last: Sql | None = None
    for part in form.replace("}", "{").split("{"):
        name = part.removesuffix("!").removesuffix("_column")
        if len(pieces) % 2 == 0:
            pieces.append(part)
        elif part == "order":
            pieces.append(_order(writer, block))
        elif part == "same" and last is not None:
            pieces.append(last.text())
        elif part == "key":
            pieces.append(writer.key(columns))
        elif part.startswith("="):
            pieces.append(writer.literal(part[1:]).text())
        else:
            is_column = part.endswith("_column") or name == "text"
            last = writer.term(columns, name, 0 if is_column else 1)
            last = canonical(last) if part.endswith("!") else last
            pieces.append(last.text() if "{same}" in form else last)
    return Sql(tuple(pieces), family)


def _order(writer: Writer, block: Block) -> str:
    rng = writer.rng
    ties = [t for relation in block.relations for t in relation.ties]
    if rng.random() < 0.7:
        term = writer.term(block.columns(), rng.choice(ORDERED), 0)
        word = rng.choice(("", " DESC", " NULLS FIRST", " DESC NULLS LAST"))
        ties.insert(0, term.text() + word)
    return f"ORDER BY {', '.join(ties)}"


def _calls(name: str, forms: Sequence[tuple[str, str]]) -> None:
    def add(writer: Writer, block: Block) -> None:
        ensure_grouped(writer, block)
        for form, family in writer.rng.sample(forms, writer.rng.choice((1, 2))):
            block.calls.append(call(writer, block, form, family))

    FEATURES[name] = Feature(name, CALLS, "", add)


for _name, _forms in PLAIN.items():
    _calls(_name, _forms)
_calls("sorted aggregates", SORTED)
_calls("distinct aggregates", DISTINCT)


def plain_call(writer: Writer, block: Block) -> Sql:
    """Any aggregate call whose result needs no order."""
    forms = writer.rng.choice(list(PLAIN.values())[:4])
    return call(writer, block, *writer.rng.choice(forms))


@feature("filtered aggregates", CALLS)
def _filtered(writer: Writer, block: Block) -> None:
    ensure_grouped(writer, block)
    inner = plain_call(writer, block)
    if writer.rng.random() < 0.4:
        inner = call(writer, block, *writer.rng.choice((*SORTED, *DISTINCT)))
    condition = writer.predicate(block.columns())
    block.calls.append(
        Sql((inner, Sql((" FILTER (WHERE ", condition, ")"), can_go=True)), inner.kind)
    )


@feature("global aggregate", GROUP, "group")
def _global(writer: Writer, block: Block) -> None:
    block.groups = []
    block.calls.append(plain_call(writer, block))


@feature("group by", GROUP, "group")
def _group_by(writer: Writer, block: Block) -> None:
    keys = [writer.key(block.columns()) for _ in range(writer.rng.choice((1, 1, 2, 3)))]
    block.groups = list({key.text(): key for key in keys}.values())
    block.calls.append(plain_call(writer, block))


def _sets(name: str, forms: Sequence[str]) -> None:
    def add(writer: Writer, block: Block) -> None:
        form = writer.rng.choice(forms)
        count = form.count("{") - form.count("{0}{")
        keys: dict[str, Sql] = {}
        if not writer.nulls_groups and not any(r.is_table for r in block.relations):
            block.relations.append(writer.table("CROSS JOIN "))
        # Before 18 PostgreSQL does not make keys NULL that it can compute once.
        columns = [
            column
            for relation in block.relations
            if relation.is_table or writer.nulls_groups
            for column in relation.columns
            if column.kind in GROUPED
        ]
        for key in [canonical(c) for c in writer.rng.sample(columns, min(len(columns), 3))]:
            keys[key.text()] = key
        while len(keys) < 3:
            column = writer.rng.choice(columns or block.columns())
            key = Sql(("num_nulls(", column, f", {len(keys)})"), "int")
            keys[key.text()] = key
        block.groups = list(keys.values())[: 3 if "{2}" in form else 2]
        block.grouping = form
        assert count
        listed = ", ".join(key.text() for key in block.groups)
        block.calls += [Sql((f"grouping({listed})",), "int"), plain_call(writer, block)]

    FEATURES[name] = Feature(name, GROUP, "group", add)


_sets(
    "grouping sets",
    (
        "GROUPING SETS (({0}), ({1}), ())",
        "GROUPING SETS (({0}, {1}), ({0}), ({0}))",
        "GROUPING SETS (({0}, {1}), ({2}), ())",
        "{0}, GROUPING SETS (({1}), ())",
    ),
)
_sets("rollup", ("ROLLUP ({0}, {1})", "ROLLUP ({0}, ({1}, {2}))", "{0}, ROLLUP ({1})"))
_sets("cube", ("CUBE ({0}, {1})", "CUBE ({0}, {1}, {2})", "DISTINCT CUBE ({0}, {1}), ROLLUP ({0})"))


@feature("having", HAVING)
def _having(writer: Writer, block: Block) -> None:
    ensure_grouped(writer, block)
    rng = writer.rng
    forms = (
        ("count(*) > 1", "bool"),
        ("count(*) % 2 = 1", "bool"),
        ("max({int}) IS DISTINCT FROM 3", "bool"),
        ("bool_or({bool}) IS NOT FALSE", "bool"),
        ("sum({num}) > 0 IS NOT TRUE", "bool"),
        ("min({text}) < 'm'", "bool"),
    )
    form, family = rng.choice(forms)
    block.having.append(Sql(("(", call(writer, block, form, family), ")"), "bool"))
    if not block.calls:
        block.calls.append(plain_call(writer, block))
