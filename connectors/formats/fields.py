"""What a reader found in records, before it is known which of them are rows.

Readers (JSON, CSV, Avro ...) take records apart into declared columns, one value a record;
row_format.py makes rows of them. A record with a fault has NULL where the fault is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from connectors.formats.columns import Faults
from connectors.formats.declared import DeclaredColumn
from dataflow.delta import Column

SHOWN_CHARACTERS = 80
NOT_UTF8 = "not UTF-8"


class Fault(NamedTuple):
    """Why a record is no row: a code of docs/ERRORS.md, and words."""

    code: str
    reason: str


def malformed(reason: str) -> Fault:
    """The bytes are not of the format."""
    return Fault(code="record.malformed", reason=reason)


def bad_value(column: str, reason: str) -> Fault:
    """A value is not of its column's type."""
    return Fault(code="record.value", reason=f'column "{column}": {reason}')


def no_schema(reason: str) -> Fault:
    """The record names a schema that is not to be had, or none of its format."""
    return Fault(code="record.schema", reason=reason)


def null_value(column: DeclaredColumn) -> Fault:
    """NULL in a column that is declared without."""
    reason = f'column "{column.field.name}" has no value, and is declared without NULLs'
    return Fault(code="record.null", reason=reason)


def no_key() -> Fault:
    """Nothing where columns are declared."""
    return Fault(code="record.no_key", reason="the record has no key, where columns are declared")


def no_value() -> Fault:
    """A record of nothing, that removes nothing."""
    reason = "the record has no value, and no column stands in its key"
    return Fault(code="record.no_value", reason=reason)


@dataclass
class Fields:
    """columns: one a declared column, each as long as there are records. bad: the first fault of
    each bad record."""

    columns: list[Column]
    bad: dict[int, Fault] = field(default_factory=dict)

    def refuse(self, record: int, fault: Fault) -> None:
        """The first fault of a record is the one that is told."""
        self.bad.setdefault(record, fault)

    def refuse_values(self, name: str, faults: Faults) -> None:
        """The faults of a column."""
        for record, reason in faults.items():
            self.refuse(record, bad_value(name, reason))


class Reader(Protocol):
    """Takes records of one format apart into the columns that it was made for."""

    def read(self, records: Sequence[bytes]) -> Fields:
        """One value a record in each column."""
        ...


def shown(text: bytes) -> str:
    """A value for a reason: the start of it, on one line."""
    cut = text[:SHOWN_CHARACTERS].decode(errors="replace")
    return repr(cut) if len(text) <= SHOWN_CHARACTERS else f"{cut!r}..."


def utf8_records(records: Sequence[bytes], fields: Fields) -> tuple[Sequence[bytes], bytes]:
    """(records, the same with a line end after each); one that is no UTF-8 is empty, and bad."""
    joined = b"\n".join(records) + b"\n"
    if joined.isascii() or not utf8_fault(joined):
        return records, joined
    kept = []
    for row, record in enumerate(records):
        fault = utf8_fault(record)
        if fault:
            fields.refuse(row, malformed(fault))
        kept.append(b"" if fault else record)
    return kept, b"\n".join(kept) + b"\n"


def utf8_fault(raw: bytes) -> str:
    """Why the bytes are no UTF-8, "" where they are."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return f"{NOT_UTF8} at byte {error.start}"
    return ""
