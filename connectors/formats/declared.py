"""Declared columns of records: names, SQL types, and the path of each value.

A declaration is a list of objects: {"name", "type", "path", "in", "nullable", "unit", "encoding"}.
A type that cannot be read exactly as PostgreSQL would is refused here, never at the first record.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dataflow.errors import SourceError
from dataflow.schema import Field, Relation
from dataflow.types import ARRAY_HASH, SqlType, TypeKind, sql_type

# Aliases of each type: PostgreSQL's name, its oid, the oid of its arrays.
_TYPES = {
    "boolean bool": ("boolean", 16, 1000),
    "smallint int2": ("smallint", 21, 1005),
    "integer int int4": ("integer", 23, 1007),
    "bigint int8": ("bigint", 20, 1016),
    "real float4": ("real", 700, 1021),
    "double_precision float8 float": ("double precision", 701, 1022),
    "numeric decimal": ("numeric", 1700, 1231),
    "text": ("text", 25, 1009),
    "varchar character_varying": ("character varying", 1043, 1015),
    "char character": ("character", 1042, 1014),
    "date": ("date", 1082, 1182),
    "time time_without_time_zone": ("time without time zone", 1083, 1183),
    "timestamp timestamp_without_time_zone": ("timestamp without time zone", 1114, 1115),
    "timestamptz timestamp_with_time_zone": ("timestamp with time zone", 1184, 1185),
    "uuid": ("uuid", 2950, 2951),
    "bytea": ("bytea", 17, 1001),
    "json": ("json", 114, 199),
    "jsonb": ("jsonb", 3802, 3807),
}
_NAMES = {alias.replace("_", " "): of for names, of in _TYPES.items() for alias in names.split()}
_TYPE = re.compile(
    r"([a-z0-9]+(?: [a-z]+)*?)\s*(?:\(\s*([0-9]{1,8})\s*(?:,\s*(-?[0-9]{1,4})\s*)?\))?"
    r"((?: [a-z]+)*)\s*(\[\s*\])?"
)
_STEP = re.compile(r"\.([^.\[\]'\"$]+)|\['([^']*)'\]|\[\"([^\"]*)\"\]")
_KEYS = {"name", "type", "path", "in", "nullable", "unit", "encoding"}
_TIMES = (TypeKind.DATE, TypeKind.TIME, TypeKind.TIMESTAMP, TypeKind.TIMESTAMPTZ)
VALUE, KEY = "value", "key"
# The option that declares them, wherever it stands.
COLUMNS = "columns"
_UNITS = ("d", "s", "ms", "us", "ns")
MAX_LENGTH = 10_485_760


@dataclass(frozen=True)
class DeclaredColumn:
    """One column.

    path: keys from the top of the record, () for the record itself. origin: VALUE or KEY, the part
    of the record that holds it. unit: of numbers in a column of date or time (d, s, ms, us, ns
    since 1970 or midnight), "" if numbers are malformed. encoding: of bytea in a text, "hex" as in
    PostgreSQL or "base64". element: of an array, its elements' type.
    """

    field: Field
    path: tuple[str, ...]
    origin: str = VALUE
    unit: str = ""
    encoding: str = "hex"
    element: SqlType | None = None


def declare_columns(
    declared: Sequence[Mapping[str, Any]], *, is_bytewise: bool = True
) -> tuple[DeclaredColumn, ...]:
    """Return the columns of a relation. SourceError format.column, format.type, format.path.

    is_bytewise: True if the database that analyzes views orders text by bytes.

    >>> declare_columns([{"name": "id", "type": "int8", "path": "$.user.id"}])[0].path
    ('user', 'id')
    """
    if not declared:
        raise _refusal("no columns are declared", "name each column with its type")
    columns = tuple(_column(one, is_bytewise) for one in declared)
    names = [column.field.name for column in columns]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _refusal(f'column "{twice[0]}" is declared twice', "give each column its own name")
    return columns


def declared_type(name: str, *, is_bytewise: bool = True) -> tuple[SqlType, SqlType | None]:
    """Return (type, element type of an array or None) of a type's name. SourceError format.type.

    >>> declared_type("decimal(12, 2)")[0].name, declared_type("varchar(3)[]")[0].name
    ('numeric(12,2)', 'character varying(3)[]')
    """
    found = _TYPE.fullmatch(" ".join(name.lower().split()))
    words = found and f"{found[1]}{found[4]}"
    if found is None or words not in _NAMES:
        raise _bad_type(name, "records do not support this type")
    base, oid, array_oid = _NAMES[words]
    typmod, shown = _modifier(name, base, found[2], found[3])
    plain = sql_type(shown, oid, typmod)
    if plain.kind in (TypeKind.TEXT, TypeKind.BPCHAR):
        plain = replace(plain, is_bytewise=is_bytewise)
    if found[5] is None:
        return plain, None
    if plain.kind in (TypeKind.JSON, TypeKind.JSONB):
        raise _bad_type(name, "arrays of JSON are not supported; declare the column as jsonb")
    array = sql_type(f"{shown}[]", array_oid, typmod)
    if not array.is_text_equal:
        array = replace(array, hashing=ARRAY_HASH)
    return array, plain


def read_path(path: str, column: str) -> tuple[str, ...]:
    """Return the keys of "$.user.id" or "$['a.b']"; () is "$". SourceError format.path.

    >>> read_path("$.user['first name']", "x")
    ('user', 'first name')
    """
    keys, at = [], 1
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            break
        keys.append(next(part for part in found.groups() if part is not None))
        at = found.end()
    if path[:1] != "$" or at < len(path):
        raise SourceError(
            "format.path",
            f'column "{column}" has an invalid path',
            detail=path,
            hint="write $.key.key, $['odd key'], or $ for the whole record",
        )
    return tuple(keys)


def _column(declared: Mapping[str, Any], is_bytewise: bool) -> DeclaredColumn:
    name = declared.get("name")
    if not isinstance(name, str) or not name or len(name.encode()) > 63 or "\0" in name:
        raise _refusal("a column has no name", "names have 1 to 63 bytes", f"{name!r}")
    unknown = sorted(set(declared) - _KEYS)
    if unknown:
        raise _refusal(
            f'column "{name}" has an unknown option', f"known: {sorted(_KEYS)}", unknown[0]
        )
    type, element = declared_type(str(declared.get("type", "")), is_bytewise=is_bytewise)
    path = declared.get("path")
    keys = (name,) if path is None else read_path(str(path), name)
    origin, unit = declared.get("in", VALUE), declared.get("unit", "")
    encoding = declared.get("encoding", "hex")
    if origin not in (VALUE, KEY):
        raise _refusal(
            f'column "{name}" has an unknown part of the record', "in: value or key", origin
        )
    if unit and (unit not in _UNITS or type.kind not in _TIMES):
        raise _refusal(
            f'column "{name}" has an invalid unit',
            f"{', '.join(_UNITS)} for dates and times",
            f"{unit} of {type.name}",
        )
    if encoding not in ("hex", "base64") or (
        encoding != "hex" and TypeKind.BYTEA not in (type.kind, element and element.kind)
    ):
        raise _refusal(f'column "{name}" has an invalid encoding', "hex or base64, of bytea")
    field = Field(name, type, bool(declared.get("nullable", True)))
    return DeclaredColumn(field, keys, origin, unit, encoding, element)


def _modifier(name: str, base: str, first: str | None, second: str | None) -> tuple[int, str]:
    """Return (typmod, format_type's name)."""
    length = None if first is None else int(first)
    if base in ("character varying", "character"):
        length = 1 if length is None and base == "character" else length
        if second is not None or (length is not None and not 1 <= length <= MAX_LENGTH):
            raise _bad_type(name, f"the length must be 1 to {MAX_LENGTH}")
        return (-1, base) if length is None else (length + 4, f"{base}({length})")
    if length is None:
        return -1, base
    if base != "numeric":
        raise _bad_type(name, f"{base} takes no modifier here")
    scale = int(second or 0)
    if not (1 <= length <= 1000 and -1000 <= scale <= 1000):
        raise _bad_type(name, "the precision must be 1 to 1000, the scale -1000 to 1000")
    return ((length << 16) | (scale & 0x7FF)) + 4, f"numeric({length},{scale})"


def _bad_type(name: str, detail: str) -> SourceError:
    known = ", ".join(sorted({of[0] for of in _TYPES.values()}))
    what = f'type "{name}" is not supported in records'
    return SourceError("format.type", what, detail=detail, hint=known, option=COLUMNS)


def _refusal(what: str, hint: str, detail: str = "") -> SourceError:
    return SourceError("format.column", what, detail=detail, hint=hint, option=COLUMNS)


def resolved(
    columns: Iterable[DeclaredColumn], relation: Relation, key: Collection[str]
) -> list[DeclaredColumn]:
    """Return columns with the types that the catalog has; those of the key are never NULL.

    SourceError source.bad_option: the catalog lacks one.
    """
    fields = {f.name: f for f in relation.fields}
    found = []
    for column in columns:
        name = column.field.name
        if name not in fields:
            what = f'column "{name}" of relation "{relation.name}" is not in the catalog'
            hint = "drop the source and declare it again"
            raise SourceError("source.bad_option", what, hint=hint)
        is_nullable = column.field.is_nullable and name not in key
        found.append(replace(column, field=replace(fields[name], is_nullable=is_nullable)))
    return found
