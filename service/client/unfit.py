"""The refusal of a value that a data frame has no exact form for."""

from __future__ import annotations

from dataflow.errors import TidemarkError
from service.client.answers import Field


def unfit(field: Field, package: str, detail: str) -> TidemarkError:
    """Return rows.not_in_frame for a column."""
    return TidemarkError(
        "rows.not_in_frame",
        f'column "{field.name}" ({field.type}) has a value that {package} cannot hold',
        detail=detail[:300],
        hint=f'select it as text: "{field.name}"::text',
    )
