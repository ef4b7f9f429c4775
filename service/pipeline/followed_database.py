"""The subscribed database: stream, tables and slot, and the reconnection when it is away.

It decides nothing about views. Invariant: a stream that meets a changed table is closed before the
error is raised.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from connectors.postgres.source import PostgresSource
from connectors.source import SourceBatch
from dataflow.errors import SourceError, TidemarkError
from dataflow.schema import Relation
from service.engine.column_requirements import Read
from service.engine.definition import ViewDefinition
from service.ingest.database_feed import Feed
from service.ingest.external_sources import ExternalSources, is_main
from service.ingest.table_watch import SourceWatch
from service.ingest.wal_retention import WalBudget
from service.pipeline.reconnect import Reconnect
from service.runtime.log import log


class FollowedDatabase:
    """Used by the pipeline's thread."""

    def __init__(
        self,
        source: PostgresSource,
        feed: Feed,
        watch: SourceWatch,
        reconnect: Reconnect,
        wal_retention: WalBudget,
    ) -> None:
        self._source = source
        self._feed = feed
        self._watch = watch
        self._reconnect = reconnect
        self._wal_retention = wal_retention

    # --- the stream ----------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Return whether a stream is open."""
        return self._feed.is_open

    @property
    def received_position(self) -> int:
        """Return how far the server has sent; 0 when no stream is open."""
        return self._feed.received_position

    @property
    def silent_s(self) -> float:
        """Return for how long the server has shown no sign of life although it should have; else
        0.
        """
        return self._feed.silent_s

    def open(self, position: int, reads: Sequence[Read], shown: int) -> None:
        """Stream the read relations after `position`; shown: up to where the sink has
        everything.
        """
        self._feed.open(position, reads, shown)

    def follows(self, reads: Sequence[Read]) -> bool:
        """Return whether exactly this is streamed."""
        return self._feed.follows(reads)

    def was_opened_for(self, reads: Sequence[Read]) -> bool:
        """Return whether the newest stream was opened for exactly this."""
        return self._feed.was_opened_for(reads)

    def narrow(self, reads: Iterable[Read]) -> None:
        """Note that only this is read from now on."""
        self._feed.narrow(reads)

    def poll(self, rows: int, timeout_s: float, until: int | None) -> SourceBatch | None:
        """Return the next whole transactions, None when there are none."""
        return self._feed.poll(rows, timeout_s, until)

    def await_wake(self, timeout_s: float) -> None:
        """Sleep until something may have arrived, at most timeout_s."""
        self._feed.await_wake(timeout_s)

    def close_stream(self) -> None:
        """End the stream, if one is open."""
        self._feed.close()

    # --- away and back -------------------------------------------------------------------------

    @property
    def away_error(self) -> TidemarkError | None:
        """Return why the database is away; None if it is not."""
        return self._reconnect.error

    @property
    def is_reachable(self) -> bool:
        """Return whether opening is worth a try."""
        return self._reconnect.is_open

    def lost(self, error: TidemarkError) -> float:
        """Close the stream and search for the database; return the pause before, in seconds."""
        self._feed.close()
        return self._reconnect.lost(error)

    def regained(self) -> None:
        """End the search: the database is read again, or nothing depends on it."""
        self._reconnect.regained()

    # --- tables --------------------------------------------------------------------------------

    def probe_tables(self) -> None:
        """Probe the tables that are read. TablesChanged."""
        self._feed.check()

    @property
    def is_probe_due(self) -> bool:
        """Return whether views rest on objects that nothing else probes: they read no table."""
        return self._feed.is_check_due

    def is_moving(self, relations: Iterable[Relation]) -> bool:
        """Return whether rows from before a change of these tables are still on their way."""
        return self._watch.is_moving(relations)

    def publish(self, relations: Sequence[Relation]) -> None:
        """Add tables to the publication."""
        self._source.watch(relations)

    def withdraw(self, relations: Sequence[Relation]) -> None:
        """Take tables out of the publication; a failure does no harm to the others."""
        try:
            self._source.unwatch(relations)
        except TidemarkError as error:
            log.warning("source.unwatch_failed", code=error.code, why=error.described)

    # --- positions and the slot ----------------------------------------------------------------

    def begin(self) -> int:
        """Make sure that there is a slot; return its position."""
        self._source.drop_lost_slot()
        return self._source.ensure_slot()

    def heartbeat(self) -> int:
        """Make the stream move past now; return the position that it will pass."""
        return self._source.heartbeat()

    def current_position(self) -> int:
        """Return how far the server is. TemporaryError."""
        return self._source.current_position()

    def open_transactions(self, seconds: int) -> TidemarkError | None:
        """Return which transactions have been open for so long, None for none."""
        return self._source.open_transactions(seconds)

    def drop_slot(self, *, leaves_used: bool) -> None:
        """Drop the slot; leaves_used: one that someone else reads stays, without an error."""
        try:
            self._source.drop_slot()
        except SourceError as error:
            if not leaves_used or error.code != "source.slot_in_use":
                raise
            log.warning("source.slot_not_dropped", why=error.described)

    def forget_tables(self) -> None:
        """Forget the recorded facts of tables, as part of the open epoch."""
        self._watch.forget()

    def forget_slot(self) -> None:
        """Forget the state of the slot: nothing depends on it any more."""
        self._wal_retention.forget()
        self._reconnect.regained()

    def explained(self, error: SourceError) -> SourceError:
        """Return the reason for a missing slot when it was dropped here."""
        return self._wal_retention.explained(error)


def reads_database(definition: ViewDefinition, external_sources: ExternalSources) -> bool:
    """Return True if a view moves with the database's position.

    A view of constants or of views alone does if it reads no external source.
    """
    relations = definition.relations()
    return any(map(is_main, relations)) or not (relations or external_sources.is_any)
