"""Changes of whole relations in the sink while others read them.

Such a change needs each relation for itself. PostgreSQL lets nobody new to a relation that somebody
waits for, so one transaction that has read the view and stays open would, through us, hold up all
other readers. Invariant: they wait for us a moment at a time, however long that transaction lasts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from psycopg2 import errors as states

# How long a lock is waited for, and how long others have their turn then.
LOCK_MS = 200
PAUSE_S = 1.0

T = TypeVar("T")


def patiently(cursor: Any, act: Callable[[Any, T], None], what: T) -> None:
    """`act(cursor, what)` inside an open transaction, again and again until all locks are free."""
    cursor.execute("SHOW lock_timeout")
    (usual,) = cursor.fetchone()
    while True:
        cursor.execute(f"SAVEPOINT patience; SET LOCAL lock_timeout = '{LOCK_MS}ms'")
        try:
            act(cursor, what)
        except (states.LockNotAvailable, states.DeadlockDetected):
            cursor.execute("ROLLBACK TO patience")
            time.sleep(PAUSE_S)
            continue
        cursor.execute("RELEASE patience")
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", (usual,))
        return
