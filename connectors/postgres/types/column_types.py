"""SqlType of columns from pg_attribute, with qualified names and classified collations.

`read_fields` must run with an empty search_path, so that format_type qualifies names that are not
built in. Text under a collation whose equality is not equality of bytes is OPAQUE: we pass it
through, and PostgreSQL evaluates everything about it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from psycopg2.extensions import cursor as Cursor

from connectors.postgres.types.hashing import find_hashing, find_null_paths
from dataflow.errors import SqlError
from dataflow.schema import Field
from dataflow.types import SqlType, TypeKind, is_turkic, sql_type

_TYPE_NAME = re.compile(
    r"""[^\W\d][\w ."]*(\(\d+( ?, ?-?\d+)?\))?[\w ]*(\[\])*( COLLATE [\w."]+)?"""
)
_DEFAULT_COLLATION = 100
_BYTEWISE = ("C", "POSIX", "C.UTF-8", "C.UTF8", "C.utf8")

_FIELDS = """
SELECT a.attnum, a.attname, a.attnotnull, format_type(a.atttypid, a.atttypmod), a.atttypid,
       a.atttypmod, t.typtype, a.attcollation,
       CASE WHEN n.nspname = 'pg_catalog' THEN '' ELSE quote_ident(n.nspname) || '.' END
         || quote_ident(k.collname),
       k.collprovider, coalesce(k.collcollate, to_jsonb(k) ->> 'colllocale', ''),
       k.collisdeterministic
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_collation k ON k.oid = a.attcollation
LEFT JOIN pg_namespace n ON n.oid = k.collnamespace
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
_BASE = """
WITH RECURSIVE base AS (
  SELECT t.typbasetype AS oid, t.typtypmod AS typmod, 1 AS depth FROM pg_type t WHERE t.oid = %s
  UNION ALL
  SELECT t.typbasetype, CASE WHEN b.typmod = -1 THEN t.typtypmod ELSE b.typmod END, b.depth + 1
  FROM base b JOIN pg_type t ON t.oid = b.oid AND t.typtype = 'd'
)
SELECT b.oid, b.typmod, t.typtype, format_type(b.oid, b.typmod), t.typarray,
       CASE WHEN t.typlen = -1 THEN t.typelem ELSE 0 END
FROM base b JOIN pg_type t ON t.oid = b.oid
ORDER BY depth DESC LIMIT 1
"""
_ELEMENT = """
SELECT e.oid FROM pg_type a JOIN pg_type e ON e.oid = a.typelem
WHERE a.oid = %s AND e.typtype = 'd' AND e.typarray = a.oid
"""
_DATABASE = """
SELECT datcollate, coalesce(to_jsonb(d) ->> 'datlocprovider', 'c'),
       coalesce(to_jsonb(d) ->> 'datlocale', to_jsonb(d) ->> 'daticulocale', '')
FROM pg_database d WHERE datname = current_database()
"""


class ColumnTypes:
    """Read fields; caches the database's default collation. One thread."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._hashing: dict[int, tuple[str, tuple[str, ...]]] = {}
        cursor.execute(_DATABASE)
        collate, provider, locale = cursor.fetchone() or ("", "", "")
        self._is_default_bytewise = (locale if provider == "b" else collate) in _BYTEWISE and (
            provider != "i"
        )
        is_odd = is_turkic(collate if provider == "c" else locale)
        self._default_collation = 'pg_catalog."default"' if is_odd else ""

    def read_fields(self, relation: int) -> dict[int, Field]:
        """Return the columns of a relation by attnum, in order."""
        self._cursor.execute(_FIELDS, (relation,))
        rows = self._cursor.fetchall()
        return {
            row[0]: Field(row[1], self._hashed(self._type(row[3:])), not row[2]) for row in rows
        }

    def _hashed(self, type: SqlType) -> SqlType:
        """Add the hash function of a type whose equality only PostgreSQL implements."""
        if type.kind is not TypeKind.OPAQUE or type.is_enum:
            return type
        if type.oid not in self._hashing:
            function = find_hashing(self._cursor, type.oid)
            paths = find_null_paths(self._cursor, type.oid) if function else ()
            self._hashing[type.oid] = function, paths
        function, paths = self._hashing[type.oid]
        return replace(type, hashing=function, null_paths=paths)

    def _type(self, row: Sequence[Any]) -> SqlType:
        name, oid, typmod, kind = row[:4]
        type = self._based(name, oid, typmod, kind)
        if type.base is not None:
            type = replace(type, base=self._hashed(self._collated(type.base, row)))
        return self._collated(type, row)

    def _collated(self, type: SqlType, row: Sequence[Any]) -> SqlType:
        _, _, _, _, collation_oid, collation, provider, locale, is_exact = row
        is_bytewise = True
        if collation_oid == _DEFAULT_COLLATION:
            is_bytewise, collation = self._is_default_bytewise, self._default_collation
        elif collation_oid:
            is_bytewise = provider in ("c", "b") and locale in _BYTEWISE
        if not collation_oid:
            return type
        if is_exact is False:
            return replace(
                type,
                kind=TypeKind.OPAQUE,
                is_bytewise=False,
                collation=collation or "",
                is_deterministic=False,
            )
        return replace(type, is_bytewise=is_bytewise, collation=collation or "")

    def _based(self, name: str, oid: int, typmod: int, kind: str) -> SqlType:
        """Return a type; a domain is stored like its base type, under its own name and oid."""
        if kind != "d":
            type = replace(sql_type(name, oid, typmod), is_enum=kind == "e")
            return replace(type, base=self._base_array(oid)) if type.is_users else type
        base_oid, base_typmod, base_kind, base_name, _, _ = self._base(oid)
        stored = replace(sql_type(base_name, base_oid, base_typmod), is_enum=base_kind == "e")
        inner = self._base_array(base_oid)
        return replace(stored, name=name, oid=oid, typmod=typmod, base=inner or stored)

    def _base(self, oid: int) -> tuple[Any, ...]:
        self._cursor.execute(_BASE, (oid,))
        return self._cursor.fetchone() or (oid, -1, "b", "", 0, 0)

    def _base_array(self, oid: int) -> SqlType | None:
        """Return the array of a domain's base type, for an array of domains."""
        self._cursor.execute(_ELEMENT, (oid,))
        found = self._cursor.fetchone()
        if found is None:
            return None
        _, typmod, _, name, array, element = self._base(found[0])
        # There are no arrays of arrays: values of such a domain have another text.
        return None if element or not array else self._hashed(sql_type(f"{name}[]", array, typmod))


def check_type_name(column: str, type_name: str) -> None:
    """Require that a text is only a type name, before it becomes part of a statement.

    SqlError sql.bad_type.
    """
    if not _TYPE_NAME.fullmatch(type_name):
        raise bad_type(f'"{type_name}" is not a type for column "{column}"')


def bad_type(what: str) -> SqlError:
    """Return sql.bad_type for a declared type."""
    hint = "write it as in CREATE TABLE, such as numeric(12,2), timestamptz or text[]"
    return SqlError("sql.bad_type", what, hint=hint)
