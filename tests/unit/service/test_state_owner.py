"""Oracle: the identities that are given; a state is used only where they are one."""

from __future__ import annotations

import pytest

from service.runtime import state_owner
from storage.errors import StorageError
from storage.memory import MemoryStore

SHOP, OTHER = ("7001", 1, "shop"), ("7001", 1, "stock")


def test_a_state_knows_its_database() -> None:
    store = MemoryStore()
    state_owner.check(store, SHOP, "state")  # made before it was noted
    state_owner.note(store, SHOP)
    state_owner.check(store, SHOP, "state")
    state_owner.check(store, ("7001", 2, "shop"), "state")  # promoted since
    state_owner.check(store, None, "state")  # the catalog knows none
    for other in (OTHER, ("7002", 1, "shop")):
        with pytest.raises(StorageError, match=r"state\.foreign"):
            state_owner.check(store, other, "state")
    state_owner.note(store, None)
    state_owner.check(store, OTHER, "state")
