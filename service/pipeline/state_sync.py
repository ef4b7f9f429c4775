"""The sync of the state to disk, after which the source may discard what it covers."""

from __future__ import annotations

from service.backfill.builds import Builds
from service.checkpoint.checkpoints import Checkpoints
from service.engine.engine import Engine
from service.ingest.database_feed import Feed
from service.ingest.external_sources import ExternalSources
from service.pipeline.epochs import Epochs
from storage.failpoints import failpoint


class StateSync:
    """The sync, used by the pipeline's thread.

    Invariant: the source may discard only what is on disk.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        epochs: Epochs,
        builds: Builds,
        feed: Feed,
        external_sources: ExternalSources,
        checkpoints: Checkpoints,
    ) -> None:
        self._engine = engine
        self._epochs = epochs
        self._builds = builds
        self._feed = feed
        self._external_sources = external_sources
        self._checkpoints = checkpoints

    def run(self) -> None:
        """Sync the state to disk, then let the source discard what it covers."""
        self._builds.sync()
        failpoint("checkpoint.sync.before")
        self._epochs.commit(sync=True)
        failpoint("checkpoint.sync.after")
        self._feed.confirm(self._checkpoints.confirmable(self._engine.position))
        self._external_sources.confirm(self._checkpoints.retained_offsets)
        failpoint("checkpoint.confirm.after")
