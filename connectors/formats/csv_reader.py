"""CSV records to columns: one record is one row, cells by position or by the header's names.

Every record has as many cells as the header, or as declared columns. An unquoted cell with the null
text is NULL; a quoted one never is, as in PostgreSQL's COPY.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tidemark_native import formats

from connectors.formats.declared import DeclaredColumn
from connectors.formats.fields import Fields, malformed, utf8_records
from connectors.formats.text_reader import read_columns, refuse_array
from dataflow.delta import Column
from dataflow.errors import SourceError

CSV = "csv"
# Cells of a record, and of the records that are cut at a time: each takes 17 bytes meanwhile.
MOST_CELLS, _CELLS = 16_384, 4 << 20
OPTIONS = {"delimiter", "quote", "escape", "null", "header"}


@dataclass(frozen=True)
class Dialect:
    """The CSV dialect. Single bytes; quote: "" for none; escape: "" for a doubled quote."""

    delimiter: str = ","
    quote: str = '"'
    escape: str = ""
    null: str = ""

    def bytes(self) -> tuple[int, int, int]:
        """Return delimiter, quote, escape for the kernels, -1 for none."""
        quote = ord(self.quote) if self.quote else -1
        return ord(self.delimiter), quote, ord(self.escape) if self.escape else quote


def read_dialect(options: Mapping[str, Any]) -> Dialect:
    """Read the dialect options. SourceError format.option."""
    configured = {name: options[name] for name in ("delimiter", "quote", "escape", "null")
             if name in options}  # fmt: skip
    for name, value in configured.items():
        is_fit = isinstance(value, str) and value not in ("\r", "\n")
        if is_fit and name != "null":
            is_fit = value.isascii() and len(value) == 1
            is_fit |= value == "" and name != "delimiter"
        if not is_fit:
            raise SourceError(
                "format.option",
                f'option "{name}" of csv must be one ASCII character',
                detail=repr(value),
                hint='for example "delimiter": ";"; "" turns quotes off',
            )
    dialect = Dialect(**configured)
    if dialect.delimiter in (dialect.quote, dialect.escape):
        raise SourceError("format.option", "delimiter of csv equals its quote or escape",
                          hint="choose different characters")  # fmt: skip
    return dialect


class CsvReader:
    """Reads the declared columns of CSV records."""

    def __init__(self, columns: Sequence[DeclaredColumn], options: Mapping[str, Any]) -> None:
        self._columns = columns
        self._dialect = read_dialect(options)
        header = options.get("header")
        for column in columns:
            refuse_array(column, CSV)
            if len(column.path) != 1:
                raise SourceError(
                    "format.path",
                    f'the path of column "{column.field.name}" is not a cell of a CSV record',
                    hint="use $.name with a name of the header",
                )
        if header is None:
            self._cells, self._count = list(range(len(columns))), len(columns)
        else:
            self._cells = [_index_of(column, header) for column in columns]
            self._count = len(header)
        self._null = np.frombuffer(self._dialect.null.encode(), np.uint8)

    def read(self, records: Sequence[bytes]) -> Fields:
        """Return one value for each record in each column."""
        fields = Fields([])
        records, _ = utf8_records(records, fields)
        pieces: list[list[Column]] = [[] for _ in self._cells]
        step = max(1, _CELLS // self._count)
        for begin in range(0, max(1, len(records)), step):
            for own, cells in zip(pieces, self._cut(records, begin, step, fields), strict=True):
                own.append(cells)
        texts = [own[0] if len(own) == 1 else Column.concat(own) for own in pieces]
        read_columns(self._columns, texts, fields)
        return fields

    def _cut(
        self, records: Sequence[bytes], begin: int, count: int, fields: Fields
    ) -> Iterator[Column]:
        """Yield the texts of each declared column, of `count` records."""
        whole = Column.of("s", records[begin : begin + count])
        delimiter, quote, escape = self._dialect.bytes()
        starts, ends, kinds, found = formats.split_cells(
            whole.values, whole.data, self._count, delimiter, quote, escape
        )
        for row in np.flatnonzero(found != self._count).tolist():
            reason = f"{found[row]} cells, not {self._count}"
            reason = reason if found[row] > 0 else "unclosed quote"
            fields.refuse(begin + row, malformed(reason))
            kinds[:, row], ends[:, row], starts[:, row] = formats.CSV_ABSENT, 0, 0
        for cell in self._cells:
            offsets, raw, valid = formats.copy_cells(
                whole.data, starts[cell], ends[cell], kinds[cell], quote, escape, self._null
            )
            yield Column(offsets, None if valid.all() else valid, raw)


def split_record(record: bytes, dialect: Dialect) -> list[str] | None:
    """Return the cells of one record of UTF-8; None if its quotes do not match.

    ValueError: it has more than MOST_CELLS.

    >>> split_record(b'a,"b c",', Dialect())
    ['a', 'b c', '']
    """
    whole = Column.of("s", [record])
    delimiter, quote, escape = dialect.bytes()
    most = record.count(dialect.delimiter.encode()) + 1
    if most > MOST_CELLS:
        raise ValueError(f"it has more than {MOST_CELLS:,} cells")
    starts, ends, kinds, found = formats.split_cells(
        whole.values, whole.data, most, delimiter, quote, escape
    )
    count = int(found[0])
    if count < 0:
        return None
    never = np.frombuffer(b"\0\0", np.uint8)
    offsets, raw, _ = formats.copy_cells(
        whole.data, starts[:count, 0].copy(), ends[:count, 0].copy(), kinds[:count, 0].copy(),
        quote, escape, never,
    )  # fmt: skip
    return [cell or "" for cell in Column(offsets, None, raw).texts()]


def _index_of(column: DeclaredColumn, header: Sequence[str]) -> int:
    name = column.path[0]
    if list(header).count(name) != 1:
        raise SourceError(
            "format.option",
            f'the CSV header does not have "{name}" exactly once',
            detail=f"header: {', '.join(header)}",
            hint="set the column's path to $.name with a name of the header",
        )
    return list(header).index(name)
