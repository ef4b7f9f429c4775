"""An actor that changes view tables by hand, so that the sink refuses later writes.

Which view fails then, and that no other does, is what is checked; a view that has failed so is
rebuilt, replaced or dropped by people, some at once, the rest once it is calm.
"""

from __future__ import annotations

from random import Random
from typing import Any

from connectors.postgres.catalog.catalog import ViewRow
from dataflow.errors import TidemarkError
from service.access.authorization import Authorization
from service.access.tokens import OPEN
from service.api.lifecycle_requests import Life
from service.api.sink_catalog import SinkCatalog
from tests.simulation.faults import Faults
from tests.simulation.reads import is_alike
from tests.simulation.shop import QUERIES
from tests.simulation.sink import SPOILT, Database


class Hand:
    """One for a run."""

    def __init__(self, database: Database, faults: Faults, random: Random) -> None:
        self._database = database
        self._faults = faults
        self._random = random

    def act_for_a_while(self) -> None:
        """Now and then, until it grows calm."""
        while True:
            self._faults.pause(self._random.uniform(0.3, 5.0))
            if self._faults.is_calm:
                return
            live = [t for t in self._database.tables.values() if t.moves and not t.spoilt]
            if live and self._faults.happens("sink.by_hand"):
                self._spoil(self._random.choice(live).table)

    def _spoil(self, table: Any) -> None:
        name = table.schema, table.name
        if self._random.random() < 0.5:
            del self._database.tables[name]
            self._faults.trace("by hand", f"{table.title} is dropped")
        else:
            self._database.spoil(name)
            self._faults.trace("by hand", f"{table.title} is altered")


class Mender:
    """People who look after views that have failed, or soon will. parts: as of the API."""

    def __init__(self, parts: Any, database: Database, faults: Faults, random: Random) -> None:
        self._life = Life(parts, Authorization(parts))
        self._sinks = SinkCatalog(parts, Authorization(parts))
        self._database = database
        self._faults = faults
        self._random = random

    def mend(self) -> None:
        """Ask for what puts each broken view right; what is refused is asked for again later."""
        for row in self._database.views:
            if not self._is_broken(row) or row.change is not None or row.desired != "live":
                continue
            is_replaced = self._random.random() < 0.2
            self._faults.trace("mended", f"{row.title}: {row.code}")
            try:
                if "view.has_sinks" in str(row.replacing):
                    # They could not be told what another table has otherwise.
                    self._drop_sinks(row)
                if is_replaced and not is_alike(row.query, QUERIES[0]):
                    self._life.replace(row.title, self._random.choice(QUERIES), by=OPEN)
                else:
                    self._life.rebuild(row.title, by=OPEN)
            except TidemarkError as error:
                self._faults.trace("refused", error.code)

    def _drop_sinks(self, row: ViewRow) -> None:
        for sink in self._sinks.list(row.title):
            self._sinks.drop(row.title, sink.name, OPEN, is_erased=False)

    def _is_broken(self, row: ViewRow) -> bool:
        if row.status == "failed":
            return row.code in SPOILT or row.code == "view.parent_failed"
        found = self._database.tables.get((row.schema, row.name))
        return row.status == "live" and (found is None or found.spoilt)
