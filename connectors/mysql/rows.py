"""Rows of a table as queries give them: in chunks of columns, by a range of the key or by one key.

Invariant: a row has the same columns, bit by bit, as its image in the log would give.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from connectors.feed_source import rejected_row
from connectors.mysql.column_types import ServerTable
from connectors.mysql.images import BAD_VALUE, bad_record, shown
from connectors.mysql.options import FAIL, SKIP, TableOptions
from connectors.mysql.preflight import title
from connectors.mysql.server import Row, Server, quoted
from connectors.mysql.values import Target, column_of_query
from dataflow.delta import Column
from dataflow.errors import SourceError
from dataflow.schema import Relation
from dataflow.types import TypeKind

# Types of keys by which one row can be looked up again.
LOOKUP_KINDS = (TypeKind.INT2, TypeKind.INT4, TypeKind.INT8, TypeKind.TEXT, TypeKind.BYTEA)


@dataclass(frozen=True)
class BadQueryRow:
    """A row with a value that its declared type cannot hold.

    key: as the relation has it. cells: as the server sends them.
    """

    key: tuple[Any, ...]
    reason: str
    cells: Row


@dataclass
class QueryRows:
    """Rows of the relation, and those that are none of it."""

    columns: list[Column]
    bad: list[BadQueryRow] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.columns[0])


class TableReader:
    """Reads rows of one relation by queries of a connection.

    table: as it is now; a declared column that it lacks is refused.
    """

    def __init__(
        self, server: Server, relation: Relation, options: TableOptions, table: ServerTable
    ) -> None:
        self._server = server
        self._relation = relation
        self._options = options
        self._table = table
        self._families: list[str] = []
        self._targets: list[Target] = []
        self._expressions: list[str] = []
        for position, declared in enumerate(relation.fields):
            column = table.column(declared.name)
            if column is None or not column.accepts(declared.type):
                raise SourceError(
                    "source.column_dropped" if column is None else "source.column_changed",
                    f'table "{relation.name}" has no column "{declared.name}" of its declared type',
                    hint="declare the source with the table's columns, then rebuild the views",
                    relation=relation.name,
                )
            name = quoted(column.name)
            # The text of a FLOAT has fewer digits than its value.
            self._expressions.append(f"({name} + 0e0)" if column.base == "float" else name)
            self._families.append(column.family)
            is_key = position in relation.key
            self._targets.append(Target(declared.type, options.zero_dates, is_key))

    def scan(self, condition: str = "") -> Iterator[QueryRows]:
        """Yield the rows that meet a condition."""
        where = f" WHERE {condition}" if condition else ""
        sql = f"SELECT {', '.join(self._expressions)} FROM {title(self._table)}{where}"
        for rows in self._server.scan(sql):
            yield self._decoded(rows)

    def row_of(self, key: Mapping[str, Any]) -> QueryRows:
        """Return the row with this key, or none."""
        tests = " AND ".join(f"{quoted(name)} = %s" for name in key)
        values = [_parameter(value) for value in key.values()]
        columns = ", ".join(self._expressions)
        sql = f"SELECT {columns} FROM {title(self._table)} WHERE {tests}"
        return self._decoded(self._server.rows(sql, values))

    def bounds(self) -> tuple[int, int] | None:
        """Return the least and the greatest value of the key's first column."""
        name = quoted(self._relation.fields[self._relation.key[0]].name)
        sql = f"SELECT MIN({name}), MAX({name}) FROM {title(self._table)}"
        ((least, most),) = self._server.rows(sql)
        return None if least is None or most is None else (int(least), int(most))

    def _decoded(self, rows: Sequence[Row]) -> QueryRows:
        columns, reasons = [], {}
        cells = zip(*rows, strict=True) if rows else ([] for _ in self._families)
        pairs = zip(self._relation.fields, self._targets, self._families, cells, strict=True)
        for declared, target, family, values in pairs:
            column, faults = column_of_query(target, family, list(values))
            columns.append(column)
            for row, reason in faults.items():
                reasons.setdefault(row, f'column "{declared.name}": {reason}')
        if not reasons:
            return QueryRows(columns)
        numbers = np.array(sorted(reasons), np.int64)
        keys = [columns[c].take(numbers).to_list() for c in self._relation.key]
        of_rows = zip(*keys, strict=True) if keys else [()] * len(numbers)
        bad = [
            BadQueryRow(key, reasons[i], rows[i])
            for i, key in zip(numbers.tolist(), of_rows, strict=True)
        ]
        keep = np.array([i for i in range(len(rows)) if i not in reasons], np.int64)
        return QueryRows([column.take(keep) for column in columns], bad)

    def rejected(self, bad: Sequence[BadQueryRow]) -> list[Any]:
        """Return bad rows as rows of REJECTED_KINDS, none if they are skipped. SourceError
        source.bad_record.
        """
        if bad and self._options.on_error == FAIL:
            place = f"the row {_text(bad[0].cells)}"
            raise bad_record(self._relation, self._options, bad[0].reason, place)
        if self._options.on_error == SKIP:
            return []
        return [self._rejected(one) for one in bad]

    def _rejected(self, bad: BadQueryRow) -> Any:
        fields = self._relation.fields
        texts = {f.name: _cell(cell) for f, cell in zip(fields, bad.cells, strict=True)}
        names = [fields[c].name for c in self._relation.key]
        key = json.dumps(dict(zip(names, map(shown, bad.key), strict=True)))
        return rejected_row(
            self._relation.name,
            f"snapshot:{key}",
            BAD_VALUE,
            bad.reason,
            key=key.encode(),
            value=json.dumps(texts).encode(),
        )


def _parameter(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("\\x"):
        return bytes.fromhex(value[2:])
    return value


def _cell(cell: bytes | None) -> str | None:
    return None if cell is None else cell.decode(errors="replace")


def _text(row: Row) -> str:
    return ", ".join("NULL" if cell is None else repr(cell[:40]) for cell in row[:8])
