"""Debezium's envelopes in Avro, as Confluent's converter writes them.

The schemas say what numbers and bytes mean (logical types and connect.name), so units need not be
declared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from connectors.formats import avro_reader
from connectors.formats.avro_reader import AvroDecoder
from connectors.formats.avro_schema import AvroSchema
from connectors.formats.debezium import PLACEHOLDER, Envelopes, Rows, order_of, transaction_of
from connectors.formats.debezium_order import UNKNOWN
from connectors.formats.declared import DeclaredColumn
from connectors.formats.decoded_parts import read_part, scattered, values_at
from connectors.formats.fields import Fields, malformed
from connectors.formats.registry import SchemaRegistry
from dataflow.delta import Column

OPTIONS = avro_reader.OPTIONS | {"placeholder"}
_Part = tuple[AvroSchema, list[int], list[Any]]


class DebeziumAvro:
    """Reads envelopes of Avro."""

    def __init__(
        self,
        columns: Sequence[DeclaredColumn],
        options: Mapping[str, Any],
        registry: SchemaRegistry | None,
    ) -> None:
        self._columns = columns
        self._decoder = AvroDecoder(options, registry)
        text = str(options.get("placeholder", PLACEHOLDER))
        self._placeholders = (text, text.encode(), [text])
        self._parts: list[_Part] = []

    def read_envelopes(self, records: Sequence[bytes]) -> Envelopes:
        """See EnvelopeReader."""
        fields = Fields([])
        self._parts = self._decoder.decode(records, fields)
        n = len(records)
        found = Envelopes([""] * n, np.full((n, 4), UNKNOWN, np.int64), [None] * n, fields)
        for _, numbers, values in self._parts:
            for number, value in zip(numbers, values, strict=True):
                _note(number, value, found)
        return found

    def read_rows(self, numbers: Sequence[int], removes: np.ndarray, fields: Fields) -> Rows:
        """See EnvelopeReader."""
        image_of = {n: "before" if r else "after" for n, r in zip(numbers, removes, strict=True)}
        row_of = {number: at for at, number in enumerate(numbers)}
        pieces: list[list[Column]] = [[] for _ in self._columns]
        positions: list[np.ndarray] = []
        unchanged: dict[int, np.ndarray] = {}
        for schema, all_numbers, values in self._parts:
            for image in ("after", "before"):
                chosen = [(n, v[image]) for n, v in zip(all_numbers, values, strict=True)
                          if image_of.get(n) == image]  # fmt: skip
                for number, row in chosen:
                    if row is None:
                        reason = "an envelope without its row"
                        fields.refuse(number, malformed(reason))
                if not chosen:
                    continue
                rows = [row_of[number] for number, _ in chosen]
                chosen_numbers = [number for number, _ in chosen]
                positions.append(np.array(rows, np.int64))
                for at, column in enumerate(self._columns):
                    found = values_at([row for _, row in chosen], column.path)
                    self._mark_unchanged(found, at, (rows, len(numbers)), unchanged)
                    node = schema.find((image, *column.path))
                    leaf = None if node is None else schema.leaf(node)
                    pieces[at].append(read_part(column, leaf, chosen_numbers, found, fields))
        columns = [
            scattered(column, parts, positions, len(numbers))
            for column, parts in zip(self._columns, pieces, strict=True)
        ]
        return Rows(columns, unchanged)

    def _mark_unchanged(
        self,
        found: list[Any],
        at: int,
        where: tuple[list[int], int],
        unchanged: dict[int, np.ndarray],
    ) -> None:
        """Mark values that the database did not send as unchanged, and set them to NULL."""
        rows, n = where
        for row, value in enumerate(found):
            if value in self._placeholders:
                found[row] = None
                unchanged.setdefault(at, np.zeros(n, np.bool_))[rows[row]] = True


def _note(number: int, value: Any, found: Envelopes) -> None:
    """Store op, order and transaction of one envelope."""
    if not isinstance(value, dict) or "op" not in value:
        if not (isinstance(value, dict) and set(value) == {"ts_ms"}):
            found.fields.refuse(number, malformed("not a Debezium envelope: no op"))
        return
    found.ops[number] = str(value["op"])
    transaction = transaction_of(value.get("transaction"))
    found.transactions[number] = transaction
    ordinal = transaction[1] if transaction else UNKNOWN
    source = value.get("source")
    if isinstance(source, dict) and found.ops[number] != "r":
        found.orders[number] = order_of(source, ordinal)
