"""Rows as a simulation keeps them: each with how often it is there."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from connectors.sink import SinkTable
from dataflow.delta import Delta

Rows = Counter[tuple[Any, ...]]


def as_json(value: Any) -> Any:
    """As it comes back from a column of json."""
    return value if value is None else json.loads(json.dumps(value, default=str))


def delta_of(table: SinkTable, rows: Rows) -> Delta:
    """Return the rows of a table with their counts."""
    kinds = "".join(f.type.physical for f in table.fields)
    return Delta.of(kinds, *counted(rows))


def counted(rows: Rows) -> tuple[list[tuple[Any, ...]], list[int]]:
    """Return rows and how often each is there."""
    return list(rows.keys()), list(rows.values())
