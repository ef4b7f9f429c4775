"""Rows as a simulation keeps them: each with how often it is there."""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

from connectors.sink import SinkTable
from dataflow.delta import Delta

Rows = Counter[tuple[Any, ...]]

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?\+00")
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def moment_text(us: int) -> str:
    """Return a timestamp with time zone as PostgreSQL prints it in UTC; us: since 2000."""
    text = (_EPOCH + timedelta(microseconds=us)).strftime("%Y-%m-%d %H:%M:%S.%f")
    return f"{text.rstrip('0').rstrip('.')}+00"


def row_of(printed: Any) -> tuple[Any, ...]:
    """Return a row that readers get as JSON, as the sink has it."""
    return tuple(map(_value_of, printed.values() if isinstance(printed, dict) else printed))


def _value_of(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    if _MOMENT.fullmatch(value):
        moment = datetime.fromisoformat(f"{value}:00")
        return round((moment - _EPOCH) / timedelta(microseconds=1))
    return value.encode()


def as_json(value: Any) -> Any:
    """As it comes back from a column of json."""
    return value if value is None else json.loads(json.dumps(value, default=str))


def delta_of(table: SinkTable, rows: Rows) -> Delta:
    """The rows of a table with their counts."""
    kinds = "".join(f.type.physical for f in table.fields)
    return Delta.of(kinds, *counted(rows))


def counted(rows: Rows) -> tuple[list[tuple[Any, ...]], list[int]]:
    """Rows and how often each is there."""
    return list(rows.keys()), list(rows.values())
