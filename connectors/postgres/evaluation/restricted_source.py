"""Read source tables that other roles control, inside the sandbox.

Planning a query over a table computes the expressions of its indexes and statistics, which are its
owner's code. And a role that may rename the table may put a view in its place. So the role without
rights reads such a table through a temporary view of ours, bound to the table itself and not to its
name. Queries on it are planned and run in a frame. Invariant: such a session serves nothing else,
and its transaction is rolled back.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from psycopg2 import sql
from psycopg2.extensions import connection as Connection
from psycopg2.extensions import cursor as Cursor

from connectors.postgres.evaluation import sandbox
from connectors.postgres.session.quoting import quote_name
from connectors.postgres.session.session import PINNED_PATH
from dataflow.errors import TemporaryError

_TREE = """
WITH RECURSIVE tree (oid) AS (
  SELECT %(oid)s::bigint::oid
  UNION ALL SELECT i.inhrelid FROM tree JOIN pg_inherits i ON i.inhparent = tree.oid
)
"""
# A schema's owner may drop what it contains, and put something else in its place.
_IS_FOREIGN = (
    _TREE
    + """
SELECT NOT coalesce(bool_and(r.rolsuper OR r.rolname = session_user), false)
FROM tree JOIN pg_class c ON c.oid = tree.oid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_roles r ON r.oid IN (c.relowner, CASE WHEN n.nspowner = 'pg_database_owner'::regrole
    THEN (SELECT datdba FROM pg_database WHERE datname = current_database()) ELSE n.nspowner END)
"""
)
_IS_OF_TREE = (
    _TREE
    + """
SELECT EXISTS (SELECT FROM pg_rewrite w
  JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid
  WHERE w.ev_class = %(view)s::regclass AND d.refclassid = 'pg_class'::regclass
    AND d.refobjid IN (SELECT oid FROM tree))
"""
)
_CHILDREN = (
    _TREE
    + """
SELECT c.oid::bigint, n.nspname, c.relname FROM tree JOIN pg_class c ON c.oid = tree.oid
JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid <> %(oid)s::bigint::oid ORDER BY 1
"""
)


def is_foreign(cursor: Cursor, oid: int) -> bool:
    """Return whether roles other than the service and superusers control a table or a part of
    it."""
    cursor.execute(_IS_FOREIGN, {"oid": oid})
    ((found,),) = cursor.fetchall()
    return bool(found)


def lock(cursor: Cursor, oid: int, table: sql.Identifier) -> None:
    """Take ACCESS SHARE on a table and its parts, until the transaction ends.

    A prepared statement is resolved and locked, but neither planned nor run.
    """
    _look_up(cursor, table)
    locked: set[int] = set()
    while True:
        cursor.execute(_CHILDREN, {"oid": oid})
        new = [row for row in cursor.fetchall() if row[0] not in locked]
        if not new:
            return
        for child, schema, name in new:
            _look_up(cursor, sql.Identifier(schema, name))
            locked.add(child)


def _look_up(cursor: Cursor, table: sql.Identifier) -> None:
    name = sql.Identifier(f"tidemark_{secrets.token_hex(8)}")
    cursor.execute(
        sql.SQL("PREPARE {0} AS SELECT FROM ONLY {1}; DEALLOCATE {0}").format(name, table)
    )


class RestrictedTable:
    """A table, or a part of one, in a session's transaction, which starts read-write.

    dsn: of the session; oid: of the table or the whole that it is part of; source: the text after
    FROM; columns: its expressions, named c0, c1 ...
    """

    def __init__(
        self,
        session: tuple[Connection, str],
        oid: int,
        source: sql.Composable,
        columns: Sequence[sql.Composable],
    ) -> None:
        connection, dsn = session
        self._cursor = connection.cursor()
        self._role = sandbox.enter(self._cursor, dsn).role
        self._view = f"tidemark_lent_{secrets.token_hex(8)}"
        shown = sql.SQL("").join(
            sql.SQL(", {} AS {}").format(column, sql.Identifier(f"c{i}"))
            for i, column in enumerate(columns)
        )
        self._cursor.execute(
            sql.SQL("CREATE TEMP VIEW {} AS SELECT t.ctid AS at{} FROM {} AS t").format(
                sql.Identifier(self._view), shown, source
            )
        )
        self._cursor.execute(_IS_OF_TREE, {"oid": oid, "view": f"pg_temp.{self._view}"})
        if self._cursor.fetchone() != (True,):
            what = "a table to be read is being renamed or dropped"
            raise TemporaryError("source.table_changing", what)
        self._cursor.execute(f"GRANT SELECT ON pg_temp.{self._view} TO {quote_name(self._role)}")

    def function(self, parameters: str, where: str) -> sql.SQL:
        """Return the name of a function that reads the rows that fulfill a condition.

        where: over its parameters $1, $2 ... and the columns of `t`: c0, c1 ... and `at`, the ctid.
        """
        name = sandbox.new_name()
        self._cursor.execute(
            f"CREATE FUNCTION {name}({parameters}) RETURNS SETOF pg_temp.{self._view}"
            f" LANGUAGE sql SECURITY DEFINER SET search_path = {PINNED_PATH}"
            f" AS $f$SELECT * FROM pg_temp.{self._view} AS t WHERE {where}$f$;"
            f" ALTER FUNCTION {name}({parameters}) OWNER TO {quote_name(self._role)}"
        )
        return sql.SQL(name)

    def close(self) -> None:
        """Create nothing more: the transaction is read-only from here on."""
        self._cursor.execute("SET LOCAL transaction_read_only = on")
