"""A view's query under the names that its tables have now.

With each view the catalog keeps what the tables and ordinary views in its text were called, by oid
and by the numbers of their columns: that is what PostgreSQL's own views follow. Invariant: a query
is not planned again over another table than the one that it named when it was asked for, as long
as that one is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from connectors.postgres.analysis.table_names import UNKNOWN, KnownNames, TableNames
from dataflow.errors import SourceError
from dataflow.sql.parse.renaming import Column, Moved, Name, Unreadable, with_renamed_tables

_HINT = "replace the view by a query with the names of now"


class NameReader(Protocol):
    """What is asked of an analyzer. named: what the query analyzed last names itself."""

    named: KnownNames

    def names(self, oids: Iterable[int]) -> KnownNames:
        """The names of these tables now, of those that are there."""
        ...


def names_facts(names: KnownNames) -> dict[str, Any]:
    """As tidemark.views has it in `plan`, under `names`."""
    tables = [[t.oid, t.schema, t.name, [list(c) for c in t.columns]] for t in names.tables]
    return {"server": names.server, "tables": tables}


def names_in(plan: Mapping[str, Any] | None) -> KnownNames:
    """What `names_facts` has put into a view's plan; nothing where there is none of it."""
    facts = (plan or {}).get("names")
    if facts is None:
        return UNKNOWN
    tables = (
        TableNames(oid, schema, name, tuple((number, column) for number, column in columns))
        for oid, schema, name, columns in facts["tables"]
    )
    return KnownNames(facts["server"], tuple(tables))


def names_now(known: KnownNames, analyzer: NameReader) -> KnownNames:
    """What these tables are called now; nothing where nothing is known of them."""
    return analyzer.names([t.oid for t in known.tables]) if known.server else UNKNOWN


def with_names_of_now(query: str, known: KnownNames, analyzer: NameReader) -> str:
    """As `with_names`, of this moment."""
    return with_names(query, known, names_now(known, analyzer))


def with_names(query: str, known: KnownNames, found: KnownNames) -> str:
    """The query with the names of `found`. known: those in it, of which the tables are.

    SourceError source.renamed where they cannot be put into it.
    """
    if not known.server or found == known or found.server != known.server:
        return query
    now = {t.oid: t for t in found.tables}
    moves = {
        (was.schema, was.name): _moved(was, now[was.oid]) for was in known.tables if was.oid in now
    }
    try:
        return with_renamed_tables(query, moves)
    except ValueError as error:
        renamed = [(old, moved) for old, moved in moves.items() if _is_renamed(old, moved)]
        if not renamed and isinstance(error, Unreadable):
            return query
        old, moved = (renamed or list(moves.items()))[0]
        raise _refused(old, moved, str(error)) from None


def require_read(known: KnownNames, found: KnownNames, analyzer: NameReader) -> None:
    """Whether the query analyzed last, which has got the names of `found`, reads what it read
    before, with the names in `known`. SourceError source.renamed where it does not."""
    now = {t.oid: t for t in found.tables}
    named = {t.oid for t in analyzer.named.tables}
    for was in known.tables:
        if was.oid in now and was.oid not in named:
            why = "the name stands for something else in it"
            raise _refused((was.schema, was.name), _moved(was, now[was.oid]), why)


def are_kept(found: KnownNames, analyzer: NameReader) -> bool:
    """Whether nothing is called otherwise by now than in `found`, and than the query analyzed last
    has it: what was looked up in several steps is of one moment then."""
    seen = {*found.tables, *analyzer.named.tables}
    return seen <= set(analyzer.names([t.oid for t in seen]).tables)


def _moved(was: TableNames, now: TableNames) -> Moved:
    places = {number: place for place, (number, _) in enumerate(was.columns)}
    names = dict(was.columns)
    columns = (Column(name, names.get(n, name), places.get(n)) for n, name in now.columns)
    return Moved((now.schema, now.name), tuple(columns))


def _is_renamed(old: Name, moved: Moved) -> bool:
    return moved.name != old or any(c.called != c.name for c in moved.columns)


def _refused(old: Name, moved: Moved, why: str) -> SourceError:
    return SourceError(
        "source.renamed",
        f'the query does not say what table "{".".join(old)}" is called now',
        detail=f'it is "{".".join(moved.name)}" with columns '
        f"{', '.join(c.name for c in moved.columns)}; the text cannot be changed: {why}",
        hint=_HINT,
    )
