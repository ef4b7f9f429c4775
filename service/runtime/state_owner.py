"""The database that a state was built from, recorded in the state.

Someone may start a service for another database on an existing state directory by mistake.
Invariant: a state is used only if the catalog follows the same database as the state; otherwise it
stays unchanged.
"""

from __future__ import annotations

import json

from storage.errors import StorageError
from storage.store import Store

_KEY = "built-from"


def note(store: Store, identity: tuple[object, ...] | None) -> None:
    """Record the owner in the open epoch.

    identity: (system, timeline, database) of the catalog; None if no database is followed.
    """
    desired = None if identity is None else json.dumps([str(identity[0]), identity[2]]).encode()
    if store.get(_KEY) != desired:
        store.put(_KEY, desired)


def check(store: Store, identity: tuple[object, ...] | None, folder: str) -> None:
    """Fail with StorageError state.foreign if the state belongs to another database."""
    stored = store.get(_KEY)
    if stored is None or identity is None:
        return
    system, database = json.loads(stored)
    if (system, database) != (str(identity[0]), identity[2]):
        raise StorageError(
            "state.foreign",
            f'the state in "{folder}" is of database "{database}" on server {system},'
            f' not of "{identity[2]}" on {identity[0]}',
            "start this service with its own --state directory; if it has none, with an empty one:"
            " every view is rebuilt then",
        )
