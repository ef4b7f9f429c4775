"""The pipeline's side of the control tables: what is wanted, and how it goes.

The sink may be down while views stream on: what could not be told is kept and told later, so
nothing here stops an epoch. Invariant: a view is called live only once the epoch that swaps its
table in is committed in the sink.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from connectors.postgres.control import Control, SourceRow, ViewRow
from connectors.sink import Sink, SinkTable
from dataflow.errors import TemporaryError, TidemarkError
from dataflow.schema import VIEW_SOURCE, RelationName
from service.build import ViewBuild
from service.engine import Engine, ViewDefinition
from service.groups import group_of
from service.log import log
from service.planning import plan_definition
from service.source_desk import SourceDesk

if TYPE_CHECKING:
    from service.parts import Parts

DROPPED = "dropped"
_RENAMED = "renamed at the source: "


class Desk:
    """One for a pipeline, used by its thread alone."""

    def __init__(self, control: Control, engine: Engine, parts: Parts) -> None:
        self._control = control
        self._engine = engine
        self._parts = parts
        self._joined: dict[str, tuple[int, int]] = {}
        self._untold: dict[str, dict[str, Any]] = {}
        self.sources = SourceDesk(control, parts.settings.sink_key)
        self._rows: list[ViewRow] = []
        self._all_rows: list[ViewRow] = []
        self._failed: set[str] = set()
        self._is_called = True

    def claim(self) -> None:
        """Make sure that the control tables are there."""
        self._control.ensure()

    def is_called(self) -> bool:
        """Whether the catalog has changed since the last look."""
        called, self._is_called = self._control.wait(0) or self._is_called, False
        return called

    def wait(self, timeout_s: float) -> None:
        """Sleep until the catalog changes, at most timeout_s."""
        self._is_called = self._control.wait(timeout_s) or self._is_called

    def refresh(self) -> bool:
        """Read the catalog; False when the sink cannot be reached just now."""
        try:
            self._all_rows = self._control.list_views()
            self._rows = self._own(self._all_rows)
            self.sources.refresh()
            return True
        except TemporaryError as error:
            log.warning("catalog.retry", code=error.code)
            return False

    # --- what is wanted ----------------------------------------------------------------------

    @property
    def rows(self) -> list[ViewRow]:
        """This group's views, as the catalog had them at the last look."""
        return self._rows

    def unwanted(self) -> list[ViewRow]:
        """Views to drop, children first."""
        return [r for r in reversed(self._rows) if r.desired == DROPPED]

    def wanted(self, builds: Mapping[str, ViewBuild]) -> list[ViewRow]:
        """Views to build: neither live, nor in the building, nor failed."""
        live = {d.identity for d in self._engine.views.values()}
        return [
            r
            for r in self._rows
            if r.desired != DROPPED
            and r.status != "failed"
            and r.identity not in self._failed
            and r.identity not in live
            and r.identity not in builds
        ]

    def has_views(self) -> bool:
        """Whether any view is still to be kept."""
        return any(r.desired != DROPPED for r in self._own(self._control.list_views()))

    def has_rows(self) -> bool:
        """Whether the catalog knows any view of this group, to be dropped or not."""
        return bool(self._own(self._control.list_views()))

    def define(self, row: ViewRow) -> ViewDefinition:
        """Plan a view again, against the source as it is now."""
        name = (row.schema, row.name)
        rows, sources = self._all_rows, self.sources.rows
        return plan_definition(
            row.identity,
            name,
            row.query,
            self._parts,
            rows,
            sources=sources,
            asker=row.created_by,
        )

    def are_parents_live(self, definition: ViewDefinition) -> bool:
        """Whether every view that this one reads is live; refuses when one has failed."""
        for row in self._rows:
            name = RelationName(VIEW_SOURCE, row.schema, row.name)
            if row.status == "failed" and name in definition.parents():
                raise TidemarkError(
                    "view.parent_failed",
                    f'view "{row.title}", which this one reads, has failed',
                    detail=row.detail or "",
                    hint="drop both views and create them again",
                    relation=name,
                )
        return all(p in self._engine.views for p in definition.parents())

    def failed(self) -> set[str]:
        """The identities of the views that the catalog calls failed."""
        return {r.identity for r in self._rows if r.status == "failed"}

    def failed_names(self) -> set[RelationName]:
        """Their names, as other views call them."""
        rows = [r for r in self._rows if r.status == "failed"]
        return {RelationName(VIEW_SOURCE, r.schema, r.name) for r in rows}

    def error_of(self, identity: str) -> TidemarkError:
        """Why a view has failed, as the catalog has it."""
        row = next(r for r in self._rows if r.identity == identity)
        what = f'view "{row.title}" has failed'
        return TidemarkError(
            row.code or "view.failed", what, detail=row.detail or "", hint=row.hint or ""
        )

    def live(self, identity: str) -> ViewDefinition | None:
        """The live view of this identity."""
        views = self._engine.views.values()
        return next((d for d in views if d.identity == identity), None)

    # --- how it goes ---------------------------------------------------------------------------

    def fail_view(self, identity: str, error: TidemarkError) -> None:
        """A view cannot be built or kept; it stays failed until it is dropped."""
        self._failed.add(identity)
        self._joined.pop(identity, None)
        self._tell(identity, status="failed", progress=None, **_facts(error))

    def degrade_view(self, identity: str, error: TidemarkError) -> None:
        """A view is to be built anew, and shows its last rows until then."""
        self._joined.pop(identity, None)
        self._tell(identity, status="degraded", progress=None, **_facts(error))

    def note_names(self, renamed: Mapping[str, tuple[str, ...]]) -> None:
        """Warn of what views know by an earlier name; what is no longer so is taken back."""
        for row in self._rows:
            if row.identity in renamed:
                words = [f"{_RENAMED}{word}" for word in renamed[row.identity]]
                kept = [w for w in row.warnings if not w.startswith(_RENAMED)]
                if [*kept, *words] != list(row.warnings):
                    self._tell(row.identity, warnings=[*kept, *words])

    def row_of(self, identity: str) -> ViewRow | None:
        """The catalog's row of a view."""
        return next((r for r in self._rows if r.identity == identity), None)

    def fail_build(self, build: ViewBuild, error: TidemarkError) -> None:
        """A build ended in an error; a temporary one is tried again."""
        if error.is_temporary:
            self._tell(build.definition.identity, **_facts(error))
        else:
            self.fail_view(build.definition.identity, error)

    def joined(self, build: ViewBuild, epoch: int) -> None:
        """The view is in the engine; it is live once `epoch` is in the sink."""
        identity, pinned = build.definition.identity, build.definition.plan.pinned
        self._joined[identity] = (epoch, build.rows_staged)
        row = next((r for r in self._rows if r.identity == identity), None)
        if pinned and row is not None:
            # For who runs the query again: the view has this moment's now() for good.
            self._tell(identity, plan={**(row.plan or {}), "pinned": dict(pinned)})

    def settle(self, written: int) -> None:
        """Call live what joined up to epoch `written`."""
        for identity, (epoch, rows) in list(self._joined.items()):
            if epoch <= written:
                del self._joined[identity]
                self._tell_live(identity, epoch, rows)

    def settle_recovered(self) -> None:
        """After recovery every view in the engine is in the sink too."""
        live = {d.identity for d in self._engine.views.values()}
        for row in self._rows:
            if row.identity in live and row.status not in ("live", "failed"):
                self._tell_live(row.identity, self._engine.epoch, row.row_estimate)

    def recall_lost(self) -> None:
        """Views called live whose state is gone are built again: before anything new is shown."""
        kept = {d.identity for d in self._engine.views.values()}
        for row in self._rows:
            if row.status == "live" and row.identity not in kept:
                log.warning("view.state_lost", view=row.title)
                self._control.update_view(row.identity, status="backfilling")
        self.refresh()

    def report(self, builds: Mapping[str, ViewBuild]) -> None:
        """Tell how the builds stand, and what could not be told before."""
        for identity, build in builds.items():
            if build.failure is None and not build.is_cancelled:
                facts = build.status.facts()
                status = "catching up" if facts["phase"] == "catching up" else "backfilling"
                self._tell(identity, status=status, progress=facts)
        for identity in list(self._untold):
            self._tell(identity)

    def drop(self, row: ViewRow, sink: Sink) -> None:
        """Remove a view's table and then its row."""
        key = (0,) if row.kind == "keyed" else ()
        sink.drop([SinkTable(row.schema, row.name, (), key)])
        self._untold.pop(row.identity, None)
        self._joined.pop(row.identity, None)
        self._failed.discard(row.identity)
        self._control.delete_view(row.identity)
        self._rows = [r for r in self._rows if r.identity != row.identity]

    # --- the source ------------------------------------------------------------------------------

    def source_identity(self) -> tuple[object, ...] | None:
        """The server that the state was built from; None before the first view."""
        row = self._control.get_source(self._parts.source_row)
        if row is None or row.system_identifier is None:
            return None
        return (row.system_identifier, row.timeline, row.facts["database"])

    def remember_source(self) -> None:
        """Note which server the state is built from."""
        source = self._parts.source
        identity = source.identity()
        self._control.upsert_source(
            SourceRow(
                self._parts.source_row,
                self._parts.shown_source,
                slot=source.slot_name,
                publication=source.slot_name,
                system_identifier=identity.system,
                timeline=identity.timeline,
                facts={"database": identity.database},
            )
        )

    def forget_source(self) -> None:
        """The last view is gone: the next one may come from another server."""
        self._control.delete_source(self._parts.source_row)

    def close(self) -> None:
        """End the sessions."""
        self._control.close()

    def _own(self, rows: list[ViewRow]) -> list[ViewRow]:
        return [r for r in rows if group_of(r) == self._parts.settings.group]

    def _tell_live(self, identity: str, epoch: int, rows: int | None) -> None:
        cleared = dict.fromkeys(("progress", "code", "detail", "hint"))
        now = datetime.now(UTC)
        self._tell(identity, status="live", epoch=epoch, row_estimate=rows, live_at=now, **cleared)

    def _tell(self, identity: str, **changes: Any) -> None:
        merged = {**self._untold.pop(identity, {}), **changes}
        try:
            self._control.update_view(identity, **merged)
        except TemporaryError as error:
            self._untold[identity] = merged
            log.warning("catalog.retry", code=error.code)


def parents_of(row: ViewRow) -> list[RelationName]:
    """The maintained views that a catalog row's plan reads."""
    return [RelationName(VIEW_SOURCE, s, n) for s, n in (row.plan or {}).get("parents", [])]


def children_of(row: ViewRow, rows: Iterable[ViewRow]) -> list[ViewRow]:
    """The views that read this one and are to stay."""
    name = RelationName(VIEW_SOURCE, row.schema, row.name)
    return [r for r in rows if r.desired != DROPPED and name in parents_of(r)]


def _facts(error: TidemarkError) -> dict[str, str]:
    return {"code": error.code, "detail": error.described, "hint": error.hint}
