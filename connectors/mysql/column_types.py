"""Columns of a server's tables, and the types of PostgreSQL that they have here.

The table is in docs/MYSQL.md. Invariant: a column of a type that is not listed is refused by name
where it is declared, and only skipped where it is not.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from connectors.mysql.server import Server
from dataflow.types import SqlType, TypeKind

_NUMBERS = (TypeKind.FIXED, TypeKind.DECIMAL)
_INTS = (TypeKind.INT2, TypeKind.INT4, TypeKind.INT8)
_TEXTS = (TypeKind.TEXT, TypeKind.BPCHAR)
_JSONS = (TypeKind.JSON, TypeKind.JSONB)
_NUMERIC_ARGS = re.compile(r"\((\d+)(?:,(\d+))?\)")

# Families of types: what may be declared for a column of each. The first word of the server's type
# is in _FAMILIES.
ALLOWED: Mapping[str, tuple[TypeKind, ...]] = {
    "int": (*_INTS, *_NUMBERS, TypeKind.FLOAT8, TypeKind.BOOL, TypeKind.TEXT),
    "decimal": (*_NUMBERS, TypeKind.FLOAT8, TypeKind.TEXT),
    "float": (TypeKind.FLOAT4, TypeKind.FLOAT8),
    "bit": (TypeKind.BYTEA, TypeKind.BOOL),
    "text": (*_TEXTS, *_JSONS, TypeKind.UUID),
    "json": (*_JSONS, TypeKind.TEXT),
    "bytes": (TypeKind.BYTEA,),
    "enum": _TEXTS,
    "set": _TEXTS,
    "date": (TypeKind.DATE, TypeKind.TEXT),
    "datetime": (TypeKind.TIMESTAMP, TypeKind.TEXT),
    "timestamp": (TypeKind.TIMESTAMPTZ,),
    "time": (TypeKind.INTERVAL,),
    "year": (*_INTS, *_NUMBERS, TypeKind.TEXT),
}
_FAMILIES: Mapping[str, str] = {
    **dict.fromkeys(("tinyint", "smallint", "mediumint", "int", "bigint"), "int"),
    **dict.fromkeys(("float", "double"), "float"),
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext"), "text"),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob"), "bytes"),
    **{name: name for name in ("decimal", "bit", "json", "enum", "set", "date", "datetime")},
    **{name: name for name in ("timestamp", "time", "year")},
}
_OF_INTS = {
    "tinyint": ("smallint", "smallint"),
    "smallint": ("smallint", "integer"),
    "mediumint": ("integer", "integer"),
    "int": ("integer", "bigint"),
    "bigint": ("bigint", "numeric(20)"),
}
_OTHERS = {
    "float": "real",
    "double": "double precision",
    "json": "jsonb",
    "date": "date",
    "datetime": "timestamp",
    "timestamp": "timestamptz",
    "time": "interval",
    "year": "smallint",
}


@dataclass(frozen=True)
class ServerColumn:
    """A column as information_schema has it.

    type: COLUMN_TYPE, "int(10) unsigned". base: its first word. charset: "" of what is no text.
    is_virtual: generated and not stored. is_json: a text that MariaDB checks to be JSON.
    """

    name: str
    type: str
    base: str
    charset: str
    is_nullable: bool
    is_virtual: bool = False
    is_json: bool = False

    @property
    def family(self) -> str:
        """The key in ALLOWED; "" for an unsupported type."""
        if "compressed" in self.type.lower():
            return ""
        return "json" if self.is_json else _FAMILIES.get(self.base, "")

    @property
    def is_unsigned(self) -> bool:
        """Whether a number is never negative."""
        return "unsigned" in self.type

    def proposed(self) -> str:
        """Return the SQL type that `discover` proposes; "" for an unsupported type.

        >>> ServerColumn("a", "decimal(10,2)", "decimal", "", True).proposed()
        'numeric(10,2)'
        """
        if not self.family:
            return ""
        if self.base in _OF_INTS:
            return _OF_INTS[self.base][self.is_unsigned]
        if self.base == "decimal":
            found = _NUMERIC_ARGS.search(self.type)
            return f"numeric({found[1]},{found[2] or 0})" if found else "numeric(10,0)"
        if self.base == "bit":
            return "boolean" if self.type == "bit(1)" else "bytea"
        if self.family == "json":
            return "jsonb"
        return _OTHERS.get(self.base) or ("bytea" if self.family == "bytes" else "text")

    def accepts(self, declared: SqlType) -> bool:
        """Return True if the column may be declared with this type."""
        if self.base == "bit" and declared.kind is TypeKind.BOOL:
            return self.type == "bit(1)"
        return declared.kind in ALLOWED.get(self.family, ())


@dataclass(frozen=True)
class ServerTable:
    """A table as it is today.

    keys: the columns of each key that identifies a row: unique, without NULLs and prefixes; the
    primary key is first. cascades: its foreign keys that change rows without a trace in the log.
    """

    schema: str
    name: str
    engine: str
    rows: int
    columns: tuple[ServerColumn, ...]
    keys: tuple[tuple[str, ...], ...] = ()
    cascades: tuple[str, ...] = ()

    def column(self, name: str) -> ServerColumn | None:
        """Return a column by its name, whose case does not matter to the server."""
        return next((c for c in self.columns if c.name.lower() == name.lower()), None)


def read_table(server: Server, schema: str, table: str) -> ServerTable | None:
    """Return a table by name; None if it does not exist, is a view, or may not be seen."""
    found = server.texts(
        "SELECT TABLE_SCHEMA, TABLE_NAME, ENGINE, TABLE_ROWS FROM information_schema.TABLES "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND TABLE_TYPE = 'BASE TABLE'",
        (schema, table),
    )
    if not found:
        return None
    schema, table, engine, rows = found[0]
    return ServerTable(
        schema,
        table,
        engine,
        int(rows or 0),
        _columns(server, schema, table),
        _keys(server, schema, table),
        _cascades(server, schema, table),
    )


def _columns(server: Server, schema: str, table: str) -> tuple[ServerColumn, ...]:
    rows = server.texts(
        "SELECT COLUMN_NAME, COLUMN_TYPE, DATA_TYPE, CHARACTER_SET_NAME, IS_NULLABLE, EXTRA "
        "FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s "
        "ORDER BY ORDINAL_POSITION",
        (schema, table),
    )
    checked = _json_columns(server, schema, table)
    return tuple(
        ServerColumn(
            name,
            type_name.lower(),
            base.lower(),
            charset,
            nullable == "YES",
            "VIRTUAL" in extra.upper(),
            base.lower() == "longtext" and name in checked,
        )
        for name, type_name, base, charset, nullable, extra in rows
    )


def _json_columns(server: Server, schema: str, table: str) -> set[str]:
    """Return the columns that MariaDB's JSON made: texts with a check of their own."""
    if server.flavor == "MySQL":
        return set()
    rows = server.texts(
        "SELECT CHECK_CLAUSE FROM information_schema.CHECK_CONSTRAINTS "
        "WHERE CONSTRAINT_SCHEMA = %s AND TABLE_NAME = %s",
        (schema, table),
    )
    found = (re.fullmatch(r"json_valid\(`(.*)`\)", clause) for (clause,) in rows)
    return {one[1].replace("``", "`") for one in found if one}


def _keys(server: Server, schema: str, table: str) -> tuple[tuple[str, ...], ...]:
    rows = server.texts(
        "SELECT INDEX_NAME, COLUMN_NAME, SUB_PART, NULLABLE FROM information_schema.STATISTICS "
        "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0 "
        "ORDER BY INDEX_NAME <> 'PRIMARY', INDEX_NAME, SEQ_IN_INDEX",
        (schema, table),
    )
    indexes: dict[str, list[tuple[str, bool]]] = {}
    for index, column, part, nullable in rows:
        # A key over the beginning of a column, or an expression, does not identify a row by it.
        usable = bool(column) and not part and nullable != "YES"
        indexes.setdefault(index, []).append((column, usable))
    return tuple(
        tuple(column for column, _ in columns)
        for columns in indexes.values()
        if all(usable for _, usable in columns)
    )


def _cascades(server: Server, schema: str, table: str) -> tuple[str, ...]:
    rows = server.texts(
        "SELECT CONSTRAINT_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS "
        "WHERE CONSTRAINT_SCHEMA = %s AND TABLE_NAME = %s AND (DELETE_RULE IN ('CASCADE', "
        "'SET NULL', 'SET DEFAULT') OR UPDATE_RULE IN ('CASCADE', 'SET NULL', 'SET DEFAULT'))",
        (schema, table),
    )
    return tuple(name for (name,) in rows)
