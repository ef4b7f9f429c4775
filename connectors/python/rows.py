"""Rows of any shape, batch by batch, as columns of Python values.

A row is a dict (any mapping), an object that is read by its `keys()` (sqlite3.Row), a dataclass, a
named tuple, a pydantic model, or a tuple or list of values in the order of the columns. Whole
tables (pyarrow, pandas, polars) are also accepted, alone or as items of an iterable. A missing key
is NULL.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import attrgetter
from typing import Any

from connectors.extras import extra_required
from connectors.python.encode import fields_of
from dataflow.errors import TidemarkError

BATCH_ROWS = 8_192


class Batch:
    """Some rows. names: from the rows themselves, () for plain tuples. described: the names that a
    cursor of PEP 249 has for its tuples, where nobody declares others.
    """

    def __init__(self, names: Sequence[str], columns: Sequence[Sequence[Any]], n: int) -> None:
        self.names = tuple(names)
        self.columns = columns
        self.n = n
        self.described: tuple[str, ...] = ()


class Interrupted(Exception):
    """An iterable raised an error, which is the cause. n: how many rows came before it."""

    def __init__(self, n: int) -> None:
        super().__init__(n)
        self.n = n


def is_table(value: Any) -> bool:
    """Return True for a whole table: of pyarrow, of pandas, or any object with an Arrow
    interface.
    """
    return hasattr(type(value), "__arrow_c_stream__") or type(value).__name__ == "RecordBatch"


def batches(rows: Iterable[Any]) -> Iterator[Batch]:
    """Yield the rows in batches of one shape each. TidemarkError function.bad_row."""
    if is_table(rows):
        yield from _of_table(rows)
        return
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Iterable):
        raise TidemarkError(
            "function.bad_row",
            "the function does not return rows",
            detail=f"a value of type {type(rows).__name__}",
            hint="return an iterable of dicts, tuples or objects with fields, or a table",
        )
    iterator = iter(rows)
    at = 0
    while part := _take(iterator, at):
        for batch in _of_rows(part, at):
            if not batch.names:
                batch.described = _described(rows, at)
            at += batch.n
            yield batch


def _described(rows: Any, at: int) -> tuple[str, ...]:
    """Return the columns of a cursor, () for anything else; some know them after the first row."""
    found = getattr(rows, "description", None)
    if not isinstance(found, list | tuple):
        return ()
    names = tuple(column[0] for column in found)
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise bad_row(at + 1, f'its cursor has two columns named "{twice[0]}"')
    return names


def _take(rows: Iterator[Any], at: int) -> list[Any]:
    part: list[Any] = []
    try:
        part.extend(islice(rows, BATCH_ROWS))
    except Exception as error:
        # Rows before the error are in the list already.
        raise Interrupted(at + len(part)) from error
    return part


def _of_rows(rows: list[Any], at: int) -> Iterator[Batch]:
    """Yield one batch for each run of rows of one shape; usually that is all of them."""
    if len(set(map(type, rows))) == 1:
        yield from _of_kind(rows, at)
        return
    for _, alike in groupby(rows, type):
        part = list(alike)
        yield from _of_kind(part, at)
        at += len(part)


def _of_kind(rows: list[Any], at: int) -> Iterator[Batch]:
    first = rows[0]
    if is_table(first):
        for table in rows:
            yield from _of_table(table)
        return
    fields = fields_of(first)
    if fields is None and isinstance(first, Mapping):
        yield _of_mappings(rows, at)
    elif fields is None and hasattr(first, "keys"):
        yield _of_mappings([{name: row[name] for name in row.keys()} for row in rows], at)  # noqa: SIM118
    elif isinstance(first, tuple | list):
        yield _of_tuples(rows, fields or (), at)
    elif fields is not None:
        columns = [list(map(attrgetter(name), rows)) for name in fields]
        yield Batch(fields, columns, len(rows))
    else:
        raise bad_row(at + 1, f"a value of type {type(first).__name__} is not a row")


def _of_mappings(rows: list[Mapping[str, Any]], at: int) -> Batch:
    names = list(rows[0])
    columns = _under(rows, names)
    if columns is None:
        names = list(dict.fromkeys(name for row in rows for name in row))
    if None in names:
        longer = next(i for i, row in enumerate(rows) if None in row)
        raise bad_row(at + longer + 1, "it has more values than there are names (csv.DictReader)")
    if columns is None:
        columns = [[row.get(name) for row in rows] for name in names]
    return Batch(names, columns, len(rows))


def _under(rows: list[Mapping[str, Any]], names: list[str]) -> list[list[Any]] | None:
    """Return the columns of rows that all have exactly these names, else None."""
    if any(len(row) != len(names) for row in rows):
        return None
    try:
        return [[row[name] for row in rows] for name in names]
    except KeyError:
        return None


def _of_tuples(rows: list[Sequence[Any]], names: Sequence[str], at: int) -> Batch:
    try:
        return Batch(names, list(zip(*rows, strict=True)), len(rows))
    except ValueError:
        width = len(rows[0])
        i = next(i for i, row in enumerate(rows) if len(row) != width)
        why = f"it has {len(rows[i])} values, others have {width}"
        raise bad_row(at + i + 1, why) from None


def _of_table(table: Any) -> Iterator[Batch]:
    found = arrow_table(table)
    for part in found.to_batches(max_chunksize=BATCH_ROWS):
        columns = [column.to_pylist() for column in part.columns]
        yield Batch(part.schema.names, columns, part.num_rows)


def arrow_table(table: Any) -> Any:
    """Return any table as a pyarrow table. TidemarkError package.missing."""
    with extra_required("a function that returns a table"):
        import pyarrow as pa

    if isinstance(table, pa.Table):
        return table
    if isinstance(table, pa.RecordBatch):
        return pa.Table.from_batches([table])
    if type(table).__module__.startswith("pandas."):
        return pa.Table.from_pandas(table, preserve_index=False)
    return pa.table(table)


def bad_row(number: int, why: str) -> TidemarkError:
    """Return the error for an unusable row; number: from 1."""
    return TidemarkError(
        "function.bad_row",
        f"row {number} is not usable",
        detail=why,
        hint="return dicts, tuples with columns=, or objects with fields",
    )
