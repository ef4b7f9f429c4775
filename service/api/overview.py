"""The overview for the console: views, sources, sinks and pipelines in one response.

Many consoles may request it every second. It costs a few statements over the control tables, and
the result is cached for half a second for all callers. Each time only a few views are counted
again; the others keep their last count. Thread-safe.
Invariant: it never waits for the pipeline, and never longer than _COUNTING_S for counts.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from connectors.postgres.catalog import sink_records
from connectors.postgres.catalog.catalog import ViewRow
from connectors.postgres.catalog.error_rows import LeftOut, read_left_out
from dataflow.errors import TidemarkError
from service.access.authorization import Authorization
from service.access.tokens import OPEN, Caller, Role
from service.api.catalog import Catalog
from service.api.health import (
    STALE_S,
    Standing,
    StatusInputs,
    database_standing,
    service_standing,
    view_standing,
)
from service.api.overview_history import History
from service.api.overview_models import (
    LeftOutList,
    LeftOutModel,
    Overview,
    PipelineGlance,
    SinkGlance,
    SourceGlance,
    ViewGlance,
)
from service.api.problems import problem_of_row
from service.api.source_catalog import SourceCatalog
from service.api.status_collector import Standings
from service.factory.service_factory import SOURCE, ServiceFactory
from service.metrics.metrics import is_fresh
from service.runtime.log import log
from service.views.groups import group_of
from service.views.lifecycle import ViewState
from service.views.requested_changes import table_of
from service.views.view_lookup import find_view
from storage import clock

_CACHED_S = 0.5
_COUNTED_S = 5.0
_COUNTING_S = 0.25
# In UTC with a Z: a plus sign in a URL means a space.
_AFTER = re.compile(r"(\d{4}-\d\d-\d\dT[\d:.]+Z)/([0-9a-f-]{36})")
_FIGURES = {
    "epochs_written_total": 0,
    "source_rows_total": 0,
    "transactions_total": 0,
    "rows_written_total": 0,
    "freshness_ms": {},
    "step_ms": {},
    "lag_seconds": None,
    "rss_bytes": None,
    "rss_peak_bytes": 0,
    "wal_retained_bytes": None,
    "wal_kept_bytes": None,
    "wal_budget_bytes": None,
    "sink_stalled_s": 0.0,
    "started_at": 0.0,
    "updated_at": 0.0,
}


class Glances:
    """One per API process; thread-safe."""

    def __init__(
        self,
        factory: ServiceFactory,
        authorization: Authorization,
        catalog: Catalog,
        sources: SourceCatalog,
        standings: Standings,
    ) -> None:
        self._control = factory.control()
        self._authorization = authorization
        self._sink = factory.sink()
        self._catalog = catalog
        self._sources = sources
        self._standings = standings
        self._lock = threading.Lock()
        self._cached: Overview | None = None
        self._cached_at = 0.0
        self._settings = factory.settings
        self._counts: dict[str, tuple[float, int]] = {}
        self._counting: threading.Thread | None = None
        self._history = History(catalog.metrics)
        self._history.begin()

    def overview(self, by: Caller, *, has_history: bool = False) -> Overview:
        """Return the overview as far as the caller may see it, at most half a second old."""
        with self._lock:
            if self._cached is None or time.monotonic() - self._cached_at > _CACHED_S:
                self._cached, self._cached_at = self._collect(), time.monotonic()
            cached = self._cached
        history = self._history.series() if has_history else []
        fields = {"role": by.role.word, "history": history}
        if by.db_role:
            fields |= self._visible_to(by, cached)
        elif by.role < Role.OPERATOR:
            # Errors of sources may quote records.
            fields |= {"sources": self._source_glances(by)}
        return cached.model_copy(update=fields)

    def left_out(self, name: str, limit: int, after: str) -> LeftOutList:
        """Return a page of a view's error rows. TidemarkError view.not_found, request.invalid."""
        row = find_view(self._control, name)
        found = read_left_out(self._control, row.title, limit + 1, _position(after))
        page = found[:limit]
        last = page[-1] if len(found) > limit else None
        return LeftOutList(
            errors=[_left_out(x) for x in page],
            next=None if last is None else f"{_utc(last.first_seen)}/{last.hash}",
        )

    # --- inside --------------------------------------------------------------------------------

    def _visible_to(self, by: Caller, cached: Overview) -> dict[str, Any]:
        """Return the fields of the overview that a database role sees differently."""
        rows = self._authorization.visible(by, self._control.list_views())
        titles = {row.title for row in rows}
        return {
            # Reasons may quote rows of any view.
            "reasons": [],
            "views": [v for v in cached.views if f"{v.schema_name}.{v.name}" in titles],
            "sinks": [s for s in cached.sinks if s.view in titles],
            "sources": self._source_glances(by),
        }

    def _collect(self) -> Overview:
        self._control.ensure()
        rows = sorted(self._control.list_views(), key=lambda r: (r.schema, r.name))
        inputs = replace(self._standings.inputs(), views=rows)
        figures, (status, reasons) = inputs.figures, service_standing(inputs)
        errors = self._control.count_errors()
        lags = {g: self._lag(g, f) for g, f in figures.items()}
        self._count(rows)
        return Overview(
            at=clock.wall(),
            status=status,
            reasons=reasons,
            role="",
            views=[self._view(r, inputs, lags.get(group_of(r)), errors) for r in rows],
            sources=self._source_glances(OPEN),
            sinks=self._sink_glances(figures),
            pipelines=[
                _pipeline(g, f, lags[g] or 0, database_standing(inputs, g))
                for g, f in figures.items()
                if f
            ],
        )

    def _view(
        self, row: ViewRow, inputs: StatusInputs, lag: int | None, errors: dict[str, int]
    ) -> ViewGlance:
        is_live = row.status == ViewState.LIVE
        figures = inputs.figures.get(group_of(row)) or {}
        standing = view_standing(inputs, row)
        return ViewGlance(
            name=row.name,
            schema_name=row.schema,
            status=standing.status,
            kind=row.kind or "",
            group=group_of(row),
            rows=self._counts[row.identity][1] if row.identity in self._counts else None,
            changes_total=figures.get("views", {}).get(row.title, {}).get("changes", 0),
            lag_bytes=lag if is_live else None,
            errors=errors.get(row.title, 0),
            backfill=None if row.progress is None else dict(row.progress),
            error=standing.error,
            created_at=row.created_at.isoformat() if row.created_at else "",
        )

    def _lag(self, group: str, figures: Mapping[str, Any] | None) -> int | None:
        """Return the bytes of WAL at the source that the group's views do not show yet."""
        progress = self._control.read_progress(self._settings.for_group(group).sink_key)
        if figures is None or figures.get("source_error"):
            return None
        if progress is None or SOURCE not in progress.positions:
            return None
        return max(0, figures.get("source_position", 0) - progress.positions[SOURCE])

    def _count(self, rows: list[ViewRow]) -> None:
        """Count some live views in a thread of its own: their tables may be locked."""
        live = {r.identity: r for r in rows if r.status == ViewState.LIVE}
        self._counts = {i: c for i, c in self._counts.items() if i in live}
        if self._counting is None or not self._counting.is_alive():
            self._counting = threading.Thread(target=self._count_some, args=(live,), daemon=True)
            self._counting.start()
        self._counting.join(_COUNTING_S)

    def _count_some(self, live: dict[str, ViewRow]) -> None:
        """Count the views that were counted longest ago."""
        counts, now = self._counts, time.monotonic()
        for identity in sorted(live, key=lambda i: counts[i][0] if i in counts else -1.0):
            is_new = identity not in counts or now - counts[identity][0] > _COUNTED_S
            if not is_new or time.monotonic() - now > _COUNTING_S:
                break
            row = live[identity]
            try:
                counts[identity] = (now, self._sink.row_count(table_of(row)))
            except TidemarkError as error:  # the view was dropped, or the sink is unreachable
                log.debug("overview.uncounted", view=row.title, code=error.code)
                break

    def _source_glances(self, by: Caller) -> list[SourceGlance]:
        return [
            SourceGlance(
                name=source.name,
                type=source.type,
                status=source.status,
                error=source.error,
                lag=source.lag,
                records_total=source.rows_read,
                dead_letters=sum(r.dead_letters for r in source.relations),
                relations=[r.name for r in source.relations],
            )
            for source in self._sources.list(by)
        ]

    def _sink_glances(self, figures: Mapping[str, Mapping[str, Any] | None]) -> list[SinkGlance]:
        reported: dict[str, Any] = {}
        for group in figures.values():
            reported |= (group or {}).get("sinks", {})
        return [
            SinkGlance(
                name=sink.name,
                view=f"{sink.schema}.{sink.view}",
                type=sink.type,
                status=sink.status,
                error=problem_of_row(sink),
                backlog_bytes=sink.backlog_bytes,
                rows_total=reported.get(sink.title, {}).get("rows_total", 0),
            )
            for sink in sink_records.list_sinks(self._control)
        ]


def _pipeline(
    group: str, figures: Mapping[str, Any], lag: int, standing: Standing
) -> PipelineGlance:
    facts = {name: figures.get(name, default) for name, default in _FIGURES.items()}
    is_up = is_fresh(figures, STALE_S)
    return PipelineGlance(
        group=group,
        is_up=is_up,
        lag_bytes=lag,
        status=standing.status,
        error=standing.error,
        **facts,
    )


def _position(after: str) -> tuple[datetime, str] | None:
    if not after:
        return None
    found = _AFTER.fullmatch(after)
    try:
        if found is not None:
            return datetime.fromisoformat(found[1]), found[2]
    except ValueError:
        found = None
    raise TidemarkError(
        "request.invalid", "`after` is not valid", hint="use `next` of the previous page"
    )


def _left_out(row: LeftOut) -> LeftOutModel:
    return LeftOutModel(
        id=row.hash,
        operator=row.operator,
        sqlstate=row.sqlstate,
        message=row.message,
        source_row=row.source_row,
        count=row.count,
        first_seen=_utc(row.first_seen),
    )


def _utc(at: datetime) -> str:
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")
