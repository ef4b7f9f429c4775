"""Rows that an independent reader of a lake returns, as PostgreSQL's texts.

Also runs such a reader in a process of its own: libraries with threads do not survive a fork.
"""

from __future__ import annotations

import multiprocessing
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TypeVar

import numpy as np

from dataflow.schema import Field
from dataflow.types import TypeKind

Row = tuple[str | None, ...]
T = TypeVar("T")


def text_of(field: Field, value: Any) -> str | None:
    """A value of Python's as PostgreSQL prints it."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, float):
        is_single = field.type.kind is TypeKind.FLOAT4
        shown = str(np.float32(value)) if is_single else repr(value)
        special = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
        return special.get(shown, shown.removesuffix(".0"))
    if isinstance(value, Decimal):
        return f"{value:f}"
    if isinstance(value, datetime):
        shown = value.replace(tzinfo=None).isoformat(sep=" ")
        shown = shown.rstrip("0") if "." in shown else shown
        return shown + ("+00" if field.type.kind is TypeKind.TIMESTAMPTZ else "")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, bytes | bytearray):
        return "\\x" + value.hex()
    return str(value)


def counted(fields: Sequence[Field], rows: Iterable[tuple[Sequence[Any], int]]) -> Counter[Row]:
    """(values, weight) as rows of texts; weights of equal rows are added."""
    found: Counter[Row] = Counter()
    for values, weight in rows:
        found[tuple(text_of(f, v) for f, v in zip(fields, values, strict=True))] += weight
    return Counter({row: n for row, n in found.items() if n})


def apart(call: Callable[[], T]) -> T:
    """The result of a call in a forked process."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)

    def run() -> None:
        try:
            there.send((True, call()))
        except BaseException as error:
            there.send((False, repr(error)))

    child = context.Process(target=run)
    child.start()
    there.close()
    try:
        is_done, found = here.recv()
    except EOFError:
        raise AssertionError("the reader's process has died") from None
    finally:
        child.join()
    assert is_done, found
    return found
