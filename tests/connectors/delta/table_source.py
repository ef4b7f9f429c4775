"""A Delta table that tests change, and a reader of it that sums its changes up."""

from __future__ import annotations

import json
import pickle
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from connectors.delta.source import DeltaSource, declare
from connectors.formats.declared import declared_type
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.schema import Field, Relation, RelationName

FEED = {"delta.enableChangeDataFeed": "true"}
COLUMNS = {"id": "bigint", "region": "text", "amount": "numeric(12,2)", "placed": "timestamptz"}
SCHEMA = pa.schema(
    {
        "id": pa.int64(),
        "region": pa.string(),
        "amount": pa.decimal128(12, 2),
        "placed": pa.timestamp("us", "UTC"),
    }
)
REGIONS = ("north", "south & <ü>", "a/b %20", None)
_START = datetime(2000, 1, 1, tzinfo=UTC)
Row = tuple[Any, ...]


def declared(columns: Mapping[str, str]) -> list[dict[str, str]]:
    """Columns as a user declares them."""
    return [{"name": name, "type": type} for name, type in columns.items()]


def source_of(path: Path | str, columns: Mapping[str, str] = COLUMNS, **more: Any) -> DeltaSource:
    """A source whose relation "orders" is a table."""
    own = {"path": str(path), "columns": declared(columns), **more}
    options = {"relations": {"orders": own}}
    (found,) = declare(options)
    fields = tuple(Field(n, declared_type(t)[0]) for n, t in found.columns)
    name = RelationName("lake", "lake", "orders")
    relation = Relation(name, 1, fields, is_full=found.is_full, is_append=found.is_append)
    return DeltaSource("lake", options, [relation])


@dataclass
class Reader:
    """Sums up what a source reads. position: as it is stored."""

    source: DeltaSource
    rows: Counter[Row] = field(default_factory=Counter)
    position: str = "{}"

    def read(self, max_rows: int = 1_000_000, count: int = 2, batches: int = 1_000_000) -> int:
        """Read up to the newest version, but at most so many batches; return their number."""
        relations = self.source.relations()
        end = self.source.current_end(relations)
        positions = {"orders": json.loads(self.position)}
        planner = self.source.open_ranges(relations, positions, {}, lambda: None, end)
        for number in range(batches):
            ranges = planner.cut(count, max_rows)
            if not ranges:
                return number
            ranges = [pickle.loads(pickle.dumps(one)) for one in ranges]
            for one in ranges:
                for changes in one.read():
                    self.add(changes)
            batch = planner.join(ranges, [one.result() for one in ranges])
            # What a part of a version removes was there before.
            assert all(weight >= 0 for weight in self.rows.values())
            self.rows = +self.rows
            assert batch.positions is not None
            self.position = json.dumps(batch.positions["orders"])
        return batches

    def add(self, changes: Changes) -> None:
        """Add changes to the rows."""
        weights = [1 if kind == Changes.INSERT else -1 for kind in changes.kinds]
        for row, weight in Delta(changes.columns, np.array(weights, np.int64)).rows():
            self.rows[row] += weight


def physical(row: Mapping[str, Any]) -> Row:
    """A row of COLUMNS as the engine has it."""
    region, amount, placed = row["region"], row["amount"], row["placed"]
    return (
        row["id"],
        None if region is None else region.encode(),
        None if amount is None else int(amount * 100),
        None if placed is None else (placed - _START) // timedelta(microseconds=1),
    )


def rows_of(path: Path) -> Counter[Row]:
    """The rows of a table's newest version, as the client reads them."""
    found = pa.table(DeltaTable(path).scan()).to_pylist()
    return Counter(physical({name: row.get(name) for name in COLUMNS}) for row in found)


class Orders:
    """A table of orders, changed at random. is_partitioned: by region and time."""

    def __init__(self, path: Path, random: Random, *, is_partitioned: bool, has_feed: bool) -> None:
        self.path = path
        self.random = random
        self.next_id = 0
        write_deltalake(
            path,
            self.new_rows(5),
            partition_by=["region", "placed"] if is_partitioned else None,
            configuration=FEED if has_feed else None,
        )

    def new_rows(self, count: int) -> pa.Table:
        """Rows of new ids, some of them twice."""
        rows = []
        for _ in range(count):
            self.next_id += 1
            at = _START + timedelta(days=self.random.randrange(3), microseconds=-7)
            amount = Decimal(self.random.randrange(10**6)).scaleb(-2)
            one = {"id": self.next_id, "region": self.random.choice(REGIONS), "amount": amount}
            rows += [{**one, "placed": at}] * self.random.choice([1, 1, 1, 2])
        return pa.Table.from_pylist(rows, SCHEMA)

    def append(self) -> None:
        """Add rows."""
        write_deltalake(self.path, self.new_rows(self.random.randrange(1, 9)), mode="append")

    def overwrite(self) -> None:
        """Replace all rows."""
        write_deltalake(self.path, self.new_rows(self.random.randrange(1, 9)), mode="overwrite")

    def replace_part(self) -> None:
        """Replace the rows of a region."""
        rows = self.new_rows(4)
        rows = rows.set_column(1, "region", pa.array(["north"] * len(rows)))
        write_deltalake(self.path, rows, mode="overwrite", predicate="region = 'north'")

    def delete(self) -> None:
        """Delete some rows."""
        DeltaTable(self.path).delete(f"id % 5 = {self.random.randrange(5)}")

    def update(self) -> None:
        """Change some rows, also to other partitions."""
        region = self.random.choice(["'south & <ü>'", "NULL", "'new'"])
        where = f"id % 4 = {self.random.randrange(4)}"
        DeltaTable(self.path).update({"region": region, "amount": "amount + 1"}, predicate=where)

    def merge(self) -> None:
        """Update rows by key, delete some, and insert others."""
        ids = self.random.sample(range(1, self.next_id + 4), min(6, self.next_id))
        rows = self.new_rows(12).slice(0, len(ids)).set_column(0, "id", pa.array(ids, pa.int64()))
        DeltaTable(self.path).merge(
            rows, "t.id = s.id", source_alias="s", target_alias="t"
        ).when_matched_delete(
            "s.id % 3 = 0"
        ).when_matched_update_all().when_not_matched_insert_all().execute()

    def compact(self) -> None:
        """Rewrite files without changing a row."""
        DeltaTable(self.path).optimize.compact()

    def restore(self) -> None:
        """Go back to an earlier version."""
        table = DeltaTable(self.path)
        if table.version():
            table.restore(self.random.randrange(table.version()))

    def change(self) -> None:
        """Do one of these."""
        weighted = [self.append] * 3 + [self.merge, self.update, self.delete] * 2
        rare = [self.overwrite, self.replace_part, self.compact, self.restore]
        self.random.choice([*weighted, *rare])()
