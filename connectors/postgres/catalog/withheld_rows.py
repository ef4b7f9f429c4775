"""Rows that nobody may read for now: those of a view whose owner lost the right to what it reads.

The rows stay. While they are withheld the service owns the view's relations, and alone has rights
to them; owners and grants are stored in tidemark.views.withheld, by the roles' OIDs, and given back
exactly. Invariant: rights are taken and given back in one transaction with that record, which
exists before they are taken.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psycopg2.extras import Json

from connectors.postgres.catalog.catalog import Control
from connectors.postgres.session.quoting import quote_name

# A view whose table is in use is tried again: the pipeline does not wait.
_PATIENCE = "SET LOCAL lock_timeout = '200ms'"
_LOCKED = "SELECT withheld FROM tidemark.views WHERE identity = %s FOR UPDATE"
_NOTE = """
UPDATE tidemark.views SET updated_at = now(), withheld = coalesce(withheld, '{}') || %s
WHERE identity = %s RETURNING 1
"""
_RELATIONS = """
SELECT CASE c.oid WHEN t.table_oid THEN 'rows' WHEN t.view_oid THEN 'shown' ELSE 'history' END,
    c.oid::bigint, c.oid::regclass::text, CASE c.relkind WHEN 'v' THEN 'VIEW' ELSE 'TABLE' END,
    c.relowner::bigint, (SELECT jsonb_agg(jsonb_build_array('', a.privilege_type,
            a.grantee::bigint, a.is_grantable))
        FROM aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) AS a),
    (SELECT jsonb_agg(jsonb_build_array(p.attname, a.privilege_type, a.grantee::bigint,
            a.is_grantable))
        FROM pg_attribute AS p, aclexplode(p.attacl) AS a
        WHERE p.attrelid = c.oid AND p.attnum > 0 AND NOT p.attisdropped)
FROM tidemark.views AS v
JOIN tidemark.tables AS t ON (t.schema, t.name) = (v.schema, v.name) AND NOT t.is_staged
LEFT JOIN tidemark.histories AS h ON (h.schema, h.name) = (v.schema, v.name) AND NOT h.is_staged
JOIN pg_class AS c ON c.oid IN (t.table_oid, t.view_oid, h.view_oid)
WHERE v.identity = %s ORDER BY c.oid
"""
_GRANTEES = """
SELECT a.grantee::bigint FROM pg_class AS c, aclexplode(c.relacl) AS a WHERE c.oid = %s
UNION SELECT a.grantee::bigint FROM pg_attribute AS p, aclexplode(p.attacl) AS a
WHERE p.attrelid = %s
"""


def note(control: Control, identity: str, why: Mapping[str, Any]) -> None:
    """Record why a view's rows may not be read: from now on the service shows them to nobody."""
    control.rows(_NOTE, Json(dict(why)), identity)


def withhold(control: Control, identity: str) -> None:
    """Take all roles' rights to the relations of a view whose rows are withheld, once.

    TemporaryError while they are in use.
    """

    def take(cursor: Any) -> None:
        cursor.execute(_PATIENCE)
        cursor.execute(_LOCKED, (identity,))
        found = cursor.fetchone()
        # They may have been given back since the caller read that they are withheld.
        if found is None or found[0] is None or "relations" in found[0]:
            return
        cursor.execute(_RELATIONS, (identity,))
        kept = {}
        for part, oid, title, kind, owner, grants, of_columns in cursor.fetchall():
            kept[part] = {"owner": owner, "grants": [*(grants or ()), *(of_columns or ())]}
            cursor.execute(f"ALTER {kind} {title} OWNER TO CURRENT_USER")
            _revoke_all(cursor, title, oid, but_own=True)
        cursor.execute(_NOTE, (Json({"relations": kept}), identity))

    control.transact(take)


def give_back(control: Control, identity: str, rights: str) -> None:
    """Give the rights back that were taken, and let the rows be read. TemporaryError."""

    def give(cursor: Any) -> None:
        cursor.execute(_PATIENCE)
        cursor.execute(_LOCKED, (identity,))
        found = cursor.fetchone()
        kept = (found[0] or {}).get("relations") or {} if found else {}
        cursor.execute(_RELATIONS, (identity,))
        # They may be others than those that were taken: a view may get another query meanwhile.
        for part, oid, title, kind, *_ in cursor.fetchall():
            if part in kept:
                _give(cursor, (oid, title, kind), kept[part])
        cursor.execute(
            "UPDATE tidemark.views SET updated_at = now(), withheld = NULL, rights = %s"
            " WHERE identity = %s",
            (rights, identity),
        )

    control.transact(give)


def _give(cursor: Any, relation: tuple[int, str, str], kept: Mapping[str, Any]) -> None:
    oid, title, kind = relation
    owner = _name_of(cursor, kept["owner"])
    if owner:
        cursor.execute(f"ALTER {kind} {title} OWNER TO {quote_name(owner)}")
    _revoke_all(cursor, title, oid, but_own=not owner)
    for column, privilege, grantee, is_grantable in kept["grants"]:
        role = _name_of(cursor, grantee)
        if grantee and not role:
            continue
        part = f" ({quote_name(column)})" if column else ""
        to = quote_name(role) if role else "PUBLIC"
        option = " WITH GRANT OPTION" if is_grantable and role else ""
        cursor.execute(f"GRANT {privilege}{part} ON {title} TO {to}{option}")


def _name_of(cursor: Any, oid: int) -> str:
    """Return the name of a role; "" for PUBLIC, and for one that was dropped."""
    cursor.execute("SELECT rolname FROM pg_roles WHERE oid = %s", (oid,))
    found = cursor.fetchone()
    return found[0] if found else ""


def _revoke_all(cursor: Any, title: str, oid: int, *, but_own: bool) -> None:
    """Revoke what roles have on a relation and its columns; but_own: except for the service."""
    cursor.execute("SELECT oid::bigint FROM pg_roles WHERE rolname = current_user")
    (own,) = cursor.fetchone()
    cursor.execute(_GRANTEES, (oid, oid))
    for (grantee,) in cursor.fetchall():
        role = _name_of(cursor, grantee)
        if not (but_own and grantee == own) and (role or not grantee):
            of = quote_name(role) if role else "PUBLIC"
            cursor.execute(f"REVOKE ALL ON {title} FROM {of} CASCADE")
