"""Messages of a stream as rows of a relation, and what happens with those that do not fit.

Invariant: a message is rows, nothing by its relation's conditions, or refused, counted or reported
as `on_error` says; never changed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import orjson

from connectors.feed_source import REJECTED_COLUMNS, rejected_row
from connectors.formats.declared import DeclaredColumn, declare_columns, declared_type, resolved
from connectors.formats.fields import Fault
from connectors.formats.json_lists import JsonLists
from connectors.formats.json_reader import JsonReader
from connectors.formats.open_format import open_format
from connectors.formats.record_format import BadRecord, Decoded
from connectors.polled.rows import FAIL, SKIP
from connectors.stream.inbox import Item
from connectors.stream.options import (
    CONNECTION,
    EVENT,
    ID,
    METADATA,
    RECEIVED_AT,
    SEQUENCE,
    Conditions,
    StreamRelation,
)
from dataflow.changes import Changes
from dataflow.delta import KIND_BYTES, Column, Delta
from dataflow.errors import SourceError
from dataflow.schema import Field, Relation
from dataflow.types import EPOCH_2000_US

_POSITION, _KEY, _VALUE = (REJECTED_COLUMNS.index(name) for name in ("position", "key", "value"))
_SHOWN = 80


@dataclass
class MessageRows:
    """Rows of some messages.

    rows: with all columns of the relation; weight 1, or -1 for a row that removes the one of its
    key, of which only the key is filled. passed: how many of the messages were passed. rejected:
    rows of REJECTED_KINDS. failure: why the message after them stops the source.
    """

    rows: Delta
    passed: int
    rejected: list[tuple[Any, ...]] = field(default_factory=list)
    skipped: int = 0
    failure: SourceError | None = None


@dataclass
class _Records:
    """Rows as texts, before they are decoded. owners: of each, the number of its message."""

    texts: list[bytes]
    owners: list[int]
    bad: dict[int, Fault]


class MessageReader:
    """Reads messages of one relation; used by one thread. pin: of the relation's beginning."""

    def __init__(self, options: StreamRelation, relation: Relation, pin: str) -> None:
        self._options = options
        self._relation = relation
        self._pin = pin
        columns = resolved(declare_columns(options.value_columns()), relation, options.key)
        form = {"format": options.format}
        self._format = open_format(form, columns)
        in_key = set(options.key)
        keys = [column for column in columns if column.field.name in in_key]
        self._key_names = [column.field.name for column in keys]
        self._names = [column.field.name for column in columns]
        self._keys = open_format(form, keys) if options.delete_when else None
        self._where = _Matcher(options.where)
        self._delete_when = _Matcher(options.delete_when)
        self._lists = JsonLists(options.rows) if options.rows else None

    def read(self, items: Sequence[Item]) -> MessageRows:
        """Return the rows of messages; those of connections have none."""
        found = self._read(items, self._records(items))
        if found.failure is None:
            return found
        failure = found.failure
        head = list(items[: found.passed])
        return replace(self._read(head, self._records(head)), failure=failure)

    def read_rejected(self, rejected: Delta) -> tuple[Delta, list[tuple[Any, ...]]]:
        """Return (rows that are valid now, the rows of REJECTED_KINDS that they were)."""
        stored = [row for row, _ in rejected.rows()]
        # A message is cut into rows again; what was one of its rows already is not.
        parts = [row for row in stored if row[_POSITION].count(b":") > 1]
        wholes = [row for row in stored if row[_POSITION].count(b":") == 1]
        found: list[Delta] = []
        resolved: list[tuple[Any, ...]] = []
        for rows in (parts, wholes):
            items = [_item_of(row) for row in rows]
            if rows is parts:
                records = _Records([row[_VALUE] for row in rows], list(range(len(rows))), {})
            else:
                records = self._records(items)
            read, bad = self._decoded(items, records)
            refused = {*records.bad, *(records.owners[one.number] for one in bad)}
            owners = self._owners(records, bad)
            found.append(read.filter(np.array([o not in refused for o in owners], np.bool_)))
            resolved += [row for number, row in enumerate(rows) if number not in refused]
        texts = [(*(v.decode() for v in row[:_KEY]), *row[_KEY:]) for row in resolved]
        return Delta.concat(found), texts

    def _owners(self, records: _Records, bad: Sequence[BadRecord]) -> list[int]:
        """Return the message of each decoded row."""
        refused = {one.number for one in bad}
        return [own for number, own in enumerate(records.owners) if number not in refused]

    def _read(self, items: Sequence[Item], records: _Records) -> MessageRows:
        rows, bad = self._decoded(items, records)
        whole = [(number, None, fault) for number, fault in records.bad.items()]
        parts = [(records.owners[one.number], one.number, one) for one in bad]
        faults = sorted([*whole, *parts], key=lambda one: (one[0], one[1] or 0))
        if not faults or self._options.on_error == SKIP:
            return MessageRows(rows, len(items), skipped=len(faults))
        if self._options.on_error == FAIL:
            number, record, fault = faults[0]
            text = items[number].text if record is None else records.texts[record]
            failure = self._refused(items[number], text or b"", fault)
            return MessageRows(rows, number, failure=failure)
        letters = [
            self._letter(items[number], records, record, fault) for number, record, fault in faults
        ]
        return MessageRows(rows, len(items), letters)

    def _records(self, items: Sequence[Item]) -> _Records:
        numbers = [number for number, item in enumerate(items) if item.text is not None]
        texts = [items[number].text or b"" for number in numbers]
        keep = self._where.matches(texts)
        numbers = [number for number, is_match in zip(numbers, keep, strict=True) if is_match]
        texts = [text for text, is_match in zip(texts, keep, strict=True) if is_match]
        if self._lists is None:
            return _Records(texts, numbers, {})
        rows, bad = self._lists.cut(texts)
        owners = [number for number, own in zip(numbers, rows, strict=True) for _ in own]
        faults = {numbers[at]: fault for at, fault in bad.items()}
        return _Records([row for own in rows for row in own], owners, faults)

    def _decoded(self, items: Sequence[Item], records: _Records) -> tuple[Delta, list[BadRecord]]:
        is_removal = np.zeros(len(records.texts), np.bool_)
        if self._keys is not None:
            is_removal = self._delete_when.matches(records.texts)
        decoded = self._format_of(records, ~is_removal)
        weights = np.ones(len(decoded), np.int64)
        columns = dict(zip(self._names, decoded.columns, strict=True))
        if self._keys is not None and is_removal.any():
            removed = self._format_of(records, is_removal, is_key=True)
            columns, weights, decoded = self._merged(columns, decoded, removed)
        owners = np.array(records.owners, np.int64)[decoded.records]
        taken = [items[number] for number in owners.tolist()]
        found = [
            columns[f.name] if f.name in columns else _metadata(f.name, taken)
            for f in self._relation.fields
        ]
        return Delta(found, weights), decoded.bad

    def _format_of(self, records: _Records, where: np.ndarray, *, is_key: bool = False) -> Decoded:
        """Decode the records with True, numbered as they all are."""
        numbers = np.flatnonzero(where)
        form = self._keys if is_key else self._format
        assert form is not None
        decoded = form.decode([records.texts[n] for n in numbers.tolist()])
        bad = [replace(one, number=int(numbers[one.number])) for one in decoded.bad]
        return Decoded(decoded.columns, numbers[decoded.records], bad)

    def _merged(
        self, columns: Mapping[str, Column], decoded: Decoded, removed: Decoded
    ) -> tuple[dict[str, Column], np.ndarray, Decoded]:
        """Return rows and removals in the order of their records."""
        records = np.concatenate([decoded.records, removed.records])
        order = np.argsort(records, kind="stable")
        keys = dict(zip(self._key_names, removed.columns, strict=True))
        nulls = len(removed)
        merged = {
            name: Column.concat([c, keys.get(name, Column.nulls(c.kind, nulls))]).take(order)
            for name, c in columns.items()
        }
        weights = np.repeat([1, -1], [len(decoded), nulls])[order]
        bad = sorted([*decoded.bad, *removed.bad], key=lambda one: one.number)
        return merged, weights, Decoded([], records[order], bad)

    def _letter(
        self, item: Item, records: _Records, record: int | None, fault: Any
    ) -> tuple[Any, ...]:
        position, value = f"{self._pin}:{item.number}", item.text
        if record is not None:
            first = bisect_left(records.owners, records.owners[record])
            position, value = f"{position}:{record - first}", records.texts[record]
        about = [item.received_us, item.connection, item.sequence, item.id, item.event]
        return rejected_row(
            self._relation.name,
            position,
            fault.code,
            fault.reason,
            key=orjson.dumps(about),
            value=value,
        )

    def _refused(self, item: Item, text: bytes, fault: Any) -> SourceError:
        shown = text[:_SHOWN].decode(errors="replace")
        return SourceError(
            "source.bad_record",
            f'a message of "{self._relation.name}" does not fit its columns',
            detail=f"message {item.sequence} of connection {item.connection}: {fault.code}: "
            f"{fault.reason}: {shown}",
            hint='change the columns, or set on_error to "skip" or "dead_letter"',
            relation=self._relation.name,
        )


def changes_of(relation: Relation, rows: Delta) -> Changes | None:
    """Return rows as changes; None if there is none."""
    if not len(rows):
        return None
    if not relation.key:
        kinds = np.full(len(rows), Changes.INSERT, np.uint8)
    else:
        kinds = np.where(rows.weights > 0, Changes.UPSERT, Changes.REMOVE).astype(np.uint8)
    return Changes(relation, kinds, tuple(rows.columns))


def rows_of(options: StreamRelation, items: Sequence[Item]) -> list[bytes]:
    """Return the texts of the rows of messages, for samples."""
    texts = [item.text for item in items if item.text is not None]
    keep = _Matcher(options.where).matches(texts)
    texts = [text for text, is_match in zip(texts, keep, strict=True) if is_match]
    if not options.rows:
        return texts
    return [row for own in JsonLists(options.rows).cut(texts)[0] for row in own]


class _Matcher:
    """Says which texts meet all conditions; a text that is not JSON does, to be refused later."""

    def __init__(self, conditions: Conditions) -> None:
        self._conditions = conditions
        text = declared_type("text")[0]
        columns = [DeclaredColumn(Field("condition", text), path) for path, _ in conditions]
        self._reader = JsonReader(columns)

    def matches(self, texts: Sequence[bytes]) -> np.ndarray:
        """Return bool for each text."""
        found = np.ones(len(texts), np.bool_)
        if not self._conditions or not texts:
            return found
        fields = self._reader.read(texts)
        for (_, values), column in zip(self._conditions, fields.columns, strict=True):
            found &= np.array([value in values for value in column.to_list()], np.bool_)
        found[[number for number, fault in fields.bad.items() if _is_unreadable(fault)]] = True
        return found


def _is_unreadable(fault: Fault) -> bool:
    return fault.code == "record.malformed"


def _metadata(name: str, items: Sequence[Item]) -> Column:
    assert name in METADATA, name
    if name == RECEIVED_AT:
        return Column(np.array([i.received_us - EPOCH_2000_US for i in items], np.int64))
    if name in (CONNECTION, SEQUENCE):
        numbers = [i.connection if name == CONNECTION else i.sequence for i in items]
        return Column(np.array(numbers, np.int64))
    texts = [(i.id if name == ID else i.event) or None for i in items]
    assert name in (ID, EVENT)
    return Column.of(KIND_BYTES, texts)


def _item_of(row: tuple[Any, ...]) -> Item:
    """Return the message that a rejected row is of."""
    received_us, connection, sequence, id, event = orjson.loads(row[_KEY])
    number = int(row[_POSITION].split(b":")[1])
    return Item(number, connection, sequence, 0, id, False, row[_VALUE], event, received_us)
