"""Error rows: the rows left out of a view because an expression failed, as a Z-set.

Invariant: the sum over all epochs is exactly the multiset of rows that fail now. A repaired or
deleted row retracts its error, because it arrives here with the opposite weight. In the same form
operators note what is no error (`dataflow.notes`): late rows and watermarks.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dataflow.delta import KIND_BYTES, Delta
from dataflow.expressions.evaluator import RowErrors
from dataflow.types import SqlType
from dataflow.values import to_text

ERROR_KINDS = KIND_BYTES * 4
_NONE = Delta.empty(ERROR_KINDS)
_QUOTED = frozenset('(),"\\ \t\n\r\v\f')


class ErrorRows:
    """Collects the error rows of one view, epoch by epoch.

    Rows are (operator, sqlstate, message, row): the row as PostgreSQL prints a composite value.
    Beside them it collects the view's final rows (see FinalRows).
    """

    def __init__(self) -> None:
        self._rows: list[tuple[str, str, str, str]] = []
        self._weights: list[int] = []
        self._final: list[Delta] = []

    def publish(self, rows: Delta) -> None:
        """Add final rows of the view."""
        self._final.append(rows)

    def take_final(self) -> list[Delta]:
        """Return and clear the final rows since the last call."""
        found, self._final = self._final, []
        return found

    def collect(
        self, operator: str, types: Sequence[SqlType], rows: Delta, errors: RowErrors
    ) -> None:
        """Add the failed rows, columns of `types`, with their weights under an operator's name."""
        failed = sorted(errors.by_row)
        found = rows.take(np.array(failed, np.int64))
        for position, text, weight in zip(
            failed, _row_texts(types, found), found.weights.tolist(), strict=True
        ):
            self._rows.append((operator, *errors.by_row[position], text))
            self._weights.append(weight)

    def take(self) -> Delta:
        """Return and clear what changed since the last call, consolidated."""
        if not self._rows:
            return _NONE
        out = Delta.of(ERROR_KINDS, self._rows, self._weights).consolidate()
        self._rows, self._weights = [], []
        return out


def _row_texts(types: Sequence[SqlType], rows: Delta) -> list[str]:
    if not rows.columns:
        return ["()"] * len(rows)
    columns = (to_text(t, c).texts() for t, c in zip(types, rows.columns, strict=True))
    return [f"({','.join(map(_cell, cells))})" for cells in zip(*columns, strict=True)]


def _cell(text: str | None) -> str:
    # As PostgreSQL's record_out: NULL prints nothing, the empty string is quoted.
    if text is None:
        return ""
    if text and _QUOTED.isdisjoint(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'
