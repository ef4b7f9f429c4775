"""Merges of the state while no source has anything: later searches look into fewer runs.

Invariant: a change waits for one step of a few milliseconds at most.
"""

from __future__ import annotations

from service.pipeline.epochs import Epochs
from service.runtime.runtime import Runtime
from storage.store import Store

# Sources have had nothing for so long, and after the last merge it is looked again so much later.
IDLE_S, PAUSE_S = 1.0, 10.0


class IdleMerges:
    """Used by the pipeline's thread."""

    def __init__(self, store: Store, epochs: Epochs, runtime: Runtime) -> None:
        self._store = store
        self._epochs = epochs
        self._runtime = runtime
        self._due_at = runtime.monotonic() + IDLE_S

    def put_off(self) -> None:
        """Wait: a batch was read."""
        self._due_at = self._runtime.monotonic() + IDLE_S

    def run_if_due(self) -> None:
        """Merge a little, once sources have had nothing for a while."""
        now = self._runtime.monotonic()
        if now < self._due_at:
            return
        if self._store.merge_when_idle():
            self._epochs.commit()
        else:
            self._due_at = now + PAUSE_S
