"""The tables of a sink in ClickHouse, and the rows that go into them.

Invariant: a row of the table is identified by what it is ordered by, and of equal ones the newest
version stays (ReplacingMergeTree). So a write that is repeated, in whole or in part, changes
nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from connectors.clickhouse.sink_options import ClickHouseOptions, literal, quoted
from connectors.lake.changelog import batches, row_arrays
from connectors.lake.lake_rows import lake_type, row_keys
from connectors.lake.net_changes import net_changes
from connectors.sink import SinkTable
from connectors.view_sink import ViewEpoch
from dataflow.delta import Column, Delta
from dataflow.errors import SinkError
from dataflow.schema import Field
from dataflow.types import TypeKind
from dataflow.values import to_text

ROW, WEIGHT, EPOCH, DELETED = "_row", "_weight", "_epoch", "_deleted"
OWN_NAMES = (ROW, WEIGHT, EPOCH, DELETED)
NOW, PROGRESS = "_now", "_progress"
# How many inserts a table remembers, to recognise a repeated one.
DEDUPLICATION_WINDOW = 1000
# The years 1900 to 2299, which ClickHouse's dates can have, in days since 2000.
_LEAST_DAY, _END_DAY = -36_524, 109_573
_DAY_US = 86_400_000_000
_UNITS = {TypeKind.DATE: 1, TypeKind.TIMESTAMP: _DAY_US, TypeKind.TIMESTAMPTZ: _DAY_US}
_TYPES = {
    pa.bool_(): "Bool",
    pa.int32(): "Int32",
    pa.int64(): "Int64",
    pa.float32(): "Float32",
    pa.float64(): "Float64",
    pa.date32(): "Date32",
    pa.timestamp("us"): "DateTime64(6)",
    pa.timestamp("us", "UTC"): "DateTime64(6, 'UTC')",
}


def statements(options: ClickHouseOptions, table: SinkTable, owner: str) -> dict[str, str]:
    """Return what creates the tables and the view over them, in this order, by the name's end.

    owner: becomes the comment of the first one, which is created at once or not at all.
    """
    key = [table.fields[i].name for i in table.key] if options.mode == "rows" else []
    columns = [f"{quoted(f.name)} {column_type(f, f.name in key)}" for f in table.fields]
    if options.mode == "rows":
        columns += [f"{EPOCH} UInt64", f"{DELETED} UInt8"]
        engine, order = f"{EPOCH}, {DELETED}", ", ".join(map(quoted, key))
    else:
        columns += [f"{ROW} String", f"{WEIGHT} Int64", f"{EPOCH} UInt64"]
        engine, order = "", f"{ROW}, {EPOCH}"
    name, progress = options.name(), options.name(PROGRESS)
    return {
        PROGRESS: f"CREATE TABLE {progress} (sink String, generation UInt64, writer String,"
        " has_begun UInt8, epoch UInt64, first_epoch UInt64, positions String,"
        " written_at DateTime DEFAULT now())"
        " ENGINE = ReplacingMergeTree(epoch) ORDER BY (sink, generation, writer)"
        f" COMMENT {literal(owner)}",
        "": f"CREATE TABLE {name} ({', '.join(columns)}) ENGINE = ReplacingMergeTree({engine})"
        f" ORDER BY ({order})"
        f" SETTINGS non_replicated_deduplication_window = {DEDUPLICATION_WINDOW}",
        NOW: f"CREATE VIEW {options.name(NOW)} AS {_now(options, table, _moving(options))}",
    }


def fixed_view(options: ClickHouseOptions, table: SinkTable, bounds: tuple[int, int]) -> str:
    """Return what creates the view over the tables without the progress.

    bounds: the first and the last epoch that it shows.
    """
    return f"CREATE VIEW {options.name(NOW)} AS {_now(options, table, bounds)}"


def _moving(options: ClickHouseOptions) -> tuple[str, str]:
    """Return what yields the first and the last epoch of the progress."""
    progress = f"FROM {options.name(PROGRESS)} WHERE has_begun"
    return f"(SELECT max(first_epoch) {progress})", f"(SELECT max(epoch) {progress})"


def _now(options: ClickHouseOptions, table: SinkTable, bounds: tuple[object, object]) -> str:
    names = [quoted(f.name) for f in table.fields]
    # Rows before the first epoch are those of a first write that did not end.
    begins = f"{EPOCH} >= {bounds[0]}"
    if options.mode == "rows":
        source = f"{options.name()} FINAL"
        return f"SELECT {', '.join(names)} FROM {source} WHERE NOT {DELETED} AND {begins}"
    ends = f"{EPOCH} <= {bounds[1]}"
    return (
        f"SELECT {', '.join(names)}, sum({WEIGHT}) AS {WEIGHT} FROM {options.name()} FINAL"
        f" WHERE {begins} AND {ends} GROUP BY {', '.join([ROW, *names])} HAVING {WEIGHT} != 0"
    )


def column_type(field: Field, is_key: bool) -> str:
    """Return the type of a column; those of the key have no NULL."""
    found = lake_type(field)
    if pa.types.is_decimal(found):
        name = f"Decimal({found.precision}, {found.scale})"
    else:
        name = _TYPES.get(found, "String")
    return name if is_key else f"Nullable({name})"


def rows_of(table: SinkTable, epochs: Sequence[ViewEpoch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of mode `rows`: each key that changes, with its newest row."""
    names = [*(f.name for f in table.fields), EPOCH, DELETED]
    groups = [[(epoch.number, epoch.deltas)] for epoch in epochs]
    if sum(epoch.rows for epoch in epochs) < 1_000_000:
        groups = [[pair for group in groups for pair in group]]
    for group in groups:
        deltas = [(number, delta) for number, found in group for delta in found]
        # Within an epoch, all rows of a key are in one delta.
        parts = [deltas] if len(group) > 1 else [[one] for one in deltas]
        for part in filter(None, parts):
            found = net_changes([delta for _, delta in part], table.key)
            numbers = np.array([number for number, _ in part], np.uint64)[found.order]
            for start in range(0, len(found.rows), 65_536):
                pick = slice(start, start + 65_536)
                rows = found.rows.slice(pick.start, pick.stop)
                gone = found.is_gone[pick].astype(np.uint8)
                more = [pa.array(numbers[pick]), pa.array(gone)]
                yield pa.record_batch([*_arrays(table, rows), *more], names)


def changes_of(table: SinkTable, epochs: Sequence[ViewEpoch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of mode `changes`: each row that changes, with the change of its weight."""
    names = [*(f.name for f in table.fields), ROW, WEIGHT, EPOCH]
    for epoch in epochs:
        for rows in batches(epoch.deltas):
            hashes = row_keys(list(rows.columns), len(rows))
            numbers = pa.array(np.full(len(rows), epoch.number, np.uint64))
            more = [hashes, pa.array(rows.weights), numbers]
            yield pa.record_batch([*_arrays(table, rows), *more], names)


def _arrays(table: SinkTable, rows: Delta) -> list[pa.Array]:
    found = row_arrays(table.fields, rows)
    for field, column in zip(table.fields, rows.columns, strict=True):
        unit = _UNITS.get(field.type.kind)
        if unit is not None:
            values = column.values
            is_out = column.mask() & ((values < _LEAST_DAY * unit) | (values >= _END_DAY * unit))
            if is_out.any():
                raise _out_of_range(field, column.take(np.flatnonzero(is_out)[:1]))
    return found


def _out_of_range(field: Field, first: Column) -> SinkError:
    return SinkError(
        "sink.value_unfit",
        f'a value of column "{field.name}" has no form in ClickHouse',
        detail=f"{to_text(field.type, first).texts()[0]} is not in the years 1900 to 2299",
        hint=f'select it as text ("{field.name}"::text), or leave such rows out',
    )
