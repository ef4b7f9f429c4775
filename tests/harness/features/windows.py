"""Window functions: numbering, neighbours, running aggregates, frames of all modes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.harness.block import Block, canonical
from tests.harness.families import ORDERED
from tests.harness.features.registry import FEATURES, WINDOW, Feature, feature
from tests.harness.grammar import Sql

if TYPE_CHECKING:
    from tests.harness.query_writer import Writer

ROWS = (
    "ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "ROWS UNBOUNDED PRECEDING",
    "ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "ROWS BETWEEN 3 PRECEDING AND 2 PRECEDING",
    "ROWS BETWEEN 1 FOLLOWING AND 3 FOLLOWING",
    "ROWS 2 PRECEDING",
    "ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING",
)
GROUPS = (
    "GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING",
    "GROUPS 1 PRECEDING",
    "GROUPS BETWEEN CURRENT ROW AND 2 FOLLOWING",
    "GROUPS BETWEEN 2 PRECEDING AND 1 PRECEDING",
)
PEERS = (
    "RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
    "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
    "RANGE BETWEEN CURRENT ROW AND CURRENT ROW",
)
# Frames by distance over one ordered column, by the column's family.
RANGES = {
    "int": ("RANGE BETWEEN 1 PRECEDING AND 2 FOLLOWING", "RANGE 2 PRECEDING"),
    "num": ("RANGE BETWEEN 1.5 PRECEDING AND 10 FOLLOWING",),
    "float": ("RANGE BETWEEN 0.5 PRECEDING AND CURRENT ROW",),
    "date": ("RANGE BETWEEN '10 days' PRECEDING AND '1 mon' FOLLOWING",),
    "time": ("RANGE BETWEEN '1 year' PRECEDING AND CURRENT ROW",),
}
EXCLUDES = (" EXCLUDE CURRENT ROW", " EXCLUDE GROUP", " EXCLUDE TIES", " EXCLUDE NO OTHERS")
# Calls that see a frame but not the order of its rows.
UNORDERED = (
    ("count(*)", "int"),
    ("count({int})", "int"),
    ("sum({int} % 1000)", "num"),
    ("sum({num})", "num"),
    ("avg({int} % 1000)", "num"),
    ("avg({num})", "num"),
    ("sum({float})", "approx"),
    ("min({int})", "int"),
    ("max({text})", "text"),
    ("min({num!})", "num"),
    ("max({date})", "date"),
    ("bool_and({bool})", "bool"),
    ("variance({int} % 1000)", "num"),
    ("product(({int} % 100)::integer)", "int"),
)
ALL_ORDERED = (
    ("first_value({any})", ""),
    ("last_value({any})", ""),
    ("nth_value({any}, 2)", ""),
    ("array_agg({int})", "other"),
    ("string_agg({text}, ',')", "text"),
)
NUMBERING = (
    ("row_number()", "int"),
    ("ntile(3)", "int"),
    ("cume_dist()", "approx"),
    ("percent_rank()", "approx"),
    ("rank()", "int"),
    ("dense_rank()", "int"),
)
NEIGHBOURS = (
    ("lag({any})", ""),
    ("lead({any})", ""),
    ("lag({any}, 2)", ""),
    ("lead({int}, 1, 7)", "int"),
    ("lag({text}, 3, '?')", "text"),
    ("first_value({any})", ""),
)


def call(writer: Writer, block: Block, form: str, family: str) -> Sql:
    """Return a call with its holes filled from what the SELECT list may read; {any} any value of
    it."""
    atoms = block.atoms()
    if "{any}" in form:
        term = writer.any_term(atoms)
        before, after = form.split("{any}")
        return Sql((before, term, after), term.kind)
    if "{num!}" in form:
        before, after = form.split("{num!}")
        return Sql((before, canonical(writer.term(atoms, "num")), after), family)
    return writer.filled(form, family, atoms)


def partition(writer: Writer, block: Block) -> str:
    """PARTITION BY with a blank behind it, or nothing."""
    rng = writer.rng
    if rng.random() < 0.3 or not block.atoms():
        return ""
    atoms = [a for a in block.atoms() if a.kind != "approx"]
    keys = [writer.key(atoms, 0).text() for _ in range(rng.choice((1, 1, 2)))]
    return f"PARTITION BY {', '.join(keys)} "


def some_order(writer: Writer, block: Block) -> str:
    """An ORDER BY that may leave ties."""
    return f"ORDER BY {_first(writer, block)}"


def _first(writer: Writer, block: Block) -> str:
    rng = writer.rng
    term = writer.term(block.atoms(), rng.choice(ORDERED), rng.choice((0, 0, 1)))
    return term.text() + rng.choice(("", "", " DESC", " NULLS FIRST", " DESC NULLS LAST"))


def total_order(writer: Writer, block: Block) -> str:
    """An ORDER BY of the SELECT that leaves nothing open."""
    return block.order(_first(writer, block))


def counted(writer: Writer, block: Block) -> tuple[str, str]:
    """A partition and an order that leaves nothing open.

    Where rows may be equal all such windows of a block are one: which of two equal rows has which
    number is open, and two windows may see them differently.
    """
    if not block.window or block.is_unique():
        order = ", ".join([_first(writer, block), *block.ties()])
        block.window = (partition(writer, block), f"ORDER BY {order}")
    return block.window


def counting(writer: Writer, block: Block) -> str:
    """`counted` as one text."""
    return "".join(counted(writer, block))


def over(window: str) -> str:
    """OVER with its window."""
    return f" OVER ({window.strip()})"


@feature("numbering", WINDOW)
def _numbering(writer: Writer, block: Block) -> None:
    form, family = writer.rng.choice(NUMBERING)
    # Rows of one rank are no matter to rank functions.
    has_peers = "rank" in form and writer.rng.random() < 0.7
    if has_peers:
        window = partition(writer, block) + some_order(writer, block)
    else:
        window = counting(writer, block)
    block.outputs.append(Sql((form, over(window)), family))


@feature("neighbours", WINDOW)
def _neighbours(writer: Writer, block: Block) -> None:
    found = call(writer, block, *writer.rng.choice(NEIGHBOURS))
    block.outputs.append(Sql((found, over(counting(writer, block))), found.kind))


@feature("whole partition", WINDOW)
def _whole(writer: Writer, block: Block) -> None:
    found = call(writer, block, *writer.rng.choice(UNORDERED))
    block.outputs.append(Sql((found, over(partition(writer, block))), found.kind))


@feature("running aggregate", WINDOW)
def _running(writer: Writer, block: Block) -> None:
    found = call(writer, block, *writer.rng.choice(UNORDERED))
    window = partition(writer, block) + some_order(writer, block)
    if writer.rng.random() < 0.5:
        window = counting(writer, block)
    block.outputs.append(Sql((found, over(window)), found.kind))


def _framed(writer: Writer, block: Block, mode: str) -> tuple[Sql, str]:
    """A call and a window with a frame."""
    rng = writer.rng
    begin = partition(writer, block)
    if mode == "rows":
        window = f"{counting(writer, block)} {rng.choice(ROWS)}"
        return call(writer, block, *rng.choice((*UNORDERED, *ALL_ORDERED))), window
    if mode == "groups":
        if rng.random() < 0.3:
            forms = (*UNORDERED, *ALL_ORDERED)
            window = f"{counting(writer, block)} {rng.choice(GROUPS)}"
            return call(writer, block, *rng.choice(forms)), window
        window = f"{begin}{some_order(writer, block)} {rng.choice(GROUPS)}"
        return call(writer, block, *rng.choice(UNORDERED)), window
    if rng.random() < 0.3:
        order = some_order(writer, block)
        return call(writer, block, *rng.choice(UNORDERED)), f"{begin}{order} {rng.choice(PEERS)}"
    family = rng.choice(list(RANGES))
    term = writer.term(block.atoms(), family, 0)
    order = f"ORDER BY {term.text()}{rng.choice(('', ' DESC', ' NULLS FIRST'))}"
    return call(
        writer, block, *rng.choice(UNORDERED)
    ), f"{begin}{order} {rng.choice(RANGES[family])}"


def _frames(mode: str) -> None:
    def add(writer: Writer, block: Block) -> None:
        found, window = _framed(writer, block, mode)
        block.outputs.append(Sql((found, over(window)), found.kind))

    FEATURES[f"{mode} frame"] = Feature(f"{mode} frame", WINDOW, "", add)


for _mode in ("rows", "range", "groups"):
    _frames(_mode)


@feature("exclude", WINDOW)
def _exclude(writer: Writer, block: Block) -> None:
    found, window = _framed(writer, block, writer.rng.choice(("rows", "range", "groups")))
    if found.text().startswith(("first", "last", "nth", "array", "string")):
        found = Sql(("count(*)",), "int")
    window += writer.rng.choice(EXCLUDES)
    block.outputs.append(Sql((found, over(window)), found.kind))


@feature("window filter", WINDOW)
def _filter(writer: Writer, block: Block) -> None:
    found = call(writer, block, *writer.rng.choice(UNORDERED))
    condition = writer.predicate(block.columns() if block.groups is None else block.groups)
    order = some_order(writer, block)
    window = over(partition(writer, block) + order)
    block.outputs.append(Sql((found, " FILTER (WHERE ", condition, ")", window), found.kind))


@feature("named windows", WINDOW, "window clause")
def _named(writer: Writer, block: Block) -> None:
    begin, order = counted(writer, block)
    block.windows += [f"w1 AS ({begin.strip()})", f"w2 AS (w1 {order})"]
    first = call(writer, block, *writer.rng.choice(UNORDERED))
    second = call(writer, block, *writer.rng.choice(NEIGHBOURS))
    third = call(writer, block, *writer.rng.choice(UNORDERED))
    block.outputs += [
        Sql((first, " OVER w1"), first.kind),
        Sql((second, " OVER w2"), second.kind),
        Sql((third, f" OVER (w2 {writer.rng.choice(ROWS)})"), third.kind),
    ]
