"""The epochs that the sink already has, by source: they are stepped again and not written.

The state may be older than the sink, after a machine crash or a lost state. Invariant: while any
source is muted, the state retains its epoch number, by which the next start detects the lag.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connectors.source import MAIN_SOURCE
from service.backfill.builds import Builds
from service.engine.positions import Positions
from service.ingest.external_sources import ExternalSources, external_relations
from service.pipeline.view_failures import Failures


class SinkMute:
    """Used by the pipeline's thread.

    by_source: for each muted source the position up to which the sink has everything; a number for
    the database, the offsets of its relations for another source.
    """

    def __init__(
        self,
        positions: Positions,
        failures: Failures,
        builds: Builds,
        external_sources: ExternalSources,
    ) -> None:
        self._positions = positions
        self._failures = failures
        self._builds = builds
        self._external_sources = external_sources
        self.by_source: dict[str, Any] = {}

    def __bool__(self) -> bool:
        return bool(self.by_source)

    def start(self, targets: Mapping[str, Any], written: int) -> None:
        """Mute the sources up to these positions; written: the sink's epoch."""
        self.by_source = dict(targets)
        is_begun_after = self._positions.is_begun_after
        for source in targets.keys() - {MAIN_SOURCE}:
            self.by_source[source] = {
                name: offset
                for name, offset in targets[source].items()
                if not is_begun_after(source, name, written)
            }
        self._positions.awaited = written if targets else 0

    def shown_position(self) -> int:
        """Return the database's position up to which the sink has everything; 0 when not muted."""
        return self.by_source.get(MAIN_SOURCE, 0)

    def begin_database(self, position: int, shown: int, written: int) -> None:
        """Read the database from `position` on, muted while the sink shows more of it.

        shown: the position that the sink shows, by a state that was lost since.
        """
        self._positions.begin(MAIN_SOURCE, position)
        if shown > position:
            self.by_source[MAIN_SOURCE] = shown
            self._positions.awaited = written

    def unmute_begun(self, before: Mapping[str, Any], written: int) -> None:
        """Unmute the relations whose offsets differ from `before`, the positions by source.

        They are first read from a new offset, so the sink has nothing of them.
        """
        for source in self._positions.by_source.keys() - {MAIN_SOURCE}:
            old, new = before.get(source, {}), self._positions.offsets(source)
            begun = {name for name, offset in new.items() if old.get(name) != offset}
            self._positions.note_begun(source, begun, written)
            if source in self.by_source:
                target = self.by_source[source].items()
                self.by_source[source] = {n: p for n, p in target if n not in begun}

    def unmute_reached(self, written: int) -> None:
        """Unmute the sources that have reached the sink or are no longer read."""
        if not self.by_source:
            return
        reached = self._positions.by_source
        read = external_relations(relation for relation, _ in self._failures.reads())
        for source, target in list(self.by_source.items()):
            if source == MAIN_SOURCE:
                is_unread = self._external_sources.is_any and not self._positions.database
                is_reached = is_unread or self._positions.database >= target
            elif not self._builds.are_resumed:
                # An interrupted build reads it too, and is not known yet.
                is_reached = False
            else:
                names = [name.name for name in read.get(source, ())]
                offsets = reached.get(source, {})
                # A source that the sink has no position of needs no replay.
                is_reached = all(offsets.get(n) == target[n] for n in names if n in target)
            if is_reached:
                del self.by_source[source]
        self.adopt_epoch(written)

    def forget_database(self) -> None:
        """Unmute the database: its position is forgotten."""
        self.by_source.pop(MAIN_SOURCE, None)

    def clear(self) -> None:
        """Unmute everything: earlier epochs no longer matter."""
        self.by_source = {}

    def adopt_epoch(self, written: int) -> None:
        """Give the state the sink's epoch once nothing is muted; not before."""
        if not self.by_source:
            if self._positions.epoch < written:
                self._positions.set_epoch(written)
            self._positions.awaited = 0
