"""The clock in every place, and windows of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.harness.block import Block, canonical, derived, named, tie
from tests.harness.families import CLOCK_VALUES
from tests.harness.features.aggregates import plain_call
from tests.harness.features.joins import KINDS, add_joined, grouped_or_flat
from tests.harness.features.recursion import enter_recursion
from tests.harness.features.registry import (
    CALLS,
    FEATURES,
    FROM,
    GROUP,
    HAVING,
    OUTPUT,
    TAIL,
    WHERE,
    WINDOW,
    Feature,
)
from tests.harness.features.subqueries import correlate, ensure_grouped
from tests.harness.features.windows import UNORDERED, call, counting, over, partition, some_order
from tests.harness.grammar import Relation, Sql, plain

if TYPE_CHECKING:
    from tests.harness.query_writer import Writer

Apply = Callable[["Writer", Block], None]
HAVINGS = (
    "(max({time}) > {=now})",
    "(min({time}) <= {=now})",
    "(max({date}) < {=today})",
    "(max({time}) < {=now} OR count(*) > 2)",
    "(NOT min({date}) >= {=today})",
    "(bool_or({time} > {=now}))",
    "(count(*) FILTER (WHERE {time} <= {=now}) > 1)",
    "(sum(CASE WHEN {date} >= {=today} THEN 1 ELSE 0 END) IS DISTINCT FROM 0)",
    "(extract(hour FROM now()) % 3 <> count(*) % 3)",
)
CASES = (
    ("sum(CASE WHEN {when} THEN {int} % 1000 ELSE -1 END)", "num"),
    ("max(CASE WHEN {when} THEN {date} END)", "date"),
    ("count(CASE WHEN {when} THEN {text} END)", "int"),
    ("min(CASE WHEN {when} THEN {text} ELSE 'late' END)", "text"),
    ("count(DISTINCT CASE WHEN {when} THEN {int} ELSE 0 END)", "int"),
    ("bool_and({when})", "bool"),
)
ROW_CASES = (
    ("CASE WHEN {when} THEN {int} ELSE -1 END", "int"),
    ("CASE WHEN {when} THEN 'due' WHEN {bool} THEN {text} END", "text"),
    ("CASE WHEN {bool} THEN {date} WHEN {when} THEN CURRENT_DATE END", "date"),
    ("CASE WHEN {int} > 2 AND {when} THEN 1.5 ELSE {num} END", "num"),
)
BINS = (
    ("date_bin('15 minutes', {time}, 'epoch')", "time"),
    ("date_bin('1 day', {time}, timestamp '2024-01-01 05:00')", "time"),
    ("date_bin('90 minutes', {time}, timestamptz '2024-03-10 07:00+00')", "time"),
    ("date_trunc('hour', {time})", "time"),
    ("date_trunc('day', {time})", "time"),
    ("date_trunc('month', {date})", "time"),
    ("({time})::date", "date"),
    ("extract(hour FROM {time})", "num"),
    ("to_char({time}, 'YYYY-MM-DD HH24')", "text"),
)
# Windows of a row: the first, the last and the step; NULL for a moment that is not finite.
HOPS = (
    ("date_bin('1 hour', {t}, 'epoch') - interval '2 hours'", "date_bin('1 hour', {t}, 'epoch')"),
    ("date_bin('30 minutes', {t}, 'epoch') - interval '1 hour'", "{t}"),
    ("date_trunc('day', {t}) - interval '2 days'", "date_trunc('day', {t})"),
    ("{t}", "{t} + interval '1 day'"),
)
STEPS = ("interval '30 minutes'", "interval '1 hour'", "interval '1 day'", "interval '7 hours'")
GAPS = ("interval '10 minutes'", "interval '1 hour'", "interval '1 day'")


def temporal(name: str, phase: int, slot: str = "") -> Callable[[Apply], Apply]:
    """Enter a function as a feature that reads the clock."""

    def enter(apply: Apply) -> Apply:
        assert name not in FEATURES, f"two features are named {name}"
        FEATURES[name] = Feature(name, phase, slot, apply, is_temporal=True)
        return apply

    return enter


def _some(writer: Writer, forms: Sequence[tuple[str, str]], atoms: list[Sql]) -> Sql:
    """One of the forms, its holes filled; {when}: a condition on the clock."""
    form, family = writer.rng.choice(forms)
    before, when, after = form.partition("{when}")
    if not when:
        return writer.filled(form, family, atoms, 0)
    pieces = [writer.filled(text, "", atoms, 0) for text in (before, after)]
    return Sql((pieces[0], writer.temporal(atoms), pieces[1]), family)


# --- conditions --------------------------------------------------------------------------


@temporal("clock in where", WHERE)
def _in_where(writer: Writer, block: Block) -> None:
    for _ in range(writer.rng.choice((1, 1, 2))):
        block.where.append(writer.temporal(block.columns()))


@temporal("clock in on", FROM)
def _in_on(writer: Writer, block: Block) -> None:
    """Of a join of any kind, beside an equality."""
    rng = writer.rng
    relation = writer.table()
    sides = rng.choice(([*block.columns(), *relation.columns], list(relation.columns)))
    match = writer.matching(block.columns(), relation.columns)
    on = Sql((match, Sql((" AND ", writer.temporal(sides)), can_go=True)), "bool")
    add_joined(block, rng.choice(KINDS), relation, on)


@temporal("clock alone in on", FROM)
def _alone_in_on(writer: Writer, block: Block) -> None:
    """Without an equality, over few rows."""
    relation = writer.table()
    on = Sql((writer.temporal(relation.columns), f" AND {relation.alias}.a < 3"), "bool")
    add_joined(block, writer.rng.choice(KINDS[:3]), relation, on)


@temporal("clock in having", HAVING)
def _in_having(writer: Writer, block: Block) -> None:
    ensure_grouped(writer, block)
    block.having.append(writer.filled(writer.rng.choice(HAVINGS), "bool", block.columns(), 0))


@temporal("clock in filter", CALLS)
def _in_filter(writer: Writer, block: Block) -> None:
    ensure_grouped(writer, block)
    for _ in range(writer.rng.choice((1, 2))):
        inner = plain_call(writer, block)
        when = Sql((" FILTER (WHERE ", writer.temporal(block.columns()), ")"), can_go=True)
        block.calls.append(Sql((inner, when), inner.kind))


@temporal("clock in case", CALLS)
def _in_case(writer: Writer, block: Block) -> None:
    """Within aggregates."""
    ensure_grouped(writer, block)
    block.calls.append(_some(writer, CASES, block.columns()))


@temporal("clock in case of rows", OUTPUT)
def _in_case_of_rows(writer: Writer, block: Block) -> None:
    block.outputs.append(_some(writer, ROW_CASES, block.atoms()))


@temporal("clock as flag", OUTPUT)
def _as_flag(writer: Writer, block: Block) -> None:
    for _ in range(writer.rng.choice((1, 2))):
        block.outputs.append(writer.temporal(block.atoms()))


@temporal("clock as value", OUTPUT)
def _as_value(writer: Writer, block: Block) -> None:
    block.outputs.append(_some(writer, CLOCK_VALUES, block.atoms()))


@temporal("clock in key", GROUP, "group")
def _in_key(writer: Writer, block: Block) -> None:
    keys = [writer.temporal(block.columns())]
    if writer.rng.random() < 0.4:
        keys.append(canonical(_some(writer, CLOCK_VALUES[:8], block.columns())))
    if writer.rng.random() < 0.5:
        keys.append(writer.key(block.columns()))
    block.groups = list({key.text(): key for key in keys}.values())
    block.calls.append(plain_call(writer, block))


@temporal("clock in window", WINDOW)
def _in_window(writer: Writer, block: Block) -> None:
    """As a filter, an argument, an order or a partition."""
    rng = writer.rng
    when = writer.temporal(block.columns() if block.groups is None else block.groups)
    found = call(writer, block, *rng.choice(UNORDERED))
    choice = rng.random()
    if choice < 0.35:
        window = over(partition(writer, block) + some_order(writer, block))
        found = Sql((found, " FILTER (WHERE ", when, ")", window), found.kind)
    elif choice < 0.6:
        inner = Sql(("count(CASE WHEN ", when, " THEN 1 END)"), "int")
        found = Sql((inner, over(counting(writer, block))), "int")
    elif choice < 0.8:
        found = Sql((found, " OVER (PARTITION BY ", when, ")"), found.kind)
    else:
        found = Sql((found, f" OVER ({partition(writer, block)}ORDER BY ", when, ")"), found.kind)
    block.outputs.append(found)


@temporal("clock in order", TAIL, "tail")
def _in_order(writer: Writer, block: Block) -> None:
    rng = writer.rng
    writer.finish(block)
    way = rng.choice(("", " DESC", " NULLS FIRST"))
    order = block.order(writer.temporal(block.atoms()).text() + way)
    block.tail = f"{order} LIMIT {rng.choice(('1', '3', '5'))}"


@temporal("clock in subquery", WHERE)
def _in_subquery(writer: Writer, block: Block) -> None:
    rng = writer.rng
    outer = block.columns()
    inner = writer.small_block()
    inner.where.append(writer.temporal(inner.columns()))
    if rng.random() < 0.7:
        correlate(writer, inner, outer)
    choice = rng.random()
    if choice < 0.5:
        inner.outputs = [plain("1", "int")]
        word = rng.choice(("EXISTS", "NOT EXISTS"))
        found = Sql((f"({word} (", inner.build(), "))"), "bool")
    elif choice < 0.75:
        inner.outputs = [writer.term(inner.columns(), "int", 0)]
        word = rng.choice(("IN", "NOT IN"))
        found = Sql(("(", writer.term(outer, "int", 0), f" {word} (", inner.build(), "))"), "bool")
    else:
        inner.groups = []
        inner.outputs = [plain("count(*)", "int")]
        found = Sql(("(", inner.build(), f") {rng.choice(('> 1', '= 0', '<> 2'))}"), "bool")
    block.where.append(found)


@temporal("clock beside a scalar subquery", OUTPUT)
def _beside_scalar(writer: Writer, block: Block) -> None:
    """What is compared with the clock is itself computed of other rows."""
    rng = writer.rng
    outer = block.around()
    inner = writer.small_block()
    if outer and rng.random() < 0.6:
        correlate(writer, inner, outer)
    inner.groups = []
    inner.outputs = [
        writer.filled(rng.choice(("max({time})", "min({time})")), "time", inner.columns(), 0)
    ]
    word = rng.choice((" > ", " <= "))
    now = writer.literal("now")
    block.outputs.append(Sql(("((", inner.build(), f"){word}", now, ")"), "bool"))


# --- relations ---------------------------------------------------------------------------


@temporal("last before the clock", FROM)
def _last_before(writer: Writer, block: Block) -> None:
    """The last row of others that is not in the future, or the next one that is."""
    rng = writer.rng
    inner = writer.small_block()
    value = writer.term(inner.columns(), rng.choice(("time", "time", "date")), 0)
    word, way = rng.choice(((" <= ", " DESC"), (" < ", " DESC"), (" > ", "")))
    inner.where.append(Sql(("(", value, word, writer.literal("now"), ")"), "bool"))
    if rng.random() < 0.7:
        inner.where.append(writer.matching(inner.columns(), block.columns()))
    inner.outputs = [writer.any_term(inner.columns()), writer.term(inner.columns(), "int", 0)]
    inner.tail = f"{inner.order(value.text() + way)} LIMIT {rng.choice((1, 1, 2))}"
    join, on = rng.choice((("CROSS JOIN", ""), ("LEFT JOIN", " ON true")))
    relation = derived(inner.build(), [o.kind for o in inner.outputs], writer.alias())
    part = Sql((f"{join} LATERAL ", relation.part, on), can_go=True)
    block.relations.append(replace(relation, part=part))


@temporal("clock in a derived table", FROM)
def _in_derived(writer: Writer, block: Block) -> None:
    inner = grouped_or_flat(writer)
    inner.where.append(writer.temporal(inner.columns()))
    relation = derived(inner.build(), [o.kind for o in inner.outputs], writer.alias())
    on = writer.matching(block.columns(), relation.columns)
    add_joined(block, writer.rng.choice(KINDS), relation, on)


@temporal("clock in recursion", FROM)
def _in_recursion(writer: Writer, block: Block) -> None:
    """Edges, or beginnings, that are valid at the clock."""
    rng = writer.rng
    table = rng.choice(writer.table_names)
    atoms = [plain(f"e.{name}", family) for name, family in writer.table_columns(table).items()]
    when = Sql((" AND ", writer.temporal(atoms)), can_go=True)
    begin, step = rng.choice(((when, ""), ("", when), (when, when)))
    word = rng.choice(("UNION", "UNION ALL"))
    depth = "" if word == "UNION" else " AND s.c1 < 3"
    kept = "s.c1" if word == "UNION" else "s.c1 + 1"
    query = Sql(
        (
            *(f"SELECT e.a::bigint, 1::bigint FROM {table} e WHERE e.a < 4", begin, f" {word} "),
            f"SELECT e.b::bigint, {kept} FROM {{self}} s JOIN {table} e ON e.a = s.c0{depth}",
            step,
        )
    )
    enter_recursion(writer, block, query, ("int", "int"))


# --- windows of time ---------------------------------------------------------------------


@temporal("tumbling windows", GROUP, "group")
def _tumbling(writer: Writer, block: Block) -> None:
    keys = [_some(writer, BINS, block.columns())]
    if writer.rng.random() < 0.4:
        keys.append(writer.key(block.columns()))
    block.groups = list({key.text(): key for key in keys}.values())
    block.calls.append(plain_call(writer, block))
    if writer.rng.random() < 0.5:
        block.where.append(writer.temporal(block.columns()))


@temporal("hopping windows", FROM)
def _hopping(writer: Writer, block: Block) -> None:
    rng = writer.rng
    moment = writer.term(block.columns(), "time", 0).text()
    at = f"CASE WHEN isfinite({moment}) THEN {moment} END"
    first, last = (end.replace("{t}", f"({at})") for end in rng.choice(HOPS))
    alias = writer.alias()
    ordinal = rng.random() < 0.3
    names, end = ("c0, c1", " WITH ORDINALITY") if ordinal else ("c0", "")
    series = f"generate_series({first}, {last}, {rng.choice(STEPS)}){end}"
    join, on = rng.choice((("CROSS JOIN LATERAL", ""), ("LEFT JOIN LATERAL", " ON true")))
    columns = tuple(plain(f"{alias}.c{i}", k) for i, k in enumerate(("time", "int")[: 1 + ordinal]))
    part = Sql((f"{join} {series} AS {alias}({names}){on}",), can_go=True)
    block.relations.append(Relation(part, alias, columns, tuple(tie(c) for c in columns)))
    if rng.random() < 0.4:
        block.where.append(Sql(("(", columns[0], " <= ", writer.literal("now"), ")"), "bool"))


@temporal("sessions", FROM)
def _sessions(writer: Writer, block: Block) -> None:
    """Gaps and islands of a table's rows, as a relation: its user, begin, end and rows."""
    rng = writer.rng
    name = rng.choice(writer.table_names)
    families = writer.table_columns(name)
    atoms = [plain(f"x.{column}", family) for column, family in families.items()]
    moment = rng.choice([a for a in atoms if a.kind == "time"]).text()
    when: str | Sql = ""
    if rng.random() < 0.6:
        when = Sql((" AND ", writer.temporal(atoms)), can_go=True)
    usr = rng.choice(("x.a", "x.b"))
    by = "OVER (PARTITION BY usr ORDER BY t)"
    flag = f"t - lag(t) {by} > {rng.choice(GAPS)}"
    number = rng.choice((f"sum(is_new) {by}", f"count(*) FILTER (WHERE is_new = 1) {by}"))
    query = Sql(
        (
            "SELECT usr AS c0, min(t) AS c1, max(t) AS c2, count(*) AS c3 FROM (",
            f"SELECT *, {number} AS session FROM (",
            f"SELECT *, CASE WHEN {flag} THEN 1 ELSE 0 END AS is_new FROM (",
            f"SELECT {usr} AS usr, {moment} AS t FROM {name} x WHERE isfinite({moment})",
            when,
            ") f) g) h GROUP BY usr, session",
        ),
        "query",
    )
    alias = writer.alias()
    relation = named(Sql(("(", query, f") {alias}")), ("int", "time", "time", "int"), alias)
    add_joined(
        block, rng.choice(KINDS[:3]), relation, writer.matching(block.columns(), relation.columns)
    )
    if rng.random() < 0.4:
        block.where.append(Sql((f"({alias}.c2 <= ", writer.literal("now"), ")"), "bool"))
