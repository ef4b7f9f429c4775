"""The options about time of a view, made part of its plan: lateness, late rows, final rows.

They are no part of SQL: the query stays one that PostgreSQL runs. Invariant: without them a plan is
unchanged; with `late` = "applied" the plan has the same rows as without.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from dataflow.errors import SqlError
from dataflow.expressions.ir import ColumnRef, Expression
from dataflow.lexer import find_words
from dataflow.operators.lateness.late_rows import APPLIED, DEAD_LETTER
from dataflow.plan.check import check_plan
from dataflow.plan.nodes import (
    Aggregate,
    FinalRows,
    LateRows,
    Plan,
    Project,
    Recursive,
    RetainedAggregate,
    Scan,
    ViewPlan,
    Watermark,
    fold,
    scans_of,
)
from dataflow.plan.walk import nodes_of, with_inputs
from dataflow.schema import VIEW_SOURCE, Field, Relation
from dataflow.types import TypeKind
from dataflow.window_close import UNITS_US

CHANGES, FINAL = "changes", "final"
# The column of a relation that says which partition a record came from, where it has one.
PARTITION = "_partition"
_MOMENTS = (TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ)
_PART = re.compile(r"(\d+(?:\.\d+)?) ?([a-z]+)")
_SECOND = 1_000_000
_UNITS = {
    "ms": 1000,
    "millisecond": 1000,
    "s": _SECOND,
    "second": _SECOND,
    "min": 60 * _SECOND,
    "minute": 60 * _SECOND,
    "h": 3600 * _SECOND,
    "hour": 3600 * _SECOND,
    "day": 86_400 * _SECOND,
    "week": 7 * 86_400 * _SECOND,
}
_MAX_US = 36_500 * 86_400 * _SECOND


@dataclass(frozen=True)
class Lateness:
    """What a view's options say about time.

    columns: the lateness of each "table.column", in microseconds. by: for some of them the column
    that partitions it. policy: what becomes of late rows. idle_us: 0 for never. window: the output
    column with which a window begins, and the window's length; None for none. is_final: its readers
    get final rows. retain_us: how long after its end a window is frozen; None for never.
    """

    columns: tuple[tuple[str, int], ...]
    by: tuple[tuple[str, str], ...] = ()
    policy: str = APPLIED
    idle_us: int = 0
    window: tuple[str, int] | None = None
    is_final: bool = False
    retain_us: int | None = None


def lateness_of(options: Mapping[str, Any]) -> Lateness | None:
    """Return what the options say about time; None if nothing. SqlError lateness.bad_option."""
    columns = options.get("lateness") or {}
    window = options.get("window") or {}
    is_final, retain = options.get("emit", CHANGES) == FINAL, options.get("retain")
    unused = [
        name
        for name, is_given in (
            ("late", options.get("late", APPLIED) != APPLIED),
            ("lateness_by", bool(options.get("lateness_by"))),
            ("idle_timeout_s", options.get("idle_timeout_s") is not None),
            ("emit", is_final),
            ("retain", retain is not None),
            ("window", bool(window)),
        )
        if is_given
    ]
    if not columns:
        if unused:
            raise _bad(
                f'option "{unused[0]}" needs option "lateness"',
                hint='give the lateness of a column: {"orders.placed": "1 hour"}',
            )
        return None
    needs_window = [n for n, is_given in (("emit", is_final), ("retain", retain)) if is_given]
    if needs_window and not window:
        hint = 'name the column that begins a window: "window": {"minute": "1 minute"}'
        raise _bad(f'option "{needs_window[0]}" needs option "window"', hint=hint)
    if window and not needs_window:
        hint = 'set "emit" to "final", or give "retain"'
        raise _bad('option "window" needs option "emit" or "retain"', hint=hint)
    if len(window) > 1:
        raise _bad('option "window" names several columns', hint="name the one that begins it")
    for name in options.get("lateness_by") or {}:
        if name not in columns:
            raise _bad(f'option "lateness_by" names "{name}", which has no lateness')
    return Lateness(
        tuple(
            (name, _duration(text, f'the lateness of "{name}"')) for name, text in columns.items()
        ),
        tuple((options.get("lateness_by") or {}).items()),
        options.get("late", APPLIED),
        round((options.get("idle_timeout_s") or 0) * _SECOND),
        next(((n, _duration(t, f'the length of "{n}"')) for n, t in window.items()), None),
        is_final,
        None if retain is None else _duration(retain, 'option "retain"'),
    )


def with_lateness(plan: ViewPlan, query: str, lateness: Lateness, clock: Relation) -> ViewPlan:
    """Return the plan with its options about time. SqlError lateness.*.

    query: the user's, for positions. clock: the relation whose moves publish watermarks.
    """
    _require_no_recursion(plan.root, query, lateness)
    found = [_watched(plan.root, query, lateness, column, clock) for column in lateness.columns]
    relations = [late.input.relation.name for late in found if isinstance(late.input, Scan)]
    for name in relations:
        if relations.count(name) > 1:
            raise _bad(f'option "lateness" names two columns of "{name}"', hint="name one of them")
    by_relation = dict(zip(relations, found, strict=True))

    def visit(node: Plan, inputs: tuple[Plan, ...]) -> Plan:
        late = by_relation.get(node.relation.name) if isinstance(node, Scan) else None
        if late is None or not isinstance(node, Scan):
            return with_inputs(node, inputs)
        assert isinstance(late.input, Scan)
        positions = [late.input.columns.index(c) for c in node.columns]
        return Project(late, _refs(positions, node.fields), node.fields)

    root = fold(plan.root, visit)
    watermarks = tuple(late.watermark for late in found)
    if lateness.retain_us is not None:
        root = _retained(root, query, lateness, watermarks)
    if lateness.is_final:
        root = _final(root, query, lateness, watermarks)
    check_plan(root)
    warnings = plan.warnings
    if lateness.policy == DEAD_LETTER:
        warnings = (*warnings, "late rows are left out: see tidemark.late_rows for those missing")
    if lateness.retain_us is not None:
        warnings = (*warnings, "old windows are frozen: they no longer follow their tables")
    return replace(plan, root=root, warnings=warnings)


@lru_cache(maxsize=1024)
def depends_on_history(root: Plan) -> bool:
    """Return whether a plan's rows depend on the order in which its sources' rows came."""
    return any(isinstance(node, LateRows | FinalRows) for node in nodes_of(root))


def retained_of(root: Plan) -> RetainedAggregate | None:
    """Return the aggregate of a plan whose old groups are frozen; None if it has none."""
    return next((n for n in nodes_of(root) if isinstance(n, RetainedAggregate)), None)


def final_of(root: Plan) -> tuple[int, int] | None:
    """Return the column and length of the window by which a plan has final rows; None if none."""
    if not isinstance(root, FinalRows) or not isinstance(root.value, ColumnRef):
        return None
    return root.value.index, root.width_us


def window_of(options: Mapping[str, Any], names: Sequence[str]) -> tuple[int, int] | None:
    """Return the same from a view's options and the names of its columns."""
    lateness = lateness_of(options)
    if lateness is None or not (lateness.window and lateness.is_final):
        return None
    column, width_us = lateness.window
    return names.index(column), width_us


def _watched(
    root: Plan, query: str, lateness: Lateness, watched: tuple[str, int], clock: Relation
) -> LateRows:
    """Return the rows of a relation, watched for late ones, with all columns that the plan reads.

    watched: "table.column" or "schema.table.column", and its lateness in microseconds.
    """
    title, lateness_us = watched
    table, _, column = title.rpartition(".")
    scans = [scan for scan in scans_of(root) if _is_named(scan.relation, table)]
    if len({scan.relation.name for scan in scans}) != 1:
        raise SqlError(
            "lateness.unknown_column",
            f'option "lateness" names "{title}", which is not a column of a table in the query',
            detail="several tables have this name" if scans else "the query reads no such table",
            hint='write "table.column" or "schema.table.column" of a base table that it reads',
            position=find_words(query, ["from"]),
        )
    relation = scans[0].relation
    position = find_words(query, [relation.name.name])
    value = _column_at(relation, column, query)
    if relation.fields[value].type.kind not in _MOMENTS:
        raise SqlError(
            "lateness.bad_type",
            f'column "{title}" is {relation.fields[value].type.name}',
            hint="lateness needs a column of type timestamp, with or without time zone",
            position=position,
        )
    if not relation.key and not relation.is_append:
        raise SqlError(
            "lateness.needs_key",
            f'table "{relation.name}" has no key',
            detail="a new version of an old row cannot be distinguished from a late row",
            hint="add a primary key to the table, or leave out its lateness",
            position=position,
        )
    by = dict(lateness.by).get(title, PARTITION)
    names = [field.name for field in relation.fields]
    parts = [_column_at(relation, by, query)] if title in dict(lateness.by) or by in names else []
    key = () if relation.is_append else relation.key
    columns = sorted({value, *key, *(c for scan in scans for c in scan.columns)})
    watermark = Watermark(
        _scan(relation, [value, *parts]),
        _scan(clock, [_moving_column(clock)]),
        lateness_us,
        lateness.idle_us,
        title,
        (relation.fields[value],),
    )
    return LateRows(
        _scan(relation, columns),
        watermark,
        _refs([columns.index(value)], [relation.fields[value]])[0],
        tuple(columns.index(c) for c in key),
        lateness.policy,
        title,
    )


def _moving_column(clock: Relation) -> int:
    """Return the position of the column of a clock that moves."""
    return next(i for i, field in enumerate(clock.fields) if field.name == "at")


def _final(root: Plan, query: str, lateness: Lateness, watermarks: tuple[Plan, ...]) -> Plan:
    position, width_us = _window(root, query, lateness)
    field = root.fields[position]
    return FinalRows(root, watermarks, _refs([position], [field])[0], width_us)


def _retained(root: Plan, query: str, lateness: Lateness, watermarks: tuple[Plan, ...]) -> Plan:
    """Return the plan with the aggregate that makes the windows frozen in time."""
    position, width_us = _window(root, query, lateness)
    above: list[Project] = []
    node, at = root, position
    while isinstance(node, Project) and isinstance(column := node.expressions[at], ColumnRef):
        above.append(node)
        node, at = node.input, column.index
    found = find_words(query, ["group"]) or find_words(query, ["select"])
    if not isinstance(node, Aggregate) or at >= len(node.groups):
        raise SqlError(
            "lateness.not_retained",
            'option "retain" needs a view that groups by its window',
            detail=f'"{root.fields[position].name}" is no column by which it groups',
            hint="group by the window in the outermost query, without HAVING, LIMIT or windows",
            position=found,
        )
    if unable := [call for call in node.calls if call.is_distinct]:
        raise SqlError(
            "lateness.not_retained",
            f'option "retain" cannot free the state of "{unable[0].field.name}"',
            detail="distinct values are not found by their group",
            hint="leave DISTINCT out of the aggregate, or count in a view over one that groups",
            position=find_words(query, ["distinct"]) or found,
        )
    assert lateness.retain_us is not None and lateness.window is not None
    frozen: Plan = RetainedAggregate(
        node.input,
        node.groups,
        node.calls,
        node.fields,
        watermarks,
        at,
        width_us + lateness.retain_us,
        lateness.window[0],
    )
    for project in reversed(above):
        frozen = replace(project, input=frozen)
    return frozen


def _window(root: Plan, query: str, lateness: Lateness) -> tuple[int, int]:
    """Return the position of the view's column that begins a window, and the window's length."""
    assert lateness.window is not None
    column, width_us = lateness.window
    names = [field.name for field in root.fields]
    if column not in names:
        raise SqlError(
            "lateness.unknown_column",
            f'option "window" names "{column}", which is not a column of the view',
            hint=f"its columns are {', '.join(names)}",
            position=find_words(query, ["select"]),
        )
    field = root.fields[names.index(column)]
    if field.type.kind not in UNITS_US:
        raise SqlError(
            "lateness.bad_type",
            f'column "{column}" is {field.type.name}',
            hint="a window begins with a column of type date or timestamp",
            position=find_words(query, [column]) or find_words(query, ["select"]),
        )
    return names.index(column), width_us


def _require_no_recursion(root: Plan, query: str, lateness: Lateness) -> None:
    if any(isinstance(node, Recursive) for node in nodes_of(root)):
        raise SqlError(
            "lateness.recursive",
            f'the lateness of "{lateness.columns[0][0]}" cannot be watched in a recursive query',
            hint="aggregate in one view, and let a view without lateness recurse over it",
            position=find_words(query, ["recursive"]),
        )


def _is_named(relation: Relation, table: str) -> bool:
    name = relation.name
    return name.source != VIEW_SOURCE and table in (name.name, f"{name.schema}.{name.name}")


def _column_at(relation: Relation, column: str, query: str) -> int:
    for position, field in enumerate(relation.fields):
        if field.name == column:
            return position
    raise SqlError(
        "lateness.unknown_column",
        f'table "{relation.name}" has no column "{column}"',
        hint=f"its columns are {', '.join(field.name for field in relation.fields)}",
        position=find_words(query, [relation.name.name]),
    )


def _scan(relation: Relation, columns: Sequence[int]) -> Scan:
    return Scan(relation, tuple(columns), tuple(relation.fields[c] for c in columns))


def _refs(positions: Iterable[int], fields: Iterable[Field]) -> tuple[Expression, ...]:
    return tuple(ColumnRef(p, f.type, f.name) for p, f in zip(positions, fields, strict=True))


def _duration(text: str, what: str) -> int:
    """Return the microseconds of a text such as "1 hour 30 minutes". SqlError lateness.bad_option.

    >>> _duration("1 hour 30 minutes", "it")
    5400000000
    """
    total, rest = 0.0, text.strip().lower()
    while rest:
        found = _PART.match(rest)
        unit = found and (_UNITS.get(found[2]) or _UNITS.get(found[2].removesuffix("s")))
        if not found or not unit:
            raise _bad(
                f'{what} is "{text}"',
                hint='write numbers with units from "ms" to "weeks", as in "1 hour 30 minutes"',
            )
        total += float(found[1]) * unit
        rest = rest[found.end() :].strip()
    if not text.strip() or total > _MAX_US:
        raise _bad(f'{what} is "{text}"', hint="give a duration of at most 36,500 days")
    return round(total)


def _bad(what: str, hint: str = "see docs/TIME.md") -> SqlError:
    return SqlError("lateness.bad_option", what, hint=hint)
