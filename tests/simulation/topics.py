"""Sources beside the database in a simulation: topics in partitions, and a writer of records.

A relation with a key is told by upserts and tombstones, a key always in one partition; one without
is appended to. Records before an offset never change: they are also the oracle's prefix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from zlib import crc32

from connectors.postgres.catalog.catalog import SourceRow
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import INT4, TEXT
from service.engine import output_fields

Row = tuple[Any, ...]
OWNERS = ("ann", "bob", "cyd", "dee")


def _relation(
    source: str, name: str, oid: int, columns: list[Field], key: tuple[int, ...] = ()
) -> Relation:
    named = RelationName(source, source, name)
    return Relation(named, oid, tuple(columns), key, is_append=not key)


_ITEM, _OWNER = Field("item", TEXT, False), Field("owner", TEXT)
RELATIONS = (
    _relation("events", "visits", 2001, [_OWNER, Field("n", INT4)]),
    _relation("events", "stock", 2002, [_ITEM, _OWNER, Field("amount", INT4)], (0,)),
    _relation("market", "prices", 2003, [_ITEM, Field("price", INT4)], (0,)),
)
SOURCES = ("events", "market")
# The one that cannot tell the same twice: as a topic that is compacted.
FORGETFUL = "market"

QUERIES = (
    " SELECT item, owner, amount FROM events.stock WHERE (amount > 0)",
    " SELECT owner, count(*) AS visits, sum(n) AS total FROM events.visits GROUP BY owner",
    " SELECT s.item, s.amount, p.price FROM (events.stock s LEFT JOIN market.prices p ON"
    " ((s.item = p.item)))",
    " SELECT count(*) AS n, sum(price) AS total FROM market.prices",
    " SELECT a.id, a.owner, s.item, s.amount FROM (public.accounts a JOIN events.stock s ON"
    " ((a.owner = s.owner)))",
    " SELECT v.owner, count(*) AS n FROM (events.visits v JOIN public.accounts a ON"
    " ((v.owner = a.owner))) GROUP BY v.owner",
)


@dataclass(frozen=True)
class Record:
    """row: None for a tombstone of its key."""

    key: Any
    row: Row | None
    at: float


@dataclass
class Topic:
    """A relation's records by partition."""

    relation: Relation
    partitions: list[list[Record]]

    def position(self) -> dict[str, Any]:
        """Where it ends now."""
        return {"next": {str(p): len(records) for p, records in enumerate(self.partitions)}}

    def rows_at(self, offset: Mapping[str, Any]) -> Counter[Row]:
        """What lies before a place makes these rows."""
        rows: Counter[Row] = Counter()
        kept: dict[Any, Row] = {}
        for number, records in enumerate(self.partitions):
            for record in records[: offset["next"][str(number)]]:
                if not self.relation.key:
                    assert record.row is not None
                    rows[record.row] += 1
                elif record.row is None:
                    kept.pop(record.key, None)
                else:
                    kept[record.key] = record.row
        return rows + Counter(kept.values())


@dataclass
class Broker:
    """All topics. told: called when there is something new, by who reads."""

    random: Random
    topics: dict[tuple[str, str], Topic] = field(default_factory=dict)
    told: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for relation in RELATIONS:
            partitions: list[list[Record]] = [[] for _ in range(self.random.choice((1, 2, 3)))]
            self.topics[relation.name.source, relation.name.name] = Topic(relation, partitions)

    def write(self, at: float) -> str:
        """A few records of one relation; for the trace."""
        random = self.random
        topic = random.choice(list(self.topics.values()))
        count = random.choice((1, 1, 2, 5))
        for _ in range(count):
            key, row = self._record(topic.relation.name.name)
            chosen = crc32(repr(key).encode()) if key is not None else random.randrange(99)
            topic.partitions[chosen % len(topic.partitions)].append(Record(key, row, at))
        reported, self.told = self.told, []
        for one in reported:
            one()
        return f"{count} of {topic.relation.name}"

    def _record(self, name: str) -> tuple[Any, Row | None]:
        random = self.random
        if name == "visits":
            return None, (random.choice((*OWNERS, None)), random.choice((None, 1, 2, 3)))
        key = f"item {random.randint(1, 9)}"
        if random.random() < 0.2:
            return key, None
        if name == "stock":
            return key, (key, random.choice(OWNERS), random.randint(-3, 30))
        return key, (key, random.choice((None, 5, 7, 9)))


def declared() -> list[SourceRow]:
    """The sources as the catalog has them."""
    return [
        SourceRow(name, "", type="simulated", relations=[_facts(r) for r in _relations_of(name)])
        for name in SOURCES
    ]


def _relations_of(source: str) -> Sequence[Relation]:
    return [r for r in RELATIONS if r.name.source == source]


def _facts(relation: Relation) -> dict[str, Any]:
    return {
        "name": relation.name.name,
        "oid": relation.oid,
        "fields": output_fields.to_json(relation.fields),
        "key": [relation.fields[i].name for i in relation.key],
        "is_append": relation.is_append,
    }
