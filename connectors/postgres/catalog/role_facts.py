"""Facts about a role in the sink; `service/access` decides.

Nothing is cached: a GRANT, a REVOKE or a dropped role counts at the next question. Membership is
PostgreSQL's own (pg_has_role with USAGE: the rights that a role has without SET ROLE).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from connectors.postgres.catalog.catalog import Control
from connectors.postgres.schema.stored_roles import current_oid
from connectors.postgres.session.quoting import LEADS_TO_SUPERUSER

# Since version 16, membership may exclude SET ROLE.
_ROLE = """
SELECT r.rolsuper,
    pg_has_role(session_user, r.oid, CASE WHEN current_setting('server_version_num')::integer
        >= 160000 THEN 'SET' ELSE 'MEMBER' END),
    r.rolsuper OR pg_has_role(r.oid, n.nspowner, 'USAGE')
FROM pg_roles AS r, pg_namespace AS n WHERE (r.rolname, r.oid) = (%s, %s) AND n.nspname = 'tidemark'
"""
# A foreign relation under a view's name gives no right to the view.
_READABLE = """
SELECT t.schema, t.name FROM tidemark.tables AS t
JOIN pg_class AS c ON c.oid = coalesce(t.view_oid, t.table_oid)
WHERE NOT t.is_staged AND has_schema_privilege(r.oid, c.relnamespace, 'USAGE')
    AND has_table_privilege(r.oid, c.oid, 'SELECT')
"""
_VIEWS = f"""
SELECT v.identity, coalesce(pg_has_role(r.oid, o.oid, 'USAGE'), false), EXISTS (
    SELECT FROM ({_READABLE}) AS c WHERE (c.schema, c.name) = (v.schema, v.name)),
    coalesce(NOT {LEADS_TO_SUPERUSER.format("o.oid")}, false)
FROM tidemark.views AS v JOIN pg_roles AS r ON r.rolname = %s
LEFT JOIN pg_roles AS o ON o.oid = {current_oid("v.created_by", "v.created_oid")}
WHERE %s OR v.identity = ANY (%s)
"""


@dataclass(frozen=True)
class RoleFacts:
    """A role. may_be_set: the service can act as it.

    is_of_service: it is a superuser or a member of the role that owns schema tidemark.
    """

    is_super: bool
    may_be_set: bool
    is_of_service: bool


@dataclass(frozen=True)
class ViewRights:
    """The rights of a role on a view: ownership (also by membership) and SELECT.

    may_join: the owner exists, and membership in it gives no superuser's rights.
    """

    is_owner: bool = False
    may_read: bool = False
    may_join: bool = False


def find_role(control: Control, role: str, oid: int | None) -> RoleFacts | None:
    """Return a role of the sink, or None: also if its name belongs to another role by now."""
    found = control.rows(_ROLE, role, oid)
    return RoleFacts(*found[0]) if found else None


def rights_on_views(
    control: Control, role: str, identities: Sequence[str] | None = None
) -> dict[str, ViewRights]:
    """Return a role's rights by view identity, for some views or all; {} without such a role."""
    found = control.rows(_VIEWS, role, identities is None, list(identities or ()))
    return {identity: ViewRights(*rights) for identity, *rights in found}


def may_create_in(control: Control, role: str, schema: str) -> bool | None:
    """Return whether a role may create tables in a schema; None without such a schema."""
    sql = "SELECT has_schema_privilege(%s, oid, 'CREATE') FROM pg_namespace WHERE nspname = %s"
    found = control.rows(sql, role, schema)
    return found[0][0] if found else None


def may_select(control: Control, role: str, schema: str, name: str) -> bool:
    """Return whether a role may SELECT from the table of a view."""
    sql = (
        f"SELECT FROM pg_roles AS r, LATERAL ({_READABLE}) AS c"
        " WHERE r.rolname = %s AND (c.schema, c.name) = (%s, %s)"
    )
    return bool(control.rows(sql, role, schema, name))


def may_call(control: Control, role: str, procedure: str) -> bool:
    """Return whether a role may CALL a procedure, named with its argument types."""
    sql = "SELECT has_function_privilege(%s, %s, 'EXECUTE')"
    return bool(control.rows(sql, role, procedure)[0][0])
