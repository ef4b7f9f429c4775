"""What the pipeline does about sources beside the database, apart from reading them.

Where the snapshots of a view's relations lie, and what becomes of dead letters. Invariant: a
relation that is read already is read on from where the state stands, never from another place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from connectors.feed_source import FeedSource
from connectors.source import SourceBatch
from dataflow.errors import TidemarkError
from service.backfill.build_parts import ExternalRead
from service.backfill.view_build import ViewBuild
from service.engine.engine import Engine, ViewDefinition
from service.ingest.external_sources import external_relations
from service.ingest.snapshot_offsets import SnapshotOffsets
from service.pipeline.source_status_reporter import SourceStatusReporter
from service.pipeline.view_failures import Failures
from service.runtime.log import log
from service.runtime.runtime import RUNTIME, Runtime


class ExternalSnapshots:
    """Used by the pipeline's thread. builds: the pipeline's own, by identity; source: a source that
    is read, or else as it is declared."""

    def __init__(
        self,
        engine: Engine,
        failures: Failures,
        builds: Mapping[str, ViewBuild],
        desk: SourceStatusReporter,
        source: Callable[[str], FeedSource],
        *,
        host: Runtime = RUNTIME,
    ) -> None:
        self._engine = engine
        self._failures = failures
        self._builds = builds
        self._desk = desk
        self._source = source
        self.snapshot_offsets = SnapshotOffsets(host)

    def begin(
        self, definition: ViewDefinition, *, is_resumed: bool
    ) -> dict[str, ExternalRead] | None:
        """Where the snapshots of a view's relations lie, None while that is being found out; part
        of the open epoch.

        What is read already stands where the state does, as does what an interrupted build was
        reading. The others begin where they are now.
        """
        positions = self._engine.positions
        by_source = external_relations(definition.relations())
        read = {relation.name for relation, _ in self._failures.reads()}
        new = [
            relation
            for name, relations in by_source.items()
            for relation in relations.values()
            if relation.name not in read
            and not (is_resumed and relation.name.name in positions.offsets(name))
        ]
        wanted = [(self._desk.source(r.name.source), r) for r in new]
        snapshot_offsets = self.snapshot_offsets.take(definition.identity, wanted)
        if snapshot_offsets is None:
            return None
        found = {}
        for name in by_source:
            own = {r.name: snapshot_offsets[r] for r in snapshot_offsets if r.source == name}
            positions.begin(name, own)
            source = self._source(name)
            found[name] = ExternalRead(source, positions.offsets(name), positions.notes(name))
        return found

    def resolved_dead_letters(self) -> Iterator[SourceBatch]:
        """Records that were asked to be tried again, or to be dropped, each batch an epoch.

        While a view is built of their relation they wait: its snapshot may read them too.
        """
        built = {r.name for b in self._builds.values() for r in b.definition.relations()}
        read = {r.name: r for d in self._engine.views.values() for r in d.relations()}
        for name, rows, is_retried in self._desk.marked_dead_letters():
            if name in built:
                continue
            self._desk.unmark_dead_letters(name, rows)
            try:
                if is_retried and name in read:
                    batch = self._source(name.source).decode_again(read[name], rows)
                else:
                    batch = SourceBatch(0, [], 0, 0, source=name.source, rejected=rows.negate())
            except TidemarkError as error:
                log.warning("dead_letters.retry", source=name.source, code=error.code)
                continue
            if batch.changes or batch.rejected is not None:
                yield batch
