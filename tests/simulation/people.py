"""The actors of a simulation: an application that writes, and operators who change views.

People ask as the API does: what is refused there is refused here, by the same code (service/life),
and what they do may fail half-way like anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from connectors.postgres.catalog.catalog import SourceRow, ViewRow
from dataflow.errors import TidemarkError
from service.access.authorization import Authorization
from service.access.tokens import OPEN
from service.api.lifecycle_requests import Life
from service.engine import output_fields
from service.factory.planning import plan_definition
from service.views import lifecycle
from service.views.dependencies import children_of
from service.views.lifecycle import DesiredState, ViewEvent
from service.views.plan_facts import plan_facts
from service.views.view_facts import key_names, kind_of, require_parents
from tests.simulation.faults import Faults
from tests.simulation.reads import SCHEMA, is_alike
from tests.simulation.server import Row, Server
from tests.simulation.shop import NESTED, QUERIES, TABLES, Change

OWNERS = ("ann", "bob", "cyd", "dee")
NOTES = (None, "", "a note", "long " * 40)


class Application:
    """Writes transactions of all shapes."""

    def __init__(self, server: Server, random: Random) -> None:
        self._server = server
        self._random = random
        self._next = 1

    def transaction(self) -> list[Change]:
        """Some changes, legal one after the other."""
        random = self._random
        kind = random.random()
        if kind < 0.05:
            return []
        size = random.randint(20, 60) if kind < 0.1 else random.choice((1, 1, 2, 3, 6))
        tables = {name: dict.fromkeys(rows.elements()) for name, rows in self._rows().items()}
        bag = self._server.tables["tags"].copy()
        changes: list[Change] = []
        for _ in range(size):
            name = random.choice(("accounts", "accounts", "entries", "entries", "tags"))
            if name == "tags":
                changes.append(self._tag(name, bag))
            else:
                changes.append(self._keyed(name, tables[name]))
        return changes

    def _rows(self) -> dict[str, Any]:
        return {n: rows for n, rows in self._server.tables.items() if n in TABLES and TABLES[n].key}

    def _tag(self, name: str, bag: Any) -> Change:
        random, rows = self._random, sorted(bag.elements(), key=repr)
        new = self._tag_row(name)
        kind = random.choice("IIIUDT" if random.random() < 0.1 else "IIUD")
        if kind == "T":
            bag.clear()
            return (name, "T", None, None)
        if kind == "I" or not rows:
            bag[new] += 1
            return (name, "I", None, new)
        old = random.choice(rows)
        bag[old] -= 1
        if kind == "U":
            bag[new] += 1
            return (name, "U", old, new)
        return (name, "D", old, None)

    def _tag_row(self, name: str) -> Row:
        return (self._random.choice(("x", "y", "z")), self._random.choice((None, 1, 2, 3)))

    def _keyed(self, name: str, rows: dict[Row, None]) -> Change:
        random = self._random
        kind = random.choice("IIIUUUDKT" if random.random() < 0.04 else "IIUUUDK")
        if kind == "T":
            rows.clear()
            return (name, "T", None, None)
        if kind == "I" or not rows:
            new = self._row(name, self._number())
            rows[new] = None
            return (name, "I", None, new)
        old = random.choice(list(rows))
        del rows[old]
        if kind == "D":
            return (name, "D", old, None)
        new = self._row(name, self._number() if kind == "K" else old[0], old)
        rows[new] = None
        return (name, "U", old, new)

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _row(self, name: str, number: int, old: Row | None = None) -> Row:
        random = self._random
        if name == "entries":
            return (number, random.randint(1, 8), random.randint(-50, 50))
        note = old[3] if old is not None and random.random() < 0.5 else random.choice(NOTES)
        return (number, random.choice(OWNERS), random.randint(-30, 60), note)


class Operator:
    """Creates, drops, replaces, pauses, resumes, rebuilds and renames views. queries, sources: that
    there are. options: of a view that asks a query, where a view has any."""

    def __init__(
        self,
        parts: Any,
        faults: Faults,
        random: Random,
        queries: Sequence[str],
        sources: Sequence[SourceRow],
        options: Callable[[str], dict[str, Any]] = lambda query: {},
    ) -> None:
        self._options = options
        self._parts = parts
        self._queries = queries
        self._sources = sources
        self._faults = faults
        self._random = random
        self._control = parts.control()
        self._life = Life(parts, Authorization(parts))
        self._count = 0

    def act(self) -> None:
        """Do one thing, refused or not."""
        try:
            self._act()
        except TidemarkError as error:
            self._faults.trace("refused", error.code)

    def _act(self) -> None:
        random = self._random
        rows = [r for r in self._control.list_views() if r.desired != DesiredState.DROPPED]
        kind = random.choice(
            ("create", "replace", "rebuild", "pause", "resume", "rename", "cancel", "drop")
        )
        if len(rows) < 2 or (kind == "create" and len(rows) < 5):
            return self.create()
        paused = [r for r in rows if r.status == "paused"]
        row = random.choice(paused if kind == "resume" and paused else rows)
        name = f"{row.schema}.{row.name}"
        if kind == "drop":
            return self._drop(row, rows)
        self._faults.trace("people", f"{kind} {name}")
        if kind == "replace":
            query = random.choice(self._queries)
            if row.options.get("emit") == "final":
                # Its readers would not know what becomes of the windows that they have.
                query, own = row.query, {}
            else:
                own = self._options(query)
            self._life.replace(name, query, own, by=OPEN)
        elif kind == "rebuild":
            self._life.rebuild(name, by=OPEN)
        elif kind == "pause":
            self._life.pause(name, by=OPEN, cascade=random.random() < 0.7)
        elif kind == "resume":
            self._life.resume(name, by=OPEN, cascade=random.random() < 0.7)
        elif kind == "rename":
            self._count += 1
            self._life.rename(name, f"n{self._count}", by=OPEN)
        elif kind == "cancel":
            self._life.cancel(name, by=OPEN)
        return None

    def create(self) -> None:
        """A view over tables or over another view, as service/api/catalog.py does it."""
        self._count += 1
        name, rows = (SCHEMA, f"v{self._count}"), self._control.list_views()
        parents = [r.name for r in rows if is_alike(r.query, QUERIES[0]) and r.status == "live"]
        query = self._random.choice(self._queries)
        if parents and self._random.random() < 0.4:
            query = self._random.choice(NESTED).format(self._random.choice(parents))
        identity = f"{self._count:032x}"
        own = self._options(query)
        definition = plan_definition(
            identity, name, query, self._parts, rows, sources=self._sources, options=own
        )
        require_parents(definition, rows, "default")
        plan = definition.plan
        self._faults.trace("people", f"create {name[1]}: {query.strip()[:40]}")
        keeps = self._random.random() < 0.3
        self._control.insert_view(
            ViewRow(
                *name,
                query,
                identity,
                kind=kind_of(plan),
                options={
                    "group": "default",
                    **({"changes_retention_s": 60} if keeps else {}),
                    **own,
                },
                key=key_names(plan),
                fields=output_fields.to_json(plan.root.fields),
                plan=plan_facts(definition, None),
            )
        )

    def _drop(self, row: ViewRow, rows: list[ViewRow]) -> None:
        if children_of(row, rows):
            return
        self._faults.trace("people", f"drop {row.title}")
        what = {"desired": DesiredState.DROPPED}
        lifecycle.change(self._control, row.identity, ViewEvent.DROP, "people", **what)
