"""WITH RECURSIVE: an entry that names itself becomes a Recursive node.

Invariant: the columns have the types of the term before UNION, as in PostgreSQL; a column is
nullable if it is in any round. PostgreSQL has already refused queries that it cannot evaluate, such
as a second reference to the entry.
"""

from __future__ import annotations

from sqlglot import exp

from dataflow.expressions.ir import ColumnRef
from dataflow.plan.nodes import Plan, RecursionRef, Recursive
from dataflow.schema import Field
from dataflow.sql.bind.grouping import check_key
from dataflow.sql.bind.relations import renamed
from dataflow.sql.bind.rounds import free_names
from dataflow.sql.bind.scope import Context, entry_of
from dataflow.sql.bind.search_cycle import Trail
from dataflow.sql.bind.set_operations import in_types
from dataflow.sql.bind.subqueries import BindQuery


def is_recursive(entry: exp.Expr) -> bool:
    """Return whether the term after UNION of a WITH entry names the entry (or another of its
    name)."""
    query = entry.this
    if not isinstance(query, exp.Union):
        return False
    tables = query.expression.find_all(exp.Table)
    return any(not t.db and t.name == entry.args["alias"].name for t in tables)


def bind_recursive(context: Context, entry: exp.Expr, bind_query: BindQuery) -> Plan | None:
    """Return the plan of an entry of a WITH RECURSIVE list; None if it does not read its own rows.

    The WITH list of the entry's own query must already be bound.
    """
    query, alias = entry.this, entry.args["alias"]
    base = bind_query(context, query.this)
    names = [f.name for f in base.fields]
    given = [c.name for c in alias.args.get("columns") or []]
    names[: len(given)] = given
    trail = Trail(context, entry)
    base = trail.begin(renamed(base, names))
    term = trail.with_state_passed(query.expression)
    unique = _unique(context, alias.name)
    known, fields = dict(context.ctes), base.fields
    try:
        while True:
            reference = RecursionRef(unique, fields)
            visible = trail.shown(reference, is_inside=True)
            context.ctes[alias.name] = entry_of(visible)
            step = trail.extend(bind_query(context, term))
            step = in_types(step, [f.type for f in fields], fields)
            found = tuple(
                Field(f.name, f.type, f.is_nullable or s.is_nullable)
                for f, s in zip(fields, step.fields, strict=True)
            )
            if found == fields:
                break
            # A NULL of one round may cause others in the next: repeat until none is added.
            fields = found
    finally:
        context.ctes = known
    if unique not in free_names(step):
        return None
    is_distinct = bool(query.args.get("distinct"))
    if is_distinct:
        for i, f in enumerate(fields):
            check_key(context, ColumnRef(i, f.type, f.name), "UNION", ("union",))
    return trail.shown(Recursive(unique, base, step, is_distinct, fields))


def _unique(context: Context, name: str) -> str:
    """Return a name that no enclosing recursion and none of `rounds` has."""
    around = frozenset[str]().union(*(free_names(e.plan) for e in context.ctes.values()))
    unique = f"'{name}" if name.startswith(".") else name
    while unique in around:
        unique += "'"
    return unique
