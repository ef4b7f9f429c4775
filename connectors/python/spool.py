"""All rows of one reading as lines of COPY, on disk if there are many, with their digest.

The function is read to its end before any row reaches a database. A slow function therefore holds
no transaction open, a failing one changes nothing, and the digest detects unchanged rows.
Invariant: a spool is complete, or it does not exist.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Sequence
from typing import IO, Any

from connectors.python.conditions import Requirement
from connectors.python.encode import BadValue, Encoder, encoder_of, lines
from connectors.python.rows import Batch, bad_row
from dataflow.errors import TidemarkError
from storage.reserve import TEMPORARY

MEMORY_BYTES = 32 << 20


class Spool:
    """Rows of the columns `columns`; `file` holds the lines.

    required: what the rows had to cover; None: everything.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self.columns = tuple(columns)
        self.n = 0
        self.required: Requirement | None = None
        self.file: IO[bytes] = tempfile.SpooledTemporaryFile(MEMORY_BYTES, prefix="tidemark-")  # noqa: SIM115
        self._digest = hashlib.blake2b(digest_size=16)
        self._digest.update(repr(self.columns).encode())

    @property
    def digest(self) -> bytes:
        """Return a digest, equal for equal lines of the same columns in the same order."""
        return self._digest.digest()

    def add(self, part: bytes, n: int) -> None:
        """Append n more lines."""
        TEMPORARY.take(len(part))
        self.file.write(part)
        self._digest.update(part)
        self.n += n

    def close(self) -> None:
        """Release the space."""
        self.file.close()


def spool(
    name: str,
    read: Iterable[Batch],
    columns: Sequence[tuple[str, str]],
    *,
    requested: Sequence[str] | None = None,
    is_declared: bool = False,
) -> Spool:
    """Read a function to its end.

    columns: (name, type) of the table. requested: its columns to read; the others are NULL, and
    tuples do not contain them. is_declared: additional names are ignored. TidemarkError
    function.bad_row, function.bad_value, and the errors of the reading.
    """
    shaper = _Shaper(name, columns, requested, is_declared)
    made = Spool([n for n, _ in columns])
    try:
        for batch in read:
            made.add(shaper.lines(batch, made.n), batch.n)
        made.file.seek(0)
    except BaseException:
        made.close()
        raise
    return made


class _Shaper:
    """Puts batches into the column order of the table."""

    def __init__(
        self,
        name: str,
        columns: Sequence[tuple[str, str]],
        requested: Sequence[str] | None,
        is_declared: bool,
    ) -> None:
        self._name = name
        self._columns = columns
        self._encoders = [encoder_of(type_name) for _, type_name in columns]
        self._desired = tuple(n for n, _ in columns) if requested is None else tuple(requested)
        self._is_declared = is_declared

    def lines(self, batch: Batch, at: int) -> bytes:
        """Return a batch as lines. at: how many rows came before it."""
        names = batch.names or self._names_of(len(batch.columns), at)
        by_name = dict(zip(names, batch.columns, strict=True))
        if not self._is_declared and (extra := by_name.keys() - {n for n, _ in self._columns}):
            raise self._refused(
                at, f"it has additional columns: {', '.join(sorted(map(str, extra)))}"
            )
        requested = set(self._desired)
        chosen = [(n, e) for (n, _), e in zip(self._columns, self._encoders, strict=True)]
        nulls = [None] * batch.n
        columns = [by_name.get(n, nulls) if n in requested else nulls for n, _ in chosen]
        try:
            return lines(columns, [e for _, e in chosen], batch.n)
        except BadValue as error:
            raise self._bad_value(columns, error, at) from error

    def _names_of(self, width: int, at: int) -> tuple[str, ...]:
        everything = tuple(n for n, _ in self._columns)
        for names in (self._desired, everything):
            if len(names) == width:
                return names
        expected = dict.fromkeys((len(self._desired), len(everything)))
        counts = " or ".join(map(str, expected))
        raise self._refused(at, f"it has {width} values for {counts} columns")

    def _bad_value(
        self, columns: Sequence[Sequence[Any]], error: BadValue, at: int
    ) -> TidemarkError:
        column = next(
            (
                n
                for (n, _), e, values in zip(self._columns, self._encoders, columns, strict=True)
                if _refuses(e, values[error.index])
            ),
            "",
        )
        return TidemarkError(
            "function.bad_value",
            f'function "{self._name}": a value of row {at + error.index + 1} cannot be stored',
            detail=f'column "{column}": {error}',
            hint="return another value, or declare another type with columns=",
        )

    def _refused(self, at: int, why: str) -> TidemarkError:
        error = bad_row(at + 1, why)
        return TidemarkError(
            error.code, f'function "{self._name}": {error.what}', detail=why, hint=error.hint
        )


def _refuses(encoder: Encoder, value: Any) -> bool:
    try:
        lines([[value]], [encoder], 1)
    except BadValue:
        return True
    return False
