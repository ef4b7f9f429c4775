"""Look up a base table for the planner: columns, key, replica identity, size.

Refuses, by name and with a hint, what logical replication does not send: foreign tables, unlogged
and temporary tables, materialized views, catalogs, tables without replica identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from psycopg2.extensions import cursor as Cursor

from connectors.postgres.replication.publication import GENERATED_VERSION
from connectors.postgres.replication.used_objects import FIRST_USERS_OID
from connectors.postgres.session.quoting import quote_name
from connectors.postgres.types.column_types import ColumnTypes
from dataflow.errors import SourceError
from dataflow.schema import Field, Relation, RelationName
from dataflow.sql.bind.analysis import Table

_RELATION = """
SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, c.relreplident,
       c.reltuples::bigint, c.relispopulated,
       EXISTS (SELECT FROM pg_inherits i WHERE i.inhparent = c.oid),
       has_schema_privilege(session_user, n.oid, 'USAGE')
         AND (has_table_privilege(session_user, c.oid, 'SELECT')
              OR has_any_column_privilege(session_user, c.oid, 'SELECT'))
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""
_KEYS = """
SELECT i.indisprimary, i.indisreplident, i.indimmediate,
       (SELECT array_agg(k ORDER BY o) FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS u(k, o)
        WHERE o <= i.indnkeyatts)
FROM pg_index i WHERE i.indrelid = %s AND (i.indisprimary OR i.indisreplident)
"""
_GENERATED = """
SELECT a.attnum, pg_get_expr(d.adbin, d.adrelid)
FROM pg_attribute a JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %s AND a.attgenerated <> '' AND NOT a.attisdropped
"""
# Generated columns of the replica identity. With FULL that is all of them, on servers that enforce
# it.
_GENERATED_IDENTITY = f"""
SELECT array_agg(a.attnum::int ORDER BY a.attnum) FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid
WHERE c.oid = %(oid)s AND a.attgenerated <> '' AND NOT a.attisdropped AND (
  c.relreplident = 'f' AND current_setting('server_version_num')::int >= {GENERATED_VERSION}
  OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND a.attnum = ANY (i.indkey)
    AND (c.relreplident = 'd' AND i.indisprimary OR c.relreplident = 'i' AND i.indisreplident)))
"""
# Stored generated columns whose expressions depend on objects that somebody may replace.
_REPLACEABLE = """
SELECT a.attname, pg_get_expr(e.adbin, e.adrelid), format_type(a.atttypid, a.atttypmod)
FROM pg_attrdef e JOIN pg_attribute a ON a.attrelid = e.adrelid AND a.attnum = e.adnum
WHERE e.adrelid = %s AND e.oid = ANY (%s::oid[]) AND a.attgenerated = 's' AND EXISTS (
  SELECT FROM pg_depend d WHERE d.classid = 'pg_attrdef'::regclass AND d.objid = e.oid
    AND d.refclassid IN ('pg_proc'::regclass, 'pg_operator'::regclass, 'pg_type'::regclass)
    AND d.refobjid >= %s)
ORDER BY a.attnum
"""
_KINDS = {"m": "materialized view", "f": "foreign table", "S": "sequence", "t": "TOAST table"}
_LEFT_OUT = ("pg_catalog", "information_schema")


@dataclass(frozen=True)
class FoundRelation:
    """A row of pg_class; kind is relkind, identity is relreplident."""

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    identity: str
    row_estimate: int
    is_populated: bool
    has_children: bool
    is_readable: bool

    @property
    def title(self) -> str:
        """Return schema.name, for messages."""
        return f"{self.schema}.{self.name}"


def find_relation(cursor: Cursor, schema: str, name: str) -> FoundRelation:
    """Return the relation of that name. It exists, since the query was analyzed."""
    cursor.execute(_RELATION, (schema, name))
    row = cursor.fetchone()
    if row is None:
        raise SourceError(
            "source.no_relation",
            f'relation "{schema}.{name}" no longer exists',
            hint="create the view again",
        )
    return FoundRelation(*row)


def look_up(cursor: Cursor, found: FoundRelation, source_name: str) -> Table:
    """Return the table with its key, or refuse it. SourceError."""
    _check(found)
    fields = ColumnTypes(cursor).read_fields(found.oid)
    cursor.execute(_GENERATED, (found.oid,))
    generated = {n: _as_stored(text, fields[n]) for n, text in cursor.fetchall()}
    sent = [n for n in fields if n not in generated]
    key = _key(cursor, found, sent)
    _check_generated(cursor, found, fields)
    columns = tuple(
        (f.name, generated[n] if n in generated else sent.index(n)) for n, f in fields.items()
    )
    relation = Relation(
        RelationName(source_name, found.schema, found.name),
        found.oid,
        tuple(fields[n] for n in sent),
        key,
        found.identity == "f",
        found.row_estimate,
        numbers=tuple(sent),
    )
    return Table(relation, columns)


def outdated_values(
    cursor: Cursor, found: FoundRelation, expressions: Iterable[int]
) -> tuple[list[str], str]:
    """Return stored generated columns that may have been computed by what was replaced since, and a
    query that returns for each whether it has values that its expression does not give now.

    expressions: oids in pg_attrdef of those in use.
    """
    cursor.execute(_REPLACEABLE, (found.oid, list(expressions), FIRST_USERS_OID))
    columns = cursor.fetchall()
    table = f"{quote_name(found.schema)}.{quote_name(found.name)}"
    questions = (
        f"EXISTS (SELECT FROM {table} WHERE ({quote_name(name)})::text"
        f" IS DISTINCT FROM (({expression})::{type})::text) AS v{i}"
        for i, (name, expression, type) in enumerate(columns)
    )
    return [name for name, _, _ in columns], f"SELECT {', '.join(questions)}"


def _as_stored(text: str, column: Field) -> str:
    """Return a generated column's expression cast to its length, which pg_get_expr omits."""
    return text if column.type.typmod == -1 else f"({text})::{column.type.name}"


def refused_kind(kind: str, title: str) -> SourceError:
    """Return the refusal of what is no table. kind: relkind; title: schema.name."""
    word = _KINDS.get(kind, "relation of another kind")
    return SourceError(
        "source.relation_kind",
        f'"{title}" is a {word}, and PostgreSQL does not publish its changes',
        hint="use its base tables in the query, or copy it into a table",
    )


def _check(found: FoundRelation) -> None:
    if found.schema in _LEFT_OUT:
        raise SourceError(
            "source.system_catalog",
            f'"{found.title}" is a system catalog, and PostgreSQL does not publish its changes',
            hint="remove it from the view's query",
        )
    if found.kind not in ("r", "p"):
        raise refused_kind(found.kind, found.title)
    if found.persistence != "p":
        raise SourceError(
            "source.not_logged",
            f'table "{found.title}" is unlogged or temporary, so its changes are not published',
            hint=f"ALTER TABLE {found.title} SET LOGGED",
        )
    if found.has_children and found.kind == "r":
        raise SourceError(
            "source.inheritance",
            f'table "{found.title}" has inheriting tables',
            hint="name the tables one by one with UNION ALL, or use partitioning",
        )
    if not found.is_readable:
        raise SourceError(
            "source.privilege",
            f'no privilege to read "{found.title}"',
            hint=f"GRANT SELECT ON {found.title} TO the role of the source's DSN",
        )


def _key(cursor: Cursor, found: FoundRelation, sent: list[int]) -> tuple[int, ...]:
    """Return the primary key or replica identity index, as positions among the sent columns."""
    cursor.execute(_KEYS, (found.oid,))
    primary: list[int] = []
    identity: list[int] = []
    for is_primary, is_identity, is_immediate, numbers in cursor.fetchall():
        if is_primary and (is_immediate or found.identity == "f"):
            primary = numbers
        if is_identity:
            identity = numbers
    chosen = identity if found.identity == "i" else primary
    if found.identity == "n" or (not chosen and found.identity != "f"):
        raise SourceError(
            "source.no_identity",
            f'table "{found.title}" has no replica identity: '
            "the old rows of updates and deletes are not sent",
            hint=f"add a primary key, or ALTER TABLE {found.title} REPLICA IDENTITY FULL",
        )
    return tuple(sent.index(n) for n in chosen) if set(chosen) <= set(sent) else ()


def _check_generated(cursor: Cursor, found: FoundRelation, fields: Mapping[int, Field]) -> None:
    """Refuse a replica identity that contains a generated column.

    Such columns are not sent. From PostgreSQL 18 on, such a published table rejects every UPDATE
    and DELETE.
    """
    cursor.execute(_GENERATED_IDENTITY, {"oid": found.oid})
    ((numbers,),) = cursor.fetchall()
    if not numbers:
        return
    names = ", ".join(f'"{fields[n].name}"' for n in numbers)
    hint = f"ALTER TABLE {found.title} REPLICA IDENTITY USING INDEX ... of ordinary columns, which"
    hint += " are NOT NULL"
    if found.identity != "f" and cursor.connection.server_version < GENERATED_VERSION:
        hint += ", or REPLICA IDENTITY FULL"
    raise SourceError(
        "source.no_identity",
        f'table "{found.title}" has unpublished generated columns in its replica identity',
        detail=f"columns: {names}; PostgreSQL does not send generated columns",
        hint=hint,
    )
