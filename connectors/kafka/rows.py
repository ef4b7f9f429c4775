"""Convert records to rows of a relation: the format's columns, metadata columns, rejections.

Invariant: each record is a row, a removal, nothing by its format's rules, or reported as rejected.
A RowReader is used by one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from connectors.feed_source import REJECTED_COLUMNS, REJECTED_KINDS, rejected_row
from connectors.formats import open_format as formats
from connectors.formats.debezium import DebeziumDecoded, DebeziumFormat, Envelopes
from connectors.formats.debezium_order import DedupState
from connectors.formats.declared import declare_columns
from connectors.formats.record_format import BadRecord, Decoded, RecordFormat
from connectors.kafka.options import APPEND, FAIL, HEADERS, KEY, METADATA, SKIP, TIME, TopicOptions
from connectors.kafka.records import Records
from dataflow.changes import Changes
from dataflow.delta import Column, Delta
from dataflow.errors import SourceError
from dataflow.schema import Relation

# (options of the format, declared columns) -> a format; importable, so that parts can be pickled.
OpenFormat = Callable[[Mapping[str, Any], Sequence[Mapping[str, Any]]], RecordFormat]


def open_format(options: Mapping[str, Any], columns: Sequence[Mapping[str, Any]]) -> RecordFormat:
    """Return the format that the options name, for the declared columns."""
    if not columns:
        return _Nothing()
    return formats.open_format(options, declare_columns(columns))


@dataclass
class Rows:
    """Decoded records.

    columns: of the relation's fields; kinds and unchanged as in Changes. records: int64, the record
    number of each row. bad: in the order of their records. orders: int64[rows, 4] of Debezium's
    events, as DedupState takes them, else None.
    """

    columns: list[Column]
    kinds: np.ndarray
    records: np.ndarray
    bad: list[BadRecord]
    unchanged: dict[int, np.ndarray] = field(default_factory=dict)
    orders: np.ndarray | None = None

    @property
    def has_truncation(self) -> bool:
        """Return True if any record removes all rows before it."""
        return bool((self.kinds == Changes.TRUNCATE).any())

    def unsent(self) -> np.ndarray:
        """Return bool[n]: rows that omit a value, which an earlier row of their key may have."""
        found = np.zeros(len(self.kinds), np.bool_)
        for mask in self.unchanged.values():
            found |= mask
        return found & (self.kinds == Changes.UPSERT)

    def fresh(self, records: Records, state: DedupState) -> Rows:
        """Return the rows that were not seen before, and remember them; they were read from
        `records`.
        """
        assert self.orders is not None
        numbers = np.array(records.numbers, np.int64)[self.records]
        keep = np.ones(len(numbers), np.bool_)
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            keep[mine] = state.fresh(number, self.orders[mine])
        if keep.all():
            return self
        index = np.flatnonzero(keep)
        return Rows(
            [column.take(index) for column in self.columns],
            self.kinds[index],
            self.records[index],
            self.bad,
            {c: mask[index] for c, mask in self.unchanged.items()},
            self.orders[index],
        )


@dataclass
class Accepted:
    """Records by the policy of their relation for malformed ones.

    records: all, or those before a bad record that stops the source. rejected: rows of
    REJECTED_KINDS. failure: why the source stops after these records.
    """

    records: Records
    rows: Rows
    rejected: list[tuple[Any, ...]] = field(default_factory=list)
    skipped: int = 0
    failure: SourceError | None = None


class RowReader:
    """Reads rows of one relation; used by one thread."""

    def __init__(
        self, relation: Relation, options: TopicOptions, opened: OpenFormat = open_format
    ) -> None:
        self.relation = relation
        self.options = options
        names = [field.name for field in relation.fields]
        self._metadata = [name if name in METADATA else None for name in names]
        self._is_append = options.mode == APPEND
        # The record's key alone identifies rows: then removals do not need the format.
        self._is_keyed_by_record = options.key == (KEY,)
        self._format = opened(options.format, options.value_columns(names))

    @property
    def needs_times(self) -> bool:
        """Return True if record times are needed."""
        return TIME in self._metadata

    @property
    def needs_headers(self) -> bool:
        """Return True if record headers are needed."""
        return HEADERS in self._metadata

    def read(self, records: Records) -> Rows:
        """Decode all records at once. TemporaryError if the format cannot work now."""
        if self._is_keyed_by_record:
            return self._read_keyed(records)
        decoded = self._format.decode(records.values, records.keys)
        removes = decoded.removes
        if removes is None:
            removes = np.zeros(len(decoded), np.bool_)
        bad = list(decoded.bad)
        if not self._is_append:
            rows = self._rows(records, decoded, removes, bad)
            rows.orders = _orders(decoded)
            return _with_truncations(rows, decoded)
        unsent = np.zeros(len(decoded), np.bool_)
        for mask in (decoded.unchanged or {}).values():
            unsent |= mask
        unsent &= ~removes
        bad += [_removal(row) for row in decoded.records[removes].tolist()]
        bad += [_removal(row) for row in decoded.truncations]
        bad += [_unavailable(row) for row in decoded.records[unsent].tolist()]
        keep = np.flatnonzero(~removes & ~unsent)
        orders = _orders(decoded)
        if len(keep) < len(decoded):
            columns = [column.take(keep) for column in decoded.columns]
            decoded, removes = Decoded(columns, decoded.records[keep]), removes[keep]
            orders = None if orders is None else orders[keep]
        rows = self._rows(records, decoded, removes, bad)
        rows.orders = orders
        return rows

    def accept(self, records: Records) -> Accepted:
        """Decode records as far as the relation's policy allows. TemporaryError as of `read`."""
        rows, policy = self.read(records), self.options.on_error
        if not rows.bad:
            return Accepted(records, rows)
        if policy == FAIL:
            failure = self.refusal(records, rows.bad[0])
            passed = records.head(rows.bad[0].number)
            return Accepted(passed, self.read(passed), failure=failure)
        if policy == SKIP:
            return Accepted(records, rows, skipped=len(rows.bad))
        return Accepted(records, rows, self.rejected(records, rows.bad))

    def envelopes(self, records: Records) -> Envelopes | None:
        """Return what each Debezium record is, without decoding its row."""
        if not isinstance(self._format, DebeziumFormat):
            return None
        return self._format.envelopes(records.values)

    def _read_keyed(self, records: Records) -> Rows:
        """Decode with `_key` as the key: a record without a value removes its row."""
        values = np.array([value is not None for value in records.values], np.bool_)
        keys = np.array([key is not None for key in records.keys], np.bool_)
        decodable = np.flatnonzero(values & keys)
        part = records.where((values & keys).tolist())
        decoded = self._format.decode(part.values, part.keys)
        bad = [BadRecord(int(decodable[b.number]), b.code, b.reason) for b in decoded.bad]
        bad += [_keyless(row) for row in np.flatnonzero(~keys).tolist()]
        removed = np.flatnonzero(~values & keys)
        nulls = [Column.nulls(column.kind, len(removed)) for column in decoded.columns]
        columns = [
            Column.concat([c, empty]) for c, empty in zip(decoded.columns, nulls, strict=True)
        ]
        rows = np.concatenate([decodable[decoded.records], removed])
        removes = np.repeat([False, True], [len(decoded), len(removed)])
        order = np.argsort(rows, kind="stable")
        whole = Decoded([c.take(order) for c in columns], rows[order])
        return self._rows(records, whole, removes[order], bad)

    def _rows(
        self, records: Records, decoded: Decoded, removes: np.ndarray, bad: list[BadRecord]
    ) -> Rows:
        positions = decoded.records
        left = iter(enumerate(decoded.columns))
        columns, unchanged = [], {}
        for position, name in enumerate(self._metadata):
            if name is None:
                number, column = next(left)
                if decoded.unchanged and number in decoded.unchanged:
                    unchanged[position] = decoded.unchanged[number]
            else:
                column = records.metadata(name, positions)
                if position not in self.relation.key and removes.any():
                    # A removed row only has its key.
                    column = _nulled(column, removes)
            columns.append(column)
        if self._is_append:
            kinds = np.full(len(positions), Changes.INSERT, np.uint8)
        else:
            kinds = np.where(removes, Changes.REMOVE, Changes.UPSERT).astype(np.uint8)
        return Rows(columns, kinds, positions, sorted(bad, key=lambda b: b.number), unchanged)

    def rejected(self, records: Records, bad: Sequence[BadRecord]) -> list[tuple[Any, ...]]:
        """Return bad records as rows of REJECTED_KINDS."""
        name = self.relation.name
        return [
            rejected_row(
                name,
                records.position(b.number),
                b.code,
                b.reason,
                key=records.keys[b.number],
                value=records.values[b.number],
            )
            for b in bad
        ]

    def changes(self, records: Records, rows: Rows) -> Changes:
        """Return the rows as changes of a feed."""
        unsent, policy = rows.unsent(), self.options.on_error
        letters = None
        if policy != FAIL and unsent.any():
            details: list[Any] = [None] * len(unsent)
            if policy != SKIP:
                for row in np.flatnonzero(unsent).tolist():
                    bad = _unavailable(int(rows.records[row]))
                    (details[row],) = self.rejected(records, [bad])
            letters = tuple(details)
        columns = tuple(rows.columns)
        return Changes(self.relation, rows.kinds, columns, rows.unchanged, letters)

    def truncation(self) -> SourceError:
        """Return the error for a truncation in a topic of several partitions."""
        return SourceError(
            "source.truncation",
            f'topic "{self.options.topic}" has a truncation and several partitions',
            detail="the order of the truncation and rows of other partitions is unknown",
            hint="give the topic one partition, or do not send truncations",
            relation=self.relation.name,
        )

    def refusal(self, records: Records, bad: BadRecord) -> SourceError:
        """Return the error for a bad record that stops the source."""
        return SourceError(
            "source.bad_record",
            f'topic "{self.options.topic}" has a record that is not a row of '
            f'"{self.relation.name}"',
            detail=f"at {records.position(bad.number)} (partition:offset): "
            f"{bad.reason} [{bad.code}]",
            hint="correct the declared columns or the format, or set on_error to skip or "
            "dead_letter",
            relation=self.relation.name,
        )


def rejected_delta(rows: Sequence[tuple[Any, ...]], weight: int = 1) -> Delta | None:
    """Return rejected rows as a Delta; None if there is none."""
    return Delta.of(REJECTED_KINDS, rows, weight) if rows else None


def rejected_rows(rejected: Delta) -> list[tuple[Any, ...]]:
    """Return the rows that `rejected_delta` was given."""
    texts = REJECTED_COLUMNS.index("key")
    return [(*(v.decode() for v in row[:texts]), *row[texts:]) for row, _ in rejected.rows()]


def _nulled(column: Column, where: np.ndarray) -> Column:
    """Return the column with NULLs where `where` is True."""
    index = np.where(where, len(column), np.arange(len(column)))
    return Column.concat([column, Column.nulls(column.kind, 1)]).take(index)


def _orders(decoded: Decoded) -> np.ndarray | None:
    return decoded.orders if isinstance(decoded, DebeziumDecoded) else None


def _with_truncations(rows: Rows, decoded: Decoded) -> Rows:
    """Return the rows plus a row of NULLs for each truncation, in the records' order."""
    truncations = decoded.truncations
    if not truncations:
        return rows
    more = len(truncations)
    records = np.concatenate([rows.records, np.array(truncations, np.int64)])
    order = np.argsort(records, kind="stable")
    columns = [Column.concat([c, Column.nulls(c.kind, more)]).take(order) for c in rows.columns]
    kinds = np.append(rows.kinds, np.full(more, Changes.TRUNCATE, np.uint8))[order]
    unchanged = {
        c: np.append(m, np.zeros(more, np.bool_))[order] for c, m in rows.unchanged.items()
    }
    orders = None
    if isinstance(decoded, DebeziumDecoded):
        orders = np.concatenate([decoded.orders, decoded.truncated])[order]
    return Rows(columns, kinds, records[order], rows.bad, unchanged, orders)


class _Nothing:
    """The format of a relation that only has metadata columns."""

    def decode(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None
    ) -> Decoded:
        """Return a row for each record."""
        return Decoded([], np.arange(len(values)))


def _removal(row: int) -> BadRecord:
    reason = "it has no value, which removes a row, but the relation is append-only"
    return BadRecord(row, code="record.removal", reason=reason)


def _unavailable(row: int) -> BadRecord:
    reason = "a value was not sent, and there is no earlier row to take it from"
    return BadRecord(row, code="record.unavailable", reason=reason)


def _keyless(row: int) -> BadRecord:
    return BadRecord(row, code="record.no_key", reason="it has no key")
