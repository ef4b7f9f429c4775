"""Collect the input of a metrics scrape: figures on disk, the catalog, the API's own figures.

Invariant: if the catalog cannot be read, all other figures are still returned. Alerts matter most
when the sink is unreachable.
"""

from __future__ import annotations

import shutil
from typing import Any

from connectors.postgres.catalog.dead_letters import DeadLetters
from connectors.source import MAIN_SOURCE
from dataflow.errors import TidemarkError
from service.access.tokens import OPEN
from service.api.api_metrics import ApiFigures
from service.api.catalog import Catalog
from service.api.health import StatusInputs, database_standing, service_standing, source_standing
from service.api.prometheus import ScrapeFacts
from service.api.status_collector import Standings
from service.factory.service_factory import ServiceFactory
from service.metrics.metrics import read_dataflow, read_supervisor
from service.runtime import release
from service.runtime.log import log
from service.runtime.settings import Settings


class Scrape:
    """One per API process; thread-safe."""

    def __init__(
        self,
        settings: Settings,
        factory: ServiceFactory,
        catalog: Catalog,
        figures: ApiFigures,
        standings: Standings,
    ) -> None:
        self._standings = standings
        self._settings = settings
        self._catalog = catalog
        self._letters = DeadLetters(factory.control())
        self._figures = figures

    def read(self) -> ScrapeFacts:
        """Return the current facts."""
        groups = self._catalog.metrics()
        inputs = self._standings.inputs(groups)
        health, reasons = service_standing(inputs)
        views, letters = None, {}
        try:
            views = self._catalog.views(OPEN)
            letters = self._dead_letters()
        except TidemarkError as error:
            log.warning("catalog.retry", code=error.code)
        state = self._settings.state
        return ScrapeFacts(
            groups=groups,
            dataflows={g: read_dataflow(self._settings.for_group(g).state) for g in groups},
            views=views,
            dead_letters=letters,
            restarts=read_supervisor(state).get("restarts", {}),
            requests=self._figures.facts(),
            free_bytes=shutil.disk_usage(state).free if state.is_dir() else None,
            version=release.VERSION,
            health=health,
            reasons=len(reasons),
            sources=_sources(inputs),
        )

    def _dead_letters(self) -> dict[str, Any]:
        found: dict[str, int] = {}
        for relation, count in self._letters.counts().items():
            found[relation.source] = found.get(relation.source, 0) + count
        return found


def _sources(inputs: StatusInputs) -> dict[tuple[str, str], str]:
    """Return the status of each source by group and name."""
    declared = {row.name: row for row in inputs.sources}
    found: dict[tuple[str, str], str] = {}
    for group, figures in inputs.figures.items():
        if figures is None:
            continue
        if figures.get("database") is not None:
            found[group, MAIN_SOURCE] = database_standing(inputs, group).status
        for name, facts in figures.get("sources", {}).items():
            row = declared.get(name)
            status = source_standing(inputs, row, group).status if row else facts["status"]
            found[group, name] = status
    return found
