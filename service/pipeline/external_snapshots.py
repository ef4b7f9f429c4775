"""External sources in the pipeline, apart from reading them: snapshot positions and dead letters.

Invariant: a relation that is already read continues from the state's position, never from another
one.
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
        status_reporter: SourceStatusReporter,
        source: Callable[[str], FeedSource],
        *,
        runtime: Runtime = RUNTIME,
    ) -> None:
        self._engine = engine
        self._failures = failures
        self._builds = builds
        self._status_reporter = status_reporter
        self._source = source
        self.snapshot_offsets = SnapshotOffsets(runtime)

    def begin(
        self, definition: ViewDefinition, *, is_resumed: bool
    ) -> dict[str, ExternalRead] | None:
        """Return the snapshot positions of a view's relations; None until they are known.

        Part of the open epoch. Relations that are already read, also by an interrupted build, are
        at the state's position; the others begin at their current one.
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
        probed = [(self._status_reporter.source(r.name.source), r) for r in new]
        snapshot_offsets = self.snapshot_offsets.take(definition.identity, probed)
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
        """Yield the dead letters to be retried or dropped, each batch an epoch.

        They wait while a view over their relation is built: its snapshot may read them too.
        """
        built = {r.name for b in self._builds.values() for r in b.definition.relations()}
        read = {r.name: r for d in self._engine.views.values() for r in d.relations()}
        for name, rows, is_retried in self._status_reporter.marked_dead_letters():
            if name in built:
                continue
            self._status_reporter.unmark_dead_letters(name, rows)
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
