"""Whole rows as values: `t` in an expression, of the row type of its relation.

A table's row has the type of that name. A row of a subquery, or of columns defined in FROM, is an
unnamed record, which cannot be passed to PostgreSQL or stored. It is written out at each use,
always as part of something larger. A row padded by an outer join is NULL, not a row of NULLs: a
column that is never NULL in the relation shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeGuard

from sqlglot import exp

from dataflow.expressions.ir import Expression, InPostgres, Literal, OuterRef
from dataflow.expressions.sql_text import with_arguments
from dataflow.plan.nodes import Plan, Project
from dataflow.plan.trees import refs
from dataflow.schema import Field
from dataflow.sql.bind.scope import Context, FromEntry, NotInScope, RowShape, Scope, Visible
from dataflow.sql.parse.shapes import is_row, span_of
from dataflow.types import BOOL, SqlType, TypeKind

RECORD = SqlType("record", 2249, -1, TypeKind.OPAQUE)
_LONGEST_NAME = 63
Name = Callable[[Expression], str]


def names_whole_row(node: exp.Expr) -> TypeGuard[exp.Column]:
    """Return whether a node is a relation's name that means its row."""
    return isinstance(node, exp.Column) and isinstance(node.this, exp.Star)


def rows_named(select: exp.Expr) -> frozenset[str]:
    """Return the names of relations that mean their rows anywhere in a query."""
    return frozenset(c.table for c in select.find_all(exp.Column) if names_whole_row(c))


def with_row(
    context: Context, entry: FromEntry, alias: str, type_name: str, *, is_join: bool = False
) -> FromEntry:
    """Return the entry with its whole row available, of a named type or (type_name "") a record."""
    plan = entry.plan
    known = [i for i, f in enumerate(plan.fields) if not f.is_nullable]
    if not known:
        plan, known = marked(plan), [len(plan.fields)]
    names = next(v for v in entry.visible if v.alias == alias).columns
    reported = () if type_name else original_names(context, alias, [name for name, _ in names])
    shape = RowShape(type_name, known[0], reported, is_join)
    visible = tuple(replace(v, row=shape) if v.alias == alias else v for v in entry.visible)
    return FromEntry(plan, visible, entry.star, entry.order)


def named_row(context: Context, scope: Scope, node: exp.Column) -> Expression:
    """Return the row of the relation that a node names, in the scope or an enclosing one."""
    visible = scope.shown(node.table)
    if visible is not None:
        return _whole_row(context, scope, visible, scope.column)
    for level, around in enumerate(reversed(context.enclosing)):
        visible = around.shown(node.table)
        if visible is not None:

            def outside(position: int, level: int = level, around: Scope = around) -> Expression:
                found = around.column(position)
                return OuterRef(level, position, found.type, found.name)

            return _whole_row(context, around, visible, outside)
    raise NotInScope(context.text_of(node))


def _whole_row(
    context: Context, scope: Scope, visible: Visible, column: Callable[[int], Expression]
) -> Expression:
    # Versions of PostgreSQL differ in the row of a join that an outer join has padded.
    is_open = visible.row is not None and (
        visible.row.is_join and scope.plan.fields[visible.row.marker].is_nullable
    )
    if visible.row is None or is_open:
        raise context.refuse(
            "the row of this relation as a value is not maintained",
            f"name the required columns: (SELECT x FROM (SELECT {visible.alias}.a, ...) x)",
            visible.alias,
        )
    values = [column(position) for _, position in visible.columns]
    numbers = [f"${i + 1}" for i in range(len(values))]
    marker = ""
    if scope.plan.fields[visible.row.marker].is_nullable:
        values.append(column(visible.row.marker))
        marker = f"${len(values)}"
    if not visible.row.type_name:
        names = visible.row.names or [name for name, _ in visible.columns]
        condition = f" WHERE {marker} IS NOT NULL" if marker else ""
        return InPostgres(_row_text(numbers, names, condition), tuple(values), RECORD)
    sql = f"ROW({', '.join(numbers)})::{visible.row.type_name}"
    if marker:
        sql = f"CASE WHEN {marker} IS NOT NULL THEN {sql} END"
    probe = with_arguments(sql, lambda i: f"c{i}")
    (type,) = context.analyzer.types([v.type for v in values], [probe])
    return InPostgres(f"({sql})", tuple(values), type)


def record(values: Sequence[Expression], names: Sequence[str], marker: Expression) -> Expression:
    """Return the row of values under these names; NULL where the marker is NULL."""
    numbers = [f"${i + 1}" for i in range(len(values))]
    condition = f" WHERE ${len(values) + 1} IS NOT NULL"
    return InPostgres(_row_text(numbers, names, condition), (*values, marker), RECORD)


def _row_text(values: Sequence[str], names: Sequence[str], condition: str) -> str:
    """Return PostgreSQL's text of a row of values under these names."""
    listed = ", ".join(f"{v} AS {quoted(n)}" for v, n in zip(values, names, strict=True))
    name = name_beside(names)
    return f"(SELECT {name} FROM (SELECT {listed}) {name}{condition})"


def rows_inside(context: Context, node: exp.Expr) -> Iterator[tuple[exp.Column, str]]:
    """Return the rows of a text's own relations whose columns the text renames, and their
    replacements."""
    for row in node.find_all(exp.Column):
        if not names_whole_row(row):
            continue
        listed = _listed(row)
        names = original_names(context, row.table, listed) if listed else ()
        if names:
            values = [f"{quoted(row.table)}.{quoted(name)}" for name in listed]
            condition = f" WHERE {quoted(row.table)}.* IS DISTINCT FROM NULL"
            yield row, _row_text(values, names, condition)


def names_in_row(context: Context, node: exp.Expr) -> tuple[str, ...] | None:
    """Return the columns' names of ROW(...) that is the row of a USING's alias; None for others.

    Refuse one that may be either.
    """
    if not is_row(node):
        return None
    columns = [{c.name for c in part.find_all(exp.Column)} for part in node.expressions]
    named = [names for names in context.named_rows if len(names) == len(columns)]
    # A column merged by FULL JOIN may be written as a COALESCE of columns of this name.
    alike = [
        names
        for names in named
        if all(
            f and all(_is_numbered(c, n) for c in f) for f, n in zip(columns, names, strict=True)
        )
    ]
    if not alike and any(names == _plain(len(columns)) for names in named):
        return None
    if len(named) > 1:
        raise context.refuse(
            "the row of a USING alias is not maintained beside another row of as many columns",
            "name its columns: (SELECT x FROM (SELECT j.id, ...) x)",
            "using",
        )
    return named[0] if named else None


def _plain(width: int) -> tuple[str, ...]:
    return tuple(f"f{i + 1}" for i in range(width))


def rows_of_joins(
    context: Context, node: exp.Expr
) -> Iterator[tuple[exp.Expr, list[tuple[int, int, str]]]]:
    """Return each ROW(...) of a USING's alias, and the edits (from, to, new text) that write it
    with its columns' names."""
    for row in node.find_all(exp.Anonymous):
        names = names_in_row(context, row)
        if names is None:
            continue
        whole = name_beside(names)
        begin, end = span_of(row)
        edits = [(begin, span_of(row.expressions[0])[0], f"(SELECT {whole} FROM (SELECT ")]
        for part, name in zip(row.expressions, names, strict=True):
            at = span_of(part)[1]
            edits.append((at, at, f" AS {quoted(name)}"))
        yield row, [*edits, (end - 1, end, f") {whole})")]


def _listed(row: exp.Column) -> list[str]:
    """Return the column names in the alias of a row; [] if it has none."""
    block = row.find_ancestor(exp.Select)
    while block is not None:
        for alias in block.find_all(exp.TableAlias):
            is_entry = not isinstance(alias.parent, exp.CTE) and alias.name == row.table
            if is_entry and alias.find_ancestor(exp.Select) is block:
                return [c.name for c in alias.args.get("columns") or []]
        block = block.find_ancestor(exp.Select)
    return []


def original_names(context: Context, alias: str, listed: Sequence[str]) -> tuple[str, ...]:
    """Return the original names of a row's columns, if the text lists others; () otherwise.

    pg_get_viewdef numbers ambiguous names (ruleutils.c, make_colname_unique), aliases included; a
    row keeps the names of the original query.
    """
    found = {
        names
        for known, names in context.row_names
        if len(names) == len(listed)
        and _is_numbered(alias, known)
        and all(map(_is_numbered, listed, names))
    }
    if len(found) > 1:
        raise context.refuse(
            f'the names in the row of "{alias}" are ambiguous: columns have the same name',
            "give each column of the subquery a different name",
        )
    return next((names for names in found if list(names) != list(listed)), ())


def _is_numbered(name: str, known: str) -> bool:
    """Return whether a name is an original one, perhaps with a number appended."""
    if name == known:
        return True
    stem, _, number = name.rpartition("_")
    is_cut = len(name.encode()) == _LONGEST_NAME and known.startswith(stem)
    return number.isdigit() and (stem == known or is_cut or _is_numbered(stem, known))


def is_record(expression: Expression) -> bool:
    """Return whether an expression is a row without a named type."""
    return isinstance(expression, InPostgres) and expression.type.oid == RECORD.oid


def _is_written(atom: Expression) -> TypeGuard[InPostgres]:
    """Return whether a value is written out in a text."""
    return isinstance(atom, InPostgres) and not atom.is_stable


def passed(atoms: Iterable[Expression]) -> list[Expression]:
    """Return the arguments that PostgreSQL gets for these values, each once: of a row its
    columns."""
    found: dict[Expression, None] = {}
    for atom in atoms:
        found |= dict.fromkeys(atom.arguments if _is_written(atom) else (atom,))
    return list(found)


def written(atom: Expression, name: Name) -> str:
    """Return a value's text, with its arguments named by `name`."""
    if _is_written(atom):
        return with_arguments(atom.sql, lambda i: name(atom.arguments[i - 1]))
    return name(atom)


def implied_name(column: exp.Expr, inside: exp.Expr) -> str:
    """Return the text to append to a value that replaces a column, so that the output keeps its
    name: without AS, a select-list column has its own name."""
    is_selected = column is not inside and column.arg_key == "expressions"
    if not is_selected or not isinstance(column.parent, exp.Select):
        return ""
    return f" AS {quoted(column.name)}"


def name_beside(columns: Iterable[str]) -> str:
    """Return a relation name that no column has, so that it means the row."""
    taken, name = set(columns), "whole"
    while name in taken:
        name += "_"
    return name


def quoted(name: str) -> str:
    """Return a name as a quoted identifier."""
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def marked(plan: Plan) -> Plan:
    """Return the plan with a last column that is never NULL."""
    marker = Field("row", BOOL, False)
    return Project(plan, (*refs(plan), Literal("t", BOOL)), (*plan.fields, marker))
