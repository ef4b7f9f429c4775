"""GROUPING SETS, ROLLUP and CUBE, and the function GROUPING.

GROUP BY is a list of sets of keys: an item that is a plain expression is one set, the others are
several, and the list is their cross product. Each set is one Aggregate over the same input; their
union has NULL for the keys that a set lacks. Equal sets are stored, unless GROUP BY DISTINCT.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, product

from sqlglot import exp

from dataflow.expressions.ir import ColumnRef, Expression, Literal
from dataflow.lexer import on_one_line
from dataflow.plan.nodes import Aggregate, Plan, Project, UnionAll
from dataflow.schema import Field
from dataflow.sql.bind.call_levels import is_grouping_call, own_calls
from dataflow.sql.bind.grouping import Grouping
from dataflow.sql.bind.scope import Context, GroupScope, Scope, edited
from dataflow.sql.bind.whole_rows import names_whole_row
from dataflow.sql.parse.shapes import bare, is_row, row_parts, span_of
from dataflow.types import INT4

Sets = list[tuple[str, ...]]
_SEVERAL = (exp.GroupingSets, exp.Rollup, exp.Cube)


def bind_grouping(
    context: Context, grouping: Grouping, group: exp.Group | None, above: Sequence[exp.Expr]
) -> GroupScope:
    """Return the scope after GROUP BY for the expressions `above`, with any sets."""
    items = [p for i in (group.expressions if group is not None else []) for p in _parts(i)]
    calls = _own_calls(context, grouping.scope, above)
    if not calls and not any(isinstance(i, (*_SEVERAL, exp.Tuple)) for i in items):
        return grouping.bind(items, above)
    keys: dict[str, exp.Expr] = {}
    sets = [tuple(dict.fromkeys(sum(parts, ()))) for parts in _product(context, items, keys)]
    if group is not None and group.args.get("all") is False:
        sets = list({frozenset(s): s for s in reversed(sets)}.values())[::-1]
    whole = grouping.bind(list(keys.values()), above)
    assert isinstance(whole.plan, Aggregate)
    names = list(keys)
    known = {_form(context, grouping.scope, node): text for text, node in keys.items()}
    marks = [
        [known[_form(context, grouping.scope, bare(a))] for a in call.expressions]
        for call in calls.values()
    ]
    branches = [_branch(whole.plan, names, frozenset(s), marks) for s in sets]
    width = len(whole.plan.fields)
    added = {text: width + i for i, text in enumerate(calls)}
    return whole.over(_union(branches), added)


def group_keys(items: Sequence[exp.Expr]) -> list[exp.Expr]:
    """Return all key expressions of a GROUP BY, those inside its sets included."""
    several = (*_SEVERAL, exp.Tuple)
    return [
        key
        for item in items
        for key in (group_keys(item.expressions) if isinstance(item, several) else _parts(item))
    ]


def _parts(item: exp.Expr) -> list[exp.Expr]:
    """Return the columns of a row as separate keys: rows are equal where these are."""
    return row_parts(item) if is_row(bare(item)) else [item]


def _own_calls(context: Context, scope: Scope, above: Sequence[exp.Expr]) -> dict[str, exp.Expr]:
    """Return the calls of GROUPING over a block's keys by their text, those in subqueries
    included."""
    found: dict[str, exp.Expr] = {}
    for call in own_calls(context, scope, above, is_grouping_call):
        found.setdefault(context.text_of(call), call)
    return found


def _form(context: Context, scope: Scope, node: exp.Expr) -> str:
    """Return the text of a key without the names of its columns: subqueries may write others."""
    begin, end = span_of(node)
    edits = [
        (*span_of(column), f"${scope.find(column.table, column.name, '')}")
        for column in node.find_all(exp.Column)
        if not names_whole_row(column)
    ]
    return on_one_line(edited(context.text, begin, end, edits))


def _product(
    context: Context, items: Sequence[exp.Expr], keys: dict[str, exp.Expr]
) -> list[tuple[tuple[str, ...], ...]]:
    """Return every choice of one set for each item; add all key expressions to `keys` by their
    text."""
    return list(product(*(_sets_of(context, item, keys) for item in items)))


def _sets_of(context: Context, item: exp.Expr, keys: dict[str, exp.Expr]) -> Sets:
    """Return the sets that one item of GROUP BY stands for."""
    if isinstance(item, exp.GroupingSets):
        return [s for part in item.expressions for s in _sets_of(context, part, keys)]
    parts = [_columns(context, part, keys) for part in item.expressions]
    if isinstance(item, exp.Rollup):
        return [sum(parts[:n], ()) for n in range(len(parts), -1, -1)]
    if isinstance(item, exp.Cube):
        sizes = range(len(parts), -1, -1)
        return [sum(chosen, ()) for n in sizes for chosen in combinations(parts, n)]
    return [_columns(context, item, keys)]


def _columns(context: Context, item: exp.Expr, keys: dict[str, exp.Expr]) -> tuple[str, ...]:
    """Return the keys of one set: an expression, or several in parentheses."""
    nodes = item.expressions if isinstance(item, exp.Tuple) else [item]
    texts = []
    for node in nodes:
        texts.append(context.text_of(bare(node)))
        keys.setdefault(texts[-1], bare(node))
    return tuple(texts)


def _branch(
    whole: Aggregate, names: Sequence[str], chosen: frozenset[str], marks: Sequence[Sequence[str]]
) -> Plan:
    """Return one set: the columns of `whole`, NULL for the keys that are not chosen, then the
    GROUPING bits.

    Keys grouped after the named ones are determined by keys that every set has.
    """
    missing = {i for i, name in enumerate(names) if name not in chosen}
    retained = [i for i in range(len(whole.groups)) if i not in missing]
    first_call = len(whole.groups)
    fields = tuple(whole.fields[i] for i in retained) + whole.fields[first_call:]
    groups = tuple(whole.groups[i] for i in retained)
    grouped = Aggregate(whole.input, groups, whole.calls, fields)
    positions = {
        old: new for new, old in enumerate([*retained, *range(first_call, len(whole.fields))])
    }
    shown: list[Expression] = []
    shown_fields: list[Field] = []
    for i, field in enumerate(whole.fields):
        if i in missing:
            shown.append(Literal(None, field.type))
        else:
            shown.append(ColumnRef(positions[i], field.type, field.name))
        shown_fields.append(Field(field.name, field.type, field.is_nullable or i in missing))
    for mark in marks:
        bits = "".join("0" if name in chosen else "1" for name in mark)
        shown.append(Literal(str(int(bits, 2)), INT4))
        shown_fields.append(Field("grouping", INT4, False))
    return Project(grouped, tuple(shown), tuple(shown_fields))


def _union(branches: Sequence[Plan]) -> Plan:
    if len(branches) == 1:
        return branches[0]
    fields = tuple(
        Field(f.name, f.type, any(b.fields[i].is_nullable for b in branches))
        for i, f in enumerate(branches[0].fields)
    )
    return UnionAll(tuple(branches), fields)
