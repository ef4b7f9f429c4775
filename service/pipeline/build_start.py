"""How a build begins: planned, its changes spooled, then its thread started.

Invariant: the stream carries a view's tables before its snapshot is opened, so that no change
between the two is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from connectors.postgres.catalog.catalog import ViewRow
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.source import MAIN_SOURCE
from dataflow.errors import TidemarkError
from dataflow.operators.base import view_error
from service.backfill.backfill_manifest import forget_others, is_left
from service.backfill.build_parts import BuildParts, ExternalRead
from service.backfill.builds import Builds
from service.backfill.engine_choice import SPARK, EngineChoice
from service.backfill.initial_load import LiveVersion
from service.backfill.view_build import ViewBuild
from service.engine.definition import ViewDefinition
from service.engine.engine import Engine
from service.ingest.external_sources import ExternalSources, external_relations, is_main
from service.ingest.source_requirements import SourceRequirements
from service.pipeline.epochs import Epochs
from service.pipeline.external_snapshots import ExternalSnapshots
from service.pipeline.followed_database import FollowedDatabase, reads_database
from service.pipeline.reconciler import CatalogReconciler
from service.pipeline.sink_mute import SinkMute
from service.pipeline.source_subscriptions import SourceSubscriptions
from service.pipeline.view_failures import Failures
from service.pipeline.view_rights import ViewRights
from service.runtime import state_owner
from service.runtime.log import log
from service.views.requested_changes import table_of
from service.views.wait_reasons import Waiting, waits_for
from storage.failpoints import failpoint
from storage.store import Store

_READING = waits_for("its sources are read again, for more columns or rows")
_PASSING = waits_for("rows from before a change of its table have to pass first")


class PartsOf(Protocol):
    """Make the inputs of a build from a definition, the requested engine, snapshot offsets and the
    estimate of its creation."""

    def __call__(
        self,
        definition: ViewDefinition,
        requested: str,
        feeds: Mapping[str, ExternalRead],
        estimate: Mapping[str, Any] | None = None,
    ) -> BuildParts: ...


class BuildStart:
    """Used by the pipeline's thread.

    folder: of the builds' working files. open_sink: a new session of the sink. _delayed: views that
    wait for a position of the stream, with their definitions.
    """

    def __init__(
        self,
        *,
        engine: Engine,
        epochs: Epochs,
        mute: SinkMute,
        builds: Builds,
        failures: Failures,
        reconciler: CatalogReconciler,
        subscriptions: SourceSubscriptions,
        database: FollowedDatabase,
        external_sources: ExternalSources,
        external_snapshots: ExternalSnapshots,
        store: Store,
        folder: Path,
        waiting: Waiting,
        requirements: SourceRequirements,
        rights: ViewRights,
        parts_of: PartsOf,
        open_sink: Callable[[], PostgresSink],
    ) -> None:
        self._engine = engine
        self._epochs = epochs
        self._mute = mute
        self._builds = builds
        self._failures = failures
        self._reconciler = reconciler
        self._subscriptions = subscriptions
        self._database = database
        self._external_sources = external_sources
        self._external_snapshots = external_snapshots
        self._store = store
        self._folder = folder
        self._waiting = waiting
        self._requirements = requirements
        self._rights = rights
        self._parts_of = parts_of
        self._open_sink = open_sink
        self._delayed: dict[str, tuple[ViewDefinition, int]] = {}

    def forget(self, identity: str) -> None:
        """Plan a view again before its next build: it is dropped, or has another name."""
        self._delayed.pop(identity, None)
        self._requirements.forget(identity)

    def retain(self, identities: Collection[str]) -> None:
        """Read nothing more for other views that waited for it: they are not to be built."""
        self._requirements.retain(identities)

    def resume_interrupted(self) -> None:
        """Resume interrupted builds before the stream is read: no change may be missed."""
        # A rewound sink is repaired first; interrupted builds begin again after that.
        for row in () if self._epochs.is_lagging else self._reconciler.to_build(self._builds):
            if is_left(self._folder, row.identity):
                self.start(row)
        in_use = {build.definition.scope for build in self._builds.values()}
        forget_others(self._folder, in_use)

    def start(self, row: ViewRow) -> None:
        """Start a build; fail the view if that is refused, or withhold its rows if its owner lost a
        right. Raise temporary errors alone.
        """
        try:
            self._start_build(row)
        except Exception as error:
            if isinstance(error, TidemarkError):
                if error.is_temporary:
                    raise
                if not self._rights.withheld_for(row, error):
                    self._reconciler.refuse(row, error)
                return
            found = view_error("start of the build", error)
            if found is None:
                raise
            self._reconciler.refuse(row, self._failures.reports.reported(found, row.title))

    def _start_build(self, row: ViewRow) -> None:
        held = self._delayed.get(row.identity)
        live = self._reconciler.live(row.identity) if self._epochs.is_lagging else None
        if held is None and live is None and self._reconciler.awaits_parents(row):
            return
        # The identity of this object distinguishes a build from the live view.
        definition = held[0] if held else replace(live) if live else self._reconciler.define(row)
        # A compared version is live over its parents, whatever is requested of them now.
        if live is None and not self._reconciler.are_parents_live(definition):
            self._delayed.pop(row.identity, None)
            read = ", ".join(str(parent) for parent in definition.parents())
            self._waiting.note(row.identity, waits_for("views that it reads are not live", read))
            return
        self._subscriptions.probe_tables()
        self._failures.require_names(definition)
        is_newer = self._database.is_open and self._failures.is_newer(definition)
        if is_newer or self._database.is_moving(definition.relations()):
            # Rows from before a table was changed have another shape: let them pass first.
            held = held or (definition, self._database.heartbeat())
            self._delayed[row.identity] = held
            if self._engine.position < held[1]:
                self._waiting.note(row.identity, _PASSING)
                return
        self._delayed.pop(row.identity, None)
        definition = self._engine.in_free_scope(definition)
        before = self._engine.positions.by_source
        is_resumed = is_left(self._folder, row.identity)
        feeds = self._external_snapshots.begin(definition, is_resumed=is_resumed)
        if feeds is None:
            is_awaited = self._requirements.is_awaited(row.identity)
            self._waiting.note(row.identity, _READING if is_awaited else _unknown(definition))
            return
        self._mute.unmute_begun(before, self._epochs.writer.written)
        self._store.drop(definition.scope + "/")
        is_of_database = reads_database(definition, self._external_sources)
        if is_of_database and not self._database.is_open and not self._engine.position:
            self._begin_database()
        self._epochs.commit()
        failpoint("view.build.before")
        self._database.publish([r for r in definition.relations() if is_main(r)])
        build = self._build_of(row, definition, feeds, reads_database=is_of_database)
        self._builds.add(build)
        # From now on the build itself needs it.
        self._requirements.forget(row.identity)
        try:
            if is_of_database:
                self._subscriptions.follow()
            else:
                self._external_sources.open(self._failures.reads())
        except Exception as error:
            self._builds.withdraw(definition.identity)
            # It gets no changes until the next try: what only it has noted would be outdated.
            is_temporary = isinstance(error, TidemarkError) and error.is_temporary
            build.close(is_kept=is_temporary and is_resumed)
            raise
        if not build.is_cancelled:
            self._waiting.over(row.identity)
            build.start()
            _note_start(definition.table.title, build.status.choice)

    def _build_of(
        self,
        row: ViewRow,
        definition: ViewDefinition,
        feeds: Mapping[str, ExternalRead],
        *,
        reads_database: bool,
    ) -> ViewBuild:
        engine = self._reconciler.options(row).get("backfill", "auto")
        estimate = (row.plan or {}).get("estimate")
        parts = self._parts_of(definition, engine, feeds, estimate)
        parts = replace(parts, reads_database=reads_database, live_version=self._live_version(row))
        columns = self._engine.columns_to_keep(definition, self._failures.reads())
        return ViewBuild(
            definition,
            self._store,
            self._folder,
            parts,
            columns,
            opened=self._engine.open_build,
            catch_up=self._engine.catch_up,
        )

    def _begin_database(self) -> None:
        position = self._database.begin()
        self._reconciler.remember_source()
        state_owner.note(self._store, self._reconciler.source_identity())
        sink = self._open_sink()
        try:
            found = sink.read_progress()
        finally:
            sink.close()
        shown = 0 if found is None else found.positions.get(MAIN_SOURCE, 0)
        self._mute.begin_database(position, shown, self._epochs.writer.written)

    def _live_version(self, row: ViewRow) -> LiveVersion | None:
        """Return the view's existing table, if any."""
        if not row.fields:
            return None
        before = table_of(row)
        has_readers = bool(self._engine.readers_of(before.relation))
        return LiveVersion(
            before,
            has_readers,
            self._engine.find_epoch,
            self._epochs.rewound_to,
            is_maintained=self._reconciler.live(row.identity) is not None,
        )


def _unknown(definition: ViewDefinition) -> TidemarkError:
    """Return why a view waits whose sources have not answered where they are."""
    sources = ", ".join(sorted(external_relations(definition.relations())))
    return waits_for("its sources' positions are not known yet", sources)


def _note_start(view: str, choice: EngineChoice) -> None:
    """Log the start. What Spark would take is of interest where Spark builds the view."""
    names = choice.seconds if choice.engine == SPARK else {choice.engine} & choice.seconds.keys()
    facts: dict[str, object] = {f"{name}_s": round(choice.seconds[name], 1) for name in names}
    why = choice.reason if choice.engine == SPARK else choice.lacking
    if why:
        facts["why"] = why
    log.info("build.started", view=view, engine=choice.engine, **facts)
