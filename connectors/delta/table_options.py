"""Options of Delta Lake tables that are read as a source.

Invariant: unknown, missing or contradictory options are refused before anything is reached. Options
hold references to secrets, never secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from connectors import netguard
from connectors.delta.options import client_options, location_of
from connectors.feed_source import DeclaredRelation
from connectors.formats.declared import VALUE, DeclaredColumn, declare_columns
from connectors.lake.location import Location
from connectors.option_reader import OptionReader
from dataflow.errors import SourceError

PAGE = "docs/DELTA.md"
FAIL, SKIP = "fail", "skip"


@dataclass(frozen=True)
class TableOptions:
    """The options of one relation.

    columns: as declared, () if they are still to be discovered. is_append: rows are only added.
    on_error: FAIL or SKIP, for rows of which a value does not fit its column.
    """

    relation: str
    location: Location
    columns: tuple[Mapping[str, Any], ...]
    is_append: bool
    on_error: str

    def content(self) -> tuple[DeclaredColumn, ...]:
        """Return the columns. SourceError source.bad_option, and those of `declare_columns`."""
        columns = declare_columns(self.columns)
        for column in columns:
            if column.origin != VALUE or not column.path:
                what = f'column "{column.field.name}" of relation "{self.relation}" is no column'
                hint = 'give "path" as $.column or $.column.field, without "in"'
                raise SourceError("source.bad_option", f"{what} of a table", hint=hint)
        return columns

    def declared(self) -> DeclaredRelation:
        """Return the relation as the options declare it."""
        columns = tuple((c.field.name, c.field.type.name) for c in self.content())
        return DeclaredRelation(
            self.relation, columns, is_append=self.is_append, is_full=not self.is_append
        )

    def client(self) -> dict[str, str]:
        """Return what the client needs to reach the table. SourceError secret.missing."""
        return client_options(self.location)

    def check(self, path: str = "") -> None:
        """Refuse what must not be read. SourceError path.forbidden, host.forbidden."""
        if self.location.is_bucket:
            self.location.check()
        else:
            netguard.check_path(f"{self.location.path}/{path}")


def read_options(options: Mapping[str, Any], *, needs_columns: bool = True) -> list[TableOptions]:
    """Read the relations of a source. SourceError source.bad_option, secret.plain.

    Options beside the relations are defaults of each. needs_columns: False to discover them.

    >>> tables = {"orders": {"path": "/lake/orders"}}
    >>> read_options({"relations": tables}, needs_columns=False)[0].location.path
    '/lake/orders'
    """
    reader = OptionReader(options, "source", page=PAGE)
    relations = reader.take("relations", dict)
    if not relations:
        raise reader.refused("relations", "declares no relation")
    shared = reader.rest()
    return [_relation(name, own, shared, needs_columns) for name, own in relations.items()]


def _relation(name: str, own: Any, shared: Mapping[str, Any], needs_columns: bool) -> TableOptions:
    where = f"relations.{name}"
    OptionReader(own, "source", where, PAGE)
    reader = OptionReader({**shared, **own}, "source", where, PAGE)
    location = location_of(reader)
    columns = reader.take("columns", list, [])
    if needs_columns and not columns:
        raise reader.refused("columns", "is missing", hint="name each column with its type")
    for column in columns:
        if not isinstance(column, Mapping):
            raise reader.refused("columns", "must be a list of objects")
    found = TableOptions(
        name,
        location,
        tuple(columns),
        reader.take("append_only", bool, False),
        reader.choice("on_error", (FAIL, SKIP), FAIL),
    )
    reader.end()
    return found
