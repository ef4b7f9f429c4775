"""Set-returning functions: entries of FROM, and calls in a select list or GROUP BY.

In FROM a function may read every entry before it. Elsewhere PostgreSQL's planner
(grouping_planner in planner.c) computes them in up to four steps, each before what needs its
columns: keys of GROUP BY, keys of windows, then the select list with ORDER BY and DISTINCT. With
DISTINCT ON and ORDER BY the select list comes last if no such key returns a set. The expressions of
one step are computed together: the longest one determines the number of rows, and PostgreSQL pads
and nests them. A later step takes what an earlier one has computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from sqlglot import exp

from dataflow.errors import SqlError
from dataflow.expressions.ir import Expression
from dataflow.operators.table_function import rows_from
from dataflow.plan.nodes import SetCall, TableFunction
from dataflow.plan.set_functions import SERIES, has_series_kernel
from dataflow.plan.trees import in_postgres
from dataflow.schema import Field
from dataflow.sql.bind.routines import is_stable
from dataflow.sql.bind.scalars import Scalars, operands
from dataflow.sql.bind.scope import Context, FromEntry, RowShape, Scope, Visible
from dataflow.sql.bind.whole_rows import name_beside
from dataflow.sql.bind.window_shapes import window_of
from dataflow.sql.parse.parse_functions import RowsOf, TableSyntax
from dataflow.sql.parse.shapes import bare, is_value
from dataflow.types import INT8

Atom = Callable[[exp.Expr], Expression | None]
# One call, never NULL, since a series of NULL arguments is empty.
_NEVER_NULL = (SERIES, "generate_subscripts")


def bind_rows_of(
    context: Context, scope: Scope, left: FromEntry, node: RowsOf, atom: Atom, *, is_row: bool
) -> FromEntry:
    """Bind an entry of FROM that calls functions, beside the entry before it, whose names they see.

    is_row: its whole row is used; then the ordinality distinguishes it from padding.
    """
    scalars = Scalars(context, atom)
    parts = [part for called in node.expressions for part in _parts(called)]
    scalars.resolve([call for call, _ in parts])
    _pin(context, scalars, [call for call, _ in parts])
    series = _series(context, scalars, parts)
    calls = [_call_in_from(context, scalars, call, tail) for call, tail in parts]
    if series is not None:
        calls = [replace(series, fields=calls[0].fields)]
    alias = node.args["alias"]
    names = [column.name for column in alias.args.get("columns") or []]
    # Side by side, shorter ones are padded with NULLs.
    is_padded = len(calls) > 1
    made = [Field(f.name, f.type, is_padded or f.is_nullable) for c in calls for f in c.fields]
    is_counted = bool(node.args["ordinality"])
    is_syntax = isinstance(node.expressions[0].this, TableSyntax)
    has_ordinality = is_counted or (is_row and not is_syntax)
    if has_ordinality:
        made.append(Field("ordinality", INT8, False))
    names += [f.name for f in made[len(names) :]]
    fields = tuple(Field(n, f.type, f.is_nullable) for n, f in zip(names, made, strict=True))
    below = scope.plan
    plan = TableFunction(below, tuple(calls), has_ordinality, False, below.fields + fields)
    star = tuple((name, len(below.fields) + i) for i, name in enumerate(names))
    star = star if is_counted else star[: sum(c.width for c in calls)]
    row = None
    if is_row and has_ordinality:
        is_typed = len(calls) == 1 and not is_counted and not parts[0][1]
        named = name_beside(f.name for f in calls[0].fields)
        type_name = _row_type(context, scalars, parts[0][0], named) if is_typed else ""
        row = RowShape(type_name, len(plan.fields) - 1)
    return FromEntry(plan, (*left.visible, Visible(alias.name, star, row)), left.star + star)


def _row_type(context: Context, scalars: Scalars, node: exp.Expr, name: str) -> str:
    """Return the named type of a function's rows; "" for a record."""
    probe = f"(SELECT {name} FROM {rows_from([scalars.probe(node)])} AS {name})"
    try:
        (found,) = context.analyzer.types([c.type for c in scalars.columns], [probe])
    except SqlError:
        return ""
    return found.name


def _parts(called: exp.Expr) -> list[tuple[exp.Expr, str]]:
    """Return the calls of an entry, each with the text of its column definitions.

    UNNEST(a, b) is how PostgreSQL prints unnest(a) beside unnest(b).
    """
    call, definitions = called.this, called.args["definitions"]
    if isinstance(call, exp.Anonymous) and call.name == "UNNEST":
        return [(argument, "unnest") for argument in call.expressions]
    return [(call, f" AS {definitions}" if definitions else "")]


def _call_in_from(context: Context, scalars: Scalars, node: exp.Expr, tail: str) -> SetCall:
    sql, columns = scalars.over_columns(node)
    probe = scalars.probe(node)
    if tail == "unnest":
        sql, probe, tail = f"unnest({sql})", f"unnest({probe})", ""
    found = context.analyzer.columns([c.type for c in scalars.columns], rows_from([probe + tail]))
    is_series = isinstance(node, exp.Anonymous) and node.name in _NEVER_NULL
    fields = tuple(Field(f.name, f.type, not is_series) for f in found)
    return SetCall(sql + tail, columns, fields, len(fields), tuple(range(len(fields))))


def _series(
    context: Context, scalars: Scalars, parts: Sequence[tuple[exp.Expr, str]]
) -> SetCall | None:
    """Return the only call if it is a series that has a kernel, its arguments computed natively;
    None for others."""
    (node, tail), *others = parts
    if others or tail or not isinstance(node, exp.Anonymous) or node.name != SERIES:
        return None
    if any(holds_sets(context, o) or isinstance(o, exp.Variadic) for o in node.expressions):
        return None
    if not scalars.over_columns(node)[1]:
        # The rows of constants are made once.
        return None
    arguments = scalars.bind(node.expressions)
    if any(map(in_postgres, arguments)) or not has_series_kernel([a.type for a in arguments]):
        return None
    slots = ", ".join(f"${i}" for i in range(1, len(arguments) + 1))
    value = Field("set", arguments[0].type)
    return SetCall(f"{SERIES}({slots})", tuple(arguments), (value,), 1, (0,))


def _pin(context: Context, scalars: Scalars, nodes: Sequence[exp.Expr]) -> None:
    """Pin stable subtrees in calls of set-returning functions: computed once if they read no
    column.

    nodes: the nodes that contain them. Refuse a subtree that cannot be pinned.
    """
    if not context.has_stable:
        return
    waiting, parts = [o for node in nodes for o in operands(node)], []
    while waiting:
        node = waiting.pop()
        if holds_sets(context, node) or not is_value(node):
            waiting += operands(node)
        else:
            parts.append(node)
    scalars.learn(parts)
    types = [c.type for c in scalars.columns]
    for node in nodes:
        text = scalars.render(node, scalars.probed)
        routines = () if isinstance(node, TableSyntax) else context.analyzer.routines(types, text)
        for routine in filter(is_stable, routines):
            raise context.refuse(
                f'"{routine.name}" in a function that returns a set is not maintained: it is '
                "stable, so it may return other rows when they are deleted",
                "compute it in a subquery in FROM, or declare the function IMMUTABLE",
                routine.name.split(".")[-1],
            )


def holds_sets(context: Context, node: exp.Expr) -> bool:
    """Return whether a set-returning function is called in an expression, subqueries aside."""
    if isinstance(node, exp.Query):
        return False
    return context.returns_set(node) or any(holds_sets(context, o) for o in operands(node))


def set_call_of(context: Context, scope: Scope, node: exp.Expr) -> exp.Expr | None:
    """Return the first set-returning function below a node that is not yet a column of the
    scope.

    Those among the keys of a window are columns of its input.
    """
    if isinstance(node, exp.Query | exp.Subquery) or window_of(node) is not None:
        return None
    if "span" in node.meta and scope.knows(context.text_of(bare(node))):
        return None
    if context.returns_set(node):
        return node
    for child in operands(node):
        found = set_call_of(context, scope, child)
        if found is not None:
            return found
    return None


def add_set_calls(
    context: Context,
    scope: Scope,
    nodes: Sequence[exp.Expr],
    atom: Atom,
    *,
    has_ordinality: bool = False,
) -> Expression | None:
    """Add nodes with set-returning functions as columns of the scope: they run in parallel.

    From then on such a node, without parentheses around it, is found by its text. Return the number
    of each row among those made of its input row, if it is requested and there are any.
    """
    held = {}
    for node in nodes:
        inner = bare(node)
        if set_call_of(context, scope, inner) is not None:
            held.setdefault(context.text_of(inner), inner)
    if not held:
        return None
    scalars = Scalars(context, atom)
    scalars.resolve(list(held.values()))
    _pin(context, scalars, list(held.values()))
    types = context.analyzer.types(
        [c.type for c in scalars.columns], [scalars.probe(n) for n in held.values()]
    )
    calls = []
    for node, type in zip(held.values(), types, strict=True):
        sql, columns = scalars.over_columns(node)
        calls.append(SetCall(sql, columns, (Field("set", type),), 1, (0,)))
    series = _series(context, scalars, [(node, "") for node in held.values()])
    if series is not None:
        calls = [series]
    below = scope.plan
    fields = below.fields + tuple(f for c in calls for f in c.fields)
    if has_ordinality:
        fields += (Field("ordinality", INT8, False),)
    plan = TableFunction(below, tuple(calls), has_ordinality, False, fields, in_select=True)
    scope.extend(plan, list(held), beside=int(has_ordinality))
    return scope.column(len(fields) - 1) if has_ordinality else None


def bind_selected(
    context: Context,
    scope: Scope,
    nodes: Sequence[exp.Expr],
    others: Sequence[exp.Expr],
    atom: Atom,
    *,
    has_ordinality: bool = False,
) -> tuple[list[Expression], Expression | None]:
    """Bind the select list. others: expressions of ORDER BY and DISTINCT ON that may add
    set-returning functions. Return with it the number that add_set_calls returns.

    Expressions without such a function are bound first: windows are computed below.
    """
    plain = [n for n in nodes if set_call_of(context, scope, bare(n)) is None]
    bound = dict(zip(map(id, plain), Scalars(context, atom).bind(plain), strict=True))
    number = add_set_calls(context, scope, [*nodes, *others], atom, has_ordinality=has_ordinality)
    rest = [n for n in nodes if id(n) not in bound]
    bound |= dict(zip(map(id, rest), Scalars(context, atom).bind(rest), strict=True))
    return [bound[id(n)] for n in nodes], number
