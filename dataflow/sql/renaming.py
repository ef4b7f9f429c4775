"""A query as it reads once a relation that it names has another name.

Only the places that name the relation change; everything else stays as the user wrote it. What
cannot be told for sure is refused: the caller then leaves the relation its name.
"""

from __future__ import annotations

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

# schema, name
Name = tuple[str, str]


def with_renamed_table(query: str, old: Name, new: Name) -> str:
    """The query with `new` where it reads the table `old`, which keeps its name inside the query.

    ValueError: why that cannot be done.

    >>> with_renamed_table("SELECT t.a FROM t, s.t AS x", ("public", "t"), ("public", "u"))
    'SELECT t.a FROM "public"."u" AS "t", s.t AS x'
    """
    tree = _parsed(query)
    if any(_name(cte.args["alias"].this) == old[1] for cte in tree.find_all(exp.CTE)):
        raise ValueError("a WITH query has the same name")
    if any(_is_qualified(column, old) for column in tree.find_all(exp.Column)):
        raise ValueError("a column is named together with the schema of its table")
    parts, at = [], 0
    found = [_place(table) for table in tree.find_all(exp.Table) if _means(table, old)]
    if not found:
        raise ValueError("its query does not name it directly")
    for start, end, has_alias in sorted(found):
        alias = "" if has_alias else f" AS {_quoted(old[1])}"
        parts += [query[at:start], f"{_quoted(new[0])}.{_quoted(new[1])}{alias}"]
        at = end
    return "".join(parts) + query[at:]


def _parsed(query: str) -> exp.Expr:
    try:
        found = sqlglot.parse(query, read="postgres")
    except SqlglotError as error:
        raise ValueError("its query has words that cannot be read here") from error
    trees = [tree for tree in found if tree is not None]
    if len(trees) != 1 or isinstance(trees[0], exp.Command):
        raise ValueError("its query has words that cannot be read here")
    return trees[0]


def _means(table: exp.Table, old: Name) -> bool:
    if not isinstance(table.this, exp.Identifier) or _name(table.this) != old[1]:
        return False
    schema = table.args.get("db")
    return schema is None or _name(schema) == old[0]


def _place(table: exp.Table) -> tuple[int, int, bool]:
    """(start, end, whether an alias follows) of the name in the text."""
    first = table.args.get("db") or table.this
    return first.meta["start"], table.this.meta["end"] + 1, bool(table.alias)


def _is_qualified(column: exp.Column, old: Name) -> bool:
    schema, table = column.args.get("db"), column.args.get("table")
    return schema is not None and table is not None and _name(table) == old[1]


def _name(identifier: exp.Expr) -> str:
    """As PostgreSQL folds it."""
    text = str(identifier.this)
    return text if identifier.args.get("quoted") else text.lower()


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
