"""The columns of a relation of files, and the formats that read those of its content.

Each relation has `_file` and `_row`, its identity, even if they were not declared; `_modified` only
if it was. Invariant: (`_file`, `_row`) is the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from connectors.feed_source import DeclaredRelation
from connectors.files.options import JSON, JSONL, FileOptions
from connectors.formats.declared import VALUE, DeclaredColumn, declare_columns
from connectors.formats.open_format import open_format
from connectors.formats.record_format import RecordFormat
from dataflow.errors import SourceError
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import TypeKind

FILE, ROW, MODIFIED = "_file", "_row", "_modified"
_METADATA = {
    FILE: ("text", TypeKind.TEXT),
    ROW: ("int8", TypeKind.INT8),
    MODIFIED: ("timestamptz", TypeKind.TIMESTAMPTZ),
}
KEY = (FILE, ROW)


@dataclass(frozen=True)
class Shape:
    """A relation with its options. fields: all its columns. content: those read from the file."""

    name: RelationName
    options: FileOptions
    fields: tuple[Field, ...]
    content: tuple[DeclaredColumn, ...]

    @property
    def kinds(self) -> str:
        """The physical kinds of the columns."""
        return "".join(f.type.physical for f in self.fields)

    @property
    def key(self) -> tuple[int, int]:
        """The indexes of `_file` and `_row`."""
        return self.field_index(FILE), self.field_index(ROW)

    def field_index(self, name: str) -> int:
        """Return the index of a column in `fields`."""
        return [f.name for f in self.fields].index(name)

    def json_format(self, columns: Sequence[DeclaredColumn]) -> RecordFormat:
        """Return the format of JSON records with these columns."""
        return open_format({"format": "json"}, columns)

    def csv_format(
        self, columns: Sequence[DeclaredColumn], header: Sequence[str] | None
    ) -> RecordFormat:
        """Return the format of CSV records of one file.

        header: its names; None: all columns in their order.
        """
        options = {"format": "csv", **vars(self.options.dialect)}
        if header is not None:
            options["header"] = list(header)
        return open_format(options, columns)

    def flat(self, column: DeclaredColumn) -> DeclaredColumn:
        """Return the column with its own name as its path."""
        return replace(column, path=(column.field.name,))


def declared_relation(options: FileOptions) -> DeclaredRelation:
    """Return the relation as the options declare it."""
    content = {c.field.name: c.field.type.name for c in _content(options)}
    names = [str(column["name"]) for column in options.columns]
    names += [name for name in KEY if name not in names]
    columns = [(name, content.get(name) or _METADATA[name][0]) for name in names]
    return DeclaredRelation(options.relation, tuple(columns), KEY, options.is_append)


def make_shape(options: FileOptions, relation: Relation) -> Shape:
    """Return the shape of a relation whose types PostgreSQL has resolved."""
    content = _content(options)
    fields = {f.name: f for f in relation.fields}
    try:
        resolved = [replace(c, field=_field(fields[c.field.name], c)) for c in content]
    except KeyError as error:
        what = f'column {error} of relation "{relation.name}" is not in the catalog'
        raise SourceError(
            "source.bad_option", what, hint="drop the source and declare it again"
        ) from None
    return Shape(relation.name, options, relation.fields, tuple(resolved))


def _field(resolved: Field, declared: DeclaredColumn) -> Field:
    return replace(resolved, is_nullable=declared.field.is_nullable)


def _content(options: FileOptions) -> tuple[DeclaredColumn, ...]:
    """Return the columns of content and folders: all except metadata."""
    if not options.columns:
        what = f'relation "{options.relation}" declares no columns'
        raise SourceError(
            "source.bad_option",
            what,
            hint="declare them, or discover them",
            option=f"relations.{options.relation}.columns",
        )
    content: list[DeclaredColumn] = []
    for column in declare_columns(options.columns):
        name, kind = column.field.name, column.field.type.kind
        if name in _METADATA and kind is not _METADATA[name][1]:
            what = f'column "{name}" is not of type {_METADATA[name][0]}'
            raise SourceError(
                "source.bad_option", what, hint="declare it with this type, or remove it"
            )
        if name not in _METADATA:
            _check_origin(options, column)
            content.append(column)
    return tuple(content)


def _check_origin(options: FileOptions, column: DeclaredColumn) -> None:
    name = column.field.name
    if column.origin != VALUE:
        what = f'column "{name}" is in the key, but records of files have no key'
        raise SourceError("source.bad_option", what, hint='remove "in"')
    if options.format not in (JSON, JSONL) and not column.path:
        what = f'column "{name}" is the whole record, which {options.format} does not support'
        raise SourceError("source.bad_option", what, hint="give it the path of a value")
