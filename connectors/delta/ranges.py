"""Ranges of a Delta table that any process reads, and the planner that cuts them.

First come the files of one version, then the changes of each later one. Invariant: ranges that are
joined hold every row between two positions once. A version is read whole into one batch, unless it
has more rows than a batch may have: then readers see a part of it for a while.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, islice
from typing import Any, cast

from connectors.delta.file_part import PART_BYTES, FilePart, PartReader, parts_of
from connectors.delta.table_log import TableLog
from connectors.delta.table_options import TableOptions
from connectors.delta.table_schema import TableSchema
from connectors.feed_source import REJECTED_KINDS, FeedPositions, FeedRange, RangeResult
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.errors import SourceError
from dataflow.schema import Relation, RelationName

# A batch has at most so many versions, each of which is a file of the log.
MOST_VERSIONS = 1_000


@dataclass(frozen=True)
class TablePosition:
    """Where a reader of a table is.

    table: its id, "" before anything was read. version: of which all rows were read, or with
    `is_snapshot` are being read. parts: how many of the next ones were read: of this version as a
    snapshot, else of the next version's changes. part_bytes: of what size they are, 0 before the
    first one.
    """

    table: str = ""
    version: int = -1
    is_snapshot: bool = False
    parts: int = 0
    part_bytes: int = 0

    @staticmethod
    def of(facts: Mapping[str, Any]) -> TablePosition:
        """Return what `as_json` gave."""
        return TablePosition(**facts)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON: of parts only if some are unread."""
        if not self.is_snapshot and not self.parts:
            return {"table": self.table, "version": self.version}
        return dict(vars(self))


@dataclass(frozen=True)
class DeltaRange:
    """Parts of files, and the position after them. parts: none if only the position moves."""

    own: Relation
    options: TableOptions
    schema: TableSchema
    parts: tuple[FilePart, ...] = field(repr=False)
    after: TablePosition
    _facts: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    @property
    def relation(self) -> RelationName:
        """See FeedRange."""
        return self.own.name

    @property
    def name(self) -> str:
        """See FeedRange."""
        return f"{self.own.name} to version {self.after.version}"

    @property
    def size(self) -> int:
        """See FeedRange."""
        return sum(part.rows for part in self.parts)

    def read(self) -> Iterator[Changes]:
        """See FeedRange."""
        reader = PartReader(self.own, self.options, self.schema)
        rows = 0
        for part in self.parts:
            for changes in reader.read(part):
                rows += len(changes)
                yield changes
        self._facts.update(rows=rows, skipped=reader.skipped)

    def result(self) -> RangeResult:
        """See FeedRange."""
        return RangeResult(self._facts, Delta.empty(REJECTED_KINDS))


@dataclass(frozen=True)
class _Step:
    """What is read of a version. before: the table's id before it. schema: of the version."""

    version: int
    is_snapshot: bool
    before: str
    schema: TableSchema
    parts: Sequence[FilePart]
    part_bytes: int

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)


class _Table:
    """A relation: its position, and the steps after it that were listed."""

    def __init__(
        self, relation: Relation, options: TableOptions, position: TablePosition, end: int
    ) -> None:
        self.relation = relation
        self.options = options
        self.position = position
        self.end = end
        self.schema: TableSchema | None = None
        self._log = TableLog(relation, options)
        self._steps: dict[int, _Step] = {}

    @property
    def has_unread(self) -> bool:
        """Whether anything is unread."""
        return self.position.version < self.end or self.position.is_snapshot

    def open(self) -> None:
        """Compare the table with the position. SourceError."""
        position = self.position
        if not position.table:
            schema = self._log.schema(self.end)
            self.position = TablePosition(schema.table, self.end, is_snapshot=True)
        else:
            newest = self._log.newest()
            if newest < position.version:
                raise self._replaced(f"its newest version is {newest}, not {position.version}")
            schema = self._log.schema(position.version)
            if schema.table != position.table:
                raise self._replaced(f"its id is {schema.table}, not {position.table}")
        schema.check(self.options.content())
        self.schema = schema

    def steps(self) -> Iterator[_Step]:
        """Yield what comes after the position; the first step without the parts that were read."""
        if self.schema is None:
            self.open()
        position, schema = self.position, self.schema
        assert schema is not None
        version, done = position.version, position.parts
        if position.is_snapshot:
            step = self._step(version, schema, is_snapshot=True)
            yield replace(step, parts=step.parts[done:])
            done = 0
        while version < self.end:
            version += 1
            step = self._step(version, schema, is_snapshot=False)
            yield replace(step, parts=step.parts[done:])
            schema, done = step.schema, 0

    def _step(self, version: int, schema: TableSchema, *, is_snapshot: bool) -> _Step:
        found = self._steps.get(version)
        if found is None or found.is_snapshot != is_snapshot:
            before = schema.table
            if is_snapshot:
                schema, files = self._log.files(version)
            else:
                schema, files = self._log.changes(version, schema)
            size = self.position.part_bytes or PART_BYTES
            parts = parts_of(files, version, size)
            found = self._steps[version] = _Step(version, is_snapshot, before, schema, parts, size)
        return found

    def after(self, step: _Step, count: int) -> TablePosition:
        """Return the position after so many parts of a step as `steps` has yielded it."""
        own = self.position
        if count == len(step.parts):
            return TablePosition(step.schema.table, step.version)
        is_first = step.is_snapshot or (not own.is_snapshot and step.version == own.version + 1)
        done = count + (own.parts if is_first else 0)
        version = step.version if step.is_snapshot else step.version - 1
        return TablePosition(step.before, version, step.is_snapshot, done, step.part_bytes)

    def move(self, position: TablePosition) -> None:
        """Move to a position, and forget what is before it."""
        if not position.is_snapshot:
            if position.version in self._steps:
                self.schema = self._steps[position.version].schema
            self._steps = {v: step for v, step in self._steps.items() if v > position.version}
        self.position = position

    def _replaced(self, detail: str) -> SourceError:
        return SourceError(
            "delta.table_replaced",
            f'Delta table "{self.relation.name.name}" is another one than the one that was read',
            detail=detail,
            hint="rebuild the views that read it: they begin with the newest version",
            relation=self.relation.name,
        )


class DeltaRanges:
    """A RangePlanner. ends: the versions up to which it reads, by relation."""

    def __init__(
        self,
        source: str,
        tables: Sequence[tuple[Relation, TableOptions]],
        positions: FeedPositions,
        ends: Mapping[str, int],
    ) -> None:
        self.skipped = 0
        self._source = source
        self._tables: dict[str, _Table] = {}
        for relation, options in tables:
            name = relation.name.name
            position = TablePosition.of(positions[name])
            self._tables[name] = _Table(relation, options, position, ends[name])

    @property
    def lag(self) -> int:
        """See SourceFeed: in versions."""
        return sum(max(0, t.end - t.position.version) for t in self._tables.values())

    @property
    def has_succeeded(self) -> bool:
        """See SourceFeed: a run reads to the fixed ends, or fails."""
        return True

    def has_unread(self) -> bool:
        """See RangePlanner."""
        return any(table.has_unread for table in self._tables.values())

    def cut(self, count: int, max_rows: int) -> Sequence[DeltaRange]:
        """See RangePlanner. It waits for the log."""
        found: list[DeltaRange] = []
        rows = 0
        for table in self._tables.values():
            if rows < max_rows:
                taken = self._taken(table, max_rows - rows, is_first=not found)
                found += taken
                rows += sum(one.size for one in taken)
        return _joined(found, max(1, -(-rows // max(1, count))))

    def _taken(self, table: _Table, max_rows: int, *, is_first: bool) -> list[DeltaRange]:
        """Return ranges of a part each: those of whole versions of at most max_rows rows together.

        is_first: of the first version only some parts, if it has more rows.
        """
        found: list[DeltaRange] = []
        rows = 0
        for step in islice(table.steps(), MOST_VERSIONS):
            count = len(step.parts)
            if rows + step.rows > max_rows:
                if found or not is_first:
                    break
                count = _fitting(step.parts, max_rows)
            taken: list[tuple[FilePart, ...]] = [(part,) for part in step.parts[:count]] or [()]
            for number, parts in enumerate(taken, start=1):
                after = table.after(step, min(number, count))
                found.append(DeltaRange(table.relation, table.options, step.schema, parts, after))
            if count < len(step.parts):
                break
            rows += step.rows
        return found

    def shorten(
        self, ranges: Sequence[FeedRange], results: Sequence[RangeResult]
    ) -> Sequence[DeltaRange]:
        """See RangePlanner: each is read whole, or its error is raised."""
        return cast(Sequence[DeltaRange], ranges)

    def join(self, ranges: Sequence[FeedRange], results: Sequence[RangeResult]) -> SourceBatch:
        """See RangePlanner."""
        for part in cast(Sequence[DeltaRange], ranges):
            self._tables[part.own.name.name].move(part.after)
        rows = sum(result.facts["rows"] for result in results)
        self.skipped += sum(result.facts["skipped"] for result in results)
        return SourceBatch(
            0,
            [],
            1 if rows else 0,
            rows,
            source=self._source,
            positions={name: t.position.as_json() for name, t in self._tables.items()},
        )

    def close(self) -> None:
        """See RangePlanner: nothing is open."""


def _fitting(parts: Sequence[FilePart], max_rows: int) -> int:
    """Return how many of the first parts have at most max_rows rows together, but at least one."""
    ends = list(accumulate(part.rows for part in parts))
    return max(1, sum(end <= max_rows for end in ends))


def _joined(ranges: Sequence[DeltaRange], rows: int) -> list[DeltaRange]:
    """Return successive ranges of one schema as one, while it has at most so many rows."""
    groups: list[list[DeltaRange]] = []
    size = 0
    for one in ranges:
        size += one.size
        if not groups or groups[-1][-1].schema is not one.schema or size > rows:
            groups.append([])
            size = one.size
        groups[-1].append(one)
    return [
        replace(group[-1], parts=tuple(part for one in group for part in one.parts))
        for group in groups
    ]
