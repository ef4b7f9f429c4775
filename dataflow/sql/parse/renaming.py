"""Rewrite a query after its relations or their columns were renamed.

Only references to relations change; they get aliases, so that the rest of the user's text and its
names stay valid. Ambiguous cases are refused: the caller then keeps the relation's name, or the
query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from dataflow.lexer import Token, tokens

# schema, name
Name = tuple[str, str]


class Unreadable(ValueError):
    """A text that cannot be analyzed."""


@dataclass(frozen=True)
class Column:
    """A column with its present name. position: its position among the columns when the query was
    written, None for a later one; called: its name then."""

    name: str
    called: str
    position: int | None = None


@dataclass(frozen=True)
class Moved:
    """The present name of a relation. columns: its present columns, in order."""

    name: Name
    columns: tuple[Column, ...] = ()


def with_renamed_table(query: str, old: Name, new: Name) -> str:
    """Return the query with `new` in place of the table `old`, which keeps its name inside the
    query.

    Raise ValueError with the reason if that is impossible.

    >>> with_renamed_table("SELECT t.a FROM t, s.t AS x", ("public", "t"), ("public", "u"))
    'SELECT t.a FROM "public"."u" AS "t", s.t AS x'
    """
    renamed = with_renamed_tables(query, {old: Moved(new)})
    if renamed == query:
        raise ValueError("its query does not name it directly")
    return renamed


def with_renamed_tables(query: str, known: Mapping[Name, Moved]) -> str:
    """Return the query with the new names of the tables in `known`, by their names in the query.

    `known` must have every table of the query, whatever its present name; others are ignored.
    Columns keep their names in the query, aliases included, even if others before them were
    dropped. Raise ValueError (or Unreadable) with the reason if that is impossible.

    >>> columns = Column("a", "a", 0), Column("x", "b", 1), Column("c", "c")
    >>> known = {("public", "t"): Moved(("s", "u"), columns), ("s", "v"): Moved(("s", "v"))}
    >>> with_renamed_tables("SELECT b FROM t JOIN s.v USING (a)", known)
    'SELECT b FROM "s"."u" AS "t"("a", "b") JOIN s.v USING (a)'
    >>> with_renamed_tables("TABLE t", known)
    'SELECT * FROM "s"."u" AS "t"("a", "b")'
    """
    tree = _parsed(query)
    named = {_name(cte.args["alias"].this) for cte in tree.find_all(exp.CTE)}
    found: list[tuple[int, int, str]] = []
    for table in tree.find_all(exp.Table):
        meant = [old for old in known if _means(table, old)]
        changes = [change for old in meant for change in _changes(query, table, old, known[old])]
        if not changes:
            continue
        if len(meant) > 1:
            raise ValueError(f'"{table.name}" may be one of two tables')
        if not table.args.get("db") and meant[0][1] in named:
            raise ValueError("a WITH query has the same name")
        if any(_is_qualified(column, meant[0]) for column in tree.find_all(exp.Column)):
            raise ValueError("a column is named together with the schema of its table")
        found += changes
    parts, at = [], 0
    for begin, end, text in sorted(found):
        parts += [query[at:begin], text]
        at = end
    return "".join(parts) + query[at:]


def _parsed(query: str) -> exp.Expr:
    try:
        found = sqlglot.parse(query, read="postgres")
    except SqlglotError as error:
        raise Unreadable("its query has words that cannot be read here") from error
    trees = [tree for tree in found if tree is not None]
    if len(trees) != 1 or isinstance(trees[0], exp.Command):
        raise Unreadable("its query has words that cannot be read here")
    return trees[0]


def _means(table: exp.Table, old: Name) -> bool:
    if not isinstance(table.this, exp.Identifier) or _name(table.this) != old[1]:
        return False
    schema = table.args.get("db")
    return schema is None or _name(schema) == old[0]


def _changes(
    query: str, table: exp.Table, old: Name, moved: Moved
) -> Iterator[tuple[int, int, str]]:
    """Return (begin, end, new text) of the name, and of the column alias list."""
    alias = table.args.get("alias")
    own = [] if alias is None else alias.args.get("columns") or []
    listed = _listed(moved.columns, [_name(column) for column in own])
    first = table.args.get("db") or table.this
    begin, end = first.meta["start"], table.this.meta["end"] + 1
    name = f"{_quoted(moved.name[0])}.{_quoted(moved.name[1])}"
    if alias is None and (moved.name != old or listed):
        before = _words_before(query, begin)
        if [t.text for t in before] in (["table"], ["table", "only"]):
            # TABLE allows no alias.
            begin, only = before[0].offset, "ONLY " if len(before) > 1 else ""
            name = f"SELECT * FROM {only}{name}"
        yield begin, end, f"{name} AS {_quoted(old[1])}" + (f"({listed})" if listed else "")
        return
    if moved.name != old:
        yield begin, end, name
    if own and moved.columns:
        begin, end = own[0].meta["start"], own[-1].meta["end"] + 1
        if listed != ", ".join(_quoted(_name(column)) for column in own):
            yield begin, end, listed
    elif listed and alias is not None:
        end = alias.this.meta["end"] + 1
        yield end, end, f"({listed})"


def _listed(columns: Sequence[Column], own: Sequence[str]) -> str:
    """Return the columns' names in the query as an alias list; "" if none is needed. own: the
    aliases of the query's own list. Raise ValueError if no name is left."""

    def called(column: Column) -> str:
        has_alias = column.position is not None and column.position < len(own)
        return own[column.position] if has_alias else column.called  # type: ignore[index]

    retained = {called(column) for column in columns if column.position is not None}
    names: list[str] = []
    for column in columns:
        name = called(column)
        # A later column may have the name of another one in the query.
        while column.position is None and name in retained:
            name += "_"
        names.append(name)
    most = len(columns)
    while most and names[most - 1] == columns[most - 1].name:
        most -= 1
    aliased = [
        i for i, c in enumerate(columns, 1) if c.position is not None and c.position < len(own)
    ]
    if own and columns and not aliased:
        raise ValueError("all columns that it aliases are gone")
    return ", ".join(map(_quoted, names[: max(most, *aliased, 0)]))


def _words_before(query: str, position: int) -> tuple[Token, ...]:
    """Return TABLE or TABLE ONLY directly before a position."""
    before = tuple(t for t in tokens(query) if t.offset < position)
    is_only = bool(before) and before[-1].kind == "word" and before[-1].text == "only"
    words = before[-2:] if is_only else before[-1:]
    return words if all(t.kind == "word" for t in words) else ()


def _is_qualified(column: exp.Column, old: Name) -> bool:
    schema, table = column.args.get("db"), column.args.get("table")
    return schema is not None and table is not None and _name(table) == old[1]


def _name(identifier: exp.Expr) -> str:
    """Return a name as PostgreSQL folds it."""
    text = str(identifier.this)
    return text if identifier.args.get("quoted") else text.lower()


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'
