"""Objects of users that depend on what would be removed, as PostgreSQL's own RESTRICT finds them.

Invariant: nothing is dropped that somebody else has made. An object that belongs to another (a
trigger or an index of a table, the rule of a view) goes with it and is no dependent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dataflow.errors import SinkError

CLASS, NAMESPACE, TRIGGER = "pg_class", "pg_namespace", "pg_trigger"
Root = tuple[str, int]

_DEPENDENTS = """
WITH RECURSIVE ours AS (
    SELECT c::regclass::oid AS classid, i::oid AS objid
    FROM unnest(%s::text[], %s::bigint[]) AS r (c, i)
    UNION
    SELECT d.classid, d.objid FROM pg_depend AS d
    JOIN ours AS o ON (d.refclassid, d.refobjid) = (o.classid, o.objid)
    WHERE d.deptype IN ('a', 'i', 'P', 'S') OR o.classid = 'pg_namespace'::regclass
)
SELECT DISTINCT CASE WHEN w.oid IS NULL THEN pg_describe_object(d.classid, d.objid, 0)
    ELSE pg_describe_object('pg_class'::regclass, w.ev_class, 0) END
FROM pg_depend AS d JOIN ours AS o ON (d.refclassid, d.refobjid) = (o.classid, o.objid)
LEFT JOIN pg_rewrite AS w ON d.classid = 'pg_rewrite'::regclass AND w.oid = d.objid
WHERE d.deptype = 'n' AND NOT EXISTS (
    SELECT FROM ours AS x WHERE (x.classid, x.objid) = (d.classid, d.objid))
ORDER BY 1
"""


def dependents(cursor: Any, roots: Sequence[Root]) -> list[str]:
    """Return objects outside that depend on these and all that goes with them, in words.

    roots: (catalog, oid). Everything in a schema goes with it.
    """
    cursor.execute(_DEPENDENTS, ([c for c, _ in roots], [oid for _, oid in roots]))
    return [title for (title,) in cursor.fetchall()]


def require_none(cursor: Any, roots: Sequence[Root], *, may_keep: bool) -> None:
    """SinkError uninstall.dependents. may_keep: they depend on tables that could stay."""
    found = dependents(cursor, roots)
    if not found:
        return
    hint = "drop them first, then run tidemark uninstall again"
    if may_keep:
        hint += "; or keep the tables of the views: --keep-tables"
    raise SinkError(
        "uninstall.dependents",
        "objects of others depend on what would be removed",
        detail="; ".join(found[:20]) + ("; ..." if len(found) > 20 else ""),
        hint=hint,
    )
