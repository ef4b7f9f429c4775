"""Refuse other roles' code on a view's table, which would run with the service's rights.

Creators own their views' tables where the service may transfer ownership, and a schema's owner may
drop and replace what it contains. So a table that other roles control is checked in the transaction
that reads or writes it, under a lock that keeps it unchanged. It must be the very table that we
created, with nothing on it that runs code. Otherwise the error names the object and only that view
fails. Tables controlled only by the service and superusers, the usual case, are not checked. The
functions are in schema/0014_guard.sql.
"""

from __future__ import annotations

from typing import Any

import psycopg2

from connectors.postgres.schema.sink_target import target_of
from connectors.postgres.session.quoting import quote_text
from connectors.sink import SinkTable
from dataflow.errors import SinkError

FOREIGN_STATE = "TM004"

# Roles whose code may run as the service: the service's own, or a superuser.
TRUSTED = "(r.rolsuper OR r.rolname = current_user)"
# An index or a statistic is computed by its functions, which are immutable. Those of PostgreSQL
# and of superusers are harmless. Only superusers can create its other parts.
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
# A type's owner can create a cast from text, which is their code. So read such values as COPY
# does, by the type's input function. An array of an enum is read that way too.
_CAST = f"""
SELECT DISTINCT t.schema, t.name FROM tidemark.tables AS t
JOIN pg_attribute AS a ON a.attrelid = t.table_oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type AS y ON y.oid = a.atttypid JOIN pg_roles AS r ON r.oid = y.typowner
WHERE NOT t.is_staged AND y.typtype <> 'e' AND NOT {TRUSTED}
"""
_IS_FOREIGN = _FOREIGN + " AND (schema, name) = (%s, %s)"


class Guards:
    """Which views' tables must be checked, cached for one session.

    Call `forget` when a table is replaced.
    """

    def __init__(self) -> None:
        self._foreign: frozenset[tuple[str, str]] | None = None
        self._cast: frozenset[tuple[str, str]] = frozenset()

    @property
    def is_known(self) -> bool:
        """Return whether `covers` can answer without the database."""
        return self._foreign is not None

    def forget(self) -> None:
        """Query the database again the next time."""
        self._foreign = None

    def covers(self, cursor: Any, table: SinkTable) -> bool:
        """Return whether other roles control a view's table."""
        if self._foreign is None:
            cursor.execute(_FOREIGN)
            self._foreign = frozenset(cursor.fetchall())
            cursor.execute(_CAST)
            self._cast = frozenset(cursor.fetchall())
        return (table.schema, table.name) in self._foreign

    def is_copied(self, table: SinkTable) -> bool:
        """Return whether a table's values must never be cast from text. Call `covers` first."""
        return (table.schema, table.name) in self._cast


def is_foreign(cursor: Any, table: SinkTable) -> bool:
    """Return whether other roles control a view's table."""
    cursor.execute(_IS_FOREIGN, (table.schema, table.name))
    return cursor.fetchone() is not None


def guard_sql(table: SinkTable, *, writes: bool) -> str:
    """Return the statement that refuses a foreign table before it is written or read."""
    names = (table.schema, table.name, target_of(table).name)
    return f"SELECT tidemark.guard({', '.join(map(quote_text, names))}, {str(writes).lower()})"


def require_ours(cursor: Any, table: SinkTable, *, writes: bool = False) -> None:
    """Require that a view's table is the one created for it, before it is read or written.

    SinkError sink.foreign_object.
    """
    try:
        cursor.execute(guard_sql(table, writes=writes))
    except psycopg2.Error as error:
        if error.pgcode != FOREIGN_STATE:
            raise
        refusal = foreign_object(error)
        refusal.relation = table.relation
        raise refusal from None


def foreign_object(error: psycopg2.Error) -> SinkError:
    """Return the refusal of a table with an object that would run code."""
    return SinkError(
        "sink.foreign_object",
        "an object on the table of a view would run code with the service's rights",
        detail=str(error.diag.message_primary),
        hint="drop it, then rebuild the view; put triggers, checks and rules on a table of your"
        " own that you fill from a subscription or a topic of the view",
    )
