"""Taking views out of a running pipeline, so that the others continue.

A failed view leaves the engine with its state and with all views that read it; its table stays
in the sink as it was. Invariant: the catalog says so first, so that a restart in between fails
the view again and never shows it as live.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

from dataflow.errors import OverBudgetError, TemporaryError, TidemarkError, ViewError
from dataflow.schema import RelationName
from service.backfill.builds import Builds
from service.backfill.view_build import ViewBuild
from service.engine.column_requirements import Read, fits, is_same_table, name_in_use
from service.engine.engine import Engine, ViewDefinition
from service.pipeline.postponed_builds import PostponedBuilds
from service.pipeline.reconciler import CatalogReconciler
from service.runtime.error_reports import Reports
from service.runtime.log import log
from service.views.lifecycle import ViewState
from storage import clock


@dataclass(frozen=True)
class TakenOut:
    """Views that have left the engine. degraded: those that are rebuilt by themselves."""

    failed: list[ViewDefinition] = field(default_factory=list)
    degraded: list[ViewDefinition] = field(default_factory=list)

    @property
    def views(self) -> list[ViewDefinition]:
        """Return all of them."""
        return self.failed + self.degraded


class Failures:
    """Fails views according to the relations that they read.

    postponed: when views are built again that were over their budget.
    """

    def __init__(
        self,
        engine: Engine,
        reconciler: CatalogReconciler,
        builds: Builds,
        reports: Reports,
        postponed: PostponedBuilds,
    ) -> None:
        self.reports = reports
        self.postponed = postponed
        self._engine = engine
        self._reconciler = reconciler
        self._builds = builds

    @property
    def are_unreported(self) -> bool:
        """Return True if the catalog may still call a view live that has failed."""
        return self._reconciler.owes_failures

    def definitions(self) -> list[ViewDefinition]:
        """Return the live definitions, parents first, then those being built and not cancelled."""
        live = list(self._engine.views.values())
        return live + [build.definition for build in self._builds.active()]

    def reads(self) -> list[Read]:
        """Return what these read of the source, and what builds store for other views."""
        read = [r for d in self._engine.views.values() for r in d.reads()]
        return read + [r for build in self._builds.active() for r in build.reads()]

    def fail_readers(self, error: TidemarkError) -> list[ViewDefinition]:
        """Fail what reads error.relation, or is it."""
        return self.fail(self.readers_of(error.relation), error)

    def take_out(self, error: ViewError) -> TakenOut:
        """Fail a view that cannot be stepped, error.relation, and what reads it.

        One that was only over its budget is rebuilt, unless a rebuild would lose its past.
        """
        views = self.readers_of(error.relation)
        if not isinstance(error, OverBudgetError):
            return TakenOut(failed=self.fail(views, error))
        error = _since(error)
        failed = self.fail([d for d in views if d.depends_on_history], _not_rebuilt(error))
        degraded = self.degrade([d for d in views if d not in failed], error)
        for definition in degraded:
            self.postponed.note(definition.identity, error)
        return TakenOut(failed, degraded)

    def postpone(self, build: ViewBuild, error: OverBudgetError) -> None:
        """Build a view again after a pause: to catch up with its tables is over its budget."""
        self.postponed.note(build.definition.identity, error)
        why = TemporaryError(error.code, error.what, detail=error.detail, hint=error.hint)
        self._reconciler.fail_build(build, why)

    def readers_of(self, name: RelationName | None) -> list[ViewDefinition]:
        """Return the views that read a relation, or are it."""
        return [
            d
            for d in self.definitions()
            if (d.name == name and self._has_name(d)) or name in _names_read(d)
        ]

    def _has_name(self, definition: ViewDefinition) -> bool:
        """Return False for a build beside a live view, which is not shown under its name yet."""
        return self._engine.views.get(definition.name, definition) is definition

    def readers(self) -> list[tuple[ViewDefinition, Sequence[Read]]]:
        """Return the live views and builds, each with what it reads or stores."""
        live = [(d, d.reads()) for d in self._engine.views.values()]
        return [*live, *((b.definition, b.reads()) for b in self._builds.active())]

    def require_names(self, definition: ViewDefinition) -> None:
        """Refuse a view that was planned just now if it means other things by names in use."""
        for newer in definition.relations():
            for reader in self.definitions():
                if not all(fits(read, newer) for read in reader.reads()):
                    raise name_in_use(newer, reader.table.title)

    def is_newer(self, definition: ViewDefinition) -> bool:
        """Return True if a view uses columns of a streamed table that its earlier rows may lack."""
        return any(
            is_same_table(relation, known) and relation.fields != known.fields
            for relation in definition.relations()
            for known, _ in self.reads()
        )

    def fail(
        self, definitions: Iterable[ViewDefinition], error: TidemarkError
    ) -> list[ViewDefinition]:
        """Fail views, live or being built, and all that read them; part of the open epoch."""
        failed = self._with_children(definitions)
        if failed:
            # Readers come first: the last one is the view itself.
            error = self.reports.reported(error, failed[-1].table.title)
        live = {d.identity for d in failed if self._engine.views.get(d.name) is d}
        for definition in failed:
            # What has failed the live view is why it is rebuilt: the rebuild begins again.
            is_remedy = definition.identity in live and self._is_rebuilt(definition.identity)
            if self._builds.cancel(definition, None if is_remedy else error):
                continue
            log.warning("view.failed", view=definition.table.title, code=error.code)
            self._reconciler.fail_view(definition.identity, error)
            self._engine.remove(definition.name)
        return failed

    def _is_rebuilt(self, identity: str) -> bool:
        row = self._reconciler.row(identity)
        if row is None or self._reconciler.replacement(row) is None:
            return False
        return (row.replacing or {}).get("kind") == "rebuild"

    def degrade(
        self, definitions: Iterable[ViewDefinition], error: TidemarkError
    ) -> list[ViewDefinition]:
        """Mark views, live or being built, and all that read them for a rebuild.

        Their last rows stay until the new ones replace them; part of the open epoch.
        """
        taken = self._with_children(definitions)
        for definition in taken:
            if self._builds.cancel(definition):
                continue
            log.warning("view.degraded", view=definition.table.title, code=error.code)
            self._reconciler.degrade_view(definition.identity, error)
            self._engine.remove(definition.name)
        return taken

    def remove_failed(self) -> None:
        """Remove views from the engine that the catalog calls failed or to be rebuilt.

        The previous process stopped after that was reported.
        """
        self._remove([d for d in self._engine.views.values() if self._is_degraded(d)])
        failed_there = self._reconciler.failed()
        failed = [d for d in self._engine.views.values() if d.identity in failed_there]
        for definition in self._with_children(failed):
            if definition.identity in failed_there:
                self._engine.remove(definition.name)
            else:
                self.fail([definition], self._reconciler.error_of(failed[0].identity))

    def _is_degraded(self, definition: ViewDefinition) -> bool:
        row = self._reconciler.row(definition.identity)
        return row is not None and row.status == ViewState.DEGRADED

    def _with_children(self, definitions: Iterable[ViewDefinition]) -> list[ViewDefinition]:
        """Return the views and all that read them, readers first."""
        chosen = {id(d) for d in definitions}
        names: set[RelationName] = set()
        found = []
        for definition in self.definitions():
            if id(definition) in chosen or names.intersection(definition.parents()):
                if self._has_name(definition):
                    names.add(definition.name)
                found.append(definition)
        return found[::-1]

    def _is_strange(self, definition: ViewDefinition) -> bool:
        """Return True if the catalog has a later version of a view, or none, or it is paused."""
        row = self._reconciler.row(definition.identity)
        if row is None or definition.version < row.version:
            return True
        return definition.version == row.version and row.status == ViewState.PAUSED

    def remove_strangers(self) -> bool:
        """Remove views from the engine that differ in the catalog: the state is older than it.

        Return True if the catalog lacks some of them.
        """
        is_any_unknown = any(self._reconciler.row(i) is None for i in self._identities())
        self._remove([d for d in self._engine.views.values() if self._is_strange(d)])
        return is_any_unknown

    def _identities(self) -> list[str]:
        return [d.identity for d in self._engine.views.values()]

    def remove_unknown(self) -> list[ViewDefinition]:
        """Remove views that the catalog lacks although nobody dropped them: a rewound sink lost
        them.

        Their tables are unchanged.
        """
        known = {row.identity for row in self._reconciler.rows}
        return self._remove([d for d in self._engine.views.values() if d.identity not in known])

    def remove_unmatched(self) -> None:
        """Remove views that do not match the catalog of a rewound sink.

        Views that depend on the order of rows go too: it may differ when rows are read again.
        """
        views = self._engine.views.values()
        self._remove([d for d in views if d.depends_on_history or not self._is_known(d)])

    def _is_known(self, definition: ViewDefinition) -> bool:
        row, table = self._reconciler.row(definition.identity), definition.table
        if row is None or (row.version, row.status) != (definition.version, ViewState.LIVE):
            return False
        return (row.schema, row.name) == (table.schema, table.name)

    def remove_outdated(self, sources: Collection[str]) -> None:
        """Remove views that a state older than its sink would leave wrong.

        sources: those that are not at the sink's position and cannot replay. A renamed view has its
        table under another name. A view that depends on the order of rows may
        differ when they come again.
        """
        outdated = []
        for definition in self._engine.views.values():
            row = self._reconciler.row(definition.identity)
            table = definition.table
            is_renamed = row is not None and (row.schema, row.name) != (table.schema, table.name)
            is_outdated = is_renamed or definition.depends_on_history
            if is_outdated or any(r.name.source in sources for r in definition.relations()):
                outdated.append(definition)
        self._remove(outdated)
        for source in sources:
            self._engine.positions.forget(source, list(self._engine.positions.offsets(source)))

    def _remove(self, definitions: Sequence[ViewDefinition]) -> list[ViewDefinition]:
        removed = self._with_children(definitions)
        for definition in removed:
            log.warning("view.state_outdated", view=definition.table.title)
            self._engine.remove(definition.name)
        return removed


def _since(error: OverBudgetError) -> OverBudgetError:
    """Return the error with the moment from which on a view's rows do not change."""
    detail = f"{error.detail}; its rows are as of {clock.utc():%Y-%m-%d %H:%M:%S} UTC"
    return OverBudgetError(error.code, error.what, detail=detail, hint=error.hint)


def _not_rebuilt(error: OverBudgetError) -> ViewError:
    """Return the error of a view whose rows depend on the order of its sources' rows."""
    hint = "its rows stay as they are; rebuild it, or create it again in a group of its own"
    return ViewError(error.code, error.what, detail=error.detail, hint=hint)


def _names_read(definition: ViewDefinition) -> set[RelationName]:
    return {relation.name for relation, _ in definition.reads()}
