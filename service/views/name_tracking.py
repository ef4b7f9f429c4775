"""A view's query under the current names of its tables.

The catalog stores, with each view, what the tables and ordinary views in its text were called, by
oid and column number: PostgreSQL's own views follow those. It also stores the objects that the
query rests on. Invariant: a query is never planned over another table, function or operator than
the one it named when it was created, as long as that one exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from connectors.postgres.analysis.table_names import UNKNOWN, KnownNames, TableNames
from connectors.postgres.replication.object_changes import difference, renamed_values
from connectors.postgres.replication.used_objects import UsedObject
from dataflow.errors import SourceError
from dataflow.sql.parse.enum_values import with_enum_values
from dataflow.sql.parse.renaming import Column, Moved, Name, Unreadable, with_renamed_tables

# The catalogs of what a query calls.
_CALLED = ("pg_proc", "pg_operator")
_HINT = "replace the view with a query that uses the current names"


class NameReader(Protocol):
    """The part of an analyzer used here.

    named: the names in the most recently analyzed query. unchecked: why values of its generated
    columns may be others than the source has.
    """

    named: KnownNames
    unchecked: SourceError | None

    def names(self, oids: Iterable[int]) -> KnownNames:
        """Return the current names of these tables, as far as they exist."""
        ...

    def objects(self, keys: Iterable[tuple[str, int]]) -> tuple[UsedObject, ...]:
        """Return these objects as they are now, as far as they exist."""
        ...


def names_facts(names: KnownNames) -> dict[str, Any]:
    """Return the names in the form of tidemark.views, `plan`, key `names`."""
    tables = [[t.oid, t.schema, t.name, [list(c) for c in t.columns]] for t in names.tables]
    facts: dict[str, Any] = {"server": names.server, "tables": tables}
    facts |= {"listed": names.listed} if names.listed else {}
    facts |= {"text": names.text} if names.text else {}
    if names.objects is not None:
        facts["objects"] = [
            [o.catalog, o.oid, o.kind, o.name, o.content, [list(n) for n in o.labels], o.is_direct]
            for o in names.objects
        ]
    return facts


def names_in(plan: Mapping[str, Any] | None) -> KnownNames:
    """Return what `names_facts` stored in a view's plan; UNKNOWN if nothing is stored."""
    facts = (plan or {}).get("names")
    if facts is None:
        return UNKNOWN
    tables = (
        TableNames(oid, schema, name, tuple((number, column) for number, column in columns))
        for oid, schema, name, columns in facts["tables"]
    )
    objects = facts.get("objects")
    if objects is not None:
        objects = tuple(
            UsedObject(
                *(catalog, oid, kind, name, content),
                tuple((number, label) for number, label in labels),
                is_direct,
            )
            for catalog, oid, kind, name, content, labels, is_direct in objects
        )
    listed, text = facts.get("listed", ""), facts.get("text", "")
    return KnownNames(facts["server"], tuple(tables), listed, objects, text)


def names_now(before: KnownNames, analyzer: NameReader) -> KnownNames:
    """Return the current names of these tables and enum values; UNKNOWN if they were not stored."""
    if not before.server:
        return UNKNOWN
    found = analyzer.names([t.oid for t in before.tables])
    enums = [o.key for o in before.objects or () if o.labels]
    return replace(found, objects=analyzer.objects(enums) if enums else ())


def with_current_names(query: str, before: KnownNames, analyzer: NameReader) -> str:
    """Return `with_names` for the current names."""
    return with_names(query, before, names_now(before, analyzer))


def with_names(query: str, before: KnownNames, found: KnownNames) -> str:
    """Return the query with its names (`before`) replaced by those of `found`.

    SourceError source.renamed if the query cannot be rewritten.
    """
    if not before.server or found.server != before.server:
        return query
    if before.listed and _has_more_columns(before, found):
        query = before.listed
    query = with_labels(query, before, found)
    if found.tables == before.tables:
        return query
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


def with_labels(query: str, before: KnownNames, found: KnownNames) -> str:
    """Return the query with the current values of enums in place of renamed ones.

    It is PostgreSQL's own text of the query then, which shows the type of each constant.
    SourceError source.renamed if a constant cannot be rewritten.
    """
    now = {o.key: o for o in found.objects or ()}
    types = [o for o in before.objects or () if o.catalog == "pg_type"]
    renamed = {
        was.name: change
        for was in types
        if was.key in now and (change := renamed_values(was, now[was.key]))
    }
    old = {label for changes in renamed.values() for label in changes}
    if not any(o.is_direct for o in types) or not any(label in query for label in old):
        return query
    try:
        if not before.text:
            raise ValueError("PostgreSQL's text of the query leaves out names of columns")
        unclear = [o.name for o in types if not o.labels]
        return with_enum_values(query, before.text, renamed, unclear)
    except ValueError as error:
        name = min(renamed, key=len)
        changes = ", ".join(f"'{was}' to '{now}'" for was, now in renamed[name].items())
        raise SourceError(
            "source.renamed",
            f'the query may use an old value of enum "{name}"',
            detail=f"{error}; renamed: {changes}",
            hint=_HINT,
        ) from None


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


def require_objects(before: KnownNames, analyzer: NameReader) -> None:
    """Require that the most recently analyzed query calls the functions and operators that it did.

    before: as the query was first analyzed. Another one that has taken over a name is not called in
    place of one that exists. SourceError source.renamed.
    """
    known = before.objects or ()
    used = {o.key for o in analyzer.named.objects or ()}
    left_out = [o for o in known if o.is_direct and o.catalog in _CALLED and o.key not in used]
    if not left_out or analyzer.named.server != before.server:
        return
    now = {o.key: o for o in analyzer.objects([o.key for o in known])}
    casts = [o for o in known if o.catalog == "pg_cast" and difference(o, now.get(o.key))]
    for was in left_out:
        found = now.get(was.key)
        if found is not None and (casts or found.name != was.name):
            detail = f'it is now called "{found.name}", and the query means another by the old name'
            if found.name == was.name:
                detail = f"{casts[0].name} was replaced, and the query means another by it"
            raise SourceError(
                "source.renamed",
                f'the query no longer calls {was.kind} "{was.name}"',
                detail=detail,
                hint=_HINT,
            )


def require_checked(before: KnownNames, analyzer: NameReader) -> None:
    """Require that generated columns were checked, if the query rests on other objects than before.

    SourceError source.generated_column.
    """
    is_changed = before.objects not in (None, analyzer.named.objects)
    if is_changed and analyzer.unchecked is not None:
        raise analyzer.unchecked


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
