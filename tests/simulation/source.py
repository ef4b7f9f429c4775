"""The source as a process has it: slot, publication, snapshots, catalog; each call may fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

from connectors.postgres.replication.stream import StreamLimits
from connectors.postgres.replication.table_facts import CatalogSnapshot, ColumnFacts, TableFacts
from dataflow.delta import Delta
from dataflow.errors import SourceError
from dataflow.schema import Relation, RelationName
from tests.simulation.faults import Faults
from tests.simulation.server import Row, Server
from tests.simulation.shop import EVERY
from tests.simulation.stream import SimStream, away


class Identity(NamedTuple):
    """As connectors.postgres.source.SourceIdentity."""

    system: str
    timeline: int
    database: str


class SimSource:
    """As PostgresSource, for one process."""

    name = "source"

    slot_name = publication_name = "tidemark_source"
    has_given_publication = False

    def __init__(self, server: Server, faults: Faults) -> None:
        self._server = server
        self._faults = faults

    def open_transactions(self, least_s: int) -> None:
        """Nobody leaves any open here."""

    def drop_lost_slot(self) -> None:
        """No slot is lost here."""

    def _ask(self, name: str) -> None:
        self._faults.step(name)
        if self._faults.happens("source.error"):
            raise away()

    def identity(self) -> Identity:
        self._ask("source.identity")
        return Identity("7001", 1, "shop")

    def ensure_slot(self) -> int:
        self._ask("source.ensure_slot")
        if self._server.confirmed is None:
            self._server.confirmed = self._server.advance()
        return self._server.confirmed

    def drop_slot(self) -> None:
        self._ask("source.drop_slot")
        self._server.confirmed = None
        self._server.published.clear()

    def retained_wal_bytes(self) -> int:
        confirmed = self._server.confirmed
        return 0 if confirmed is None else self._server.end - confirmed

    def watch(self, relations: Sequence[Relation | RelationName]) -> None:
        self._ask("source.watch")
        self._server.published |= {_name_of(r) for r in relations}

    def unwatch(self, relations: Sequence[Relation | RelationName]) -> None:
        self._ask("source.unwatch")
        self._server.published -= {_name_of(r) for r in relations}

    def open_snapshot(self, relations: Sequence[Relation] = ()) -> SimSnapshot:
        self._ask("source.snapshot")
        return SimSnapshot(self._server, self._faults)

    def heartbeat(self) -> int:
        self._ask("source.heartbeat")
        return self._server.advance()

    def current_position(self) -> int:
        self._ask("source.position")
        return self._server.end

    def tables(self) -> Any:
        return SimCatalog(self._server)

    def stream(
        self,
        start_position: int,
        relations: Sequence[Relation],
        *,
        identity: Sequence[object] | None = None,
        takes_over: bool = False,
        limits: StreamLimits | None = None,
        shapes: Mapping[int, Any] | None = None,
        refresh: Callable[[], None] | None = None,
        on_promoted: Callable[[], None] | None = None,
        shown: int = 0,
    ) -> SimStream:
        self._ask("source.stream")
        self._require_slot(start_position)
        for relation in relations:
            if relation.name.name not in self._server.published:
                raise SourceError("source.not_published", str(relation), relation=relation.name)
        return SimStream(self._server, self._faults, start_position, relations)

    def _require_slot(self, start_position: int) -> None:
        confirmed = self._server.confirmed
        if confirmed is None:
            raise SourceError("source.slot_missing", "the simulated slot is not there")
        if confirmed > start_position:
            raise SourceError(
                "source.position_lost",
                f"the slot begins at {confirmed}, the state stands at {start_position}",
            )

    def close(self) -> None:
        """Nothing is open."""


class SimCatalog:
    """As TableCatalog: tables stay as they are."""

    given = ""

    def __init__(self, server: Server) -> None:
        self._server = server

    def digest(self, known: Mapping[int, TableFacts], objects: object = ()) -> int:
        return hash(tuple(sorted(known)))

    def read(
        self, oids: Sequence[int], known: Mapping[int, TableFacts], objects: object = ()
    ) -> CatalogSnapshot:
        found = {r.oid: _facts(r) for r in EVERY.values() if r.oid in oids}
        return CatalogSnapshot(self.digest(found), found)

    def write_marker(self) -> int:
        return self._server.end

    def close(self) -> None:
        """Nothing is open."""


class SimSnapshot:
    """As PostgresSnapshot."""

    def __init__(self, server: Server, faults: Faults) -> None:
        self.position = server.advance() if faults.random.random() < 0.5 else server.end
        self._rows = {name: Counter(rows) for name, rows in server.tables.items()}
        self._faults = faults

    def parts(
        self,
        relation: Relation,
        columns: Sequence[int],
        count: int,
        known: Sequence[str] = (),
    ) -> list[SimPart]:
        n = len(known) or count
        shares: list[list[Row]] = [[] for _ in range(n)]
        for row in sorted(self._table(relation), key=repr):
            key = tuple(row[i] for i in relation.key) if relation.key else row
            shares[crc32(repr(key).encode()) % n].append(row)
        return [
            SimPart(f"{i}/{n}", relation, tuple(columns), rows, self._faults)
            for i, rows in enumerate(shares)
        ]

    def part_of_keys(self, relation: Relation, columns: Sequence[int], keys: Delta) -> SimPart:
        expected = {row for row, _ in keys.rows()}
        rows = [
            row
            for row in sorted(self._table(relation), key=repr)
            if tuple(_stored(row[i]) for i in relation.key) in expected
        ]
        return SimPart("keys", relation, tuple(columns), rows, self._faults)

    def _table(self, relation: Relation) -> list[Row]:
        return list(self._rows[relation.name.name].elements())

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class SimPart:
    """A chunk of a table."""

    name: str
    relation: Relation
    columns: tuple[int, ...]
    rows: list[Row]
    faults: Faults

    def _meet_faults(self) -> None:
        self.faults.step("snapshot.read")
        if self.faults.happens("source.lost"):
            raise away()

    def read(self) -> Iterator[Delta]:
        self._meet_faults()
        kinds = "".join(self.relation.fields[c].type.physical for c in self.columns)
        if self.rows:
            yield Delta.of(kinds, [tuple(row[c] for c in self.columns) for row in self.rows])


def _facts(relation: Relation) -> TableFacts:
    numbers = range(1, len(relation.fields) + 1)
    columns = {n: ColumnFacts(f, 1, True) for n, f in zip(numbers, relation.fields, strict=True)}
    key = tuple(i + 1 for i in relation.key)
    identity = "f" if relation.is_full else "d"
    name = relation.name
    return TableFacts(
        relation.oid, name.schema, name.name, "r", identity, 1, 1, True, 1, key, columns=columns
    )


def _name_of(relation: Relation | RelationName) -> str:
    return relation.name.name if isinstance(relation, Relation) else relation.name


def _stored(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value
