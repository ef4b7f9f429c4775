"""The tables of a database as a role sees them: columns, keys, sizes, and whether views may read
them.

Invariant: no table, column or reference is named that the role could not SELECT.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from connectors.postgres.analysis.readiness import refusals
from connectors.postgres.analysis.table_lookup import refused_kind
from connectors.postgres.session.session import Session
from dataflow.errors import SourceError

MAX_COLUMNS = 20_000
# pg_class.relkind and relreplident as words.
KINDS = {
    "r": "table",
    "p": "partitioned table",
    "v": "view of the database",
    "m": "materialized view",
    "f": "foreign table",
}
IDENTITIES = {"d": "default", "f": "full", "i": "index", "n": "nothing"}

# Visible to a role: SELECT on the column or the table, and USAGE on the schema. A reference is
# visible where both of its ends are.
_READABLE = """
WITH readable AS MATERIALIZED (
    SELECT a.attrelid, a.attname::text, a.attnum, NOT a.attnotnull AS nullable,
        pg_catalog.format_type(a.atttypid, a.atttypmod) AS type
    FROM pg_catalog.pg_attribute AS a
    JOIN pg_catalog.pg_class AS c ON c.oid = a.attrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
        AND n.nspname NOT IN ('information_schema', 'tidemark') AND n.nspname !~ '^pg_'
        AND a.attnum > 0 AND NOT a.attisdropped
        AND pg_catalog.has_schema_privilege(%(role)s, n.oid, 'USAGE')
        AND pg_catalog.has_column_privilege(%(role)s, c.oid, a.attnum, 'SELECT')
    ORDER BY n.nspname, c.relname, a.attnum LIMIT %(most)s
)
SELECT n.nspname::text, c.relname::text, c.relkind::text, c.relreplident::text,
    (SELECT json_agg(json_build_object('name', a.attname, 'type', a.type, 'nullable', a.nullable)
            ORDER BY a.attnum) FROM readable AS a WHERE a.attrelid = c.oid),
    (SELECT coalesce(array_agg(a.attname ORDER BY k.at), '{}')
        FROM pg_catalog.pg_index AS i, unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, at),
            readable AS a
        WHERE i.indrelid = c.oid AND i.indisprimary AND k.at <= i.indnkeyatts
            AND a.attrelid = c.oid AND a.attnum = k.attnum),
    (SELECT coalesce(json_agg(json_build_object('columns', f.columns, 'schema', t.nspname,
            'table', t.relname, 'references', f.keys) ORDER BY f.columns), '[]')
        FROM pg_catalog.pg_constraint AS o, LATERAL (
            SELECT array_agg(a.attname ORDER BY k.at) AS columns,
                array_agg(b.attname ORDER BY k.at) AS keys
            FROM unnest(o.conkey, o.confkey) WITH ORDINALITY AS k(a, b, at)
            JOIN readable AS a ON a.attrelid = o.conrelid AND a.attnum = k.a
            JOIN readable AS b ON b.attrelid = o.confrelid AND b.attnum = k.b
        ) AS f, LATERAL (
            SELECT tn.nspname, tc.relname FROM pg_catalog.pg_class AS tc
            JOIN pg_catalog.pg_namespace AS tn ON tn.oid = tc.relnamespace
            WHERE tc.oid = o.confrelid
        ) AS t
        WHERE o.conrelid = c.oid AND o.contype = 'f'
            AND array_length(f.columns, 1) = array_length(o.conkey, 1)),
    CASE WHEN c.relkind IN ('r', 'p', 'm') THEN
        coalesce((SELECT sum(CASE WHEN l.reltuples >= 0 THEN l.reltuples
                ELSE pg_catalog.pg_stat_get_live_tuples(l.oid) END)
            FROM pg_catalog.pg_partition_tree(c.oid) AS t JOIN pg_catalog.pg_class AS l
            ON l.oid = t.relid WHERE t.isleaf),
            CASE WHEN c.reltuples >= 0 THEN c.reltuples
                ELSE pg_catalog.pg_stat_get_live_tuples(c.oid) END)::bigint END,
    EXISTS (SELECT FROM pg_catalog.pg_publication_rel AS m
        JOIN pg_catalog.pg_publication AS p ON p.oid = m.prpubid
        WHERE m.prrelid = c.oid AND p.pubname = %(publication)s)
FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
WHERE c.oid IN (SELECT attrelid FROM readable) ORDER BY 1, 2
"""


@dataclass(frozen=True)
class ListedTable:
    """One table, with the columns that the role may read.

    kind: of KINDS. identity: of IDENTITIES; "" where there is none. fields: name, type and nullable
    of each column. key: of the primary key. references: columns, schema, table and references of
    each foreign key. rows: estimated; None for a view. refusal: why the service could not publish
    it, None if it could.
    """

    schema: str
    name: str
    kind: str
    identity: str
    fields: list[dict[str, Any]]
    key: list[str]
    references: list[dict[str, Any]]
    rows: int | None
    is_published: bool
    refusal: SourceError | None


def list_tables(session: Session, role: str, publication: str) -> list[ListedTable]:
    """Return the tables that a role may read, ordered by name; "" is the session's own role.

    publication: of the service. [] for a missing role.
    """
    if role and not session.rows("SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = %s", (role,)):
        return []
    own = session.rows("SELECT current_user::text")[0][0]
    parameters = {"role": role or own, "most": MAX_COLUMNS, "publication": publication}
    refused = refusals(session, own)
    found = []
    for schema, name, kind, identity, *facts in session.rows(_READABLE, parameters):
        why = refused_kind(kind, f"{schema}.{name}") if kind in "mf" else None
        found.append(
            ListedTable(
                schema,
                name,
                KINDS[kind],
                IDENTITIES[identity] if kind in "rp" else "",
                *facts,
                refusal=why or refused.get((schema, name)),
            )
        )
    return found
