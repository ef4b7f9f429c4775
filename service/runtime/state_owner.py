"""Whose rows a state holds: the server and database that it was built from, noted in it.

A state directory may be put under a service of another database by mistake. Invariant: a state is
used only where the catalog follows the same database as the state; else it stays as it is.
"""

from __future__ import annotations

import json

from storage.errors import StorageError
from storage.store import Store

_KEY = "built-from"


def note(store: Store, identity: tuple[object, ...] | None) -> None:
    """Note it with the state, as part of the open epoch. identity: (system, timeline, database) of
    the catalog, None where no database is followed."""
    wanted = None if identity is None else json.dumps([str(identity[0]), identity[2]]).encode()
    if store.get(_KEY) != wanted:
        store.put(_KEY, wanted)


def check(store: Store, identity: tuple[object, ...] | None, folder: str) -> None:
    """StorageError state.foreign when the state is of another database than the catalog's."""
    stored = store.get(_KEY)
    if stored is None or identity is None:
        return
    system, database = json.loads(stored)
    if (system, database) != (str(identity[0]), identity[2]):
        raise StorageError(
            "state.foreign",
            f'the state in "{folder}" is of database "{database}" on server {system},'
            f' not of "{identity[2]}" on {identity[0]}',
            "give this service its own --state; or, if it has none, an empty directory:"
            " every view is rebuilt",
        )
