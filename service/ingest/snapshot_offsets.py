"""Where relations of other sources are first read, found out beside the pipeline's thread.

A pin may take long: a folder's files are counted, a cluster is asked. What has been pinned stays
right for as long as it is kept, since everything after a place is told by the feed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from connectors.feed_source import FeedSource, Pin
from dataflow.schema import Relation, RelationName
from service.runtime.runtime import RUNTIME, Runtime

_THREADS = 2


@dataclass(eq=False)
class _Asked:
    """One pin that is being found; pin or failure is what has come of it."""

    source: FeedSource
    relation: Relation
    pin: Pin | None = None
    failure: Exception | None = None

    @property
    def is_done(self) -> bool:
        return self.pin is not None or self.failure is not None

    def find(self) -> None:
        try:
            self.pin = self.source.pin(self.relation)
        except Exception as error:
            self.failure = error

    def result(self) -> Pin:
        if self.pin is None:
            assert self.failure is not None
            raise self.failure
        return self.pin


class SnapshotOffsets:
    """Pins being found, by view and relation; used by the pipeline's thread alone."""

    def __init__(self, host: Runtime = RUNTIME) -> None:
        self._host = host
        self._asked: dict[tuple[str, RelationName], _Asked] = {}
        # What no thread has begun with, and how many threads there are.
        self._moved = host.condition()
        self._waiting: deque[_Asked] = deque()
        self._working = 0

    @property
    def is_any_found(self) -> bool:
        """Whether one of them is there that nobody has taken."""
        return any(asked.is_done for asked in self._asked.values())

    def take(
        self, identity: str, wanted: Iterable[tuple[FeedSource, Relation]]
    ) -> dict[RelationName, Pin] | None:
        """A view's pins once all of them are found, None before. TidemarkError as the source
        tells it; then nothing of the view is asked any more."""
        keys = []
        for source, relation in wanted:
            key = (identity, relation.name)
            keys.append(key)
            if key not in self._asked:
                self._asked[key] = self._ask(_Asked(source, relation))
        if not all(self._asked[key].is_done for key in keys):
            return None
        try:
            return {name: self._asked[identity, name].result() for _, name in keys}
        finally:
            self.forget(identity)

    def forget(self, identity: str) -> None:
        """The view is no longer waited for, or has its pins."""
        for key in [key for key in self._asked if key[0] == identity]:
            asked = self._asked.pop(key)
            with self._moved:
                if asked in self._waiting:
                    self._waiting.remove(asked)

    def close(self) -> None:
        """Wait for nothing more."""
        with self._moved:
            self._waiting.clear()

    def _ask(self, asked: _Asked) -> _Asked:
        with self._moved:
            self._waiting.append(asked)
            if self._working < _THREADS:
                self._working += 1
                self._host.begin(self._work, "pin")
        return asked

    def _work(self) -> None:
        while True:
            with self._moved:
                if not self._waiting:
                    self._working -= 1
                    return
                asked = self._waiting.popleft()
            asked.find()
