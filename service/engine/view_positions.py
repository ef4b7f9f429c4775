"""The positions that concern a view: of what it reads, itself or through the views that it reads.

An epoch has the positions of all sources of its group. What sinks and subscribers get of one view
has those of its own relations alone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from connectors.source import MAIN_SOURCE
from dataflow.schema import RelationName
from service.engine.definition import ViewDefinition

# Source and name of a relation within it, of the database (MAIN_SOURCE) too.
Read = tuple[str, str]


def positions_of(positions: Mapping[str, Any], read: Collection[Read]) -> dict[str, Any]:
    """Return the positions of these relations; the database has one for all.

    >>> positions_of({"source": 7, "shop": {"a": 1, "b": 2}, "more": {"c": 3}}, [("shop", "b")])
    {'shop': {'b': 2}}
    """
    found: dict[str, Any] = {}
    for source, position in positions.items():
        names = {name for own, name in read if own == source}
        if names and isinstance(position, Mapping) and source != MAIN_SOURCE:
            position = {name: p for name, p in position.items() if name in names}
        if names and position:
            found[source] = position
    return found


class ViewPositions:
    """Of live views. `refresh` is for the thread that changes them, `of` for any thread.

    views: returns those that are live now.
    """

    def __init__(self, views: Callable[[], Mapping[RelationName, ViewDefinition]]) -> None:
        self._views = views
        self._known: list[ViewDefinition] = []
        self._read: Mapping[str, Collection[Read]] = {}

    def refresh(self) -> None:
        """Follow what the views read now; call it before an epoch in which that has changed."""
        views = list(self._views().values())
        if len(views) == len(self._known) and all(map(_is_same, views, self._known)):
            return
        # A view that has left may have epochs that its sinks still lack.
        self._read = {**self._read, **{d.identity: self._relations(d) for d in views}}
        self._known = views

    def of(self, identity: str, positions: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of these positions that concern a view."""
        return positions_of(positions, self._read.get(identity, ()))

    def _relations(self, definition: ViewDefinition) -> Collection[Read]:
        found: set[Read] = set()
        views = self._views()
        waiting = [definition]
        while waiting:
            view = waiting.pop()
            found |= {(relation.name.source, relation.name.name) for relation in view.relations()}
            waiting += [views[name] for name in view.parents() if name in views]
        return frozenset(found)


def _is_same(one: object, other: object) -> bool:
    return one is other
