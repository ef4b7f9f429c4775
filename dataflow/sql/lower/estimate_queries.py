"""The nodes of a dataflow as queries, for PostgreSQL's planner to estimate: never to be run.

A node's query has columns c0, c1 ... for its fields. It is simplified for estimates: windows have
no values, recursions one round. Invariant: a node without a query is None, and so is every node
above it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

from dataflow.expressions.ir import (
    Call,
    ColumnRef,
    Expression,
    InPostgres,
    Literal,
    links_of,
)
from dataflow.expressions.sql_text import with_arguments
from dataflow.expressions.time_zones import ADD, INSTANT, SUBTRACT
from dataflow.plan.nodes import (
    Aggregate,
    Apply,
    AsOfJoin,
    Distinct,
    Filter,
    FinalRows,
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
    TableFunction,
    ThresholdFilter,
    ThresholdFlag,
    TopK,
    UnionAll,
    Values,
    Watermark,
    Window,
)
from dataflow.schema import Field, Relation
from dataflow.sql.lower.lowering import Node
from dataflow.types import SqlType

# The placeholder of a relation outside the database, by its number of rows.
AssumedRows = Callable[[Relation], int | None]
_INFIX = {"+", "-", "*", "/", "%", "^", "||", "=", "<>", "<", ">", "<=", ">="}
_INFIX |= {"like", "not like", "ilike", "not ilike", "is distinct from", "is not distinct from"}
_LONGEST = 100_000
_ELEMENTS = 10


def queries_of(nodes: Sequence[Node], assumed_rows: AssumedRows) -> list[str | None]:
    """Return the query of each node. assumed_rows: the number of rows of a relation that PostgreSQL
    lacks; None for its own relations.
    """
    found: list[str | None] = []
    for node in nodes:
        inputs = [found[i] for i in node.inputs]
        query = None if None in inputs else _query(node, [q for q in inputs if q], assumed_rows)
        found.append(query if query is not None and len(query) < _LONGEST else None)
    return found


def groups_query(query: str, expressions: Sequence[Expression]) -> str:
    """Return a query with one row for each group of a node's rows."""
    shown = ", ".join(f"{_text(e, 'i')} AS g{n}" for n, e in enumerate(expressions))
    return f"SELECT DISTINCT {shown} FROM ({query}) i"


def predicate_query(scan: Scan, predicate: Expression, percent: float) -> str:
    """Return a query for the number of sampled rows, and of those for which the predicate is
    true."""
    name = scan.relation.name
    table = f"{_quoted(name.schema)}.{_quoted(name.name)} TABLESAMPLE SYSTEM ({percent:g})"
    rows = f"SELECT {_columns(scan)} FROM {table}"
    met = f"count(*) FILTER (WHERE {_text(predicate, 'i')})"
    return f"SELECT count(*) AS read, {met} AS met FROM ({rows}) i"


def _query(node: Node, inputs: Sequence[str], assumed_rows: AssumedRows) -> str | None:
    plan = node.plan
    if isinstance(plan, Scan):
        return _scan(plan, assumed_rows)
    if isinstance(plan, Values):
        return _values(plan)
    if isinstance(plan, Filter):
        return f"SELECT * FROM ({inputs[0]}) i WHERE {_text(plan.predicate, 'i')}"
    if isinstance(plan, ThresholdFilter):
        one = f"(SELECT min(t.c0) FROM ({inputs[1]}) t)"
        condition = f"{_text(plan.value, 'i')} {plan.operator} {one}"
        if isinstance(plan, ThresholdFlag):
            cell = f"c{len(plan.input.fields)}"
            return f"SELECT i.*, ({condition}) AS {cell} FROM ({inputs[0]}) i"
        return f"SELECT * FROM ({inputs[0]}) i WHERE {condition}"
    if isinstance(plan, Watermark):
        return f"SELECT max(i.c0) AS c0 FROM ({inputs[0]}) i"
    if isinstance(plan, LateRows | FinalRows):
        return inputs[0]
    if isinstance(plan, Project):
        return f"SELECT {_shown(plan.expressions)} FROM ({inputs[0]}) i"
    if isinstance(plan, Join | SemiJoin):
        return _join(plan, inputs)
    if isinstance(plan, AsOfJoin):
        return _as_of_join(plan, inputs)
    if isinstance(plan, Aggregate):
        return _aggregate(plan, inputs[0])
    if isinstance(plan, Distinct):
        return f"SELECT DISTINCT * FROM ({inputs[0]}) i"
    if isinstance(plan, UnionAll):
        return " UNION ALL ".join(f"(SELECT * FROM ({q}) i)" for q in inputs)
    if isinstance(plan, SingleRow):
        return f"SELECT * FROM ({inputs[0]}) i LIMIT 1"
    if isinstance(plan, Shard):
        return f"SELECT i.*, 0::bigint AS c{len(plan.input.fields)} FROM ({inputs[0]}) i"
    if isinstance(plan, TopK):
        return _top_k(plan, inputs[0])
    if isinstance(plan, SetOperation):
        word = plan.kind.upper() + (" ALL" if plan.is_all else "")
        return " ".join(
            (f"(SELECT * FROM ({inputs[0]}) i)", word, f"(SELECT * FROM ({inputs[1]}) i)")
        )
    if isinstance(plan, Window | Remember):
        return f"SELECT {_widened(plan, len(plan.input.fields), 'i.c0')} FROM ({inputs[0]}) i"
    if isinstance(plan, TableFunction):
        return _several(plan, len(plan.input.fields), inputs[0])
    if isinstance(plan, Loop):
        return _several(plan, 0, inputs[0])
    if isinstance(plan, Apply | Recursive | RecursionRef):
        # Lowering removes them; those of a Loop's body have no query.
        return None
    assert_never(plan)


def _several(plan: TableFunction | Loop, known: int, query: str) -> str:
    """Return several rows for each input row, with that many of its columns."""
    cells = _widened(plan, known, "g")
    return f"SELECT {cells} FROM ({query}) i, generate_series(1, {_ELEMENTS}) g"


def _widened(plan: Plan, known: int, column: str) -> str:
    """Return the input's columns, and unknown values for the node's others."""
    cells = [f"i.c{n} AS c{n}" for n in range(known)]
    cells += [f"{_unknown(f, column)} AS c{n}" for n, f in enumerate(plan.fields[known:], known)]
    return ", ".join(cells)


def _scan(plan: Scan, assumed_rows: AssumedRows) -> str:
    name = plan.relation.name
    rows = 1 if plan.relation.is_single else assumed_rows(plan.relation)
    if rows is None:
        return f"SELECT {_columns(plan)} FROM {_quoted(name.schema)}.{_quoted(name.name)}"
    cells = ", ".join(f"{_unknown(f, 'g')} AS c{n}" for n, f in enumerate(plan.fields))
    return f"SELECT {cells} FROM generate_series(1, {max(rows, 1)}) g"


def _columns(plan: Scan) -> str:
    names = [plan.relation.fields[c].name for c in plan.columns]
    return ", ".join(f"{_quoted(name)} AS c{n}" for n, name in enumerate(names))


def _values(plan: Values) -> str:
    rows = plan.rows or ((),)
    return " UNION ALL ".join(f"SELECT {_shown(row)}" for row in rows)


def _join(plan: Join | SemiJoin, inputs: Sequence[str]) -> str:
    width = len(plan.left.fields)
    conditions = [
        f"{_text(a, 'l')} = {_text(b, 'r')}"
        for a, b in zip(plan.left_keys, plan.right_keys, strict=True)
    ]
    if plan.residual is not None:
        conditions.append(_text(plan.residual, "l", width))
    on = " AND ".join(conditions) or "true"
    if isinstance(plan, SemiJoin):
        word = "EXISTS" if plan.kind == "semi" else "NOT EXISTS"
        below = f"SELECT FROM ({inputs[1]}) r WHERE {on}"
        return f"SELECT l.* FROM ({inputs[0]}) l WHERE {word} ({below})"
    joined = f"{plan.kind.upper()} JOIN ({inputs[1]}) r ON {on}"
    return f"SELECT {_joined_cells(plan)} FROM ({inputs[0]}) l {joined}"


def _joined_cells(plan: Join | AsOfJoin) -> str:
    width = len(plan.left.fields)
    cells = [f"l.c{n} AS c{n}" for n in range(width)]
    return ", ".join(cells + [f"r.c{n} AS c{n + width}" for n in range(len(plan.right.fields))])


def _as_of_join(plan: AsOfJoin, inputs: Sequence[str]) -> str:
    conditions = [
        f"{_text(b, 'r')} = {_text(a, 'l')}"
        for a, b in zip(plan.left_keys, plan.right_keys, strict=True)
    ]
    value = _text(plan.order[0].expression, "r")
    conditions.append(f"{value} {plan.operator} {_text(plan.value, 'l')}")
    order = ", ".join(f"{_text(k.expression, 'r')} {k.direction}" for k in plan.order)
    one = f"SELECT * FROM ({inputs[1]}) r WHERE {' AND '.join(conditions)} ORDER BY {order} LIMIT 1"
    joined = f"{plan.kind.upper()} JOIN LATERAL ({one}) r ON true"
    return f"SELECT {_joined_cells(plan)} FROM ({inputs[0]}) l {joined}"


def _aggregate(plan: Aggregate, query: str) -> str:
    cells = [_text(e, "i") for e in plan.groups]
    for call in plan.calls:
        operands = [_text(a, "i") for a in (call.argument, *call.arguments) if a is not None]
        if call.sql:
            texts = tuple(operands)
            cells.append(with_arguments(call.sql, lambda i, t=texts: t[i - 1]))
            continue
        function = "min" if call.function == "least" else call.function
        distinct = "DISTINCT " if call.is_distinct else ""
        if function.startswith("percentile"):
            function, operands = "max", operands[:1]
        cells.append(f"{function}({distinct}{', '.join(operands) or '*'})")
    shown = ", ".join(f"{cell} AS c{n}" for n, cell in enumerate(cells))
    groups = ", ".join(str(n + 1) for n in range(len(plan.groups)))
    return f"SELECT {shown} FROM ({query}) i" + (f" GROUP BY {groups}" if groups else "")


def _top_k(plan: TopK, query: str) -> str:
    if not plan.partition:
        limit = "" if plan.limit is None else f" LIMIT {plan.limit}"
        return f"SELECT * FROM ({query}) i{limit} OFFSET {plan.offset}"
    if plan.limit is None:
        return query
    parts = ", ".join(_text(e, "i") for e in plan.partition)
    first = f"SELECT DISTINCT ON ({parts}) * FROM ({query}) i"
    if plan.limit == 1:
        return first
    return f"SELECT t.* FROM ({first}) t, generate_series(1, {plan.limit})"


def _shown(expressions: Sequence[Expression]) -> str:
    return ", ".join(f"{_text(e, 'i')} AS c{n}" for n, e in enumerate(expressions))


def _unknown(field: Field, column: str) -> str:
    """Return a value that the planner knows nothing about."""
    return f"CASE WHEN {column} IS NOT NULL THEN NULL::{field.type.name} END"


def _text(expression: Expression, alias: str, width: int | None = None) -> str:
    """Return an expression's text over the columns of `alias`; those from `width` on are a join's
    right input."""
    if isinstance(expression, ColumnRef):
        at = expression.index
        return f"r.c{at - width}" if width is not None and at >= width else f"{alias}.c{at}"
    if isinstance(expression, Literal):
        return _literal(expression)
    parts = [_text(a, alias, width) for a in getattr(expression, "arguments", ())]
    if isinstance(expression, InPostgres):
        return f"({with_arguments(expression.sql, lambda i: parts[i - 1])})"
    assert isinstance(expression, Call)
    return _call(expression.function, parts, expression.type)


def _call(function: str, parts: Sequence[str], type: SqlType) -> str:
    if function in ("and", "or"):
        return "(" + f" {function} ".join(parts) + ")"
    if function in _INFIX and len(parts) == 2:
        return f"({parts[0]} {function} {parts[1]})"
    if form := _FORMS.get(function):
        return form(parts)
    if links := links_of(function):
        steps = [f" {link} {part})" for link, part in zip(links, parts[1:], strict=True)]
        return "(" * len(links) + parts[0] + "".join(steps)
    if function == "cast":
        return f"({parts[0]})::{type.name}"
    if function.startswith("is "):
        return f"({parts[0]} {function})"
    if function in ("-", "+", "not", "@"):
        return f"({function} {parts[0]})"
    return f"{function}({', '.join(parts)})"


def _case(parts: Sequence[str]) -> str:
    whens = [f"WHEN {c} THEN {v}" for c, v in zip(parts[:-1:2], parts[1::2], strict=False)]
    last = f" ELSE {parts[-1]}" if len(parts) % 2 else ""
    return f"(CASE {' '.join(whens)}{last} END)"


_FORMS: Mapping[str, Callable[[Sequence[str]], str]] = {
    "key form": lambda parts: parts[0],
    ADD: lambda parts: f"({parts[0]} + {parts[1]})",
    SUBTRACT: lambda parts: f"({parts[0]} - {parts[1]})",
    INSTANT: lambda parts: f"timezone({parts[1]}, ({parts[0]})::timestamp)",
    "in": lambda parts: f"({parts[0]} IN ({', '.join(parts[1:])}))",
    "case": _case,
    "extract": lambda parts: f"date_part({', '.join(parts)})",
}


def _literal(value: Literal) -> str:
    text = "NULL" if value.text is None else "'" + value.text.replace("'", "''") + "'"
    return f"({text})::{value.type.name}"


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
