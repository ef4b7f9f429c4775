"""External sources in the pipeline, apart from reading them: snapshot positions and dead letters.

Invariant: a relation that is already read continues from the state's position, never from another
one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from connectors.feed_source import FeedPosition, FeedSource, FeedStart, retaining, selective
from connectors.source import SourceBatch
from dataflow.schema import Relation
from service.backfill.build_parts import ExternalRead
from service.backfill.view_build import ViewBuild
from service.engine.engine import Engine, ViewDefinition
from service.ingest.dead_letter_retries import DeadLetterRetries
from service.ingest.external_sources import ExternalSources, external_relations
from service.ingest.snapshot_offsets import SnapshotOffsets
from service.ingest.source_requirements import Needs, SourceRequirements, needs_of
from service.pipeline.source_status_reporter import SourceStatusReporter
from service.pipeline.view_failures import Failures
from service.runtime.log import log
from service.runtime.runtime import RUNTIME, Runtime


class ExternalSnapshots:
    """Used by the pipeline's thread. builds: the pipeline's own, by identity."""

    def __init__(
        self,
        engine: Engine,
        failures: Failures,
        builds: Mapping[str, ViewBuild],
        status_reporter: SourceStatusReporter,
        external_sources: ExternalSources,
        *,
        requirements: SourceRequirements,
        runtime: Runtime = RUNTIME,
    ) -> None:
        self._engine = engine
        self._failures = failures
        self._builds = builds
        self._status_reporter = status_reporter
        self._external_sources = external_sources
        self._source = external_sources.source
        self._requirements = requirements
        self._retries = DeadLetterRetries(runtime)
        self.snapshot_offsets = SnapshotOffsets(external_sources.released_at, runtime)

    def begin(
        self, definition: ViewDefinition, *, is_resumed: bool
    ) -> dict[str, ExternalRead] | None:
        """Return the snapshot positions of a view's relations; None until they are known.

        Part of the open epoch. Relations that are already read, also by an interrupted build, are
        at the state's position, once that has all that the view needs; the others begin at their
        current one.
        """
        positions = self._engine.positions
        by_source = external_relations(definition.relations())
        read = {relation.name for relation, _ in self._failures.reads()}
        needs = needs_of(definition, definition.reads())
        relations = [r for own in by_source.values() for r in own.values()]
        new = [
            r
            for r in relations
            if r.name not in read
            and not (
                is_resumed
                and r.name.name in positions.offsets(r.name.source)
                and self._has(r, needs)
            )
        ]
        if not all(self._has(r, needs) for r in relations if r not in new):
            self._requirements.await_read(definition.identity, needs)
            self._external_sources.require()
            return None
        probed = [(self._status_reporter.source(r.name.source), r) for r in new]
        snapshot_offsets = self.snapshot_offsets.take(definition.identity, probed, needs)
        if snapshot_offsets is None:
            return None
        starts = [(s, r, snapshot_offsets[r.name]) for s, r in probed]
        if not all(_covers(s, r, (at.position, at.notes.get), needs) for s, r, at in starts):
            # They were found for an earlier version of the view.
            return None
        found = {}
        for name in by_source:
            source = self._source(name)
            own = {
                r.name: self._retained(source, start)
                for r, start in snapshot_offsets.items()
                if r.source == name
            }
            positions.begin(name, own)
            found[name] = ExternalRead(source, positions.offsets(name), positions.notes(name))
        return found

    def _retained(self, source: FeedSource, start: FeedStart) -> FeedStart:
        """Return a start from which the source still has all changes, not before the found one.

        Since that was found, the state may have passed it in the source's other relations, and
        what is before the state's positions may be discarded. The snapshot comes after all of them.
        """
        own = retaining(source)
        if own is None:
            return start
        reached = self._engine.positions.offsets(source.name).values()
        return replace(start, position=max((start.position, *reached), key=own.order_of))

    def _has(self, relation: Relation, needs: Needs) -> bool:
        """Return True unless the state lacks something that a view needs of a relation."""
        name, positions = relation.name, self._engine.positions
        position = positions.offsets(name.source).get(name.name)
        if position is None:
            return True
        note_of = partial(positions.note, name.source)
        return _covers(self._source(name.source), relation, (position, note_of), needs)

    @property
    def is_anything_found(self) -> bool:
        """Return whether a start position or the outcome of a retry was found and not taken."""
        return self.snapshot_offsets.is_any_found or self._retries.is_any_done

    def resolved_dead_letters(self) -> Iterator[SourceBatch]:
        """Yield the dead letters that were retried or are dropped, each batch an epoch.

        They wait while a view over their relation is built: its snapshot may read them too.
        """
        built = {r.name for b in self._builds.values() for r in b.definition.relations()}
        read = {r.name: r for d in self._engine.views.values() for r in d.relations()}
        reporter = self._status_reporter
        for name, rows, is_retried in reporter.marked_dead_letters():
            if name in built:
                continue
            if is_retried and name in read:
                self._retries.begin(self._source(name.source), read[name], rows)
                self._external_sources.held = self._retries.sources
            elif name.source not in self._retries.sources:
                reporter.unmark_dead_letters(name, rows)
                yield SourceBatch(0, [], 0, 0, source=name.source, rejected=rows.negate())
        try:
            for retry in self._retries.take_done():
                name, batch = retry.relation.name, retry.batch
                if name in built or read.get(name) != retry.relation:
                    # They are still marked, and are retried or dropped in another turn.
                    continue
                reporter.unmark_dead_letters(name, retry.rows)
                if retry.error is not None:
                    code = retry.error.code
                    log.warning("dead_letters.retry", source=name.source, code=code)
                elif batch is not None and (batch.changes or batch.rejected is not None):
                    yield batch
        finally:
            self._external_sources.held = self._retries.sources


def _covers(
    source: FeedSource,
    relation: Relation,
    at: tuple[FeedPosition, Callable[[str], bytes | None]],
    needs: Needs,
) -> bool:
    """Return True if a position, with its notes, has all that is needed of a relation."""
    own, needed = selective(source), needs.get(relation.name)
    return own is None or needed is None or own.covers(relation.name.name, *at, needed)
