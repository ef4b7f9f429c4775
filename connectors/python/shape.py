"""Names and types of a function's columns: declared, or inferred from a sample of its rows.

Invariant: batches read for the sample are returned with the rest, so that an iterator loses no row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from connectors.python.infer import SAMPLE_ROWS, column_type
from connectors.python.rows import Batch
from dataflow.errors import TidemarkError

Columns = tuple[tuple[str, str], ...]


def found_columns(
    name: str, read: Iterator[Batch], names: Sequence[str] | None = None
) -> tuple[Columns, Iterator[Batch]]:
    """Return (name, type) of the columns from the first rows, and an iterator over all rows.

    names: of the columns of plain tuples, or the desired ones of other rows. TidemarkError
    function.no_columns, function.mixed_types.
    """
    sample: list[Batch] = []
    while sum(b.n for b in sample) < SAMPLE_ROWS:
        batch = next(read, None)
        if batch is None:
            break
        sample.append(batch)
    values: dict[str, list[Any]] = {}
    for batch in sample:
        for column, found in zip(_names(name, batch, names), batch.columns, strict=True):
            values.setdefault(column, []).extend(found[:SAMPLE_ROWS])
    chosen = list(values) if names is None else list(names)
    if not chosen or not sample:
        raise _no_columns(name)
    columns = tuple((c, column_type(c, values.get(c, ()))) for c in chosen)
    return columns, chain(sample, read)


def _names(name: str, batch: Batch, names: Sequence[str] | None) -> Sequence[str]:
    if batch.names:
        return batch.names
    if names is None or len(names) != len(batch.columns):
        raise _no_columns(name)
    return names


def _no_columns(name: str) -> TidemarkError:
    return TidemarkError(
        "function.no_columns",
        f'the columns of function "{name}" are unknown',
        detail="it returned no rows, or tuples without names",
        hint='declare them: columns={"id": "bigint", "name": "text"}',
    )


def declared_columns(name: str, columns: Mapping[str, str]) -> Columns:
    """Return the declared columns. TidemarkError function.no_columns."""
    if not columns:
        raise _no_columns(name)
    return tuple((str(column), str(type_name)) for column, type_name in columns.items())
