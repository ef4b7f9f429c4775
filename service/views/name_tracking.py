"""A view's query under the current names of its tables.

The catalog stores, with each view, what the tables and ordinary views in its text were called, by
oid and column number: PostgreSQL's own views follow those. Invariant: a query is never planned over
another table than the one it named when it was created, as long as that one exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from connectors.postgres.analysis.table_names import UNKNOWN, KnownNames, TableNames
from dataflow.errors import SourceError
from dataflow.sql.parse.renaming import Column, Moved, Name, Unreadable, with_renamed_tables

_HINT = "replace the view with a query that uses the current names"


class NameReader(Protocol):
    """The part of an analyzer used here. named: the names in the most recently analyzed query."""

    named: KnownNames

    def names(self, oids: Iterable[int]) -> KnownNames:
        """Return the current names of these tables, as far as they exist."""
        ...


def names_facts(names: KnownNames) -> dict[str, Any]:
    """Return the names in the form of tidemark.views, `plan`, key `names`."""
    tables = [[t.oid, t.schema, t.name, [list(c) for c in t.columns]] for t in names.tables]
    listed = {"listed": names.listed} if names.listed else {}
    return {"server": names.server, "tables": tables, **listed}


def names_in(plan: Mapping[str, Any] | None) -> KnownNames:
    """Return what `names_facts` stored in a view's plan; UNKNOWN if nothing is stored."""
    facts = (plan or {}).get("names")
    if facts is None:
        return UNKNOWN
    tables = (
        TableNames(oid, schema, name, tuple((number, column) for number, column in columns))
        for oid, schema, name, columns in facts["tables"]
    )
    return KnownNames(facts["server"], tuple(tables), facts.get("listed", ""))


def names_now(before: KnownNames, analyzer: NameReader) -> KnownNames:
    """Return the current names of these tables; UNKNOWN if their names were not stored."""
    return analyzer.names([t.oid for t in before.tables]) if before.server else UNKNOWN


def with_current_names(query: str, before: KnownNames, analyzer: NameReader) -> str:
    """Return `with_names` for the current names."""
    return with_names(query, before, names_now(before, analyzer))


def with_names(query: str, before: KnownNames, found: KnownNames) -> str:
    """Return the query with its names (`before`) replaced by those of `found`.

    SourceError source.renamed if the query cannot be rewritten.
    """
    is_same = found.tables == before.tables
    if not before.server or is_same or found.server != before.server:
        return query
    if before.listed and _has_more_columns(before, found):
        query = before.listed
    now = {t.oid: t for t in found.tables}
    moves = {
        (was.schema, was.name): _moved(was, now[was.oid]) for was in before.tables if was.oid in now
    }
    try:
        return with_renamed_tables(query, moves)
    except ValueError as error:
        renamed = [(old, moved) for old, moved in moves.items() if _is_renamed(old, moved)]
        if not renamed and isinstance(error, Unreadable):
            return query
        old, moved = (renamed or list(moves.items()))[0]
        raise _refused(old, moved, str(error)) from None


def _has_more_columns(before: KnownNames, found: KnownNames) -> bool:
    """Return whether a table has a column that it had not when the query was written."""
    now = {t.oid: t for t in found.tables}
    return any(
        t.oid in now and not dict(now[t.oid].columns).keys() <= dict(t.columns).keys()
        for t in before.tables
    )


def require_read(before: KnownNames, found: KnownNames, analyzer: NameReader) -> None:
    """Require that the most recently analyzed query reads the same tables as before.

    before: the names before; found: those it now uses. SourceError source.renamed.
    """
    now = {t.oid: t for t in found.tables}
    named = {t.oid for t in analyzer.named.tables}
    for was in before.tables:
        if was.oid in now and was.oid not in named:
            why = "in it, the name means something else"
            raise _refused((was.schema, was.name), _moved(was, now[was.oid]), why)


def are_current(found: KnownNames, analyzer: NameReader) -> bool:
    """Return True if `found`, and the most recently analyzed query's names, are still current.

    Then facts looked up in several steps belong to one moment.
    """
    names = {*found.tables, *analyzer.named.tables}
    return names <= set(analyzer.names([t.oid for t in names]).tables)


def _moved(was: TableNames, now: TableNames) -> Moved:
    indexes = {number: index for index, (number, _) in enumerate(was.columns)}
    names = dict(was.columns)
    columns = (Column(name, names.get(n, name), indexes.get(n)) for n, name in now.columns)
    return Moved((now.schema, now.name), tuple(columns))


def _is_renamed(old: Name, moved: Moved) -> bool:
    return moved.name != old or any(c.called != c.name for c in moved.columns)


def _refused(old: Name, moved: Moved, why: str) -> SourceError:
    return SourceError(
        "source.renamed",
        f'the query uses an old name of table "{".".join(old)}"',
        detail=f'it is now "{".".join(moved.name)}" with columns '
        f"{', '.join(c.name for c in moved.columns)}; the query cannot be rewritten: {why}",
        hint=_HINT,
    )
