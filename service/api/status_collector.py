"""Gathers what `service/api/health.py` decides by, and writes the decisions down for psql.

A thread of the API process looks at the catalog twice a second and keeps its rows, so that
`GET /health` waits for no database. What it decides goes to tidemark.standings, of which
tidemark.status, tidemark.source_status and tidemark.health are made: the decision is made here,
where it can be made while a pipeline is dead. Invariant: only what has changed is written.
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
from service.api.health import Known, Standing
from service.factory.service_factory import ServiceFactory
from service.metrics.metrics import read_metrics, read_supervisor
from service.runtime import kernels
from service.runtime.log import log
from service.runtime.settings import DEFAULT_GROUP, Settings
from service.views.groups import groups_on_disk

LOOK_S = 0.5


class Standings:
    """One for an API process; safe for several threads."""

    def __init__(self, settings: Settings, parts: ServiceFactory) -> None:
        self._settings = settings
        self._control = parts.control()
        self._started_at = time.monotonic()
        self._digest: tuple[Any, ...] | None = None
        self._views: list[ViewRow] = []
        self._sources: list[SourceRow] = []
        self._sinks: list[SinkRow] = []

    def begin(self) -> None:
        """Look and write from now on, until the process ends."""
        threading.Thread(target=self._run, name="standings", daemon=True).start()

    def figures(self) -> dict[str, dict[str, Any] | None]:
        """The newest figures of each group's pipeline, the default one's first."""
        groups = [DEFAULT_GROUP, *sorted(groups_on_disk(self._settings.state))]
        return {g: read_metrics(self._settings.for_group(g).state) for g in groups}

    def known(self, figures: Mapping[str, dict[str, Any] | None] | None = None) -> Known:
        """What is known now: figures as given, or as they are on disk; rows as last looked at."""
        state, free_bytes = self._settings.state, None
        with suppress(OSError):
            free_bytes = shutil.disk_usage(state).free
        return Known(
            figures=self.figures() if figures is None else figures,
            processes=read_supervisor(state).get("processes", {}),
            views=self._views,
            sources=self._sources,
            sinks=self._sinks,
            free_bytes=free_bytes,
            compiling=kernels.compiling(state),
            is_young=time.monotonic() - self._started_at < health.STALE_S,
        )

    # --- inside --------------------------------------------------------------------------------

    def _run(self) -> None:
        is_ready, told = False, ""
        while True:
            try:
                if not is_ready:
                    self._control.ensure()
                    is_ready = True
                self._look()
                reported_statuses.write(self._control, self._decided())
                told = ""
            except TidemarkError as error:
                # It is told twice a second for as long as the sink is away.
                if error.code != told:
                    told = error.code
                    log.debug("standings.retry", code=told)
                is_ready = False
            except Exception as error:
                log.error("standings.failed", exc_info=error)
            time.sleep(LOOK_S)

    def _look(self) -> None:
        digest = reported_statuses.digest(self._control)
        if digest == self._digest:
            return
        views, sources = self._control.list_views(), self._control.list_sources()
        sinks = sink_records.list_sinks(self._control)
        self._views, self._sources, self._sinks, self._digest = views, sources, sinks, digest

    def _decided(self) -> dict[tuple[str, str], ReportedStatus]:
        known = self.known()
        found = {
            (VIEW, row.identity): _told(health.view_standing(known, row), row.status)
            for row in known.views
        }
        for row in known.sources:
            found[SOURCE, row.name] = _told(health.source_standing(known, row))
        status, reasons = health.service_standing(known)
        found[SERVICE, ""] = ReportedStatus(status, reasons=tuple(reasons))
        return found


def _told(standing: Standing, raw: str = "") -> ReportedStatus:
    error = standing.error
    if error is None:
        return ReportedStatus(standing.status, raw)
    words = f"{error.title}. {error.detail}" if error.detail else error.title
    return ReportedStatus(standing.status, raw, error.code, words, error.hint)
