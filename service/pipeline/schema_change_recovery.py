"""The recovery of views from schema changes: they are rebuilt if their query means the same.

PostgreSQL analyzes the query again. With the same columns, or wider ones, the view is degraded: its
last rows stay readable until the new backfill replaces them. Otherwise it fails with the reason,
and so does a view with additional sinks, which accept changes only. Invariant: no view continues
over rows that are not those of its query.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from connectors.feed_source import RelationAltered
from connectors.sink import SinkTable
from dataflow.errors import SourceError, TemporaryError, TidemarkError
from dataflow.schema import Field
from dataflow.types import is_one_family
from service.engine.engine import Engine, ViewDefinition
from service.ingest.table_watch import SourceWatch, TablesChanged
from service.pipeline.reconciler import CatalogReconciler
from service.pipeline.view_failures import Failures
from service.runtime.log import log
from service.sinks.sink_workers import SinkWorkers
from storage.failpoints import failpoint

# Refusals that analyzing the query again cannot resolve: a user has to restore the table first.
_FINAL = ("source.table_missing", "source.not_published")


class SchemaChangeRecovery:
    """Used by the pipeline's thread."""

    def __init__(
        self,
        engine: Engine,
        failures: Failures,
        reconciler: CatalogReconciler,
        watch: SourceWatch,
        sink_workers: SinkWorkers,
    ) -> None:
        self._engine = engine
        self._failures = failures
        self._examined = set[str]()
        self._reconciler = reconciler
        self._watch = watch
        self._sink_workers = sink_workers

    def take_out(self, error: TidemarkError) -> list[ViewDefinition]:
        """Remove the views from the engine that this refusal affects; part of the open epoch."""
        if isinstance(error, TablesChanged):
            taken = self._recover(error.lost)
            failpoint("ddl.recovery.after")
            self._watch.accept(error.found)
            return taken
        is_altered = error.code == "source.schema_changed" or isinstance(error, RelationAltered)
        if is_altered and isinstance(error, SourceError):
            readers = self._failures.readers_of(error.relation)
            return self._recover({d.building: error for d in readers})
        return self._failures.fail_readers(error)

    def take_out_changed(self) -> list[ViewDefinition]:
        """Check the catalog, and take out the views that cannot continue; part of the open epoch.

        Nothing is taken out while the catalog cannot be read.
        """
        try:
            self._watch.refresh()
        except TablesChanged as error:
            return self._taken_out(error)
        except TemporaryError as error:
            log.warning("source.retry", code=error.code)
        return []

    def _taken_out(self, error: TablesChanged) -> list[ViewDefinition]:
        try:
            return self.take_out(error)
        except TemporaryError as again:
            # Nothing can be decided now: the next check finds the same.
            log.warning("source.retry", code=again.code)
            return []

    def learn_objects(self) -> None:
        """Note what views of an older state rest on, as it is now; part of the open epoch.

        TemporaryError.
        """
        for definition in list(self._engine.views.values()):
            row = self._reconciler.row(definition.identity)
            is_known = definition.names.objects is not None
            if is_known or row is None or definition.identity in self._examined:
                continue
            self._examined.add(definition.identity)
            try:
                newer = self._reconciler.define(row, definition)
            except TidemarkError as error:
                if error.is_temporary:
                    self._examined.remove(definition.identity)
                    raise
                log.warning("view.objects_unknown", view=row.title, why=error.described)
                continue
            names = replace(definition.names, objects=newer.names.objects)
            self._engine.note(replace(definition, names=names))

    def note_names(self) -> None:
        """Report renamed tables and columns to the views' users."""
        if self._watch.renamed:
            self._reconciler.note_names(self._watch.renamed)
            self._watch.renamed = {}

    def _recover(self, lost: Mapping[str, SourceError]) -> list[ViewDefinition]:
        """lost: why, by `ViewDefinition.building`: a version that is built beside a live view may
        read what that does not."""
        taken: list[ViewDefinition] = []
        judged = [
            (d, self._judged(d, e))
            for d in self._failures.definitions()
            if (e := lost.get(d.building)) is not None
        ]
        # Those that fail first: what reads them fails with them.
        for definition, final in judged:
            if final is not None:
                taken += self._failures.fail([definition], final)
        for definition, final in judged:
            if final is None and definition not in taken:
                taken += self._failures.degrade([definition], lost[definition.building])
        return list({d.identity: d for d in taken}.values())

    def _judged(self, definition: ViewDefinition, error: SourceError) -> TidemarkError | None:
        """Return the error that a view fails with; None if a rebuild gives its query's rows."""
        row = self._reconciler.row(definition.identity)
        if error.code in _FINAL or row is None:
            return error
        try:
            newer = self._reconciler.define(row, definition)
        except TidemarkError as refusal:
            if refusal.is_temporary:
                raise
            return _with_detail(error, refusal.described, refusal.hint)
        was, now = definition.table, newer.table
        other = _other_columns(was, now)
        if other:
            return _with_detail(error, f"the columns of the view would be others: {other}")
        if self._sink_workers.has_sinks_of(definition.identity):
            return _with_detail(error, "its sinks could not get the changes of a rebuild")
        if was.key != now.key:
            return _with_detail(error, "the view would have another key")
        retyped = [f"{f.name} {f.type.name}" for f, o in _pairs(now, was) if f.type != o.type]
        if retyped:
            log.info("view.columns_retyped", view=was.title, columns=retyped)
        return None


def _pairs(left: SinkTable, right: SinkTable) -> Iterator[tuple[Field, Field]]:
    yield from zip(left.fields, right.fields, strict=True)


def _other_columns(was: SinkTable, now: SinkTable) -> str:
    """Return how the columns of a rebuilt view would be others; "" if its readers can take them
    for the same: of the same names, each of a type of the same family."""
    names = [f.name for f in was.fields], [f.name for f in now.fields]
    if names[0] != names[1]:
        return f"{', '.join(names[1])} instead of {', '.join(names[0])}"
    return ", ".join(
        f'"{new.name}" was {old.type.name} and would be {new.type.name}'
        for old, new in _pairs(was, now)
        if not is_one_family(old.type, new.type)
    )


def _with_detail(error: SourceError, why: str, hint: str = "") -> SourceError:
    detail = f"{error.detail}; {why}" if error.detail else why
    return SourceError(
        error.code, error.what, detail=detail, hint=hint or error.hint, relation=error.relation
    )
