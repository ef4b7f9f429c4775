"""The tables and columns of a database that a role may read, for completing queries.

Invariant: nothing is named that the role could not SELECT, neither a table nor a column.
"""

from __future__ import annotations

from connectors.postgres.session import Session

MOST_COLUMNS = 20_000

# As a role sees them: SELECT on the column, or the table, and USAGE on the schema.
_SQL = """
SELECT n.nspname::text, c.relname::text, array_agg(a.attname::text ORDER BY a.attnum)
FROM (
    SELECT a.attrelid, a.attname, a.attnum FROM pg_catalog.pg_attribute AS a
    JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
        AND n.nspname NOT IN ('information_schema', 'tidemark') AND n.nspname !~ '^pg_'
        AND a.attnum > 0 AND NOT a.attisdropped
        AND pg_catalog.has_schema_privilege(%(role)s, n.oid, 'USAGE')
        AND pg_catalog.has_column_privilege(%(role)s, c.oid, a.attnum, 'SELECT')
    ORDER BY n.nspname, c.relname, a.attnum LIMIT %(most)s
) AS a
JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
GROUP BY n.nspname, c.relname ORDER BY 1, 2
"""


def readable_tables(session: Session, role: str) -> list[tuple[str, str, list[str]]]:
    """(schema, table, columns) that a role may read; "" is the session's own. [] for a role that
    is not there."""
    if role and not session.rows("SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = %s", (role,)):
        return []
    named = role or session.rows("SELECT current_user::text")[0][0]
    return session.rows(_SQL, {"role": named, "most": MOST_COLUMNS})
