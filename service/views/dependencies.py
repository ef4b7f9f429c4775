"""Which views read which, according to the catalog."""

from __future__ import annotations

from collections.abc import Iterable

from connectors.postgres.catalog.catalog import ViewRow
from dataflow.schema import VIEW_SOURCE, RelationName
from service.views.lifecycle import DesiredState


def parents_of(row: ViewRow) -> list[RelationName]:
    """Return the maintained views that a catalog row's plan reads."""
    return [RelationName(VIEW_SOURCE, s, n) for s, n in (row.plan or {}).get("parents", [])]


def children_of(row: ViewRow, rows: Iterable[ViewRow]) -> list[ViewRow]:
    """Return the views that read this one and are not being dropped."""
    name = RelationName(VIEW_SOURCE, row.schema, row.name)
    return [r for r in rows if r.desired != DesiredState.DROPPED and name in parents_of(r)]


def readers_of(row: ViewRow, rows: Iterable[ViewRow]) -> list[ViewRow]:
    """Return the views that read this one, directly or indirectly."""
    names, found, every = {_relation(row)}, [], list(rows)
    is_new = True
    while is_new:
        new = [r for r in every if r not in found and names.intersection(parents_of(r))]
        is_new = bool(new)
        found += new
        names |= {_relation(r) for r in new}
    return found


def relations_read(row: ViewRow, rows: Iterable[ViewRow]) -> set[tuple[str, str]]:
    """Return (source, relation) of all that a view reads, itself or through views."""
    by_name = {_relation(r): r for r in rows}
    waiting, visited = [row], {_relation(row)}
    found: set[tuple[str, str]] = set()
    while waiting:
        view = waiting.pop()
        found |= {(source, name) for source, name in (view.plan or {}).get("reads", [])}
        parents = [name for name in parents_of(view) if name in by_name and name not in visited]
        visited.update(parents)
        waiting += [by_name[name] for name in parents]
    return found


def _relation(row: ViewRow) -> RelationName:
    return RelationName(VIEW_SOURCE, row.schema, row.name)
