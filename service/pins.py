"""Where relations of other sources are first read, found out beside the pipeline's thread.

A pin may take long: a folder's files are counted, a cluster is asked. What has been pinned stays
right for as long as it is kept, since everything after a place is told by the feed.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor

from connectors.feed_source import FeedSource, Pin
from dataflow.schema import Relation, RelationName

_THREADS = 2


class Pins:
    """Pins being found, by view and relation; used by the pipeline's thread alone."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="pin")
        self._asked: dict[tuple[str, RelationName], Future[Pin]] = {}

    @property
    def is_any_found(self) -> bool:
        """Whether one of them is there that nobody has taken."""
        return any(future.done() for future in self._asked.values())

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
                self._asked[key] = self._pool.submit(source.pin, relation)
        if not all(self._asked[key].done() for key in keys):
            return None
        try:
            return {name: self._asked[identity, name].result() for _, name in keys}
        finally:
            self.forget(identity)

    def forget(self, identity: str) -> None:
        """The view is no longer waited for, or has its pins."""
        for key in [key for key in self._asked if key[0] == identity]:
            self._asked.pop(key).cancel()

    def close(self) -> None:
        """Wait for nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)
