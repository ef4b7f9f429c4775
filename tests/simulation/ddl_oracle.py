"""The oracle of runs whose tables change: a view follows tables by oid and columns by number.

What a view's names stand for is read in the state that took it in: the plan that it was built by.
sqlite has each table by its oid with its columns by their numbers; over those a view's query is
answered under the names that it knew. Invariant: no view moves on at a position at which a table
or a column that it uses is gone, or is not what it was built on.
"""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from connectors.postgres.catalog.catalog import ViewRow
from dataflow.schema import Field, Relation
from dataflow.types import NUMERIC
from service.engine.definition import ViewDefinition
from service.engine.encoding.registered import decode
from tests.simulation.ddl_analysis import plain_columns_in
from tests.simulation.ddl_past import Past
from tests.simulation.ddl_tables import ALTER, Shape, first_shapes, raised, rewritten
from tests.simulation.faults import Violation
from tests.simulation.reads import SCHEMA, Read, reads, with_reads
from tests.simulation.shop import Failing, Oracle, expanded, failing_like

# As many as a table may ever have.
WIDTH = 24


class DdlOracle(Oracle):
    """past: what was done to the tables."""

    def __init__(self, log: Any, broker: Any) -> None:
        self.past = Past()
        self._shapes: dict[str, Shape] = {}
        self._failures: dict[str, tuple[Failing, str]] = {}
        self._guarded: dict[str, str] = {}
        self._plans: dict[int, dict[str, bytes]] = {}
        self._newest: dict[str, bytes] = {}
        super().__init__(log, broker)

    # --- what the names of a view stand for ------------------------------------------------------

    def committed(self, values: Mapping[str, bytes]) -> None:
        """The state has these named values from now on."""
        progress = values.get("progress")
        if progress is None:
            return
        plans = {k.rsplit("/", 1)[1]: v for k, v in values.items() if k.startswith("view/")}
        self._newest |= plans
        known = self._plans.setdefault(json.loads(progress)["epoch"], {})
        known |= plans

    def _over_tables(self, row: ViewRow, epoch: int) -> str:
        found = self._plan(row, epoch)
        if found is None:
            return row.query
        names = {r.name.name: r for r in found.relations() if r.name.schema == SCHEMA}
        text = _bound(row.query, names)
        failing, read = failing_like(row.query), reads(row.query)[0]
        order = _called(read, names[read.name]) if read.name in names else ()
        # What the catalog was asked for may be another query than what stands still in the sink.
        if failing is not None and set(columns := failing.row.split(", ")) <= set(order):
            # A row is told with its columns in the order of their numbers.
            reported = ", ".join(sorted(columns, key=order.index))
            errors = replace(failing, row=reported).failed(row.query)
            self._failures[text] = failing, _bound(errors, names)
            self._guarded[text] = _bound(failing.guarded(row.query), names)
        return _as_stored(text, found.table.fields)

    def _plan(self, row: ViewRow, epoch: int) -> ViewDefinition | None:
        plans = self._plans.get(epoch, {})
        stored = plans.get(row.identity) or self._newest.get(row.identity)
        return None if stored is None else _definition(stored)

    # --- answers ---------------------------------------------------------------------------------

    def answer(
        self, query: str, prefix: int, offsets: Mapping[str, Any] | None = None
    ) -> Counter[tuple[Any, ...]]:
        return super().answer(self._guarded.get(query, query), prefix, offsets)

    def _failing(self, query: str) -> tuple[Failing, str] | None:
        return self._failures.get(query)

    def require_right(self, row: ViewRow, epoch: int, prefix: int) -> None:
        found = self._plan(row, epoch)
        if found is None:
            return
        self._go_to(prefix)
        names = {r.name.name: r for r in found.relations() if r.name.schema == SCHEMA}
        for read in reads(row.query):
            if read.schema == SCHEMA and read.name in names:
                self._require(row, read, names[read.name])

    def _require(self, row: ViewRow, read: Read, relation: Relation) -> None:
        shape = self._shapes.get(f"t{relation.oid}")
        if shape is None:
            raise Violation(f"{row.title} moves on, and its table {relation.name} was dropped")
        called = _called(read, relation)
        used = plain_columns_in(row.query)
        used |= {called[i] for i in relation.key}
        for name, field, number in zip(called, relation.fields, relation.numbers, strict=True):
            if name not in used:
                continue
            column = shape.column(number)
            what = f"{row.title} moves on, and column {name} of {relation.name}"
            if column is None:
                raise Violation(f"{what} was dropped")
            if column.field.type != field.type:
                raise Violation(f"{what} has another type")
            if column.field.is_nullable and not field.is_nullable:
                raise Violation(f"{what} may be NULL by now")

    def judge(self, row: ViewRow, rows: Iterable[ViewRow], reported: Mapping[str, Any]) -> None:
        if reported.get("status") in ("failed", "degraded"):
            # A version that the sink has not been told of, or knows no more, may be what fails.
            stored = self._newest.get(row.identity)
            newest = None if stored is None else _definition(stored)
            is_untold = newest is not None and newest.version > row.version
            asked = [row.query, *([newest.query] if newest is not None and is_untold else [])]
            text = " ".join(expanded(q, {r.name: r.query for r in rows}) for q in asked)
            self.past.require_reason(row.title, text, str(reported.get("code")))

    # --- the log ---------------------------------------------------------------------------------

    def _create(self) -> None:
        super()._create()
        for shape in first_shapes():
            self._begin(shape)

    def _begin(self, shape: Shape) -> None:
        columns = ", ".join(f"c{n}" for n in range(1, WIDTH + 1))
        self._session.execute(f"CREATE TABLE IF NOT EXISTS {SCHEMA}.{shape.label} ({columns})")
        self._shapes[shape.label] = shape

    def _go_to(self, prefix: int) -> None:
        if prefix < self._at:
            for label in self._known():
                self._session.execute(f"DELETE FROM {SCHEMA}.{label}")
            self._shapes = {s.label: s for s in first_shapes()}
            self._at = 0
        for commit in self._log[self._at : prefix]:
            for change in commit.changes:
                self._apply(*change)
        self._at = prefix

    def _known(self) -> list[str]:
        found = self._session.execute(f"SELECT name FROM {SCHEMA}.sqlite_master")
        return [name for (name,) in found if re.fullmatch(r"t\d+", name)]

    def _apply(self, name: str, kind: str, old: Any, new: Any) -> None:
        if kind == ALTER:
            self._alter(name, old, new)
            return
        table = f"{SCHEMA}.{name}"
        if kind == "T":
            self._session.execute(f"DELETE FROM {table}")
        if kind in "UD":
            same = " AND ".join(f"c{n} IS ?" for n in range(1, len(old) + 1))
            found = f"SELECT rowid FROM {table} WHERE {same} LIMIT 1"
            done = self._session.execute(f"DELETE FROM {table} WHERE rowid = ({found})", old)
            assert done.rowcount == 1
        if kind in "UI":
            columns = ", ".join(f"c{n}" for n in range(1, len(new) + 1))
            marks = ", ".join("?" * len(new))
            self._session.execute(f"INSERT INTO {table} ({columns}) VALUES ({marks})", new)

    def _alter(self, label: str, before: Shape | None, after: Shape | None) -> None:
        if after is None:
            self._shapes.pop(label)
            self._session.execute(f"DELETE FROM {SCHEMA}.{label}")
            return
        if before is None:
            self._begin(after)
            return
        self._shapes[label] = after
        for number, by in raised(before, after):
            reported = f"UPDATE {SCHEMA}.{label} SET c{number} = c{number} + ?"
            self._session.execute(reported, (by,))
        values = rewritten((None,) * before.width, before, after)
        for number in range(before.width + 1, after.width + 1):
            reported = f"UPDATE {SCHEMA}.{label} SET c{number} = ?"
            self._session.execute(reported, (values[number - 1],))


@functools.lru_cache(maxsize=4096)
def _definition(stored: bytes) -> ViewDefinition:
    return decode(stored)


def _as_stored(query: str, fields: Iterable[Field]) -> str:
    """Return the query with numbers of any size as the texts that they are stored as."""
    shown = {f.name: f"CAST({f.name} AS TEXT)" if f.type == NUMERIC else f.name for f in fields}
    if all(name == text for name, text in shown.items()):
        return query
    return f" SELECT {', '.join(shown.values())} FROM ({query})"


def _bound(query: str, names: Mapping[str, Relation]) -> str:
    """The query over tables by their oids, under the names that it knows."""

    def table(read: Read) -> str:
        relation = names.get(read.name) if read.schema == SCHEMA else None
        if relation is None:
            return read.text
        numbered = zip(_called(read, relation), relation.numbers, strict=True)
        columns = ", ".join(f"c{number} AS {name}" for name, number in numbered)
        return f"(SELECT {columns} FROM {SCHEMA}.t{relation.oid}) {read.alias}".rstrip()

    return with_reads(query, table)


def _called(read: Read, relation: Relation) -> tuple[str, ...]:
    return read.called([field.name for field in relation.fields])
