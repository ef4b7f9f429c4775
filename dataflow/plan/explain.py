"""A plan as a text tree and as JSON, and the parts that PostgreSQL computes.

Columns are shown by name, so the text may be ambiguous; it is for reading and tests, and is never
parsed. A node with several readers is shown whole at the first of them.
"""

from __future__ import annotations

from typing import Any, assert_never

from dataflow.expressions.ir import (
    ColumnRef,
    Expression,
    InPostgres,
    Literal,
    OuterRef,
    children,
    links_of,
)
from dataflow.expressions.sql_text import with_arguments
from dataflow.plan.aggregate_functions import aggregate_function
from dataflow.plan.nodes import (
    Aggregate,
    AggregateCall,
    Apply,
    AsOfJoin,
    Distinct,
    Filter,
    FinalRows,
    Frame,
    Join,
    LateRows,
    Loop,
    Plan,
    Project,
    RecursionRef,
    Recursive,
    Remember,
    Scan,
    SemiJoin,
    SetOperation,
    Shard,
    SingleRow,
    SortKey,
    TableFunction,
    ThresholdFilter,
    ThresholdFlag,
    TopK,
    UnionAll,
    Values,
    ViewPlan,
    Watermark,
    Window,
    WindowCall,
    inputs_of,
)
from dataflow.plan.properties.view_key import reason_without_key
from dataflow.plan.set_functions import SERIES, series_of
from dataflow.plan.walk import shared_nodes
from dataflow.plan.window_functions import is_native
from dataflow.schema import Field

_INFIX = {"+", "-", "*", "/", "%", "^", "||", "=", "<>", "<", ">", "<=", ">=", "and", "or"}
_INFIX |= {"like", "not like", "ilike", "not ilike", "is distinct from", "is not distinct from"}


def explain_text(plan: Plan | ViewPlan) -> str:
    """Return one line per node, inputs indented below it."""
    root = plan.root if isinstance(plan, ViewPlan) else plan
    shared = shared_nodes(root)
    shown: dict[int, int] = {}
    lines: list[str] = []

    def show(node: Plan, depth: int) -> None:
        line = "  " * depth + describe(node)
        if id(node) in shared and inputs_of(node):
            if id(node) in shown:
                lines.append(f"{line} (as #{shown[id(node)]})")
                return
            shown[id(node)] = len(shown) + 1
            line += f" (#{shown[id(node)]})"
        lines.append(line)
        for below in inputs_of(node):
            show(below, depth + 1)

    show(root, 0)
    return "\n".join(lines)


def explain_tree(plan: Plan | ViewPlan) -> dict[str, Any]:
    """Return the plan as nested dictionaries of strings, ready for JSON.

    A node with several readers has a number under "shared", and its inputs only once.
    """
    if isinstance(plan, ViewPlan):
        names = [plan.root.fields[i].name for i in plan.key]
        why_no_key = reason_without_key(plan.root)
        return {
            "key": names,
            "why_no_key": why_no_key,
            # The earlier name, for one release.
            "why_bag": why_no_key,
            "warnings": list(plan.warnings),
            "in_postgres": list(plan.evaluates),
            "plan": explain_tree(plan.root),
        }
    return _Tree(plan).of(plan)


class _Tree:
    """The nested form of one plan."""

    def __init__(self, root: Plan) -> None:
        self._shared = shared_nodes(root)
        self._numbers: dict[int, int] = {}

    def of(self, plan: Plan) -> dict[str, Any]:
        """Return a node with its inputs."""
        found = {
            "node": type(plan).__name__,
            "detail": describe(plan),
            "fields": [
                {"name": f.name, "type": f.type.name, "null": f.is_nullable} for f in plan.fields
            ],
            "in_postgres": [e.sql for e in in_postgres(plan)],
            "inputs": [],
        }
        is_again = id(plan) in self._numbers
        if id(plan) in self._shared and inputs_of(plan):
            self._numbers.setdefault(id(plan), len(self._numbers) + 1)
            found["shared"] = self._numbers[id(plan)]
        if not is_again:
            found["inputs"] = [self.of(i) for i in inputs_of(plan)]
        return found


def expression_text(expression: Expression, fields: tuple[Field, ...]) -> str:
    """Return an expression over columns with these fields, as the plan's text has it."""
    return _text(expression, fields)


def evaluated_in_postgres(plan: Plan) -> tuple[str, ...]:
    """Return the SQL of every distinct subtree that PostgreSQL computes, in the order of the
    tree."""
    found: dict[str, None] = {}
    visited: set[int] = set()

    def visit(node: Plan) -> None:
        if id(node) in visited:
            return
        visited.add(id(node))
        found.update(dict.fromkeys(e.sql for e in in_postgres(node)))
        if isinstance(node, TableFunction) and series_of(node) is None:
            found.update(dict.fromkeys(c.sql for c in node.calls))
        for below in inputs_of(node):
            visit(below)

    visit(plan)
    return tuple(found)


def describe(plan: Plan) -> str:
    """Return one node without its inputs."""
    if isinstance(plan, Scan):
        name = plan.relation.name
        columns = ", ".join(f.name for f in plan.fields)
        return f"scan {name.source}:{name} ({columns})"
    if isinstance(plan, Values):
        return f"values {len(plan.rows)} rows"
    if isinstance(plan, Filter):
        return f"filter {_text(plan.predicate, plan.input.fields)}"
    if isinstance(plan, ThresholdFilter):
        name = plan.threshold.fields[0].name
        kind = "flag" if isinstance(plan, ThresholdFlag) else "filter"
        return f"threshold {kind} {_text(plan.value, plan.input.fields)} {plan.operator} {name}"
    if isinstance(plan, Watermark):
        return f"watermark of {plan.title}"
    if isinstance(plan, LateRows):
        return f"late rows of {plan.title}: {plan.policy}"
    if isinstance(plan, FinalRows):
        return f"final rows by {_text(plan.value, plan.input.fields)}"
    if isinstance(plan, Project):
        shown = (
            f"{_text(e, plan.input.fields)} as {f.name}"
            for e, f in zip(plan.expressions, plan.fields, strict=True)
        )
        return f"project {', '.join(shown)}"
    if isinstance(plan, Remember):
        retained = ", ".join(_text(e, plan.input.fields) for e in plan.expressions)
        return f"remember {retained}" + " by its arguments" * plan.by_arguments
    if isinstance(plan, Join | SemiJoin):
        return _join(plan)
    if isinstance(plan, AsOfJoin):
        return _as_of_join(plan)
    if isinstance(plan, Aggregate):
        groups = ", ".join(_text(g, plan.input.fields) for g in plan.groups)
        calls = ", ".join(_call(c, plan.input.fields) for c in plan.calls)
        return f"aggregate by ({groups}): {calls}"
    if isinstance(plan, Window):
        return _window(plan)
    if isinstance(plan, UnionAll):
        return "union all"
    if isinstance(plan, SetOperation):
        return plan.kind + (" all" if plan.is_all else "")
    if isinstance(plan, Recursive):
        return f"recursive {plan.name}, union" + ("" if plan.is_distinct else " all")
    if isinstance(plan, RecursionRef):
        return f"rows of the last round of {plan.name}"
    if isinstance(plan, TableFunction):
        return _table_function(plan)
    if isinstance(plan, TopK):
        return _top_k(plan)
    if isinstance(plan, Shard):
        return f"number of {plan.count} shards"
    return _describe_rest(plan)


def _describe_rest(plan: Distinct | SingleRow | Apply | Loop) -> str:
    """Return the text of a node that is said in a word; pyright refuses a kind without one."""
    if isinstance(plan, Loop):
        return f"recursive {plan.name}"
    if isinstance(plan, Distinct):
        return "distinct"
    if isinstance(plan, SingleRow):
        return "single row"
    if isinstance(plan, Apply):
        return "apply"
    assert_never(plan)


def _top_k(plan: TopK) -> str:
    fields = plan.input.fields
    text = "top" + ("" if plan.limit is None else f" {plan.limit}") + " with ties" * plan.with_ties
    text += f" after {plan.offset}" if plan.offset else ""
    if plan.partition:
        text += f" by ({', '.join(_text(e, fields) for e in plan.partition)})"
    return f"{text} order ({_order(plan.order, fields)})" if plan.order else text


def _order(order: tuple[SortKey, ...], fields: tuple[Field, ...]) -> str:
    return ", ".join(_text(k.expression, fields) + _direction(k) for k in order)


def _join(plan: Join | SemiJoin) -> str:
    left, right = plan.left.fields, plan.right.fields
    keys = _keys(plan)
    kind = plan.kind if plan.bounds is None else f"{plan.kind} interval"
    text = f"{kind} join" + (f" on {keys}" if keys else " without keys")
    return text + (f" where {_text(plan.residual, left + right)}" if plan.residual else "")


def _keys(plan: Join | SemiJoin | AsOfJoin) -> str:
    left, right = plan.left.fields, plan.right.fields
    return " and ".join(
        f"{_text(a, left)} = {_text(b, right)}"
        for a, b in zip(plan.left_keys, plan.right_keys, strict=True)
    )


def _as_of_join(plan: AsOfJoin) -> str:
    left, right = plan.left.fields, plan.right.fields
    keys = _keys(plan)
    value = _text(plan.order[0].expression, right)
    text = f"{plan.kind} as-of join" + (f" on {keys}" if keys else " without keys")
    text += f" where {value} {plan.operator} {_text(plan.value, left)}"
    return f"{text} order ({_order(plan.order, right)})"


def _table_function(plan: TableFunction) -> str:
    fields = plan.input.fields
    calls = ", ".join(
        f"{c.sql}({', '.join(_text(a, fields) for a in c.arguments)})" for c in plan.calls
    )
    series = series_of(plan)
    if series is not None:
        calls = f"{SERIES}({', '.join(_text(a, fields) for a in series.arguments)})"
    text = f"{'left ' if plan.is_outer else ''}table function {calls}"
    text += " with ordinality" if plan.has_ordinality else ""
    return text + (f" on {_text(plan.condition, plan.fields)}" if plan.condition else "")


def _call(call: AggregateCall, fields: tuple[Field, ...]) -> str:
    if call.sql:
        shown = with_arguments(call.sql, lambda i: _text(call.arguments[i - 1], fields))
        condition = f" filter {_text(call.filter, fields)}" if call.filter else ""
        return f"{shown}{condition} recomputed in PostgreSQL"
    operands = (call.argument,) if call.argument is not None else call.arguments
    argument = ", ".join(_text(e, fields) for e in operands) or "*"
    if aggregate_function(call.function).keeps == "order":
        argument = f"{call.fraction} of {argument}{' descending' * call.is_descending}"
    distinct = "distinct " if call.is_distinct else ""
    condition = f" filter {_text(call.filter, fields)}" if call.filter else ""
    return f"{call.function}({distinct}{argument}){condition}"


def _window(plan: Window) -> str:
    fields = plan.input.fields
    partition = ", ".join(_text(e, fields) for e in plan.partition)
    order = _order(plan.order, fields)
    calls = ", ".join(_window_call(c, fields) for c in plan.calls)
    return f"window by ({partition}) order ({order}): {calls}"


def _direction(key: SortKey) -> str:
    """Return how a part of ORDER BY differs from ascending with NULLs last."""
    using = f" using {key.operator}" if key.operator else ""
    return using + " desc" * key.is_descending + " nulls first" * key.nulls_first


def _window_call(call: WindowCall, fields: tuple[Field, ...]) -> str:
    arguments = ", ".join(_text(a, fields) for a in call.arguments)
    text = f"{call.function}({'*' if call.sql.endswith('(*)') else arguments})"
    if call.filter is not None:
        text += f" filter {_text(call.filter, fields)}"
    frame = call.frame
    if frame == Frame():
        return text
    bounds = " to ".join(
        f"{b.distance.text} {b.kind}" if b.distance else b.kind for b in (frame.start, frame.end)
    )
    excluded = f" without {frame.exclude}" if frame.exclude else ""
    return f"{text} {frame.mode} {bounds}{excluded}"


def _text(expression: Expression, fields: tuple[Field, ...]) -> str:
    if isinstance(expression, ColumnRef):
        return fields[expression.index].name
    if isinstance(expression, OuterRef):
        return f"outer {expression.name}"
    if isinstance(expression, Literal):
        return "null" if expression.text is None else f"'{expression.text}'"
    parts = [_text(a, fields) for a in expression.arguments]
    if isinstance(expression, InPostgres):
        return f"postgres[{expression.sql}]({', '.join(parts)})"
    if expression.function in _INFIX and len(parts) > 1:
        return "(" + f" {expression.function} ".join(parts) + ")"
    if links := links_of(expression.function):
        steps = [f" {link} {part}" for link, part in zip(links, parts[1:], strict=True)]
        return f"({parts[0]}{''.join(steps)})"
    if expression.function == "cast":
        return f"{parts[0]}::{expression.type.name}"
    if expression.function.startswith("is "):
        return f"({parts[0]} {expression.function})"
    return f"{expression.function}({', '.join(parts)})"


def in_postgres(plan: Plan) -> list[InPostgres]:
    """Return the expressions of one node that PostgreSQL computes, aggregate calls included."""
    found = [found for e in expressions_of(plan) for found in _within(e)]
    if isinstance(plan, Aggregate):
        found += [InPostgres(c.sql, c.arguments, c.field.type) for c in plan.calls if c.sql]
    if isinstance(plan, Window):
        calls = [c for c in plan.calls if not is_native(c)]
        found += [InPostgres(c.sql, c.arguments, c.field.type) for c in calls]
    return found


def _within(expression: Expression) -> list[InPostgres]:
    if isinstance(expression, InPostgres):
        return [expression]
    return [found for child in children(expression) for found in _within(child)]


def expressions_of(plan: Plan) -> tuple[Expression, ...]:
    """Return the expressions that a node itself computes."""
    if isinstance(plan, Filter):
        return (plan.predicate,)
    if isinstance(plan, ThresholdFilter | LateRows | FinalRows):
        return (plan.value,)
    if isinstance(plan, Project | Remember):
        return plan.expressions
    if isinstance(plan, Join | SemiJoin):
        residual = (plan.residual,) if plan.residual is not None else ()
        return (*plan.left_keys, *plan.right_keys, *residual)
    if isinstance(plan, AsOfJoin):
        order = (k.expression for k in plan.order)
        return (*plan.left_keys, *plan.right_keys, plan.value, *order)
    if isinstance(plan, Aggregate):
        return (*plan.groups, *(e for c in plan.calls for e in c.operands))
    if isinstance(plan, TableFunction):
        condition = (plan.condition,) if plan.condition is not None else ()
        return (*(a for c in plan.calls for a in c.arguments), *condition)
    if isinstance(plan, Window):
        calls = (e for c in plan.calls for e in c.operands)
        return (*plan.partition, *(k.expression for k in plan.order), *calls)
    if isinstance(plan, TopK):
        return (*plan.partition, *(k.expression for k in plan.order))
    return ()
