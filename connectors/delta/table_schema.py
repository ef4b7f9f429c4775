"""The columns of a Delta table at a version, and which changes of them a reader can follow.

Invariant: a row is read alike before and after a change that is accepted, so that its removal later
meets its addition. Columns that nobody has declared may change as they like.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from connectors.formats.declared import DeclaredColumn
from dataflow.errors import SourceError
from dataflow.schema import Relation
from dataflow.types import TypeKind

# Reader features of Delta's protocol. `vacuumProtocolCheck` and checkpoints concern the client.
FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
    }
)
# From this version on a table names its features; version 2 is column mapping.
NAMED_FEATURES = 3
TIMESTAMP = "timestamp"
_MODE, _PHYSICAL = "delta.columnMapping.mode", "delta.columnMapping.physicalName"
_INTEGERS = ("byte", "short", "integer", "long")
_STAMPS = (TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ)


@dataclass(frozen=True)
class TableColumn:
    """physical: its name in files. type: as in the log, a text or an object."""

    name: str
    physical: str
    type: Any


@dataclass(frozen=True)
class TableSchema:
    """A table at a version.

    table: its id. partition_by: physical names. has_vectors: files may have deletion vectors.
    """

    relation: Relation
    table: str
    columns: Mapping[str, TableColumn]
    partition_by: tuple[str, ...]
    has_vectors: bool

    @staticmethod
    def of(
        relation: Relation,
        table: str,
        schema: Mapping[str, Any],
        partition_by: Sequence[str],
        configuration: Mapping[str, str | None],
        *,
        has_vectors: bool,
    ) -> TableSchema:
        """Return a schema as a log has it. SourceError delta.feature."""
        mode = configuration.get(_MODE) or "none"
        if mode not in ("none", "name"):
            raise unsupported(relation, f"column mapping by {mode}")
        columns = {}
        for one in schema["fields"]:
            physical = one["name"] if mode == "none" else one["metadata"][_PHYSICAL]
            columns[one["name"]] = TableColumn(one["name"], physical, one["type"])
        names = tuple(columns[name].physical for name in partition_by)
        for name in partition_by:
            if columns[name].type == "binary":
                raise unsupported(relation, f'a partition column of type binary, "{name}"')
        return TableSchema(relation, table, columns, names, has_vectors)

    @staticmethod
    def of_action(relation: Relation, action: Mapping[str, Any], has_vectors: bool) -> TableSchema:
        """Return the schema that a version sets. SourceError delta.feature."""
        return TableSchema.of(
            relation,
            action["id"],
            orjson.loads(action["schemaString"]),
            action.get("partitionColumns") or (),
            action.get("configuration") or {},
            has_vectors=has_vectors,
        )

    def with_vectors(self, has_vectors: bool) -> TableSchema:
        """Return it with or without deletion vectors."""
        return replace(self, has_vectors=has_vectors)

    def physical_name(self, name: str) -> str:
        """Return the name of a column in files; one that is none of the table's stays."""
        return self.columns[name].physical if name in self.columns else name

    def check(self, declared: Sequence[DeclaredColumn]) -> None:
        """Refuse columns that the table does not have. SourceError source.bad_option,
        delta.feature.
        """
        for column in declared:
            own = self.columns.get(column.path[0])
            if own is None or self._type_of(column) is None:
                raise SourceError(
                    "source.bad_option",
                    f'column "{column.field.name}" of relation "{self.relation.name.name}" is not'
                    " in its table",
                    detail=f"path {'.'.join(column.path)}",
                    hint=f"its columns are: {', '.join(self.columns)}",
                    relation=self.relation.name,
                )
            if own.physical != own.name and not isinstance(own.type, str):
                raise unsupported(self.relation, f'column mapping of a nested column, "{own.name}"')

    def check_after(
        self, before: TableSchema, declared: Sequence[DeclaredColumn], version: int
    ) -> None:
        """Refuse what a version has done to declared columns, unless rows are read alike.

        SourceError source.column_dropped, source.column_changed, delta.feature.
        """
        for column in declared:
            name = column.path[0]
            own, old = self.columns.get(name), before.columns.get(name)
            new_type, old_type = self._type_of(column), before._type_of(column)
            if own is None or old is None or new_type is None or own.physical != old.physical:
                raise self._changed(
                    "source.column_dropped", column, version, "was dropped or renamed"
                )
            if not _is_read_alike(column, old_type, new_type):
                what = f"has another type: {_shown(old_type)} became {_shown(new_type)}"
                raise self._changed("source.column_changed", column, version, what)
        self.check(declared)

    def _type_of(self, column: DeclaredColumn) -> Any:
        """Return the type at a column's path; None if there is nothing."""
        own = self.columns.get(column.path[0])
        found = None if own is None else own.type
        for key in column.path[1:]:
            if not isinstance(found, Mapping) or found.get("type") != "struct":
                return None
            found = next((f["type"] for f in found["fields"] if f["name"] == key), None)
        return found

    def _changed(self, code: str, column: DeclaredColumn, version: int, what: str) -> SourceError:
        return SourceError(
            code,
            f'column "{column.path[0]}" of Delta table "{self.relation.name.name}" {what}',
            detail=f"in version {version} of the table",
            hint="declare the relation as the table is now; its views are built again",
            relation=self.relation.name,
        )


def check_features(relation: Relation, reader_version: int, features: Collection[str]) -> None:
    """Refuse a table that cannot be read rightly. SourceError delta.feature."""
    unknown = sorted(set(features) - FEATURES)
    if reader_version > NAMED_FEATURES:
        unknown.append(f"protocol version {reader_version}")
    if unknown:
        raise unsupported(relation, f"features that are not supported: {', '.join(unknown)}")


def unsupported(relation: Relation, what: str, detail: str = "") -> SourceError:
    """Return the error of a table that has something that is not supported."""
    return SourceError(
        "delta.feature",
        f'Delta table "{relation.name.name}" has {what}',
        detail=detail,
        hint="docs/DELTA.md lists what is supported",
        relation=relation.name,
    )


def _is_read_alike(column: DeclaredColumn, old: Any, new: Any) -> bool:
    """Return whether a value of the old type, read as the new one, is the same declared value."""
    kind = column.field.type.kind
    if old == new:
        return True
    if old in _INTEGERS and new in _INTEGERS:
        return True
    if old == "float" and new == "double":
        return kind is TypeKind.FLOAT8
    if _is_decimal(old) and _is_decimal(new):
        return kind is TypeKind.FIXED
    return old == "date" and new == "timestamp_ntz" and kind in _STAMPS


def _is_decimal(type: Any) -> bool:
    return isinstance(type, str) and type.startswith("decimal(")


def _shown(type: Any) -> str:
    return type if isinstance(type, str) else str(type.get("type", "?"))
