"""Views that have left an engine for another group, until the catalog shows that they have.

Between the commit of the engine and that of the sink, the catalog still calls such a view live in
the group that it has left. Invariant: a record is written in the same commit as the epoch that
hands the view over, so after a kill nobody takes the view for one whose state is lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from service.engine.definition import ViewDefinition
from service.engine.encoding.registered import decode, encode
from storage.store import Store

_KEY = "departed/"


@dataclass(frozen=True)
class Departure:
    """A view, the epoch that hands it over, and the group that it goes to."""

    definition: ViewDefinition
    epoch: int
    group: str


class Departures:
    """Those of one store; changes belong to the open epoch."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, departure: Departure) -> None:
        """Note that a view leaves with the open epoch."""
        facts = vars(departure)
        self._store.put(_KEY + departure.definition.identity, encode(dict(facts)))

    def forget(self, identity: str) -> None:
        """Remove a record."""
        self._store.put(_KEY + identity, None)

    def identities(self) -> set[str]:
        """Return the identities of the views."""
        return {key[len(_KEY) :] for key, _ in self._store.items(_KEY)}

    def all(self) -> list[Departure]:
        """Return all records."""
        return [Departure(**decode(stored)) for _, stored in self._store.items(_KEY)]
