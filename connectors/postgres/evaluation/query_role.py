"""The role without rights that runs users' functions for views that the service itself owns.

Created once per cluster by deploy/role.sql or `tidemark init`. Invariant: it has no attribute, is a
member of nothing and has no right on schema tidemark. In a database it has TEMPORARY, and USAGE of
schemas to find functions. It reads only what PUBLIC may read.
"""

from __future__ import annotations

from collections.abc import Iterable

from connectors.postgres.session.quoting import quote_name
from connectors.postgres.session.session import Session

QUERY_ROLE = "tidemark_query"
_GRANTABLE_SINCE = 160000
_POWERLESS = "NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOINHERIT NOREPLICATION NOBYPASSRLS"
# May run twice, when source and sink in one server are prepared.
_CREATE = (
    f"DO $$ BEGIN CREATE ROLE {QUERY_ROLE} {_POWERLESS};"
    " EXCEPTION WHEN duplicate_object THEN NULL; END $$;"
)
_FACTS = """
SELECT q.oid IS NOT NULL,
  coalesce(q.rolcanlogin OR q.rolsuper OR q.rolcreatedb OR q.rolcreaterole OR q.rolinherit
    OR q.rolreplication OR q.rolbypassrls, false),
  r.rolsuper OR coalesce(pg_has_role(r.oid, q.oid, 'MEMBER') AND %(is_member)s, false),
  ARRAY(SELECT n.nspname::text FROM pg_namespace AS n WHERE n.nspname = ANY (%(schemas)s)
    AND NOT has_schema_privilege(coalesce(q.rolname, 'public'), n.oid, 'USAGE') ORDER BY 1),
  has_database_privilege(coalesce(q.rolname, 'public'), current_database(), 'TEMPORARY'),
  EXISTS (SELECT FROM pg_namespace AS n, aclexplode(n.nspacl) AS a
    WHERE n.nspname = 'tidemark' AND a.grantee = q.oid),
  current_database()
FROM pg_roles AS r LEFT JOIN pg_roles AS q ON q.rolname = %(query_role)s WHERE r.rolname = %(role)s
"""
_MEMBERSHIPS = """
SELECT g.rolname, m.grantor::regrole::text FROM pg_auth_members AS m
JOIN pg_roles AS g ON g.oid = m.roleid JOIN pg_roles AS q ON q.oid = m.member
WHERE q.rolname = %s ORDER BY 1, 2
"""


def lacking(session: Session, role: str, schemas: Iterable[str]) -> list[str]:
    """Return the statements that set up the role for the service's own role, in order; [] if none.

    schemas: where views' functions may be; missing schemas are ignored.
    """
    is_new = session.server_version >= _GRANTABLE_SINCE
    # Before 16 a member may always act as the role.
    ways = "pg_has_role(r.oid, q.oid, 'USAGE') AND pg_has_role(r.oid, q.oid, 'SET')"
    facts = _FACTS.replace("%(is_member)s", ways if is_new else "true")
    found = {"role": role, "query_role": QUERY_ROLE, "schemas": list(schemas)}
    ((is_there, is_powerful, is_member, shut, may_temporary, is_let_in, database),) = session.rows(
        facts, found
    )
    needed = [] if is_there else [_CREATE]
    if is_powerful:
        needed.append(f"ALTER ROLE {QUERY_ROLE} {_POWERLESS};")
    for group, grantor in session.rows(_MEMBERSHIPS, (QUERY_ROLE,)):
        by = f" GRANTED BY {grantor}" if is_new else ""
        needed.append(f"REVOKE {quote_name(group)} FROM {QUERY_ROLE}{by};")
    if not is_member:
        options = " WITH INHERIT TRUE, SET TRUE" if is_new else ""
        needed.append(f"GRANT {QUERY_ROLE} TO {quote_name(role)}{options};")
    needed += [f"GRANT USAGE ON SCHEMA {quote_name(one)} TO {QUERY_ROLE};" for one in shut]
    if not may_temporary:
        needed.append(f"GRANT TEMPORARY ON DATABASE {quote_name(database)} TO {QUERY_ROLE};")
    if is_let_in:
        needed.append(f"REVOKE ALL ON SCHEMA tidemark FROM {QUERY_ROLE};")
    return needed
