"""The offsets at which relations of external sources are first read, found on other threads.

Finding an offset may take long: a folder's files are listed, a cluster is queried. So each source
has threads of its own, and one that does not answer delays its own views alone. A found offset
stays valid, because the feed reports everything after it, until the source is released.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from connectors.feed_source import FeedSource, FeedStart, selective
from connectors.pushdown import PushdownRequirement
from dataflow.schema import Relation, RelationName
from service.runtime.runtime import RUNTIME, Runtime
from storage.failpoints import failpoint

# Of each source at once, and of those how many more in place of ones that nobody waits for.
_THREADS, _MAX_ABANDONED = 2, 3


@dataclass(eq=False)
class _PendingStart:
    """A start position that is being found; its result is start or failure.

    required: of a selective source, before it is asked. is_forgotten: nobody waits for it.
    """

    source: FeedSource
    relation: Relation
    requested_at: float
    required: PushdownRequirement | None = None
    is_forgotten: bool = False
    start: FeedStart | None = None
    failure: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.start is not None or self.failure is not None

    def find(self) -> None:
        try:
            own = selective(self.source)
            if own is not None and self.required is not None:
                own.require({self.relation.name.name: self.required})
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
        self._moved = runtime.condition()
        # By source: start positions that no thread has started on, and those that threads are at.
        self._waiting: dict[str, deque[_PendingStart]] = {}
        self._working: dict[str, list[_PendingStart]] = {}

    @property
    def is_any_found(self) -> bool:
        """Return True if a found start position was not taken yet."""
        return any(pending.is_done for pending in self._pending.values())

    def take(
        self,
        identity: str,
        needed: Iterable[tuple[FeedSource, Relation]],
        required: Mapping[RelationName, PushdownRequirement] = MappingProxyType({}),
    ) -> dict[RelationName, FeedStart] | None:
        """Return a view's start positions once all are found, None before.

        required: what the view needs of relations of selective sources. If the source raises a
        TidemarkError, the view's other start positions are abandoned too.
        """
        keys = []
        for source, relation in needed:
            key = (identity, relation.name)
            keys.append(key)
            pending = self._pending.get(key)
            if pending is None or pending.requested_at <= self._released_at(source.name):
                now = self._runtime.monotonic()
                self._pending[key] = self._request(
                    _PendingStart(source, relation, now, required.get(relation.name))
                )
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
                pending.is_forgotten = True
                waiting = self._waiting.get(pending.source.name, deque())
                if pending in waiting:
                    waiting.remove(pending)

    def close(self) -> None:
        """Drop all start positions that no thread has started on."""
        with self._moved:
            self._waiting.clear()

    def _request(self, pending: _PendingStart) -> _PendingStart:
        name = pending.source.name
        with self._moved:
            working = self._working.setdefault(name, [])
            self._waiting.setdefault(name, deque()).append(pending)
            forgotten = sum(one.is_forgotten for one in working)
            if len(working) < _THREADS + min(forgotten, _MAX_ABANDONED):
                working.append(pending)
                self._waiting[name].remove(pending)
                self._runtime.begin(partial(self._work, pending), f"start {name}")
        return pending

    def _work(self, pending: _PendingStart | None) -> None:
        while pending is not None:
            pending.find()
            pending = self._next_after(pending)

    def _next_after(self, done: _PendingStart) -> _PendingStart | None:
        """Return what the thread begins with now, None if nothing of its source waits."""
        name = done.source.name
        with self._moved:
            working, waiting = self._working[name], self._waiting.get(name)
            working.remove(done)
            following = waiting.popleft() if waiting else None
            if following is not None:
                working.append(following)
            elif not working:
                self._working.pop(name)
                self._waiting.pop(name, None)
            return following
