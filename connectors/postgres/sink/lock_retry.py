"""Take exclusive locks on relations in the sink while others read them.

PostgreSQL queues new readers behind a waiting exclusive lock. So one open transaction that has read
the view would, through us, block all other readers. Invariant: readers wait for us only briefly,
however long that transaction lasts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from psycopg2 import errors as states

# Milliseconds to wait for a lock, and seconds that others get then.
LOCK_MS = 200
PAUSE_S = 1.0

T = TypeVar("T")


def patiently(cursor: Any, act: Callable[[Any, T], None], target: T) -> None:
    """Run `act(cursor, target)` inside an open transaction; retry until all locks are free."""
    cursor.execute("SHOW lock_timeout")
    (usual,) = cursor.fetchone()
    while True:
        cursor.execute(f"SAVEPOINT patience; SET LOCAL lock_timeout = '{LOCK_MS}ms'")
        try:
            act(cursor, target)
        except (states.LockNotAvailable, states.DeadlockDetected):
            cursor.execute("ROLLBACK TO patience")
            time.sleep(PAUSE_S)
            continue
        cursor.execute("RELEASE patience")
        cursor.execute("SELECT set_config('lock_timeout', %s, true)", (usual,))
        return
