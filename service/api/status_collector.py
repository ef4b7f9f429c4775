"""Collect the input of `service/api/health.py`, and store its decisions for psql.

A thread of the API process polls the catalog twice a second and caches its rows, so that
`GET /health` never waits for a database. Decisions go to tidemark.standings, the base of the psql
views status, source_status and health. The API process decides because a pipeline may be dead.
Invariant: only changes are written. If the sink is unreachable, the cached rows stay in use.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from connectors.postgres.catalog import reported_statuses, sink_records
from connectors.postgres.catalog.catalog import SourceRow, ViewRow
from connectors.postgres.catalog.reported_statuses import SERVICE, SOURCE, VIEW, ReportedStatus
from connectors.postgres.catalog.sink_records import SinkRow
from dataflow.errors import TidemarkError
from service.api import health
from service.api.health import Standing, StatusInputs
from service.factory.service_factory import ServiceFactory
from service.metrics.metrics import read_metrics, read_supervisor
from service.runtime.log import log
from service.runtime.settings import DEFAULT_GROUP, Settings
from service.views.groups import groups_on_disk

POLL_S = 0.5


class Standings:
    """One per API process; thread-safe."""

    def __init__(self, settings: Settings, factory: ServiceFactory) -> None:
        self._settings = settings
        self._control = factory.control()
        self._started_at = time.monotonic()
        self._digest: tuple[Any, ...] | None = None
        self._views: list[ViewRow] = []
        self._sources: list[SourceRow] = []
        self._sinks: list[SinkRow] = []

    def begin(self) -> None:
        """Start polling and writing, until the process ends."""
        threading.Thread(target=self._run, name="standings", daemon=True).start()

    def figures(self) -> dict[str, dict[str, Any] | None]:
        """Return the newest figures of each group's pipeline, the default group first."""
        groups = [DEFAULT_GROUP, *sorted(groups_on_disk(self._settings.state))]
        return {g: read_metrics(self._settings.for_group(g).state) for g in groups}

    def inputs(self, figures: Mapping[str, dict[str, Any] | None] | None = None) -> StatusInputs:
        """Return the current input. figures: by default those on disk. Rows: as last polled."""
        state, free_bytes = self._settings.state, None
        with suppress(OSError):
            free_bytes = shutil.disk_usage(state).free
        return StatusInputs(
            figures=self.figures() if figures is None else figures,
            processes=read_supervisor(state).get("processes", {}),
            views=self._views,
            sources=self._sources,
            sinks=self._sinks,
            free_bytes=free_bytes,
            is_young=time.monotonic() - self._started_at < health.STALE_S,
        )

    # --- inside --------------------------------------------------------------------------------

    def _run(self) -> None:
        is_ready, last_code = False, ""
        while True:
            try:
                if not is_ready:
                    self._control.ensure()
                    is_ready = True
                self._refresh()
                reported_statuses.write(self._control, self._decided())
                last_code = ""
            except TidemarkError as error:
                # Log once per code: this repeats twice a second while the sink is unreachable.
                if error.code != last_code:
                    last_code = error.code
                    log.debug("psql_status.retry", code=last_code)
                is_ready = False
            except Exception as error:
                log.error("psql_status.failed", exc_info=error)
            time.sleep(POLL_S)

    def _refresh(self) -> None:
        digest = reported_statuses.digest(self._control)
        if digest == self._digest:
            return
        views, sources = self._control.list_views(), self._control.list_sources()
        sinks = sink_records.list_sinks(self._control)
        self._views, self._sources, self._sinks, self._digest = views, sources, sinks, digest

    def _decided(self) -> dict[tuple[str, str], ReportedStatus]:
        inputs = self.inputs()
        found = {
            (VIEW, row.identity): _reported(health.view_standing(inputs, row), row.status)
            for row in inputs.views
        }
        for row in inputs.sources:
            found[SOURCE, row.name] = _reported(health.source_standing(inputs, row))
        status, reasons = health.service_standing(inputs)
        found[SERVICE, ""] = ReportedStatus(status, reasons=tuple(reasons))
        return found


def _reported(standing: Standing, raw: str = "") -> ReportedStatus:
    error = standing.error
    if error is None:
        return ReportedStatus(standing.status, raw)
    words = f"{error.title}. {error.detail}" if error.detail else error.title
    return ReportedStatus(standing.status, raw, error.code, words, error.hint)
