"""Carry over what users added to a view's table to its next table, or report it.

Grants, comments, indexes and the owner are carried over as far as the columns allow; the rest is
reported. Invariant: nothing of the user's is dropped silently. Every function works on the caller's
cursor, inside the caller's transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg2

from connectors.postgres.schema.sink_target import target_of
from connectors.postgres.schema.table_guard import IS_GUARD
from connectors.postgres.schema.trigger_guard import USES_FOREIGN_CODE
from connectors.postgres.session.quoting import quote_name, quote_text
from connectors.sink import SinkTable

# The prefix of our comments; any other comment is the user's.
OURS = "Maintained by Tidemark"

_OIDS = """SELECT table_oid, coalesce(view_oid, table_oid) FROM tidemark.tables
WHERE schema = %s AND name = %s AND is_staged = %s"""
_INDEXES = (
    """
SELECT c.relname, i.indisunique, pg_get_indexdef(c.oid),
    format('CREATE %%sINDEX %%I ON %%I.%%I', CASE WHEN i.indisunique THEN 'UNIQUE ' ELSE '' END,
        c.relname, n.nspname, t.relname)
FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
JOIN pg_class AS t ON t.oid = i.indrelid JOIN pg_namespace AS n ON n.oid = t.relnamespace
WHERE i.indrelid = %s AND NOT i.indisprimary AND i.indisvalid
    AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = c.oid AND contype <> 'f')
    AND NOT starts_with(c.relname, '_tidemark_key_') AND NOT """
    + USES_FOREIGN_CODE
    + """
ORDER BY c.relname"""
)
_GRANTS = """
SELECT '' AS part, a.privilege_type, a.grantee, a.is_grantable
FROM pg_class AS c, aclexplode(c.relacl) AS a WHERE c.oid = %s AND a.grantee <> c.relowner
UNION ALL
SELECT p.attname, a.privilege_type, a.grantee, a.is_grantable
FROM pg_attribute AS p JOIN pg_class AS c ON c.oid = p.attrelid, aclexplode(p.attacl) AS a
WHERE c.oid = %s AND p.attnum > 0 AND NOT p.attisdropped AND a.grantee <> c.relowner
ORDER BY 1, 2, 3"""
_COMMENTS = """
SELECT '', obj_description(%s, 'pg_class')
UNION ALL SELECT attname, col_description(attrelid, attnum) FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped"""
_LOST = (
    """
SELECT format('trigger %%I', g.tgname) FROM pg_trigger AS g
    WHERE g.tgrelid = ANY(%s) AND NOT g.tgisinternal AND NOT """
    + IS_GUARD
    + """
UNION ALL SELECT format('constraint %%I', conname) FROM pg_constraint
    WHERE conrelid = ANY(%s) AND contype IN ('c', 'u', 'f', 'x')
UNION ALL SELECT format('index %%I', c.relname)
    FROM pg_index AS i JOIN pg_class AS c ON c.oid = i.indexrelid
    WHERE i.indrelid = ANY(%s) AND """
    + USES_FOREIGN_CODE
    + """
UNION ALL SELECT format('policy %%I', polname) FROM pg_policy WHERE polrelid = ANY(%s)
UNION ALL SELECT format('rule %%I', rulename) FROM pg_rewrite
    WHERE ev_class = ANY(%s) AND rulename <> '_RETURN'
UNION ALL SELECT format('statistics %%I', stxname) FROM pg_statistic_ext WHERE stxrelid = ANY(%s)
UNION ALL SELECT format('publication %%I', p.pubname) FROM pg_publication_rel AS r
    JOIN pg_publication AS p ON p.oid = r.prpubid WHERE r.prrelid = ANY(%s)
ORDER BY 1"""
)
# What belongs to the table itself, such as a policy, is dropped with it, whatever it names.
_DEPENDENTS = """
SELECT DISTINCT CASE WHEN d.classid = 'pg_rewrite'::regclass
    THEN (SELECT CASE v.relkind WHEN 'm' THEN 'materialized view ' ELSE 'view ' END
            || format('%%I.%%I', n.nspname, v.relname)
        FROM pg_rewrite AS w JOIN pg_class AS v ON v.oid = w.ev_class
        JOIN pg_namespace AS n ON n.oid = v.relnamespace WHERE w.oid = d.objid)
    ELSE pg_describe_object(d.classid, d.objid, 0) END AS title
FROM pg_depend AS d
WHERE d.deptype = 'n'
    AND (d.refclassid = 'pg_class'::regclass AND d.refobjid = ANY(%s)
        OR d.refclassid = 'pg_type'::regclass
            AND d.refobjid IN (SELECT oid FROM pg_type WHERE typrelid = ANY(%s)))
    AND NOT (d.classid = 'pg_class'::regclass AND d.objid = ANY(%s))
    AND NOT EXISTS (
        SELECT FROM pg_depend AS own WHERE (own.classid, own.objid) = (d.classid, d.objid)
            AND own.deptype IN ('a', 'i') AND own.refclassid = 'pg_class'::regclass
            AND own.refobjid = ANY(%s))
ORDER BY title"""


@dataclass(frozen=True)
class Index:
    """A user's index. tail: its definition after the table's name."""

    name: str
    is_unique: bool
    tail: str


@dataclass(frozen=True)
class UserAdditions:
    """What users added to a table.

    grants: (column or "", privilege, role, with grant option); comments by column, "" the table's;
    lost: what is never carried over.
    """

    owner: str
    grants: tuple[tuple[str, str, str, bool], ...]
    comments: tuple[tuple[str, str], ...]
    indexes: tuple[Index, ...]
    lost: tuple[str, ...]


def oids_of(cursor: Any, table: SinkTable, *, is_staged: bool = False) -> tuple[int, int] | None:
    """Return the oids of the table with the rows and of the relation that users read; None if
    missing."""
    cursor.execute(_OIDS, (table.schema, table.name, is_staged))
    found = cursor.fetchone()
    if found is None:
        return None
    cursor.execute("SELECT count(*) FROM pg_class WHERE oid = ANY(%s)", (list(found),))
    return found if cursor.fetchone()[0] == len(set(found)) else None


def dependents(cursor: Any, table: SinkTable) -> list[str]:
    """Return what depends on the table or on its history, so that PostgreSQL would not drop it."""
    found = oids_of(cursor, table)
    if found is None:
        return []
    cursor.execute(
        "SELECT view_oid FROM tidemark.histories WHERE (schema, name) = (%s, %s) AND NOT is_staged",
        (table.schema, table.name),
    )
    oids = [*found, *(oid for (oid,) in cursor.fetchall())]
    cursor.execute(_DEPENDENTS, (oids,) * 4)
    return [title for (title,) in cursor.fetchall()]


def find(cursor: Any, table: SinkTable) -> UserAdditions | None:
    """Return what users added to the view's current table; None without a table."""
    found = oids_of(cursor, table)
    if found is None:
        return None
    rows, visible = found
    cursor.execute("SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = %s", (visible,))
    (owner,) = cursor.fetchone()
    cursor.execute(_GRANTS, (visible, visible))
    grants = [
        (part, privilege, _role(cursor, grantee), is_grantable)
        for part, privilege, grantee, is_grantable in cursor.fetchall()
    ]
    cursor.execute(_COMMENTS, (visible, visible))
    comments = [(part, text) for part, text in cursor.fetchall() if text and is_users(text)]
    cursor.execute(_LOST, ([*found],) * 7)
    lost = [title for (title,) in cursor.fetchall()]
    indexes = indexes_of(cursor, rows)
    return UserAdditions(owner, tuple(grants), tuple(comments), tuple(indexes), tuple(lost))


def is_users(comment: str) -> bool:
    """Return whether a comment is a user's, not ours."""
    return not comment.startswith(OURS)


def indexes_of(cursor: Any, oid: int) -> list[Index]:
    """Return the indexes of a table besides its key."""
    cursor.execute(_INDEXES, (oid,))
    return [
        Index(name, is_unique, definition.removeprefix(head))
        for name, is_unique, definition, head in cursor.fetchall()
    ]


def not_carried_over(cursor: Any, before: SinkTable, table: SinkTable) -> list[str]:
    """Return what could not be carried over to a table of these columns, as far as predictable."""
    additions = find(cursor, before)
    if additions is None:
        return []
    names = {f.name for f in table.fields}
    lost_columns = [
        part for part, *_ in (*additions.grants, *additions.comments) if part and part not in names
    ]
    warnings = [f'grants and comments of column "{part}"' for part in dict.fromkeys(lost_columns)]
    columns = [f.name for f in before.fields if f.name not in names]
    warnings += [
        f'index "{index.name}"'
        for index in additions.indexes
        if any(_mentions(index, column) for column in columns)
    ]
    return [*warnings, *additions.lost]


def _mentions(index: Index, column: str) -> bool:
    return column in index.tail.replace("(", " ").replace(")", " ").replace(",", " ").split()


def prepare(cursor: Any, table: SinkTable, staged_sql: str) -> None:
    """Create the indexes of the view's table on its next one, under other names."""
    found = oids_of(cursor, table)
    for index in indexes_of(cursor, found[0]) if found else ():
        _try(cursor, f"CREATE {_unique(index)}INDEX ON {staged_sql}{index.tail}")


def give(cursor: Any, table: SinkTable, additions: UserAdditions) -> list[str]:
    """Carry over to the view's current table; return warnings about what could not be."""
    found = oids_of(cursor, table)
    assert found is not None
    warnings = [f"not carried over to the new table: {title}" for title in additions.lost]
    target = target_of(table)
    visible = f"{quote_name(table.schema)}.{quote_name(table.name)}"
    word = "VIEW" if target.is_multiset else "TABLE"
    ready = {(i.is_unique, i.tail): i.name for i in indexes_of(cursor, found[0])}
    steps = [(f'index "{i.name}"', _index_step(i, ready, target)) for i in additions.indexes]
    for part, privilege, role, is_grantable in additions.grants:
        on = f" ({quote_name(part)})" if part else ""
        option = " WITH GRANT OPTION" if is_grantable else ""
        steps.append(
            (
                f"grant of {privilege} to {role}",
                f"GRANT {privilege}{on} ON {visible} TO {role}{option}",
            )
        )
    for part, text in additions.comments:
        on = f"COLUMN {visible}.{quote_name(part)}" if part else f"{word} {visible}"
        steps.append(
            (f'comment on "{part or table.name}"', f"COMMENT ON {on} IS {quote_text(text)}")
        )
    owner = quote_name(additions.owner)
    for sql, kind in dict.fromkeys(((visible, word), (target.sql, "TABLE"))):
        cursor.execute(
            "SELECT pg_get_userbyid(relowner) FROM pg_class WHERE oid = %s::regclass", (sql,)
        )
        if cursor.fetchone()[0] != additions.owner:
            steps.append((f"owner {owner}", f"ALTER {kind} {sql} OWNER TO {owner}"))
    for title, statement in steps:
        error = _try(cursor, statement)
        if error:
            warnings.append(f"not carried over to the new table: {title}: {error}")
    return warnings


def _index_step(index: Index, ready: dict[tuple[bool, str], str], target: Any) -> str:
    name = ready.get((index.is_unique, index.tail))
    if name is None:
        return f"CREATE {_unique(index)}INDEX {quote_name(index.name)} ON {target.sql}{index.tail}"
    old = f"{quote_name(target.schema)}.{quote_name(name)}"
    return f"ALTER INDEX {old} RENAME TO {quote_name(index.name)}"


def _unique(index: Index) -> str:
    return "UNIQUE " if index.is_unique else ""


def _role(cursor: Any, oid: int) -> str:
    if oid == 0:
        return "PUBLIC"
    cursor.execute("SELECT pg_get_userbyid(%s)", (oid,))
    return quote_name(cursor.fetchone()[0])


def _try(cursor: Any, statement: str) -> str:
    """Run a statement that may fail; return the reason, or ""."""
    cursor.execute("SAVEPOINT additions")
    try:
        cursor.execute(statement)
    except psycopg2.Error as error:
        cursor.execute("ROLLBACK TO SAVEPOINT additions")
        return str(error.diag.message_primary)
    cursor.execute("RELEASE SAVEPOINT additions")
    return ""
