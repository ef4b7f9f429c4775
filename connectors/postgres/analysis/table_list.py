"""The tables of a database as a role sees them: columns, keys, sizes, and whether views may read
them.

Invariant: no table, column or reference is named that the role could not SELECT.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from connectors.postgres.analysis.readiness import refusals
from connectors.postgres.analysis.table_lookup import refused_kind
from connectors.postgres.replication.given_publication import GivenPublication
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
# visible where both of its ends are. The tests of ends are in aggregates, where they are hashed: as
# joins they would read all columns again for each foreign key.
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
), columns AS (
    SELECT attrelid, json_agg(json_build_object('name', attname, 'type', type,
        'nullable', nullable) ORDER BY attnum) AS fields
    FROM readable GROUP BY attrelid
), keys AS (
    SELECT i.indrelid, array_agg(a.attname::text ORDER BY k.at) FILTER (
        WHERE (a.attrelid, a.attnum) IN (SELECT attrelid, attnum FROM readable)) AS names
    FROM pg_catalog.pg_index AS i
    CROSS JOIN LATERAL unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, at)
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
    WHERE i.indisprimary AND k.at <= i.indnkeyatts GROUP BY i.indrelid
), ends AS (
    SELECT o.conrelid, o.confrelid, array_agg(a.attname::text ORDER BY k.at) AS columns,
        array_agg(b.attname::text ORDER BY k.at) AS named
    FROM pg_catalog.pg_constraint AS o
    CROSS JOIN LATERAL unnest(o.conkey, o.confkey) WITH ORDINALITY AS k(a, b, at)
    JOIN pg_catalog.pg_attribute AS a ON a.attrelid = o.conrelid AND a.attnum = k.a
    JOIN pg_catalog.pg_attribute AS b ON b.attrelid = o.confrelid AND b.attnum = k.b
    WHERE o.contype = 'f' GROUP BY o.oid, o.conrelid, o.confrelid
    HAVING bool_and((a.attrelid, a.attnum) IN (SELECT attrelid, attnum FROM readable)
        AND (b.attrelid, b.attnum) IN (SELECT attrelid, attnum FROM readable))
), foreign_keys AS (
    SELECT e.conrelid, json_agg(json_build_object('columns', e.columns, 'schema', n.nspname,
        'table', c.relname, 'references', e.named) ORDER BY e.columns) AS facts
    FROM ends AS e JOIN pg_catalog.pg_class AS c ON c.oid = e.confrelid
    JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace GROUP BY e.conrelid
)
SELECT n.nspname::text, c.relname::text, c.relkind::text, c.relreplident::text,
    columns.fields, coalesce(keys.names, '{}'), coalesce(foreign_keys.facts, '[]'),
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
FROM columns JOIN pg_catalog.pg_class AS c ON c.oid = columns.attrelid
JOIN pg_catalog.pg_namespace AS n ON n.oid = c.relnamespace
LEFT JOIN keys ON keys.indrelid = c.oid
LEFT JOIN foreign_keys ON foreign_keys.conrelid = c.oid ORDER BY 1, 2
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


def list_tables(
    session: Session, role: str, publication: str, *, is_given: bool = False
) -> list[ListedTable]:
    """Return the tables that a role may read, ordered by name; "" is the session's own role.

    publication: of the service. is_given: an administrator made it. [] for a missing role.
    """
    if role and not session.rows("SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = %s", (role,)):
        return []
    own = session.rows("SELECT current_user::text")[0][0]
    parameters = {"role": role or own, "most": MAX_COLUMNS, "publication": publication}
    refused = refusals(session, own, publication if is_given else "")
    given = GivenPublication(session, publication).tables().values() if is_given else ()
    published = {(name.schema, name.name) for name in given}
    found = []
    for schema, name, kind, identity, *facts, is_published in session.rows(_READABLE, parameters):
        why = refused_kind(kind, f"{schema}.{name}") if kind in "mf" else None
        found.append(
            ListedTable(
                schema,
                name,
                KINDS[kind],
                IDENTITIES[identity] if kind in "rp" else "",
                *facts,
                is_published=is_published or (schema, name) in published,
                refusal=why or refused.get((schema, name)),
            )
        )
    return found
