"""Sources of the tests: declared as users do, by `discover`; batches applied to rows."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from connectors.feed_source import FeedPositions
from connectors.formats.declared import declared_type
from connectors.mysql import source as mysql
from connectors.mysql.options import read_options
from connectors.mysql.source import MySqlSource
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import INTERVAL

TIMEOUT_S = 30.0
Row = tuple[Any, ...]


def source_of(options: Mapping[str, Any], **types: str) -> MySqlSource:
    """A source with the proposed columns; types: other ones by column, for all tables."""
    found = mysql.discover(options)
    for table in found["tables"].values():
        for column in table["columns"]:
            column["type"] = types.get(column["name"], column["type"])
    return made(found)


def made(options: Mapping[str, Any]) -> MySqlSource:
    """A source of complete options."""
    return MySqlSource("shop", read_options(options), relations_of(options))


def relations_of(options: Mapping[str, Any]) -> list[Relation]:
    """The relations as the service resolves them."""
    found = []
    for number, declared in enumerate(mysql.declare(options), start=1):
        fields = tuple(
            Field(n, INTERVAL if t == "interval" else declared_type(t)[0], n not in declared.key)
            for n, t in declared.columns
        )
        names = [n for n, _ in declared.columns]
        name = RelationName("shop", "shop", declared.name)
        key = tuple(names.index(k) for k in declared.key)
        found.append(Relation(name, number, fields, key, is_full=declared.is_full))
    return found


class Held:
    """Rows of relations as batches and snapshots make them: by key, or as a multiset."""

    def __init__(self) -> None:
        self.rows: dict[str, Counter[Row]] = {}
        self.rejected: list[Row] = []
        self.positions: dict[str, Any] = {}
        self.batches: list[SourceBatch] = []
        self.kinds: list[str] = []
        self._by_key: dict[str, dict[Row, Row]] = {}

    def add(self, batch: SourceBatch) -> None:
        """Apply what a feed says."""
        self.batches.append(batch)
        for chunk in batch.chunks():
            for change in chunk:
                self._add(change)
        if batch.rejected is not None:
            self.rejected += [row for row, _ in batch.rejected.rows()]
        self.positions.update(batch.positions or {})

    def add_snapshot(self, relation: Relation, delta: Delta) -> None:
        """Apply rows of a part."""
        held = self.rows.setdefault(relation.name.name, Counter())
        for row, weight in delta.rows():
            assert weight == 1
            held[row] += 1

    def _add(self, change: Changes) -> None:
        name, key = change.relation.name.name, change.relation.key
        held = self.rows.setdefault(name, Counter())
        by_key = self._by_key.setdefault(name, {})
        if key and len(by_key) != len(held):
            by_key.update({tuple(row[c] for c in key): row for row in held})
        rows = zip(*(column.to_list() for column in change.columns), strict=True)
        for kind, row in zip(change.kinds.tolist(), rows, strict=True):
            self.kinds.append(chr(kind))
            if kind == Changes.TRUNCATE:
                held.clear()
                by_key.clear()
            elif kind in (Changes.INSERT, Changes.NEW):
                held[row] += 1
            elif kind in (Changes.DELETE, Changes.OLD):
                held[row] -= 1
                assert held[row] >= 0, f"{row} was not there"
                if not held[row]:
                    del held[row]
            else:
                of_key = tuple(row[c] for c in key)
                held.pop(by_key.pop(of_key, None), None)
                if kind == Changes.UPSERT:
                    held[row] += 1
                    by_key[of_key] = row


def snapshot(source: MySqlSource, positions: FeedPositions, count: int = 4) -> Held:
    """All rows of all relations as of their positions."""
    held = Held()
    held.positions.update(positions)
    opened = source.open_snapshot(source.relations(), positions, {})
    for relation in source.relations():
        held.rows[relation.name.name] = Counter()
        for part in opened.parts(relation, range(len(relation.fields)), count):
            for delta in part.read():
                held.add_snapshot(relation, delta)
            held.rejected += [row for row, _ in part.rejected().rows()]
    opened.close()
    return held


def starts(source: MySqlSource) -> dict[str, Any]:
    """The positions of all relations now."""
    return {r.name.name: source.start_position(r).position for r in source.relations()}


def follow(
    source: MySqlSource,
    held: Held,
    is_done: Callable[[Held], bool],
    *,
    until: FeedPositions | None = None,
    max_rows: int = 10_000,
) -> Held:
    """Apply batches of a feed from the held positions on."""
    is_ready = threading.Event()
    feed = source.open_feed(source.relations(), dict(held.positions), {}, is_ready.set)
    deadline = time.monotonic() + TIMEOUT_S
    try:
        while not is_done(held):
            assert time.monotonic() < deadline, f"{held.rows}"
            is_ready.clear()
            batch = feed.poll(max_rows, until=until)
            if batch is None:
                is_ready.wait(0.2)
            else:
                held.add(batch)
    finally:
        feed.close()
    return held


def error_of(source: MySqlSource, held: Held) -> TidemarkError:
    """What ends a feed from the held positions on."""
    try:
        follow(source, held, lambda _: False)
    except TidemarkError as error:
        return error
    raise AssertionError("the feed did not end")


def rows_now(source: MySqlSource) -> dict[str, Counter[Row]]:
    """The rows of a snapshot at the log's end."""
    return snapshot(source, starts(source)).rows


def is_equal(expected: Mapping[str, Counter[Row]]) -> Callable[[Held], bool]:
    """Whether the held rows are these."""
    return lambda held: all(held.rows.get(n, Counter()) == rows for n, rows in expected.items())


def sequence(held: Held) -> Sequence[str]:
    """The kinds of changes, in order."""
    return held.kinds
