"""Relations as the planner and the connectors describe them.

A column has the type that PostgreSQL gives it; `stored` is the type in our own tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from dataflow.frozen import caches_hash
from dataflow.types import SqlType


@dataclass(frozen=True)
class Field:
    """One column of a relation or of a plan node's output."""

    name: str
    type: SqlType
    is_nullable: bool = True


def stored(fields: Iterable[Field]) -> tuple[Field, ...]:
    """Return the columns of our own table that stores such rows."""
    return tuple(replace(f, type=f.type.stored) for f in fields)


@caches_hash
@dataclass(frozen=True)
class RelationName:
    """A relation of a source (or a maintained view, when source is VIEW_SOURCE)."""

    source: str
    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"


VIEW_SOURCE = "tidemark"


@dataclass(frozen=True)
class RowType:
    """The row type of a table that a query uses as a value, as it was planned.

    columns: the names of all columns in order, of generated ones too.
    """

    table: RelationName
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Relation:
    """A base relation whose changes a source reports.

    key: positions of the primary key's columns (never NULL), () when there is none. is_full:
    REPLICA IDENTITY FULL, the stream carries whole old rows. is_append: rows are only ever
    inserted, so none need be stored. row_estimate: pg_class.reltuples, -1 when never analysed.
    numbers: for each field the column's number in the database (attnum), which survives renames; ()
    if there is none or it was not queried. is_single: it always has exactly one row.
    """

    name: RelationName
    oid: int
    fields: tuple[Field, ...]
    key: tuple[int, ...] = ()
    is_full: bool = False
    row_estimate: int = -1
    is_append: bool = False
    numbers: tuple[int, ...] = field(default=(), compare=False)
    is_single: bool = field(default=False, compare=False)
