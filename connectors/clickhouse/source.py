"""ClickHouse as a source (see the contract `connectors/<type>/source`).

A relation is a table or a query. It is read whole by interval and compared by key, or, with a
cursor, above the newest value that was read. Nothing is reached before the first use.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from connectors.clickhouse.client import Client, one_row
from connectors.clickhouse.column_types import ColumnType, expression, literal
from connectors.clickhouse.options import ClickHouseOptions, QueryRelation, quoted, read_options
from connectors.feed_source import REJECTED_KINDS, DeclaredRelation
from connectors.formats.declared import declare_columns
from connectors.outside.texts import clean
from connectors.polled.contents import Fetched
from connectors.polled.cursor import CHUNK_ROWS, Below, Window
from connectors.polled.rows import RowReader, declared_relation
from connectors.polled.source import Polled, PolledSource
from dataflow.delta import Delta
from dataflow.errors import SourceError
from dataflow.schema import Relation
from dataflow.types import EPOCH_2000_US

PART_ROWS = 20_000
_EPOCH = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_EPOCH_DAYS = EPOCH_2000_US // 86_400_000_000
_TIMES = ("DateTime", "DateTime64")
_DAYS = ("Date", "Date32")


def declare(options: Mapping[str, Any]) -> Sequence[DeclaredRelation]:
    """Return the relations that the options declare."""
    return [declared_relation(relation.rows) for relation in read_options(options).relations]


def make(name: str, options: Mapping[str, Any], relations: Sequence[Relation]) -> PolledSource:
    """Return the source, with its declared relations. SourceError source.bad_option."""
    found = read_options(options)
    polled = [
        Polled(r.rows, partial(_fetch, found, r), r.cursor, partial(_below, found, r))
        for r in found.relations
    ]
    return PolledSource(name, relations, polled)


def discover(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with the columns that each table or query has.

    SourceError clickhouse.type, and what `Client.lines` raises.
    """
    found = read_options(options)
    given: Mapping[str, Any] = options["relations"]
    proposed = dict(given)
    with Client(found.server) as client:
        for relation in found.relations:
            if not relation.rows.columns:
                types = client.types(relation)
                columns = [
                    {"name": name, "type": _readable(relation, name, type).declared}
                    for name, type in types.items()
                ]
                proposed[relation.name] = {**given[relation.name], "columns": columns}
    return {**options, "relations": proposed}


@dataclass(frozen=True)
class _Query:
    """A relation's query, as its table is now. types: of its columns."""

    relation: QueryRelation
    types: Mapping[str, ColumnType]

    def select(self, where: str = "") -> str:
        """Return the query of the declared columns under their own names. where: what follows FROM.

        Rows are chosen within, where no name means anything but its column.
        """
        values: dict[str, str] = {}
        for column in declare_columns(self.relation.rows.columns):
            # A path reaches into a column of JSON.
            name = column.path[0] if column.path else ""
            if name not in self.types:
                raise self._missing(column.field.name, name)
            type = _readable(self.relation, name, self.types[name])
            values[name] = expression(f"t.{quoted(name)}", type, column.field.type.name)
        listed = ", ".join(f"{value} AS {quoted(name)}" for name, value in values.items())
        names = ", ".join(map(quoted, values))
        return f"SELECT {listed} FROM (SELECT {names} FROM {self.relation.text()} {where}) AS t"

    def cursor(self) -> tuple[str, ColumnType]:
        """Return SQL of the cursor, and its type. SourceError clickhouse.cursor."""
        assert self.relation.cursor is not None
        columns = declare_columns(self.relation.rows.columns)
        own = next(c for c in columns if c.field.name == self.relation.cursor.column)
        name = own.path[0] if own.path else ""
        if name not in self.types:
            raise self._missing(own.field.name, name)
        type = self.types[name]
        is_fit = type.is_cursor and len(own.path) == 1
        is_fit &= (own.field.type.name == "date") == (type.name in _DAYS)
        is_fit &= own.field.type.name.startswith("timestamp") == (type.name in _TIMES)
        if not is_fit:
            what = f'column "{name}" of relation "{self.relation.name}" cannot be its cursor'
            hint = "use an integer, a date or a time, and declare it as discover proposes"
            raise SourceError("clickhouse.cursor", what, detail=clean(type.name), hint=hint)
        return quoted(name), type

    def count_and_newest(self) -> str:
        """Return the query of how many rows have a cursor, and of its newest value."""
        value, type = self.cursor()
        newest = expression("max(v)", type, "")
        # Of nothing but the value: a column of the name of an alias would be taken for the alias.
        values = f"SELECT {value} AS v FROM {self.relation.text()}"
        return f"SELECT count(v) AS n, {newest} AS newest FROM ({values})"

    def since(self, low: int | None, count: int) -> str:
        """Return the query of the first `count` rows whose cursor is not below a value."""
        value, _ = self.cursor()
        where = f"{value} IS NOT NULL" if low is None else f"{value} >= {self.literal(low)}"
        return self.select(f"WHERE {where} ORDER BY {value} LIMIT {count}")

    def below(self, low: int, number: int, count: int) -> str:
        """Return the query of a part of the rows below a value."""
        value, _ = self.cursor()
        part = f"cityHash64(toString({value})) % {count} = {number}"
        return self.select(f"WHERE {value} < {self.literal(low)} AND {part}")

    def literal(self, value: int) -> str:
        """Return SQL of a physical value of the cursor's column."""
        _, type = self.cursor()
        since = EPOCH_2000_US if type.name in _TIMES else 0
        since = _EPOCH_DAYS if type.name in _DAYS else since
        return literal(value + since, type)

    def _missing(self, column: str, name: str) -> SourceError:
        what = f'relation "{self.relation.name}" has no column "{name}"'
        hint = f'it is declared as "{column}"; the columns are: {", ".join(self.types)}'
        return SourceError("clickhouse.refused", what, hint=hint)


@dataclass(frozen=True)
class _Whole:
    """Reads a relation whole; see `connectors.polled.feed.Fetch`."""

    options: ClickHouseOptions
    relation: QueryRelation
    reader: RowReader

    def __call__(self, validators: Mapping[str, str]) -> Fetched:
        """See Fetch."""
        most = self.options.max_rows
        with Client(self.options.server) as client:
            query = _Query(self.relation, client.types(self.relation))
            records = client.records(self.relation, query.select(f"LIMIT {most + 1}"))
        if len(records) > most:
            what = f'relation "{self.relation.name}" has more than {most:,} rows'
            hint = "ask for fewer rows, use a cursor, or raise max_rows"
            raise SourceError("clickhouse.too_many_rows", what, hint=hint)
        return self.reader.read(records, {})


@dataclass(frozen=True)
class _Since:
    """Reads the window of a relation with a cursor, and what is above it."""

    options: ClickHouseOptions
    relation: QueryRelation
    reader: RowReader

    def __call__(self, validators: Mapping[str, str]) -> Fetched:
        """See Fetch."""
        window = Window.of(validators)
        with Client(self.options.server) as client:
            query = _Query(self.relation, client.types(self.relation))
            low, limit = window.low, window.rows + CHUNK_ROWS
            if window.is_first:
                low = self._newest(client, query)
                # All of the window: it is what the snapshot does not read.
                limit = self.options.max_rows
            is_empty = window.is_first and low is None
            sql = query.since(low, limit)
            records = [] if is_empty else client.records(self.relation, sql)
        found = self.reader.read(records, validators)
        if window.is_first and len(records) >= limit:
            what = f'the window of relation "{self.relation.name}" has {limit:,} rows or more'
            hint = "use a finer cursor, a smaller overlap, or raise max_rows"
            raise SourceError("clickhouse.too_many_rows", what, hint=hint)
        return replace(found, has_more=len(records) >= limit)

    def _newest(self, client: Client, query: _Query) -> int | None:
        """Return where the first window begins; None if there is no row."""
        assert self.relation.cursor is not None
        row = one_row(self.relation, client.records(self.relation, query.count_and_newest()))
        if not int(row["n"]):
            return None
        _, type = query.cursor()
        return _physical(str(row["newest"]), type) - self.relation.cursor.overlap


def _physical(text: str, type: ColumnType) -> int:
    """Return a cursor's value as its column has it; microseconds, where they are finer, are cut.

    >>> from connectors.clickhouse.column_types import column_type
    >>> _physical("2000-01-02", column_type("Date")), _physical("12", column_type("UInt8"))
    (1, 12)
    """
    if type.name in _DAYS:
        return datetime.date.fromisoformat(text).toordinal() - _EPOCH.date().toordinal()
    if type.name in _TIMES:
        whole, _, fraction = text.partition(".")
        since = datetime.datetime.fromisoformat(whole).replace(tzinfo=datetime.UTC) - _EPOCH
        return since // datetime.timedelta(microseconds=1) + int(fraction[:6].ljust(6, "0"))
    return int(text)


def _fetch(options: ClickHouseOptions, relation: QueryRelation, reader: RowReader) -> Any:
    kind = _Whole if relation.cursor is None else _Since
    return kind(options, relation, reader)


@dataclass
class BelowPart:
    """Rows below the window, read from the table. number: of `count` parts."""

    name: str
    options: ClickHouseOptions
    declared: QueryRelation
    relation: Relation
    columns: tuple[int, ...]
    low: int
    number: int
    count: int

    def read(self) -> Iterator[Delta]:
        """See FeedPart."""
        reader = RowReader(self.declared.rows, self.relation)
        with Client(self.options.server) as client:
            query = _Query(self.declared, client.types(self.declared))
            sql = query.below(self.low, self.number, self.count)
            records: list[bytes] = []
            for line in client.lines(self.declared, sql, has_limit=False):
                records.append(line)
                if len(records) >= PART_ROWS:
                    yield self._rows(reader, records)
                    records = []
            if records:
                yield self._rows(reader, records)

    def rejected(self) -> Delta:
        """See FeedPart: relations with a cursor have no dead letters."""
        return Delta.empty(REJECTED_KINDS)

    def _rows(self, reader: RowReader, records: list[bytes]) -> Delta:
        rows = reader.read(records, {}).rows
        assert rows is not None
        return rows.project(self.columns)


def _below(options: ClickHouseOptions, declared: QueryRelation, relation: Relation) -> Below:
    def part(columns: tuple[int, ...], low: int, number: int, count: int) -> BelowPart:
        name = f"{declared.name}-below-{low}-{number}-{count}"
        return BelowPart(name, options, declared, relation, columns, low, number, count)

    return part


def _readable(relation: QueryRelation, name: str, type: ColumnType) -> ColumnType:
    """Return a type whose values can be read. SourceError clickhouse.type."""
    if type.declared:
        return type
    what = f'column "{name}" of relation "{relation.name}" has a type that cannot be read'
    hint = "leave the column out, or finalize or cast it in a query"
    raise SourceError("clickhouse.type", what, detail=clean(type.name), hint=hint)
