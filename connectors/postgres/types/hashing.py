"""Find the extended hash function of a type, as PostgreSQL's own hash joins do.

Values that the type's `=` calls equal have equal hashes, under its collation too. The hash stands
for a value whose text does not determine equality. Hash partitions and hash indexes rely on these
functions, so they are stable across versions. Source: typcache.c (lookup_type_cache), the operator
classes of access method "hash".
"""

from __future__ import annotations

from collections.abc import Iterator

from psycopg2.extensions import cursor as Cursor

from dataflow.types import ARRAY_HASH

_RECORD, _RECORDS = 2249, 2287
_TYPE = """
SELECT t.typtype, t.typbasetype, t.typrelid,
       CASE WHEN t.typsubscript = 'array_subscript_handler'::regproc THEN t.typelem ELSE 0 END,
       coalesce(r.rngsubtype, 0)
FROM pg_type t LEFT JOIN pg_range r ON t.oid IN (r.rngtypid, r.rngmultitypid)
WHERE t.oid = %s
"""
_ATTRIBUTES = """
SELECT quote_ident(a.attname), a.atttypid FROM pg_attribute a
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
_FUNCTION = """
SELECT quote_ident(n.nspname) || '.' || quote_ident(p.proname)
FROM pg_opclass c
JOIN pg_am m ON m.oid = c.opcmethod AND m.amname = 'hash'
JOIN pg_amproc f ON f.amprocfamily = c.opcfamily AND f.amproclefttype = c.opcintype
     AND f.amprocrighttype = c.opcintype AND f.amprocnum = 2
JOIN pg_proc p ON p.oid = f.amproc
JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE c.opcdefault AND (c.opcintype = %(oid)s OR EXISTS (
    SELECT FROM pg_cast k WHERE k.castsource = %(oid)s AND k.casttarget = c.opcintype
      AND k.castmethod = 'b' AND k.castcontext = 'i'))
ORDER BY c.opcintype <> %(oid)s, c.opcintype LIMIT 1
"""
RECORD_HASH = "pg_catalog.hash_record_extended"
_CONTAINERS = {"r": "hash_range_extended", "m": "hash_multirange_extended"}


def find_hashing(cursor: Cursor, oid: int) -> str:
    """Return the qualified function f(value, seed bigint) of a type; "" for a type without one."""
    if oid == _RECORD:
        return RECORD_HASH
    cursor.execute(_TYPE, (oid,))
    kind, base, relation, element, subtype = cursor.fetchone() or ("b", 0, 0, 0, 0)
    if kind == "d":
        return find_hashing(cursor, base)
    if kind == "e":
        return "pg_catalog.hashenumextended"
    if kind == "c":
        cursor.execute(_ATTRIBUTES, (relation,))
        parts = [part for _, part in cursor.fetchall()]
        return RECORD_HASH if _all_hash(cursor, parts) else ""
    if kind in _CONTAINERS:
        return f"pg_catalog.{_CONTAINERS[kind]}" if _all_hash(cursor, [subtype]) else ""
    if element:
        return ARRAY_HASH if _all_hash(cursor, [element]) else ""
    cursor.execute(_FUNCTION, {"oid": oid})
    (found,) = cursor.fetchone() or ("",)
    return found


def _all_hash(cursor: Cursor, parts: list[int]) -> bool:
    # A nested array would count as equal to an array with other bounds.
    return all(find_hashing(cursor, part) not in ("", ARRAY_HASH) for part in parts)


def find_null_paths(cursor: Cursor, oid: int) -> tuple[str, ...]:
    """Return where a value that is hashed may have NULL for a row: SqlType.null_paths."""
    if oid == _RECORDS:
        return ("",)
    kind, base, relation, element = _kind_of(cursor, oid)
    if kind == "d":
        return find_null_paths(cursor, base)
    if kind == "c":
        return tuple(_rows_in(cursor, relation))
    while element:
        kind, base, relation, _ = _kind_of(cursor, element)
        if kind == "c":
            return ("", *_rows_in(cursor, relation))
        element = base
    return ()


def _rows_in(cursor: Cursor, relation: int) -> Iterator[str]:
    """Yield the paths of the columns of a row type that are rows, and of those in them."""
    cursor.execute(_ATTRIBUTES, (relation,))
    for name, oid in cursor.fetchall():
        kind, base, below, _ = _kind_of(cursor, oid)
        while kind == "d":
            kind, base, below, _ = _kind_of(cursor, base)
        if kind == "c":
            yield f".{name}"
            yield from (f".{name}{path}" for path in _rows_in(cursor, below))


def _kind_of(cursor: Cursor, oid: int) -> tuple[str, int, int, int]:
    """Return a type's kind, a domain's base, a row type's relation, an array's element."""
    cursor.execute(_TYPE, (oid,))
    return (cursor.fetchone() or ("b", 0, 0, 0, 0))[:4]
