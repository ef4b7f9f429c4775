"""Parsed fields of records, before rows are made of them.

Readers (JSON, CSV, Avro ...) split records into declared columns, one value a record; row_format.py
makes rows of them. A record with a fault has NULL at the fault.
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
    """Why a record is malformed: a code of docs/ERRORS.md, and words."""

    code: str
    reason: str


def malformed(reason: str) -> Fault:
    """Return the fault of bytes that are not of the format."""
    return Fault(code="record.malformed", reason=reason)


def bad_value(column: str, reason: str) -> Fault:
    """Return the fault of a value that is not of its column's type."""
    return Fault(code="record.value", reason=f'column "{column}": {reason}')


def no_schema(reason: str) -> Fault:
    """Return the fault of a record whose schema is unavailable or of another format."""
    return Fault(code="record.schema", reason=reason)


def null_value(column: DeclaredColumn) -> Fault:
    """Return the fault of NULL in a column that is declared without NULLs."""
    reason = f'column "{column.field.name}" has no value but is declared without NULLs'
    return Fault(code="record.null", reason=reason)


def no_key() -> Fault:
    """Return the fault of a missing key in which columns are declared."""
    return Fault(
        code="record.no_key", reason="the record has no key, in which columns are declared"
    )


def no_value() -> Fault:
    """Return the fault of an empty record that removes nothing."""
    reason = "the record has no value, and no column is declared in its key"
    return Fault(code="record.no_value", reason=reason)


@dataclass
class Fields:
    """Fields of some records.

    columns: one a declared column, each as long as there are records. bad: the first fault of each
    bad record.
    """

    columns: list[Column]
    bad: dict[int, Fault] = field(default_factory=dict)

    def refuse(self, record: int, fault: Fault) -> None:
        """Report a fault; only the first one of a record is stored."""
        self.bad.setdefault(record, fault)

    def refuse_values(self, name: str, faults: Faults) -> None:
        """Report the faults of a column."""
        for record, reason in faults.items():
            self.refuse(record, bad_value(name, reason))


class Reader(Protocol):
    """Splits records of one format into its declared columns."""

    def read(self, records: Sequence[bytes]) -> Fields:
        """Return one value for each record in each column."""
        ...


def shown(text: bytes) -> str:
    """Return the start of a value on one line, for a reason."""
    cut = text[:SHOWN_CHARACTERS].decode(errors="replace")
    return repr(cut) if len(text) <= SHOWN_CHARACTERS else f"{cut!r}..."


def utf8_records(records: Sequence[bytes], fields: Fields) -> tuple[Sequence[bytes], bytes]:
    """Return (records, the same with a line end after each); one that is not UTF-8 is empty, and
    bad.
    """
    joined = b"\n".join(records) + b"\n"
    if joined.isascii() or not utf8_fault(joined):
        return records, joined
    valid_records = []
    for row, record in enumerate(records):
        fault = utf8_fault(record)
        if fault:
            fields.refuse(row, malformed(fault))
        valid_records.append(b"" if fault else record)
    return valid_records, b"\n".join(valid_records) + b"\n"


def utf8_fault(raw: bytes) -> str:
    """Return why the bytes are not UTF-8, "" if they are."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return f"{NOT_UTF8} at byte {error.start}"
    return ""
