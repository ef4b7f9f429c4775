"""Malformed records: the source stops, skips them, or stores them for a retry.

Invariant: every malformed record is handled as the option on_error says, and never skipped
otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from connectors.feed_source import REJECTED_KINDS, rejected_row
from connectors.files.journal import FileStat
from connectors.files.options import FAIL, SKIP
from connectors.files.reading import BadRow
from connectors.files.shape import Shape
from dataflow.delta import Delta
from dataflow.errors import SourceError

RejectedRow = tuple[str, str, str, str, str, bytes | None, bytes]


def rejected_rows(shape: Shape, stat: FileStat, bad: Iterable[BadRow]) -> list[RejectedRow]:
    """Return rows of REJECTED_KINDS, none if they are skipped. SourceError source.bad_record.

    Their key is the version of the file, which separates them from records of other versions.
    """
    found = []
    for row in bad:
        position = f"{stat.path}:{row.number}" if row.number else stat.path
        if shape.options.on_error == FAIL:
            what = f'"{position}" is not a row of relation "{shape.name}"'
            hint = 'repair the file, or set on_error to "skip" or "dead_letter"'
            detail = f"{row.code}: {row.reason}"
            code = "source.bad_record"
            raise SourceError(code, what, detail=detail, hint=hint, relation=shape.name)
        version = stat.version.encode()
        if shape.options.on_error != SKIP:
            row_found = rejected_row(
                shape.name, position, row.code, row.reason, key=version, value=row.raw
            )
            found.append(row_found)
    return found


def broken_file(reason: str) -> BadRow:
    """Return the file itself, or its unread rest, as one record."""
    return BadRow(0, code="record.file", reason=reason, raw=b"")


def rejected_delta(rows: Sequence[RejectedRow], weight: int = 1) -> Delta:
    """Return the rows as a Delta of REJECTED_KINDS."""
    return Delta.of(REJECTED_KINDS, rows, weight)
