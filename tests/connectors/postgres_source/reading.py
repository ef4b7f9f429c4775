"""Sources of the tests: declared as users do, by `discover`; batches applied to rows."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from connectors.feed_source import FeedPositions, Reader
from connectors.postgres.remote import source as remote
from connectors.postgres.remote.source import RemoteSource
from connectors.postgres.session.foreign import ForeignDsn
from connectors.postgres.session.session import connect
from connectors.postgres.types.column_types import ColumnTypes
from connectors.source import SourceBatch
from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from dataflow.operators.tables.table import TableState
from dataflow.schema import Field, Relation, RelationName
from storage.memory import MemoryStore
from tests.harness.postgres import Database

TIMEOUT_S = 120.0
Row = tuple[Any, ...]


def options_of(database: Database, *tables: str, **more: Any) -> dict[str, Any]:
    """Options of a source over a test's database."""
    login = {"host": "127.0.0.1", "port": database.server.port, "user": "postgres"}
    return {**login, "database": database.name, "tables": list(tables), **more}


def source_of(database: Database, *tables: str, **more: Any) -> RemoteSource:
    """A source with the proposed columns."""
    return made(database, remote.discover(options_of(database, *tables, **more)))


def made(database: Database, options: Mapping[str, Any], group: str = "default") -> RemoteSource:
    """A source of complete options; the types are resolved by the same database."""
    found = RemoteSource("erp", remote.read_options(options), relations_of(database, options))
    found.read_as(Reader("tidemark", group))
    return found


def relations_of(database: Database, options: Mapping[str, Any]) -> list[Relation]:
    """The relations as the service resolves them: by a database that has tables like these."""
    connection = connect(database.dsn)
    found = []
    try:
        with connection.cursor() as cursor:
            types = ColumnTypes(cursor)
            for number, declared in enumerate(remote.declare(options), start=1):
                columns = ", ".join(f'"{name}" {type}' for name, type in declared.columns)
                cursor.execute(f"CREATE TEMP TABLE stub{number} ({columns})")
                cursor.execute("SELECT %s::regclass::oid::bigint", (f"pg_temp.stub{number}",))
                ((oid,),) = cursor.fetchall()
                fields = tuple(
                    Field(f.name, f.type, f.name not in declared.key)
                    for f in types.read_fields(oid).values()
                )
                names = [f.name for f in fields]
                key = tuple(names.index(k) for k in declared.key)
                name = RelationName("erp", "erp", declared.name)
                found.append(Relation(name, number, fields, key, is_full=declared.is_full))
    finally:
        connection.close()
    return found


class Held:
    """Rows of relations as snapshots and batches make them, by the service's own table states."""

    def __init__(self, source: RemoteSource) -> None:
        self.source = source
        self.store = MemoryStore()
        self.states = {
            r.name.name: TableState(r, range(len(r.fields)), self.store, "s")
            for r in source.relations()
        }
        self.positions: dict[str, Any] = {}
        self.notes: dict[str, bytes] = {}
        self.batches: list[SourceBatch] = []
        self.snapshot_order = 0

    @property
    def rows(self) -> dict[str, Counter[Row]]:
        """The rows of each relation."""
        return {name: _counted(state.rows()) for name, state in self.states.items()}

    @property
    def order(self) -> int:
        """Up to where everything has been applied."""
        return min(self.source.order_of(p) for p in self.positions.values())

    def start(self) -> Held:
        """Begin all relations, and read their snapshot."""
        for relation in self.source.relations():
            start = self.source.start_position(relation)
            self.positions[relation.name.name] = start.position
            self.notes.update(start.notes)
        self.load()
        return self

    def load(self) -> None:
        """Read a snapshot of all relations."""
        opened: Any = self.source.open_snapshot(self.source.relations(), self.positions, self.notes)
        for relation in self.source.relations():
            for part in opened.parts(relation, range(len(relation.fields)), 4):
                for delta in part.read():
                    self.states[relation.name.name].load(delta)
        self.snapshot_order = self.source.order_of(opened.position)
        opened.close()

    def add(self, batch: SourceBatch) -> None:
        """Apply what a feed says, unless the snapshot has it."""
        self.batches.append(batch)
        orders = [self.source.order_of(p) for p in (batch.positions or {}).values()]
        is_new = min(orders) > self.snapshot_order
        for chunk in batch.chunks():
            for change in chunk if is_new else ():
                self.states[change.relation.name.name].resolve(change)
        self.positions.update(batch.positions or {})
        self.notes.update({k: v for k, v in batch.notes.items() if v is not None})


def _counted(deltas: Any) -> Counter[Row]:
    found: Counter[Row] = Counter()
    for delta in deltas:
        for row, weight in delta.rows():
            found[row] += weight
    return +found


def follow(
    held: Held,
    is_done: Callable[[Held], bool],
    *,
    until: FeedPositions | None = None,
    max_rows: int = 10_000,
    is_durable: bool = False,
) -> Held:
    """Apply batches of a feed from the held positions on.

    Up to the snapshot they come one by one, as in the service.
    """
    is_ready = threading.Event()
    relations = held.source.relations()
    feed: Any = held.source.open_feed(
        relations, dict(held.positions), dict(held.notes), is_ready.set
    )
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while not is_done(held):
            assert time.monotonic() < deadline, f"{held.rows}"
            is_ready.clear()
            rows = max_rows if held.order >= held.snapshot_order else 1
            batch = feed.poll(rows, until=until)
            if batch is None:
                is_ready.wait(0.02)
                continue
            held.add(batch)
            if is_durable:
                feed.durable(min(held.positions.values(), key=held.source.order_of))
    finally:
        feed.close()
    return held


def error_of(held: Held, then: Callable[[], None] | None = None) -> TidemarkError:
    """What ends a feed from the held positions on. then: called once the feed has caught up."""
    actions = [] if then is None else [then]

    def is_done(held: Held) -> bool:
        if actions and is_equal(held):
            actions.pop()()
        return False

    try:
        follow(held, is_done)
    except TidemarkError as error:
        return error
    raise AssertionError("the feed did not end")


def rows_now(source: RemoteSource) -> dict[str, Counter[Row]]:
    """The rows of the tables, by a query that the service does not use."""
    options, found = source._options, {}
    connection = connect(ForeignDsn.of(options.login))
    try:
        with connection.cursor() as cursor:
            for relation in source.relations():
                table = options.table_of(relation.name.name)
                names = ", ".join(f'"{f.name}"::text' for f in relation.fields)
                cursor.execute(f'SELECT {names} FROM "{table.schema}"."{table.table}"')
                found[relation.name.name] = Counter(cursor.fetchall())
    finally:
        connection.close()
    return found


def texts(delta_rows: Mapping[str, Counter[Row]], source: RemoteSource) -> dict[str, Counter[Row]]:
    """Held rows as PostgreSQL's texts, to be compared with those of `rows_now`."""
    from dataflow.values import to_text

    found = {}
    for relation in source.relations():
        rows = delta_rows[relation.name.name]
        kinds = "".join(f.type.physical for f in relation.fields)
        delta = Delta.of(kinds, list(rows.elements()), 1)
        columns = [
            to_text(f.type, c).texts() for f, c in zip(relation.fields, delta.columns, strict=True)
        ]
        found[relation.name.name] = Counter(zip(*columns, strict=True) if len(delta) else [])
    return found


def is_equal(held: Held) -> bool:
    """Whether the held rows are those of the tables."""
    return texts(held.rows, held.source) == rows_now(held.source)
