"""Debezium's envelopes of PostgreSQL and MySQL, in JSON or Avro, to rows and removals.

c, r and u hold the row after, d removes the row before, t removes all rows. Tombstones, messages
and heartbeats are ignored. A value that the database did not send again (unchanged, large) is
marked as unchanged, never taken for a text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from connectors.formats.debezium_order import UNKNOWN
from connectors.formats.declared import KEY, DeclaredColumn
from connectors.formats.fields import Fault, Fields, malformed, null_value
from connectors.formats.record_format import BadRecord, Decoded, Raws, decode_apart
from dataflow.delta import Column
from dataflow.errors import SourceError, TidemarkError

PLACEHOLDER = "__debezium_unavailable_value"
_ROWS, _REMOVES, _TRUNCATES, _SAYS_NOTHING = ("c", "r", "u"), "d", "t", ("m", "")


@dataclass
class DebeziumDecoded(Decoded):
    """Decoded records with the facts to drop repeated events and keep transactions whole.

    orders: int64[rows, 4], as debezium_order.DedupState takes them; truncated: those of the
    truncations. transactions: the id of each row's transaction and its number in it, None if the
    connector adds no metadata.
    """

    orders: np.ndarray = field(default_factory=lambda: np.zeros((0, 4), np.int64))
    truncated: np.ndarray = field(default_factory=lambda: np.zeros((0, 4), np.int64))
    transactions: list[tuple[str, int] | None] = field(default_factory=list)

    def joined_facts(self, answers: Sequence[DebeziumDecoded]) -> dict[str, Any]:
        """See Decoded."""
        return {
            "orders": np.concatenate([answer.orders for answer in answers]),
            "truncated": np.concatenate([answer.truncated for answer in answers]),
            "transactions": [one for answer in answers for one in answer.transactions],
        }


@dataclass
class Envelopes:
    """Headers of n records: op ("" is ignored), order, transaction, and the bad ones among them."""

    ops: list[str]
    orders: np.ndarray
    transactions: list[tuple[str, int] | None]
    fields: Fields


class EnvelopeReader(Protocol):
    """Parses the envelopes of one encoding."""

    def read_envelopes(self, records: Sequence[bytes]) -> Envelopes:
        """Return what the records are; their rows are buffered for read_rows."""
        ...

    def read_rows(self, numbers: Sequence[int], removes: np.ndarray, fields: Fields) -> Rows:
        """Return the row after, or the row before if removed, of the records with these numbers.

        Faults go to `fields` by the record's number.
        """
        ...


@dataclass
class Rows:
    """Rows of envelopes. columns: one value a row; unchanged: column -> bool[rows]."""

    columns: list[Column]
    unchanged: dict[int, np.ndarray]


class DebeziumFormat:
    """A RecordFormat over the envelopes that a reader parses."""

    def __init__(self, columns: Sequence[DeclaredColumn], reader: EnvelopeReader) -> None:
        for column in columns:
            if column.origin == KEY:
                raise SourceError(
                    "format.column",
                    f'column "{column.field.name}" is declared in the key of an envelope',
                    hint="declare it in the value: envelopes hold the whole row, keys included",
                )
        self._columns = columns
        self._reader = reader

    def decode(
        self, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None
    ) -> DebeziumDecoded:
        """See RecordFormat; keys are not needed."""
        return decode_apart(self._decode, values, None)

    def _decode(self, values: Raws, _: Raws | None) -> DebeziumDecoded:
        present = [number for number, value in enumerate(values) if value is not None]
        found = self._reader.read_envelopes([value for value in values if value is not None])
        fields = found.fields
        numbered: list[int] = []
        truncations: list[int] = []
        truncated: list[int] = []
        for number, op in enumerate(found.ops):
            if number in fields.bad or op in _SAYS_NOTHING:
                continue
            if op in _ROWS or op == _REMOVES:
                numbered.append(number)
            elif op == _TRUNCATES:
                truncations.append(present[number])
                truncated.append(number)
            else:
                fields.refuse(number, malformed(f"an envelope with the unknown op {op!r}"))
        removes = np.array([found.ops[number] == _REMOVES for number in numbered], np.bool_)
        rows = self._reader.read_rows(numbered, removes, fields)
        self._refuse_nulls(rows, numbered, removes, fields)
        good = [row for row, number in enumerate(numbered) if number not in fields.bad]
        index = np.array(good, np.int64)
        numbers = [numbered[row] for row in good]
        bad = [_bad_record(present[number], fields.bad[number]) for number in sorted(fields.bad)]
        return DebeziumDecoded(
            [column.take(index) for column in rows.columns],
            np.array([present[number] for number in numbers], np.int64),
            bad,
            removes[index],
            {at: mask[index] for at, mask in rows.unchanged.items()} or None,
            truncations,
            orders=found.orders[numbers],
            truncated=found.orders[truncated],
            transactions=[found.transactions[number] for number in numbers],
        )

    def envelopes(self, values: Sequence[bytes | None]) -> Envelopes:
        """Return what each record is, without decoding its row; one without a value is ignored."""
        try:
            return self._envelopes(values)
        except (TidemarkError, MemoryError):
            raise
        except Exception:
            odd = [number for number, one in enumerate(values) if not self._is_readable(one)]
            found = self._envelopes([None if n in odd else one for n, one in enumerate(values)])
            for number in odd:
                found.fields.refuse(number, malformed("an envelope that cannot be parsed"))
            return found

    def _is_readable(self, value: bytes | None) -> bool:
        try:
            self._envelopes([value])
        except (TidemarkError, MemoryError):
            raise
        except Exception:
            return False
        return True

    def _envelopes(self, values: Raws) -> Envelopes:
        present = [number for number, value in enumerate(values) if value is not None]
        found = self._reader.read_envelopes([value for value in values if value is not None])
        if len(present) == len(values):
            return found
        ops, orders = [""] * len(values), np.full((len(values), 4), UNKNOWN, np.int64)
        transactions: list[tuple[str, int] | None] = [None] * len(values)
        for at, number in enumerate(present):
            ops[number], transactions[number] = found.ops[at], found.transactions[at]
        orders[present] = found.orders
        bad = {present[at]: fault for at, fault in found.fields.bad.items()}
        return Envelopes(ops, orders, transactions, Fields([], bad))

    def _refuse_nulls(
        self, rows: Rows, numbered: Sequence[int], removes: np.ndarray, fields: Fields
    ) -> None:
        for at, (declared, column) in enumerate(zip(self._columns, rows.columns, strict=True)):
            if declared.field.is_nullable or column.valid is None:
                continue
            nulls = ~column.valid & ~removes & ~rows.unchanged.get(at, np.zeros_like(removes))
            for row in np.flatnonzero(nulls).tolist():
                fields.refuse(numbered[row], null_value(declared))


def _bad_record(number: int, fault: Fault) -> BadRecord:
    return BadRecord(number, *fault)


def order_of(source: Mapping[str, Any], ordinal: int) -> tuple[int, int, int, int]:
    """Return the order of an event from its `source` block; it starts with UNKNOWN if there is
    none.

    ordinal: its number in its transaction, -1 if unknown.

    >>> order_of({"sequence": '["100","120"]', "lsn": 120}, 2)
    (100, 120, 2, 0)
    >>> order_of({"file": "mysql-bin.000012", "pos": 154, "row": 1}, -1)
    (12, 154, 1, 0)
    """
    try:
        if source.get("lsn") is not None:
            parts = [
                part for part in str(source.get("sequence") or "").split('"') if part.isdigit()
            ]
            commit = int(parts[0]) if len(parts) == 2 else 0
            return commit, int(source["lsn"]), ordinal, 0
        if source.get("file"):
            number = str(source["file"]).rpartition(".")[2]
            return int(number), int(source["pos"]), int(source.get("row") or 0), 0
    except (ValueError, KeyError, TypeError):
        return -1, 0, 0, 0
    return -1, 0, 0, 0


def transaction_of(block: Any) -> tuple[str, int] | None:
    """Return (id, number) of an envelope's `transaction` block; None if there is none.

    >>> transaction_of({"id": "571:53195832", "total_order": 1, "data_collection_order": 1})
    ('571', 1)
    """
    if not isinstance(block, dict) or not isinstance(block.get("total_order"), int):
        return None
    id = block.get("id")
    return None if id is None else (transaction_id(str(id)), block["total_order"])


def transaction_id(text: str) -> str:
    """Return what a transaction's BEGIN, events and END have in common of the id they give.

    PostgreSQL's connector writes txID:LSN, with the LSN of each record. Other connectors write the
    same id in all of them.

    >>> transaction_id("571:53195829") == transaction_id("571:53195832")
    True
    >>> transaction_id("3e11fa47-71ca-11e1-9e33-c80aa9429562:23")
    '3e11fa47-71ca-11e1-9e33-c80aa9429562:23'
    """
    first, colon, rest = text.partition(":")
    return first if colon and _is_number(first) and _is_number(rest) else text


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
