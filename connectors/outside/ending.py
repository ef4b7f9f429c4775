"""What a reader's thread has on its way, ended by whoever closes the reader.

A client is made deep within a connector, for one exchange, and only the thread that waits for it
knows it. Invariant: once `end` has returned, no client that registers within `of_this_thread`
waits for its server any more, and none that is made later begins to.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_of_thread = threading.local()


class Ending:
    """The exchanges of one reader, in all its threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._aborts: list[weakref.WeakMethod[Callable[[], Any]]] = []
        self._is_over = False

    @contextmanager
    def of_this_thread(self) -> Iterator[None]:
        """Let `end` abort what is made within, by this thread."""
        _of_thread.ending = self
        try:
            yield
        finally:
            _of_thread.ending = None

    def end(self) -> None:
        """Abort everything that is on its way; called from any thread."""
        with self._lock:
            self._is_over = True
            found, self._aborts = self._aborts, []
        for reference in found:
            if (abort := reference()) is not None:
                abort()

    def add(self, abort: Callable[[], Any]) -> None:
        """Register the method that aborts a client; it is not kept alive by that."""
        with self._lock:
            if not self._is_over:
                living = [one for one in self._aborts if one() is not None]
                self._aborts = [*living, weakref.WeakMethod(abort)]
                return
        abort()


def register(abort: Callable[[], Any]) -> None:
    """Let the reader whose thread this is abort a client; nothing in any other thread."""
    ending: Ending | None = getattr(_of_thread, "ending", None)
    if ending is not None:
        ending.add(abort)
