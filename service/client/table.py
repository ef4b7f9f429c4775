"""Rows that are to become a table of another package, and the refusal of what has no form there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dataflow.errors import TidemarkError
from service.client.answers import Field

# Of changes: how often a row is added or removed.
WEIGHT = "_weight"


class Table(NamedTuple):
    """Rows with their fields. weights: of changes, a further column `_weight`; else None."""

    fields: Sequence[Field]
    rows: Sequence[tuple[Any, ...]]
    weights: Sequence[int] | None = None


def unfit(field: Field, package: str, detail: str) -> TidemarkError:
    """Return rows.not_in_frame for a column with a value that a package has no exact form for."""
    return TidemarkError(
        "rows.not_in_frame",
        f'column "{field.name}" ({field.type}) has a value that {package} cannot hold',
        detail=detail[:300],
        hint=f'select it as text: "{field.name}"::text',
    )
