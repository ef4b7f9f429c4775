"""What is done while no source has anything, so that later changes need not wait for it.

Pages of a backfill are read as soon as there is a view; runs of the state are merged once sources
have had nothing for a while. Invariant: a change waits for one step of a few milliseconds at most.
"""

from __future__ import annotations

from service.engine.engine import Engine
from service.pipeline.epochs import Epochs
from service.runtime.runtime import Runtime
from storage.store import Store

# Sources have had nothing for so long, and after the last merge it is looked again so much later.
IDLE_S, PAUSE_S = 1.0, 10.0
WARMED_PAGES = 16


class IdleWork:
    """Used by the pipeline's thread."""

    def __init__(self, store: Store, engine: Engine, epochs: Epochs, runtime: Runtime) -> None:
        self._store = store
        self._engine = engine
        self._epochs = epochs
        self._runtime = runtime
        self._due_at = runtime.monotonic() + IDLE_S

    def put_off(self) -> None:
        """Wait with merges: a batch was read."""
        self._due_at = self._runtime.monotonic() + IDLE_S

    def step(self) -> None:
        """Do a little of what is to be done; call it when no source has anything."""
        if self._prepare():
            return
        now = self._runtime.monotonic()
        if now < self._due_at:
            return
        if self._store.merge_when_idle():
            self._epochs.commit()
        else:
            self._due_at = now + PAUSE_S

    def _prepare(self) -> bool:
        """Do a little of what the next change would wait for; False if nothing is left."""
        if not self._engine.views:
            return False
        return self._store.warm(WARMED_PAGES)
