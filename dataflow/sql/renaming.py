"""A query as it reads once relations that it names have other names, or columns of other names.

Only the places that name a relation change; everything else stays as the user wrote it, since
each keeps, inside the query, the names that it had there. What cannot be told for sure is
refused: the caller then leaves the relation its name, or the query alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dataflow.sql.text import Token, tokens

# schema, name
Name = tuple[str, str]


@dataclass(frozen=True)
class Moved:
    """What a relation is called now. columns: the names that the query knows its columns by, in
    the order that they have now; () where all are called as ever."""

    name: Name
    columns: tuple[str, ...] = ()


def with_renamed_table(query: str, old: Name, new: Name) -> str:
    """The query with `new` where it reads the table `old`, which keeps its name inside the query.

    ValueError: why that cannot be done.

    >>> with_renamed_table("SELECT t.a FROM t, s.t AS x", ("public", "t"), ("public", "u"))
    'SELECT t.a FROM "public"."u" AS "t", s.t AS x'
    """
    renamed = with_renamed_tables(query, {old: Moved(new)})
    if renamed == query:
        raise ValueError("its query does not name it directly")
    return renamed


def with_renamed_tables(query: str, known: Mapping[Name, Moved | None]) -> str:
    """The query with the new names of all tables in `known`, by the names that they have in it;
    None for one that is called as ever. Tables that it does not name are passed over.

    ValueError: why that cannot be done.

    >>> moved = {("public", "t"): Moved(("s", "u"), ("a", "b")), ("public", "v"): None}
    >>> with_renamed_tables("SELECT b FROM t JOIN v USING (a)", moved)
    'SELECT b FROM "s"."u" AS "t"("a", "b") JOIN v USING (a)'
    >>> with_renamed_tables("TABLE t", moved)
    'SELECT * FROM "s"."u" AS "t"("a", "b")'
    """
    tree = _parsed(query)
    named = {_name(cte.args["alias"].this) for cte in tree.find_all(exp.CTE)}
    found: list[tuple[int, int, str]] = []
    for table in tree.find_all(exp.Table):
        meant = [old for old in known if _means(table, old)]
        moved = [move for old in meant if (move := known[old]) is not None]
        if not moved:
            continue
        if len(meant) > 1:
            raise ValueError(f'"{table.name}" may be one of two tables')
        if not table.args.get("db") and meant[0][1] in named:
            raise ValueError("a WITH query has the same name")
        if any(_is_qualified(column, meant[0]) for column in tree.find_all(exp.Column)):
            raise ValueError("a column is named together with the schema of its table")
        found += _replaced(query, table, meant[0], moved[0])
    parts, at = [], 0
    for begin, end, text in sorted(found):
        parts += [query[at:begin], text]
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


def _replaced(
    query: str, table: exp.Table, old: Name, moved: Moved
) -> Iterator[tuple[int, int, str]]:
    """(begin, end, new text) of the name, and of the alias that gives the columns theirs."""
    first = table.args.get("db") or table.this
    begin, end = first.meta["start"], table.this.meta["end"] + 1
    name = f"{_quoted(moved.name[0])}.{_quoted(moved.name[1])}"
    alias = table.args.get("alias")
    if alias is None:
        before = _words_before(query, begin)
        if [t.text for t in before] in (["table"], ["table", "only"]):
            # It takes no alias.
            begin, only = before[0].offset, "ONLY " if len(before) > 1 else ""
            name = f"SELECT * FROM {only}{name}"
        yield begin, end, f"{name} AS {_quoted(old[1])}{_listed(moved.columns)}"
        return
    yield begin, end, name
    own = alias.args.get("columns") or []
    rest = moved.columns[len(own) :]
    if rest:
        last = (own[-1] if own else alias.this).meta["end"] + 1
        yield last, last, f", {_names(rest)}" if own else _listed(rest)


def _words_before(query: str, place: int) -> tuple[Token, ...]:
    """TABLE, or TABLE ONLY, where that stands right before a place."""
    before = tuple(t for t in tokens(query) if t.offset < place)
    is_only = bool(before) and before[-1].kind == "word" and before[-1].text == "only"
    words = before[-2:] if is_only else before[-1:]
    return words if all(t.kind == "word" for t in words) else ()


def _listed(columns: tuple[str, ...]) -> str:
    return f"({_names(columns)})" if columns else ""


def _names(columns: tuple[str, ...]) -> str:
    return ", ".join(map(_quoted, columns))


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
