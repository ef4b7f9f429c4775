"""What a scrape of the metrics tells, gathered: figures on disk, the catalog, the API's own.

Where the catalog cannot be read, all else is told: an alert is wanted most when the sink is away.
"""

from __future__ import annotations

import shutil
from typing import Any

from connectors.postgres.dead_letters import DeadLetters
from dataflow.errors import TidemarkError
from service import release
from service.api_figures import ApiFigures
from service.catalog import Catalog
from service.log import log
from service.metrics import read_dataflow, read_supervisor
from service.parts import Parts
from service.prometheus import Told
from service.settings import Settings
from service.tokens import OPEN


class Scrape:
    """One for an API process; safe for several threads."""

    def __init__(
        self, settings: Settings, parts: Parts, catalog: Catalog, figures: ApiFigures
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._letters = DeadLetters(parts.control())
        self._figures = figures

    def read(self) -> Told:
        """As it stands now."""
        groups = self._catalog.metrics()
        views, letters = None, {}
        try:
            views = self._catalog.views(OPEN)
            letters = self._dead_letters()
        except TidemarkError as error:
            log.warning("catalog.retry", code=error.code)
        state = self._settings.state
        return Told(
            groups=groups,
            dataflows={g: read_dataflow(self._settings.for_group(g).state) for g in groups},
            views=views,
            dead_letters=letters,
            restarts=read_supervisor(state).get("restarts", {}),
            requests=self._figures.facts(),
            free_bytes=shutil.disk_usage(state).free if state.is_dir() else None,
            version=release.VERSION,
        )

    def _dead_letters(self) -> dict[str, Any]:
        found: dict[str, int] = {}
        for relation, count in self._letters.counts().items():
            found[relation.source] = found.get(relation.source, 0) + count
        return found
