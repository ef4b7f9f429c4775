"""Track tables by what PostgreSQL itself identifies them by: oid and column number.

Names are reused after DROP and RENAME; oids and numbers are not, within one database of one server.
Invariant: compare names only within the same server and database.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from psycopg2.extensions import cursor as Cursor

from connectors.postgres.replication.used_objects import UsedObject

_MAY_READ_CONTROL = "SELECT has_function_privilege('pg_catalog.pg_control_system()', 'EXECUTE')"
_SERVER = """
SELECT concat_ws('/', s.system_identifier, d.oid)
FROM pg_control_system() s, pg_database d WHERE d.datname = current_database()
"""
_NAMED = """
SELECT DISTINCT c.oid::bigint
FROM pg_rewrite r
JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
JOIN pg_class c ON d.refclassid = 'pg_class'::regclass AND c.oid = d.refobjid
WHERE r.ev_class = %s AND c.oid <> r.ev_class
  AND c.relpersistence <> 't' AND c.relkind IN ('r', 'p', 'v')
"""
_NAMES = """
SELECT c.oid::bigint, n.nspname::text, c.relname::text,
       array_agg(a.attnum::int ORDER BY a.attnum), array_agg(a.attname::text ORDER BY a.attnum)
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.oid = ANY (%s::oid[]) GROUP BY 1, 2, 3 ORDER BY 1
"""


@dataclass(frozen=True)
class TableNames:
    """A table. columns: (number, name), generated ones too, in the order of the numbers."""

    oid: int
    schema: str
    name: str
    columns: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class KnownNames:
    """What a query's names stand for at one moment.

    server: which server and database, "" if unavailable. listed: of a query whose columns a new
    column of a table would change, as in SELECT *, PostgreSQL's own text with all columns listed.
    objects: what the query rests on besides tables; None if that was not recorded. text:
    PostgreSQL's own text of the query, where its constants may be values of enums.
    """

    server: str = ""
    tables: tuple[TableNames, ...] = ()
    listed: str = ""
    objects: tuple[UsedObject, ...] | None = None
    text: str = ""


UNKNOWN = KnownNames()


def read_names(cursor: Cursor, oids: Iterable[int]) -> KnownNames:
    """Return the current names of these tables; dropped ones are absent. psycopg2.Error."""
    requested = sorted(set(oids))
    cursor.execute(_MAY_READ_CONTROL)
    if not (cursor.fetchone() or (False,))[0]:
        return KnownNames()
    cursor.execute(_SERVER)
    (server,) = cursor.fetchone() or ("",)
    cursor.execute(_NAMES, (requested,))
    return KnownNames(
        server,
        tuple(
            TableNames(oid, schema, name, tuple(zip(numbers, columns, strict=True)))
            for oid, schema, name, numbers, columns in cursor.fetchall()
        ),
    )


def read_named(cursor: Cursor, view: int) -> KnownNames:
    """Return the tables and views that an ordinary view's text names directly. psycopg2.Error."""
    cursor.execute(_NAMED, (view,))
    return read_names(cursor, [oid for (oid,) in cursor.fetchall()])
