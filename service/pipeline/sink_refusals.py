"""Views that the sink refuses leave the pipeline, so that the sink's thread can continue."""

from __future__ import annotations

from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.sink import REBUILT
from service.backfill.builds import Builds
from service.pipeline.epochs import Epochs
from service.pipeline.source_subscriptions import SourceSubscriptions
from service.pipeline.view_failures import Failures
from service.subscriptions.change_log_writers import ChangeLogs


class SinkRefusals:
    """Used by the pipeline's thread.

    staging: a session of the sink for everything but epochs.
    """

    def __init__(
        self,
        *,
        epochs: Epochs,
        failures: Failures,
        builds: Builds,
        staging: PostgresSink,
        change_logs: ChangeLogs,
        subscriptions: SourceSubscriptions,
    ) -> None:
        self._epochs = epochs
        self._failures = failures
        self._builds = builds
        self._staging = staging
        self._change_logs = change_logs
        self._subscriptions = subscriptions

    def resolve(self) -> None:
        """Take out the views that the sink has refused since the last call."""
        writer = self._epochs.writer
        errors = writer.refusals()
        if errors:
            # Rows that do not fit may be those of a changed table.
            self._subscriptions.note_changes()
        for error in errors:
            if error.code in REBUILT:
                failed = self._failures.degrade(self._failures.readers_of(error.relation), error)
            else:
                failed = self._failures.fail_readers(error)
            self._subscriptions.complete_failed(failed)
            for definition in failed:
                # The staged rows of a version that is being built were not refused.
                if definition.identity not in self._builds:
                    self._staging.drop_staged(definition.table)
        if errors:
            writer.forgive()
            self._change_logs.forgive()
