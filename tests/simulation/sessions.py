"""A process's sessions with the sink: writer, catalog, reads of tables; each call may fail.

A call that fails has done nothing, or all of it with its answer lost; of an epoch that was sent
when its session was lost the server may make the commit a moment later.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from connectors.postgres.catalog.catalog import SourceRow, ViewRow
from connectors.sink import Progress, SinkEpoch, SinkPromoted, SinkTable, ViewChange
from connectors.view_states import (
    ViewEvent,
    follow_retried,
    illegal_transition,
    is_absorbed,
    target_of,
)
from dataflow import collect
from dataflow.delta import KIND_BYTES, Delta
from dataflow.errors import SinkError, TemporaryError
from tests.simulation import sink_rows
from tests.simulation.faults import Faults
from tests.simulation.rows import Rows, counted, delta_of
from tests.simulation.sink import STANDING, Database, Table

T = TypeVar("T")
_CHUNK = 3
# Of a view: its title, and dataflow/collect.py.
ERROR_KINDS = KIND_BYTES + collect.ERROR_KINDS


class Session:
    """One way to the database."""

    def __init__(self, database: Database, faults: Faults) -> None:
        self.database = database
        self.faults = faults

    def call(self, name: str, run: Callable[[], T]) -> T:
        """A statement that commits at once."""
        self.faults.step(name)
        if self.database.is_down:
            raise unreachable()
        if self.faults.happens("sink.error"):
            raise unreachable()
        answer = run()
        if self.faults.happens("sink.answer_lost"):
            raise unreachable()
        self.faults.step(f"{name}.done")
        return answer


class SimSink(Session):
    """As PostgresSink."""

    def __init__(self, database: Database, faults: Faults, owner: str = "") -> None:
        super().__init__(database, faults)
        self._owner = owner
        self._is_interrupted = self._is_claimed = False
        self.with_triggers, self.blocked_by = frozenset(), ""
        self._timeline = 0

    def claim(self) -> None:
        """As connectors/postgres/schema/lease.py: end the sessions of owners before this one."""
        self.faults.end_lost(lambda session: session is not self)
        self.database.owner, self._is_claimed = self._owner, True
        self._timeline = self.database.timeline

    def _own_call(self, name: str, run: Callable[[], T]) -> T:
        """Make a call that only the owner may make."""

        def required() -> T:
            self._require()
            return run()

        return self.call(name, required)

    def _require(self) -> None:
        """A server that does not know of our claim is another one."""
        if self._is_claimed and self.database.owner != self._owner:
            raise SinkError("sink.fenced", "the sink has another owner")

    def read_progress(self) -> Progress | None:
        """What is left of its own lost session is ended first."""

        def read() -> Progress | None:
            self.faults.end_lost(lambda session: session is self)
            self._require()
            return self.database.progress

        return self.call("sink.read_progress", read)

    def write(self, epoch: SinkEpoch) -> None:
        faults, database = self.faults, self.database
        self._is_interrupted = False
        faults.step("sink.write")
        if faults.happens("sink.stall"):
            faults.trace("stall", f"epoch {epoch.progress.epoch}")
            faults.pause(faults.random.uniform(0.5, 8.0), lambda: self._is_interrupted)
        if self._is_interrupted or database.is_down or faults.happens("sink.error"):
            raise unreachable()
        self._require()
        if self._timeline != database.timeline:
            raise SinkPromoted()
        faults.own_commit(epoch, self)
        faults.step("sink.sent")
        faults.own_commit(None, self)
        if self._timeline != database.timeline:
            # It was sent to a server that is no more.
            raise unreachable()
        if faults.happens("sink.unknown"):
            faults.send_late(epoch, self)
            raise unreachable()
        database.apply(epoch)
        faults.trace("shown", f"epoch {epoch.progress.epoch}, prefix {database.prefix}")
        faults.step("sink.written")
        if faults.happens("sink.answer_lost"):
            raise unreachable()

    def interrupt(self) -> None:
        self._is_interrupted = True

    def stage(self, table: SinkTable, rows: Iterable[Delta], token: str = "") -> int:
        found: Rows = Rows()
        for delta in rows:
            self.faults.step("sink.stage")
            for row, weight in delta.rows():
                found[row] += weight
        if any(weight < 0 for weight in found.values()):
            raise SinkError("sink.row_missing", "first rows with negative weights")

        def staged() -> int:
            self.database.staged[table.schema, table.name] = Table(table, +found, token)
            self.database.put_down("stage", (table, +found, token))
            return sum(found.values())

        return self._own_call("sink.staged", staged)

    def is_staged(self, table: SinkTable, token: str) -> bool:
        found = self.database.staged.get((table.schema, table.name))
        return found is not None and found.identity == token

    def drop_staged(self, table: SinkTable) -> None:
        def drop() -> None:
            self.database.staged.pop((table.schema, table.name), None)
            self.database.put_down("drop staged", table)

        self._own_call("sink.drop_staged", drop)

    def drop(self, tables: Sequence[SinkTable]) -> None:
        def drop() -> None:
            self.database.drop(tables)
            self.database.put_down("drop", list(tables))

        self._own_call("sink.drop", drop)

    def holds(self, table: SinkTable) -> bool:
        def is_there() -> bool:
            found = self.database.tables.get((table.schema, table.name))
            return found is not None and found.table.fields == table.fields and not found.spoilt

        return self.call("sink.holds", is_there)

    def forget_progress(self) -> None:
        def forget() -> None:
            self.database.forget_progress()
            self.database.put_down("forget", None)

        self._own_call("sink.forget_progress", forget)

    def read_rows(self, table: SinkTable, *, is_checked: bool = False) -> Iterator[Delta]:
        found = self.call("sink.read_rows", lambda: self._found(table))
        yield from self._chunks(found)

    @contextmanager
    def rows_at(
        self, table: SinkTable, *, is_checked: bool = False
    ) -> Iterator[tuple[Progress, Iterator[Delta]]]:
        def read() -> tuple[Progress | None, Table]:
            return self.database.progress, self._found(table)

        progress, found = self.call("sink.rows_at", read)
        if progress is None:
            raise SinkError("sink.no_progress", "no epoch has been written yet")
        yield progress, self._chunks(found)

    def renew_hashes(self, table: SinkTable) -> None:
        self.call("sink.renew_hashes", lambda: self._found(table))

    def _found(self, table: SinkTable) -> Table:
        found = self.database.tables.get((table.schema, table.name))
        # As ours reads by names of columns: those of another version are not there. Which of them
        # may be NULL is known otherwise once a view was rebuilt over a table that was changed.
        if found is None or found.spoilt or _columns(found.table) != _columns(table):
            code = "sink.table_missing" if found is None else "sink.table_changed"
            raise SinkError(code, table.title, relation=table.relation)
        return found

    def _chunks(self, found: Table) -> Iterator[Delta]:
        rows = delta_of(found.table, found.rows)
        for start in range(0, len(rows), _CHUNK):
            self.faults.step("sink.rows")
            yield rows.slice(start, min(start + _CHUNK, len(rows)))

    def close(self) -> None:
        """Nothing is open."""


class SimTables(Session):
    """As ViewTables."""

    def check(self, table: SinkTable) -> None:
        def find() -> None:
            if (table.schema, table.name) in self.database.tables:
                raise SinkError("sink.name_taken", table.title)

        self.call("tables.check", find)

    def check_history(self, table: SinkTable) -> None:
        """No other relation has the name of what readers of the past read."""

    def change(self, changes: Sequence[ViewChange]) -> None:
        def apply() -> None:
            before = list(self.database.views)
            for change in changes:
                self.database.change(change)
                self.database.retitle_errors(change.before, change.table)
            self.database.put_down("change", list(changes), before)

        self.call("tables.change", apply)

    def dependents(self, table: SinkTable) -> list[str]:
        return self.call("tables.dependents", list)

    def not_carried_over(self, before: SinkTable, table: SinkTable) -> list[str]:
        return self.call("tables.not_carried_over", list)

    def read_errors(self, table: SinkTable) -> Delta:
        return self.call(
            "tables.read_errors",
            lambda: Delta.of(ERROR_KINDS, *counted(self.database.errors_of(table))),
        )


class SimControl(Session):
    """As Control."""

    service = "tidemark"

    def __init__(self, database: Database, faults: Faults) -> None:
        super().__init__(database, faults)
        self._seen = -1
        self._timeline = 0

    def ensure(self) -> None:
        self.call("catalog.ensure", lambda: None)

    def close(self) -> None:
        """Nothing is open."""

    def notify(self) -> None:
        self.database.version += 1

    def wait(self, timeout_s: float) -> bool:
        if timeout_s:
            self.faults.pause(timeout_s, lambda: self._seen != self.database.version)
        if self.database.is_down:
            return False
        is_changed, self._seen = self._seen != self.database.version, self.database.version
        return is_changed

    def list_views(self) -> list[ViewRow]:
        return self.call("catalog.list", lambda: list(self.database.views))

    def get_view(self, schema: str, name: str) -> ViewRow | None:
        return self.call("catalog.get", lambda: self.database.view_named(schema, name))

    def other_service_of(self, schema: str, name: str) -> str:
        """There is one service."""
        return ""

    def insert_view(self, row: ViewRow) -> ViewRow:
        def insert() -> ViewRow:
            self.database.views.append(row)
            self.database.version += 1
            return row

        return self.call("catalog.insert", insert)

    def update_view(self, identity: str, **changes: Any) -> bool:
        assert "status" not in changes
        return self.call("catalog.update", lambda: self.database.update(identity, dict(changes)))

    def change_view(
        self,
        identity: str,
        events: Sequence[ViewEvent],
        reason: str,
        unanswered: Collection[ViewEvent] = (),
        **columns: Any,
    ) -> bool:
        def change() -> bool:
            row = self.database.view(identity)
            if row is None:
                return False
            if row.desired == "dropped" and all(map(is_absorbed, events)):
                if target_of(events[-1]) in STANDING:
                    # It is not called so any more, and has stopped all the same.
                    self.database.move(identity, moves=False)
                return self.database.update(identity, dict(columns))
            after = follow_retried(row.status, events, unanswered)
            if after is None:
                self.require_server()
                raise illegal_transition(row.title, row.status, events, reason)
            return self.database.update(identity, {**columns, "status": after})

        return self.call("catalog.update", change)

    def delete_view(self, identity: str) -> bool:
        def delete() -> bool:
            before = len(self.database.views)
            self.database.views = [r for r in self.database.views if r.identity != identity]
            self.database.version += 1
            return len(self.database.views) < before

        return self.call("catalog.delete", delete)

    def read_progress(self, key: str = "tidemark") -> Progress | None:
        """With the look at the views that it follows."""
        if self.database.is_down:
            raise unreachable()
        return self.database.progress

    def require_server(self) -> None:
        if not self.database.is_down:
            self._timeline = self._timeline or self.database.timeline
            if self._timeline != self.database.timeline:
                raise SinkPromoted()

    def list_sources(self) -> list[SourceRow]:
        return self.call("catalog.sources", lambda: list(self.database.sources))

    def get_source(self, name: str) -> SourceRow | None:
        rows = self.database.sources
        return self.call("catalog.source", lambda: next((r for r in rows if r.name == name), None))

    def upsert_source(self, row: SourceRow) -> None:
        def upsert() -> None:
            others = [r for r in self.database.sources if r.name != row.name]
            self.database.sources = [*others, row]

        self.call("catalog.upsert_source", upsert)

    def update_source(self, name: str, **changes: Any) -> bool:
        return self.call("catalog.update_source", lambda: True)

    def delete_source(self, name: str) -> bool:
        def delete() -> bool:
            self.database.sources = [r for r in self.database.sources if r.name != name]
            return True

        return self.call("catalog.delete_source", delete)

    def execute(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        return self.rows(sql, *parameters)

    def rows(self, sql: str, *parameters: Any) -> list[tuple[Any, ...]]:
        """Return the few statements that are not methods: changes of views; else there is
        nothing."""
        values = [getattr(p, "adapted", p) for p in parameters]
        if " tidemark.sinks " in f"{sql} ":
            return self.call("catalog.rows", lambda: sink_rows.answer(self.database, sql, values))
        if not sql.startswith("UPDATE tidemark.views"):
            return self.call("catalog.rows", list)
        columns = re.findall(r'"(\w+)" = %s', sql)

        def request_change() -> list[tuple[Any, ...]]:
            change, *rest, identity, desired = values
            row = self.database.view(identity)
            if row is None or row.change is not None or row.desired == "dropped":
                return []
            if row.desired != desired:
                return []
            reported = dict(zip(columns, rest, strict=True)) | {"change": change}
            return [(1,)] * self.database.update(identity, reported)

        def end_change() -> list[tuple[Any, ...]]:
            *rest, identity, change = values
            row = self.database.view(identity)
            if row is None or (row.change or {}).get("id") != change:
                return []
            reported = dict(zip(columns, rest, strict=True)) | {"change": None}
            return [(1,)] * self.database.update(identity, reported)

        def request_pause() -> list[tuple[Any, ...]]:
            row = self.database.view(values[0])
            if row is None or row.change is not None or row.desired == "dropped":
                return []
            is_live = row.status == "live"
            return [(1,)] * (is_live and self.database.update(row.identity, {"desired": "paused"}))

        if "desired = 'paused'" in sql:
            return self.call("catalog.pause", request_pause)
        is_asked = "change = %s" in sql
        return self.call("catalog.change", request_change if is_asked else end_change)


def _columns(table: SinkTable) -> list[tuple[str, Any]]:
    return [(field.name, field.type) for field in table.fields]


def unreachable() -> TemporaryError:
    """The session was lost."""
    return TemporaryError("sink.unreachable", "the simulated sink cannot be reached")
