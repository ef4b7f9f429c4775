"""Live views that change as a whole: another version takes over, a pause, another name.

Each is one epoch: state, table and catalog change in one commit and one sink transaction, so that
after a kill at any moment there is the old view or the new one. Used by the pipeline's thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from connectors.postgres.catalog.catalog import ViewRow
from connectors.postgres.sink.view_tables import ViewTables
from connectors.sink import SinkEpoch, SinkTable, ViewChange
from connectors.spark.result import BackfillResult
from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from dataflow.schema import Relation
from service.backfill.builds import Builds
from service.backfill.row_difference import is_one_shape
from service.backfill.view_build import ViewBuild
from service.engine.definition import View, ViewDefinition
from service.engine.engine import Engine, named
from service.engine.epoch_buffer import EpochBuffer
from service.pipeline.epochs import Epochs
from service.pipeline.reconciler import CatalogReconciler
from service.runtime.log import log
from service.sinks.sink_workers import SinkWorkers, shown_positions
from service.views.lifecycle import ViewState
from service.views.requested_changes import numbered, published_of, table_of
from service.views.view_facts import changed_facts, facts_of
from storage import clock
from storage.failpoints import failpoint

WINDOWS_AGAIN = "the rows of closed windows would be written again"
# Why a view that has additional sinks keeps its name.
REPORTED_BY_NAME = "their records are identified by the view's name"


class ViewReplacement:
    """Change live views. tables: probes of the tables in the sink."""

    def __init__(
        self,
        *,
        engine: Engine,
        epochs: Epochs,
        builds: Builds,
        reconciler: CatalogReconciler,
        sink_workers: SinkWorkers,
        tables: ViewTables,
    ) -> None:
        self._engine = engine
        self._epochs = epochs
        self._builds = builds
        self._reconciler = reconciler
        self._sink_workers = sink_workers
        self._tables = tables

    # --- another version -----------------------------------------------------------------------

    def why_not(self, build: ViewBuild) -> TidemarkError | None:
        """Return why a built version cannot replace the live one; None if it can."""
        definition, live_version = build.definition, build.live_version
        missing = readers_lost(definition, self._engine.views.values())
        if missing:
            return readers_refuse(definition.table.title, missing)
        if live_version is None:
            return None
        row = self._reconciler.row(definition.identity)
        why = why_unreported(
            live_version.before, definition.table, is_staged=not build.initial_load.is_in_place
        )
        if definition.published.final or (row is not None and published_of(row).final):
            why = why or WINDOWS_AGAIN
        if why and (sinks := self._sink_workers.followed(definition.identity)):
            if row is not None and self._reconciler.replacement(row) is not None:
                return sinks_refuse(definition.table.title, sinks, why)
            # A rebuild that nobody requested: the view's tables had changed.
            self._sink_workers.fail_view(definition.identity, "the view was rebuilt")
        if build.initial_load.is_in_place:
            return None
        found = self._tables.dependents(live_version.before)
        return has_dependents(definition.table.title, found) if found else None

    def take_over(
        self, build: ViewBuild, view: View, buffered: EpochBuffer, result: BackfillResult
    ) -> tuple[SinkEpoch, Sequence[Relation]]:
        """Return the epoch in which a built view becomes visible, and the relations of the version
        before.

        Part of the open epoch.
        """
        engine, definition = self._engine, build.definition
        old = engine.views.get(definition.name)
        if old is None:
            engine.add(view)
        else:
            buffered = self._renew(build, view, buffered)
        epoch = engine.announce(
            view,
            buffered,
            result.errors,
            result.rejected,
            token=None if build.initial_load.is_in_place else build.initial_load.token,
        )
        if build.live_version is not None:
            epoch.ddl = replace(epoch.ddl, changes=(self._change(build),))
        return epoch, () if old is None else old.relations()

    def _renew(self, build: ViewBuild, view: View, buffered: EpochBuffer) -> EpochBuffer:
        """Replace the live version, and pass the difference to its readers."""
        engine, name = self._engine, build.definition.name
        engine.renew(view)
        failpoint("view.replace.installed")
        for other in self._builds.values():
            if name in other.definition.parents() and not build.initial_load.is_in_place:
                # It was planned over columns whose positions have changed.
                other.cancel()
        if build.initial_load.difference is None or not engine.readers_of(name):
            return buffered
        columns = build.initial_load.difference.columns
        if not build.initial_load.is_in_place:
            engine.pass_on(name, build.initial_load.difference.parts(), columns, buffered)
            return buffered
        both = engine.gather()
        engine.pass_on(name, _through(buffered, both, build.definition.table), columns, both)
        buffered.close()
        return both

    def _change(self, build: ViewBuild) -> ViewChange:
        definition, live_version = build.definition, build.live_version
        assert live_version is not None
        row = self._reconciler.row(definition.identity)
        change = None if row is None else numbered(row)
        facts: dict[str, Any] = dict.fromkeys(("code", "detail", "hint", "progress"))
        # Reported with the status: a view that is being built must not appear live.
        facts["live_at"] = clock.utc()
        ends = ""
        if change is not None and change.get("version") == definition.version:
            facts |= facts_of(definition, change["options"])
            ends = change["id"]
            facts["warnings"] = [*definition.plan.warnings, *change["warnings"]]
        elif row is not None and row.version == definition.version:
            facts |= changed_facts(definition, row)
        table = definition.table
        return ViewChange(
            definition.identity,
            table,
            table,
            facts,
            is_replaced=True,
            status=ViewState.LIVE.value,
            ends=ends,
        )

    # --- pauses --------------------------------------------------------------------------------

    def pause(self, rows: Sequence[ViewRow]) -> Sequence[Relation]:
        """Remove views from the dataflow; their tables stay. Return the relations that they
        read.
        """
        engine = self._engine
        paused = {row.identity for row in rows}
        live = [d for d in engine.views.values() if d.identity in paused]
        # A view stays as long as another one reads it that is not to be paused.
        ready = [d for d in live if all(c.identity in paused for c in engine.readers_of(d.name))]
        for definition in reversed(ready):
            engine.remove(definition.name)
        if ready:
            shown = shown_positions(engine.positions.by_source)
            facts = {"epoch": engine.epoch + 1, "positions": shown}
            changes = [
                ViewChange(d.identity, d.table, d.table, facts, status=ViewState.PAUSED.value)
                for d in ready
            ]
            failpoint("view.pause.before")
            self._epochs.finish(engine.change_views(changes), sync=True)
            failpoint("view.pause.after")
            log.info("views.paused", views=[d.table.title for d in ready])
        for row in rows:
            if row.identity not in {d.identity for d in live}:
                self._reconciler.paused(row)
        return [r for d in ready for r in d.relations()]

    # --- names ---------------------------------------------------------------------------------

    def rename(self, row: ViewRow) -> None:
        """Rename a view as requested. TidemarkError if that is impossible."""
        assert row.change is not None
        before = table_of(row)
        table = replace(before, schema=row.change["schema"], name=row.change["name"])
        sinks = self._sink_workers.followed(row.identity)
        if sinks:
            raise sinks_refuse(row.title, sinks, REPORTED_BY_NAME)
        self._tables.check(table)
        live = self._reconciler.live(row.identity)
        change = ViewChange(row.identity, before, table, {}, ends=row.change["id"])
        changes = [change, *self._reader_changes(row, table)]
        if live is None:
            self._tables.change(changes)
            return
        table = replace(live.table, schema=table.schema, name=table.name)
        changes[0] = replace(change, before=live.table, table=table)
        buffered = self._engine.gather()
        errors = _retitled(self._tables.read_errors(live.table), table)
        if errors is not None:
            buffered.add(table, errors, is_errors=True)
        self._engine.rename(live.name, table)
        failpoint("view.rename.before")
        self._epochs.finish(self._engine.change_views(changes, buffered), sync=True)
        failpoint("view.rename.after")
        log.info("view.renamed", view=live.table.title, name=table.title)

    def _reader_changes(self, row: ViewRow, table: SinkTable) -> Iterator[ViewChange]:
        """Return the changes of readers, which now use the view's new name."""
        assert row.change is not None
        for identity, query in row.change["readers"].items():
            reader = self._reconciler.row(identity)
            if reader is None:
                continue
            plan = dict(reader.plan or {})
            plan["parents"] = [
                [table.schema, table.name] if p == [row.schema, row.name] else p
                for p in map(list, plan.get("parents", []))
            ]
            own = table_of(reader)
            yield ViewChange(identity, own, own, {"query": query, "plan": plan})


def readers_lost(
    definition: ViewDefinition, others: Iterable[ViewDefinition]
) -> dict[str, list[str]]:
    """Return by title the views that could not read a version of a view, and why."""
    relation = definition.relation
    found = {d.table.title: d.missing_in(relation) for d in others}
    return {title: missing for title, missing in found.items() if missing}


def readers_refuse(title: str, missing: dict[str, list[str]]) -> TidemarkError:
    """Return the refusal of a version that its readers could not read."""
    return TidemarkError(
        "view.children_refuse",
        f'views that read "{title}" could no longer read it',
        detail="; ".join(f"{view}: {', '.join(why)}" for view, why in missing.items()),
        hint="keep the columns that they use, or drop or replace them first",
    )


def why_unreported(before: SinkTable, table: SinkTable, *, is_staged: bool = False) -> str:
    """Return why additional sinks cannot represent a version; "" if they can.

    is_staged: its rows are not known as changes of the earlier rows.
    """
    if is_staged or not is_one_shape(before, table):
        return "its records would have other columns"
    pairs = zip(before.fields, table.fields, strict=True)
    is_wider = any(new.is_nullable and not old.is_nullable for old, new in pairs)
    return "a column of their records may be NULL now" if is_wider else ""


def sinks_refuse(title: str, names: Sequence[str], why: str) -> TidemarkError:
    """Return the refusal of a change that additional sinks cannot represent."""
    return TidemarkError(
        "view.has_sinks",
        f'view "{title}" has additional sinks',
        detail=f"{', '.join(names)}: {why}",
        hint="drop them first, and add them again afterwards",
    )


def has_dependents(title: str, found: Sequence[str]) -> TidemarkError:
    """Return the refusal of a version that would need a new table."""
    return TidemarkError(
        "view.has_dependents",
        f'the table of view "{title}" cannot be replaced by one of other columns',
        detail=f"these depend on it: {', '.join(found)}",
        hint="drop them and create them again afterwards, or leave columns and key unchanged",
    )


def _through(buffered: EpochBuffer, both: EpochBuffer, table: SinkTable) -> Iterator[Delta]:
    """Return the deltas of a view for its table and its readers."""
    for part in buffered:
        if part.errors is not None:
            both.add(table, part.errors, is_errors=True)
        for owner, delta in part.deltas:
            both.add(owner, delta)
            yield delta


def _retitled(errors: Delta, table: SinkTable) -> Delta | None:
    """Return the change of a view's error rows when its name changes."""
    if not len(errors):
        return None
    bare = Delta(errors.columns[1:], errors.weights)
    return Delta.concat([errors.negate(), named(table, bare)])
