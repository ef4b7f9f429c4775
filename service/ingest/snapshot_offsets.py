"""The offsets at which relations of external sources are first read, found on other threads.

Finding an offset may take long: a folder's files are listed, a cluster is queried. A found offset
stays valid, because the feed reports everything after it, until the source is released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from connectors.feed_source import FeedSource, FeedStart
from dataflow.schema import Relation, RelationName
from service.runtime.runtime import RUNTIME, Runtime
from storage.failpoints import failpoint

_THREADS = 2


@dataclass(eq=False)
class _PendingStart:
    """A start position that is being found; its result is start or failure."""

    source: FeedSource
    relation: Relation
    requested_at: float
    start: FeedStart | None = None
    failure: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.start is not None or self.failure is not None

    def find(self) -> None:
        try:
            found = self.source.start_position(self.relation)
            failpoint("source.start.found")
            self.start = found
        except Exception as error:
            self.failure = error

    def result(self) -> FeedStart:
        if self.start is None:
            assert self.failure is not None
            raise self.failure
        return self.start


class SnapshotOffsets:
    """Start positions being found, by view and relation; used by the pipeline's thread only.

    released_at: when a source was last released, on the runtime's monotonic clock.
    """

    def __init__(self, released_at: Callable[[str], float], runtime: Runtime = RUNTIME) -> None:
        self._released_at = released_at
        self._runtime = runtime
        self._pending: dict[tuple[str, RelationName], _PendingStart] = {}
        # Start positions that no thread has started on, and the number of running threads.
        self._moved = runtime.condition()
        self._waiting: deque[_PendingStart] = deque()
        self._working = 0

    @property
    def is_any_found(self) -> bool:
        """Return True if a found start position was not taken yet."""
        return any(pending.is_done for pending in self._pending.values())

    def take(
        self, identity: str, needed: Iterable[tuple[FeedSource, Relation]]
    ) -> dict[RelationName, FeedStart] | None:
        """Return a view's start positions once all are found, None before.

        If the source raises a TidemarkError, the view's other start positions are abandoned too.
        """
        keys = []
        for source, relation in needed:
            key = (identity, relation.name)
            keys.append(key)
            pending = self._pending.get(key)
            if pending is None or pending.requested_at <= self._released_at(source.name):
                now = self._runtime.monotonic()
                self._pending[key] = self._request(_PendingStart(source, relation, now))
        if not all(self._pending[key].is_done for key in keys):
            return None
        try:
            return {name: self._pending[identity, name].result() for _, name in keys}
        finally:
            self.forget(identity)

    def forget(self, identity: str) -> None:
        """Drop the view's start positions, found or not."""
        for key in [key for key in self._pending if key[0] == identity]:
            pending = self._pending.pop(key)
            with self._moved:
                if pending in self._waiting:
                    self._waiting.remove(pending)

    def close(self) -> None:
        """Drop all start positions that no thread has started on."""
        with self._moved:
            self._waiting.clear()

    def _request(self, pending: _PendingStart) -> _PendingStart:
        with self._moved:
            self._waiting.append(pending)
            if self._working < _THREADS:
                self._working += 1
                self._runtime.begin(self._work, "pin")
        return pending

    def _work(self) -> None:
        while True:
            with self._moved:
                if not self._waiting:
                    self._working -= 1
                    return
                pending = self._waiting.popleft()
            pending.find()
