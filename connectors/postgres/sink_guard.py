"""Nothing that others put on a view's table runs with the service's rights.

Creators own their views' tables where the service may give them away, and the owner of a schema
may drop what lies in it and put something else there. So a table that others have a say in is
looked at in the transaction that writes or reads it, under a lock that keeps it as it is until the
end: it must be the very table that was made, with nothing on it that runs code. What is there is
named, and the view fails by it; the others go on. Tables that only the service and superusers have
a say in, the usual case, are not looked at.
"""

from __future__ import annotations

from typing import Any

import psycopg2

from connectors.postgres.quoting import quote_text
from connectors.postgres.sink_target import target_of
from connectors.sink import SinkTable
from dataflow.errors import SinkError

FOREIGN_STATE = "TM004"

# A role whose code may run as the service: the service's own, or a superuser.
_TRUSTED = "(r.rolsuper OR r.rolname = current_user)"
# An index, or a statistic, is computed by its functions, which are immutable: those of PostgreSQL
# itself and of superusers are harmless. Other parts of it are made by superusers alone.
_USES_FOREIGN_CODE = f"""EXISTS (
    SELECT FROM pg_depend d
    LEFT JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
    LEFT JOIN pg_proc p ON p.oid = CASE d.refclassid WHEN 'pg_proc'::regclass THEN d.refobjid
        ELSE o.oprcode::oid END
    LEFT JOIN pg_type t ON d.refclassid = 'pg_type'::regclass AND t.oid = d.refobjid
    JOIN pg_roles r ON r.oid = coalesce(p.proowner, t.typowner)
    WHERE d.classid = '{{}}'::regclass AND d.objid = {{}} AND NOT {_TRUSTED})"""
USES_FOREIGN_CODE = _USES_FOREIGN_CODE.format("pg_class", "i.indexrelid")
TYPES_OF = """(SELECT jsonb_object_agg(a.attname, a.atttypid::bigint) FROM pg_attribute AS a
    WHERE a.attrelid = {} AND a.attnum > 0 AND NOT a.attisdropped)"""

GUARD = f"""
ALTER TABLE tidemark.tables ADD COLUMN types jsonb;
COMMENT ON COLUMN tidemark.tables.types IS 'oid of the type of each column, as it was made';
UPDATE tidemark.tables SET types = {TYPES_OF.format("table_oid")};

CREATE FUNCTION tidemark.is_foreign(relation oid) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- Not in SQL: its plan is kept for the session.
    RETURN NOT coalesce((
        SELECT bool_and({_TRUSTED} AND (r.rolname <> 'pg_database_owner'))
        FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        JOIN pg_roles AS r ON r.oid IN (c.relowner, CASE WHEN n.nspowner = (
                SELECT oid FROM pg_roles WHERE rolname = 'pg_database_owner')
            THEN (SELECT datdba FROM pg_database WHERE datname = current_database())
            ELSE n.nspowner END)
        WHERE c.oid = relation), false);
END $$;
COMMENT ON FUNCTION tidemark.is_foreign IS
    'Whether others than the service and superusers have a say in a table, or it is gone';

CREATE FUNCTION tidemark.guard(
    view_schema text, view_name text, table_name text, writes boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted oid;
    made jsonb;
    relation text := format('%I.%I', view_schema, table_name);
    what text;
BEGIN
    SELECT table_oid, types INTO wanted, made FROM tidemark.tables
    WHERE schema = view_schema AND name = view_name AND NOT is_staged;
    IF NOT FOUND OR to_regclass(relation) IS NULL OR NOT tidemark.is_foreign(wanted) THEN
        RETURN;
    END IF;
    IF to_regclass(relation) = wanted AND writes THEN
        -- So that nobody puts statistics or an index on it before we have written. Who has this
        -- lock (autovacuum, CREATE INDEX CONCURRENTLY) keeps others out too, and is not awaited.
        BEGIN
            EXECUTE format(
                'LOCK TABLE ONLY %s IN SHARE UPDATE EXCLUSIVE MODE NOWAIT', relation);
        EXCEPTION WHEN lock_not_available THEN
            EXECUTE format('LOCK TABLE ONLY %s IN ROW EXCLUSIVE MODE', relation);
        END;
    ELSIF to_regclass(relation) = wanted THEN
        EXECUTE format('LOCK TABLE ONLY %s IN ACCESS SHARE MODE', relation);
    END IF;
    IF to_regclass(relation) <> wanted THEN
        RAISE EXCEPTION '% is not the table that was made for the view', relation
            USING ERRCODE = '{FOREIGN_STATE}';
    END IF;
    SELECT title INTO what FROM (
        SELECT 'relation ' || c.relname AS title FROM pg_class AS c
            WHERE c.oid = wanted AND (c.relkind <> 'r' OR c.relpersistence <> 'p')
        UNION ALL SELECT format('row level security of %s', relation) FROM pg_class AS c
            WHERE c.oid = wanted AND c.relrowsecurity
        UNION ALL SELECT format('inheritance of %s', relation) FROM pg_inherits
            WHERE writes AND wanted IN (inhrelid, inhparent)
        UNION ALL SELECT format('trigger %I', g.tgname) FROM pg_trigger AS g
            WHERE writes AND g.tgrelid = wanted
        UNION ALL SELECT format('rule %I', w.rulename) FROM pg_rewrite AS w
            WHERE writes AND w.ev_class = wanted
        UNION ALL SELECT format('constraint %I', k.conname) FROM pg_constraint AS k
            WHERE writes AND k.conrelid = wanted AND k.contype NOT IN ('p', 'u', 'n')
        UNION ALL SELECT format('default of column %I', a.attname)
            FROM pg_attrdef AS f JOIN pg_attribute AS a
                ON a.attrelid = f.adrelid AND a.attnum = f.adnum
            WHERE writes AND f.adrelid = wanted
        UNION ALL SELECT format('index %I', x.relname)
            FROM pg_index AS i JOIN pg_class AS x ON x.oid = i.indexrelid
            WHERE writes AND i.indrelid = wanted AND {USES_FOREIGN_CODE}
        -- The planner computes its expressions.
        UNION ALL SELECT format('statistics %I', s.stxname) FROM pg_statistic_ext AS s
            WHERE writes AND s.stxrelid = wanted
                AND {_USES_FOREIGN_CODE.format("pg_statistic_ext", "s.oid")}
        -- Of another type than it was made with: what we write would be cast, by its owner's cast.
        UNION ALL SELECT format('the new type of column %I', a.attname)
            FROM pg_attribute AS a JOIN jsonb_each_text(made) AS m ON m.key = a.attname
            WHERE a.attrelid = wanted AND NOT a.attisdropped AND m.value::oid <> a.atttypid
        -- A column that somebody added, or a domain.
        UNION ALL SELECT format('column %I', a.attname)
            FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
            JOIN pg_roles AS r ON r.oid = t.typowner
            WHERE writes AND a.attrelid = wanted AND a.attnum > 0 AND NOT a.attisdropped
                AND NOT {_TRUSTED} AND (t.typtype = 'd' OR (made ->> a.attname) IS NULL)
    ) AS foreign_objects LIMIT 1;
    IF what IS NOT NULL THEN
        RAISE EXCEPTION '% would run with the rights of the service', what
            USING ERRCODE = '{FOREIGN_STATE}';
    END IF;
END $$;
COMMENT ON FUNCTION tidemark.guard IS
    'Refuses a view''s table that is another one now, or that would run code of others';
REVOKE EXECUTE ON FUNCTION tidemark.guard, tidemark.is_foreign FROM PUBLIC;
"""
_FOREIGN = """
SELECT schema, name FROM tidemark.tables WHERE NOT is_staged AND tidemark.is_foreign(table_oid)
"""
# Whoever owns a type can make a cast from text to it, which is code of theirs: their values are to
# be read as COPY reads them, by the type's input function. An enum's array is read so too.
_CAST = f"""
SELECT DISTINCT t.schema, t.name FROM tidemark.tables AS t
JOIN pg_attribute AS a ON a.attrelid = t.table_oid AND a.attnum > 0 AND NOT a.attisdropped
JOIN pg_type AS y ON y.oid = a.atttypid JOIN pg_roles AS r ON r.oid = y.typowner
WHERE NOT t.is_staged AND y.typtype <> 'e' AND NOT {_TRUSTED}
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
