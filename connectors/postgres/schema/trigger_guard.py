"""Nothing that others put on a view's table runs with the service's rights.

Creators own their views' tables where the service may give them away, and the owner of a schema
may drop what lies in it and put something else there. So a table that others have a say in is
looked at in the transaction that writes or reads it, under a lock that keeps it as it is until the
end: it must be the very table that was made, with nothing on it that runs code. What is there is
named, and the view fails by it; the others go on. Tables that only the service and superusers have
a say in, the usual case, are not looked at. The functions are in schema/0014_guard.sql.
"""

from __future__ import annotations

from typing import Any

import psycopg2

from connectors.postgres.schema.sink_target import target_of
from connectors.postgres.session.quoting import quote_text
from connectors.sink import SinkTable
from dataflow.errors import SinkError

FOREIGN_STATE = "TM004"

# A role whose code may run as the service: the service's own, or a superuser.
TRUSTED = "(r.rolsuper OR r.rolname = current_user)"
# An index, or a statistic, is computed by its functions, which are immutable: those of PostgreSQL
# itself and of superusers are harmless. Other parts of it are made by superusers alone.
_USES_FOREIGN_CODE = f"""EXISTS (
    SELECT FROM pg_depend d
    LEFT JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
    LEFT JOIN pg_proc p ON p.oid = CASE d.refclassid WHEN 'pg_proc'::regclass THEN d.refobjid
        ELSE o.oprcode::oid END
    LEFT JOIN pg_type t ON d.refclassid = 'pg_type'::regclass AND t.oid = d.refobjid
    JOIN pg_roles r ON r.oid = coalesce(p.proowner, t.typowner)
    WHERE d.classid = '{{}}'::regclass AND d.objid = {{}} AND NOT {TRUSTED})"""
USES_FOREIGN_CODE = _USES_FOREIGN_CODE.format("pg_class", "i.indexrelid")
STATISTICS_USE_FOREIGN_CODE = _USES_FOREIGN_CODE.format("pg_statistic_ext", "s.oid")
TYPES_OF = """(SELECT jsonb_object_agg(a.attname, a.atttypid::bigint) FROM pg_attribute AS a
    WHERE a.attrelid = {} AND a.attnum > 0 AND NOT a.attisdropped)"""

_FOREIGN = """
SELECT schema, name FROM tidemark.tables WHERE NOT is_staged AND tidemark.is_foreign(table_oid)
"""
# Whoever owns a type can make a cast from text to it, which is code of theirs: their values are to
# be read as COPY reads them, by the type's input function. An enum's array is read so too.
_CAST = f"""
SELECT DISTINCT t.schema, t.name FROM tidemark.tables AS t
JOIN pg_attribute AS a ON a.attrelid = t.table_oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type AS y ON y.oid = a.atttypid JOIN pg_roles AS r ON r.oid = y.typowner
WHERE NOT t.is_staged AND y.typtype <> 'e' AND NOT {TRUSTED}
"""
_IS_FOREIGN = _FOREIGN + " AND (schema, name) = (%s, %s)"


class Guards:
    """Which views' tables are to be looked at, as one session sees it; `forget` when a table takes
    another's place."""

    def __init__(self) -> None:
        self._foreign: frozenset[tuple[str, str]] | None = None
        self._cast: frozenset[tuple[str, str]] = frozenset()

    @property
    def is_known(self) -> bool:
        """Whether `covers` need not ask the database."""
        return self._foreign is not None

    def forget(self) -> None:
        """Ask again the next time."""
        self._foreign = None

    def covers(self, cursor: Any, table: SinkTable) -> bool:
        """Whether others have a say in a view's table."""
        if self._foreign is None:
            cursor.execute(_FOREIGN)
            self._foreign = frozenset(cursor.fetchall())
            cursor.execute(_CAST)
            self._cast = frozenset(cursor.fetchall())
        return (table.schema, table.name) in self._foreign

    def is_copied(self, table: SinkTable) -> bool:
        """Whether values of a view's table are never to be cast from text; once `covers` knows."""
        return (table.schema, table.name) in self._cast


def is_foreign(cursor: Any, table: SinkTable) -> bool:
    """Whether others have a say in a view's table."""
    cursor.execute(_IS_FOREIGN, (table.schema, table.name))
    return cursor.fetchone() is not None


def guard_sql(table: SinkTable, *, writes: bool) -> str:
    """The statement that refuses a view's table before it is written or read."""
    names = (table.schema, table.name, target_of(table).name)
    return f"SELECT tidemark.guard({', '.join(map(quote_text, names))}, {str(writes).lower()})"


def require_ours(cursor: Any, table: SinkTable, *, writes: bool = False) -> None:
    """A view's table is the one that was made for it, before it is read or written. SinkError
    sink.foreign_object."""
    try:
        cursor.execute(guard_sql(table, writes=writes))
    except psycopg2.Error as error:
        if error.pgcode != FOREIGN_STATE:
            raise
        refusal = foreign_object(error)
        refusal.relation = table.relation
        raise refusal from None


def foreign_object(error: psycopg2.Error) -> SinkError:
    """The refusal of a table on which somebody has put what would run code."""
    return SinkError(
        "sink.foreign_object",
        "the table of a view has something on it that would run with the service's rights",
        detail=str(error.diag.message_primary),
        hint="drop it, then rebuild the view; put triggers, checks and rules on a table of your"
        " own, which a subscription or a topic of the view fills",
    )
