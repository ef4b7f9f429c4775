"""Declared columns beside those of the other database: which types pass, and the wire relation.

Invariant: a value passes unchanged, as the text or the binary form that the declared type has too.
A column of a type that only the other database knows is refused by name where it is declared, and
only skipped where it is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from connectors.postgres.remote.options import TableOptions
from connectors.postgres.replication.publication import GENERATED_VERSION
from connectors.postgres.replication.table_changes import key_error
from connectors.postgres.replication.table_facts import ColumnFacts, TableFacts
from dataflow.errors import SourceError
from dataflow.schema import Field, Relation, RelationName
from dataflow.types import SqlType, TypeKind

_DISCOVER = "declare the table's columns: tidemark sources discover postgres"


def proposed_type(type: SqlType) -> str:
    """Return the SQL type to declare for a column of the other database; "" if none has its values.

    An enum is declared as text, a domain as what it is based on.
    """
    if type.is_enum:
        return "text"
    base = type.stored
    return "" if base.is_users else base.name


def accepts(found: SqlType, declared: SqlType) -> bool:
    """Return whether the values of a column have the same form as those of a declared type."""
    if found.is_enum:
        return declared.kind is TypeKind.TEXT
    base = found.stored
    if base.is_users:
        return False
    if base.kind is TypeKind.TEXT and declared.kind is TypeKind.TEXT:
        # A shorter limit would refuse values that the other database accepts.
        return declared.typmod in (-1, base.typmod)
    return (base.oid, base.typmod) == (declared.oid, declared.typmod)


def wire_relation(
    declared: Relation,
    table: TableOptions,
    facts: TableFacts,
    numbers: Mapping[str, int] | None = None,
) -> Relation:
    """Return a declared relation with the oid, the numbers and the types of the other database.

    numbers: those of the columns when the relation was first read; None: as they are named now.
    SourceError source.column_dropped, source.column_changed, source.key_changed,
    postgres.unsupported_column, source.no_replica_identity.
    """
    by_name = {c.field.name: number for number, c in facts.columns.items()}
    found: list[tuple[int, Field]] = []
    for field in declared.fields:
        number = by_name.get(field.name) if numbers is None else numbers.get(field.name)
        column = facts.columns.get(number or 0)
        if column is None or column.field.name != field.name:
            raise _dropped(declared.name, table, field.name, facts)
        _check_column(declared.name, table, field, column)
        found.append((number or 0, Field(field.name, column.field.type, field.is_nullable)))
    relation = Relation(
        declared.name,
        facts.oid,
        tuple(field for _, field in found),
        declared.key,
        declared.is_full,
        numbers=tuple(number for number, _ in found),
    )
    if declared.is_full and facts.identity != "f":
        raise SourceError(
            "source.no_replica_identity",
            f'table "{table.title}" is declared without a key, but does not send whole old rows',
            hint=f"declare its key, or ALTER TABLE {table.title} REPLICA IDENTITY FULL",
            relation=declared.name,
        )
    error = key_error(relation, relation.numbers, facts)
    if error is not None:
        raise error
    return relation


def check_generated(
    relation: RelationName, table: TableOptions, facts: TableFacts, version: int
) -> None:
    """Refuse a replica identity with columns that are generated, and so not sent.

    version: of the server. From PostgreSQL 18 on, publishing such a table would make everybody's
    UPDATE and DELETE fail. SourceError source.no_identity.
    """
    identity: Mapping[str, tuple[int, ...]] = {
        "d": facts.key,
        "i": facts.identity_key,
        "f": tuple(facts.columns) if version >= GENERATED_VERSION else (),
    }
    found = [facts.columns[n] for n in identity.get(facts.identity, ()) if n in facts.columns]
    names = ", ".join(c.field.name for c in found if not c.is_sent)
    if names:
        raise SourceError(
            "source.no_identity",
            f'table "{table.title}" has generated columns in its replica identity',
            detail=f"columns: {names}; PostgreSQL does not send generated columns",
            hint=f"ALTER TABLE {table.title} REPLICA IDENTITY USING INDEX ... of other columns",
            relation=relation,
        )


def discovered(table: TableOptions, facts: TableFacts) -> dict[str, Any]:
    """Return the options of a table with proposed columns and key."""
    columns = {
        number: (c.field.name, proposed_type(c.field.type))
        for number, c in sorted(facts.columns.items())
        if c.is_sent and proposed_type(c.field.type)
    }
    key = facts.identity_key if facts.identity == "i" else facts.key
    names = list(table.key) or [columns[n][0] for n in key if set(key) <= columns.keys()]
    listed = [{"name": name, "type": type} for name, type in columns.values()]
    return {"columns": listed, **({"key": names} if names else {})}


def _check_column(
    name: RelationName, table: TableOptions, field: Field, column: ColumnFacts
) -> None:
    type = column.field.type
    proposed = proposed_type(type)
    if not column.is_sent or not proposed:
        why = f"it is {type.name}, a type of that database alone"
        raise SourceError(
            "postgres.unsupported_column",
            f'column "{field.name}" of table "{table.title}" cannot be read',
            detail=why if column.is_sent else "it is generated, and not sent to subscribers",
            hint="leave it out of the declared columns",
            relation=name,
        )
    if not accepts(type, field.type):
        raise SourceError(
            "source.column_changed",
            f'column "{field.name}" of table "{table.title}" cannot be {field.type.name}',
            detail=f"it is {type.name}",
            hint=f"declare it as {proposed}",
            relation=name,
        )


def _dropped(
    name: RelationName, table: TableOptions, column: str, facts: TableFacts
) -> SourceError:
    names = ", ".join(c.field.name for _, c in sorted(facts.columns.items()))
    is_there = any(c.field.name == column for c in facts.columns.values())
    detail = "another column has the name now" if is_there else f"it has {names}"
    return SourceError(
        "source.column_dropped",
        f'table "{table.title}" no longer has column "{column}"'
        if is_there
        else f'table "{table.title}" has no column "{column}"',
        detail=detail,
        hint=_DISCOVER,
        relation=name,
    )
