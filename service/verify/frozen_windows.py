"""Which windows of a view are frozen, so that PostgreSQL's answer says nothing about them.

Invariant: of the windows that are not frozen all are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from connectors.postgres.catalog.catalog import ViewRow, moment_of
from connectors.postgres.session.quoting import quote_name, quote_text
from dataflow.errors import TidemarkError
from dataflow.sql.lateness import lateness_of
from dataflow.types import TypeKind
from dataflow.window_close import UNITS_US, last_closed
from service.engine import output_fields


@dataclass(frozen=True)
class RetainedSince:
    """The last begin of a frozen window, in a column of a view; text: as ISO 8601 or a date."""

    column: str
    kind: TypeKind
    text: str

    def rows(self, query: str) -> str:
        """Return the query without the rows of frozen windows."""
        column, value = quote_name(self.column), quote_text(self.text)
        moment = f"{value}::timestamptz"
        if self.kind is not TypeKind.TIMESTAMPTZ:
            moment = f"({moment} AT TIME ZONE 'UTC')"
        kept = f"retained.{column} IS NULL OR retained.{column} > {moment}"
        return f"SELECT * FROM ({query}) AS retained WHERE {kept}"


def retained_since(row: ViewRow, edges: Mapping[str, int]) -> RetainedSince | None:
    """Return where the windows of a view begin that are not frozen; None where none is frozen.

    edges: the watermarks up to which windows are frozen, of the view and those that it reads.
    TidemarkError verify.frozen where it reads a view with frozen windows.
    """
    if others := sorted(edges.keys() - {row.title}):
        raise TidemarkError(
            "verify.frozen",
            f'view "{row.title}" reads "{others[0]}", whose old windows are frozen',
            detail="PostgreSQL cannot compute again what depends on them",
            hint=f'verify "{others[0]}" itself: its other windows are compared',
        )
    lateness = lateness_of(row.options)
    if row.title not in edges or lateness is None or not lateness.window:
        return None
    assert lateness.retain_us is not None
    column, width_us = lateness.window
    fields = {field.name: field.type for field in output_fields.from_json(row.fields or [])}
    type = fields[column]
    last = last_closed(type, width_us + lateness.retain_us, edges[row.title])
    return RetainedSince(column, type.kind, moment_of(last * UNITS_US[type.kind]).isoformat())
