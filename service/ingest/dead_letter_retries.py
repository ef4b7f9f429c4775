"""Dead letters that are decoded again, each relation's on a thread of its own.

A connector may reach its server for that, and looks for later changes of the same keys there.
Invariant: nothing else of the source is stepped between the beginning of a retry and its own batch,
since a change that came meanwhile would be undone by it.
"""

from __future__ import annotations

from dataclasses import dataclass

from connectors.feed_source import FeedSource
from connectors.source import SourceBatch
from dataflow.delta import Delta
from dataflow.errors import SourceError, TidemarkError
from dataflow.schema import Relation, RelationName
from service.ingest.source_worker import PATIENCE_S, RENEW_S, stuck
from service.runtime.log import log
from service.runtime.runtime import Condition, Runtime


@dataclass(eq=False)
class Retry:
    """Dead letters of a relation, and what became of them: a batch or an error."""

    source: FeedSource
    relation: Relation
    rows: Delta
    began_at: float
    batch: SourceBatch | None = None
    error: TidemarkError | None = None

    @property
    def is_done(self) -> bool:
        """Return whether it has succeeded or failed."""
        return self.batch is not None or self.error is not None

    def run(self, moved: Condition) -> None:
        """Decode the rows again, and notify."""
        batch, error = None, None
        try:
            batch = self.source.decode_again(self.relation, self.rows)
        except TidemarkError as found:
            error = found
        except Exception as found:
            log.exception("source.reader", source=self.source.name)
            what = f'dead letters of source "{self.source.name}" cannot be retried'
            error = SourceError("source.reader", what, detail=repr(found), hint="report it")
        with moved:
            if not self.is_done:
                self.batch, self.error = batch, error
            moved.notify_all()


class DeadLetterRetries:
    """Used by the pipeline's thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._moved = runtime.condition()
        self._retries: dict[RelationName, Retry] = {}

    @property
    def sources(self) -> set[str]:
        """Return the sources of which nothing may be stepped but a retry's batch."""
        return {name.source for name in self._retries}

    @property
    def is_any_done(self) -> bool:
        """Return whether `take_done` has something to return."""
        return any(retry.is_done for retry in self._retries.values())

    def begin(self, source: FeedSource, relation: Relation, rows: Delta) -> None:
        """Decode rejected rows again, unless some of the relation are under way."""
        if relation.name in self._retries:
            return
        retry = Retry(source, relation, rows, self._runtime.monotonic())
        self._retries[relation.name] = retry
        self._runtime.begin(lambda: retry.run(self._moved), f"retry {source.name}")
        with self._moved:
            self._moved.wait_for(lambda: retry.is_done, PATIENCE_S)

    def take_done(self) -> list[Retry]:
        """Return those that are done; one that takes too long fails with source.stuck."""
        now = self._runtime.monotonic()
        with self._moved:
            for retry in self._retries.values():
                if not retry.is_done and now - retry.began_at > RENEW_S:
                    retry.error = stuck(retry.source.name, RENEW_S)
        done = [retry for retry in self._retries.values() if retry.is_done]
        for retry in done:
            del self._retries[retry.relation.name]
        return done
