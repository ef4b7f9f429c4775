"""What a process keeps open from range to range, because opening costs more than a small range."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

# Of readers, one for each source.
OPEN_READERS = 4
T = TypeVar("T")


class KeptOpen(Generic[T]):
    """Open objects by key, at most so many. Who takes one has it alone until it is given back."""

    def __init__(self, most: int, close: Callable[[T], object]) -> None:
        self._most = most
        self._close = close
        self._lock = threading.Lock()
        self._kept: OrderedDict[bytes, T] = OrderedDict()

    def take(self, key: bytes) -> T | None:
        """Return what was given back under this key, once."""
        with self._lock:
            return self._kept.pop(key, None)

    def give(self, key: bytes, one: T) -> None:
        """Keep one for the next; close the one of its key, and what was not used for longest."""
        with self._lock:
            surplus = [self._kept.pop(key)] if key in self._kept else []
            self._kept[key] = one
            while len(self._kept) > self._most:
                surplus.append(self._kept.popitem(last=False)[1])
        for one in surplus:
            self._close(one)
