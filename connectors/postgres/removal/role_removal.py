"""Privileges of the service's role and of the role without rights, in one database.

Only a role that owns nothing else in the database is one that was made for the service: what it was
granted is revoked, so that DROP ROLE works. Another role's privileges may be needed, and stay. The
role itself is never dropped: `deploy/role.sql` or an administrator has made it. The role without
rights is dropped once nobody else uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from connectors.postgres.evaluation.query_role import QUERY_ROLE
from connectors.postgres.session.quoting import quote_name
from connectors.postgres.session.session import Session
from connectors.removal import Removal
from dataflow.errors import SinkError, SourceError
from storage.failpoints import failpoint

# Schemas that go as a whole, with the privileges on what they have.
OWN_SCHEMAS = ("tidemark", "tidemark_time", "tidemark_python")
# Kind, name as SQL, privileges in words, and whether this session has the rights of the owner, who
# alone revokes what an owner has granted.
_GRANTS = """
WITH grantee AS (SELECT oid FROM pg_roles WHERE rolname = %(role)s),
granted AS (
    SELECT 'DATABASE' AS kind, quote_ident(d.datname) AS name, d.datdba AS owner, d.datacl AS acl
    FROM pg_database AS d WHERE d.datname = current_database()
    UNION ALL SELECT 'SCHEMA', quote_ident(n.nspname), n.nspowner, n.nspacl
    FROM pg_namespace AS n WHERE n.nspname <> ALL (%(schemas)s)
    UNION ALL SELECT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END,
        c.oid::regclass::text, c.relowner, x.acl
    FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    CROSS JOIN LATERAL (SELECT c.relacl AS acl UNION ALL
        SELECT a.attacl FROM pg_attribute AS a WHERE a.attrelid = c.oid) AS x
    WHERE n.nspname <> ALL (%(schemas)s) AND c.oid <> ALL (%(ours)s::bigint[]::oid[])
        AND x.acl IS NOT NULL
    UNION ALL SELECT 'ROUTINE', p.oid::regprocedure::text, p.proowner, p.proacl
    FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
    WHERE n.nspname <> ALL (%(schemas)s)
    UNION ALL SELECT 'TYPE', t.oid::regtype::text, t.typowner, t.typacl FROM pg_type AS t)
SELECT g.kind, g.name, string_agg(DISTINCT a.privilege_type, ', ' ORDER BY a.privilege_type),
    pg_has_role(g.owner, 'USAGE')
FROM granted AS g CROSS JOIN aclexplode(g.acl) AS a
WHERE a.grantee = (SELECT oid FROM grantee) GROUP BY 1, 2, 4 ORDER BY 1, 2
"""
_OWNED = """
SELECT pg_describe_object(s.classid, s.objid, s.objsubid) FROM pg_shdepend AS s
JOIN pg_roles AS r ON r.oid = s.refobjid
JOIN pg_database AS b ON b.datname = current_database()
WHERE s.refclassid = 'pg_authid'::regclass AND s.deptype = 'o' AND r.rolname = %(role)s
    AND (s.dbid = b.oid OR s.dbid = 0 AND s.classid = 'pg_database'::regclass AND s.objid = b.oid)
    AND NOT (s.classid = 'pg_class'::regclass AND s.objid = ANY (%(ours)s::bigint[]::oid[]))
    AND NOT (s.classid = 'pg_publication'::regclass)
    AND coalesce((SELECT CASE WHEN i.type = 'schema' THEN i.name ELSE i.schema END
        FROM pg_identify_object(s.classid, s.objid, s.objsubid) AS i), '') <> ALL (%(schemas)s)
LIMIT 1
"""
# Whether it is a superuser; and whether this session may drop it.
_ROLE = """
SELECT r.rolsuper, me.rolsuper OR me.rolcreaterole FROM pg_roles AS r
CROSS JOIN (SELECT * FROM pg_roles WHERE rolname = current_user) AS me WHERE r.rolname = %s
"""
# What else than the service's role and the given databases uses the role without rights.
_USERS = """
SELECT 'role ' || m.member::regrole FROM pg_auth_members AS m JOIN pg_roles AS u ON u.oid = m.member
WHERE m.roleid = (SELECT oid FROM pg_roles WHERE rolname = %(query_role)s)
    AND u.rolname <> ALL (ARRAY[%(role)s, current_user]) AND NOT u.rolsuper
UNION ALL SELECT 'database ' || b.datname FROM pg_shdepend AS s JOIN pg_database AS b
    ON b.oid = CASE WHEN s.dbid = 0 THEN s.objid ELSE s.dbid END
WHERE s.refclassid = 'pg_authid'::regclass AND s.refobjid = (
        SELECT oid FROM pg_roles WHERE rolname = %(query_role)s)
    AND b.datname <> ALL (%(databases)s)
"""


class RoleRemoval:
    """The roles of a service in the database of a session. location: source or sink.

    role: the service's own. ours: oids of relations that are removed besides OWN_SCHEMAS.
    """

    def __init__(
        self, session: Session, location: str, role: str, ours: Sequence[int] = ()
    ) -> None:
        self._session = session
        self._location = location
        self._role = role
        self._ours = list(ours)

    @property
    def _given(self) -> dict[str, object]:
        return {"role": self._role, "ours": self._ours, "schemas": list(OWN_SCHEMAS)}

    def privileges(self) -> list[Removal]:
        """Return the privileges that the service's role has in the database."""
        role = self._session.rows(_ROLE, (self._role,))
        if not role or role[0][0]:
            return []  # a superuser was granted nothing
        if owned := self._session.rows(_OWNED, self._given):
            what = f'privileges of role "{self._role}"'
            note = f"it owns more than the service has made, such as {owned[0][0]}"
            return [Removal(self._location, what, note=note)]
        return self._revocations(self._role)

    def query_role(self) -> list[Removal]:
        """Return the privileges of the role without rights in the database."""
        return self._revocations(QUERY_ROLE)

    def _revocations(self, role: str) -> list[Removal]:
        removals = []
        for kind, name, privileges, may_revoke in self._granted(role):
            # Privileges on columns go with those on the table.
            sql = f"REVOKE ALL ON {kind} {name} FROM {quote_name(role)}"
            act = partial(self._revoke, sql, role, (kind, name)) if may_revoke else None
            what = f'{privileges} on {kind.lower()} {name} of role "{role}"'
            removals.append(Removal(self._location, what, act, command=f"{sql};"))
        return removals

    def _granted(self, role: str) -> list[tuple[str, str, str, bool]]:
        return self._session.rows(_GRANTS, {**self._given, "role": role})  # type: ignore[return-value]

    def _revoke(self, sql: str, role: str, subject: tuple[str, str]) -> None:
        self._session.execute(sql, doing=f"cannot run {sql}")
        # What another than the owner has granted stays, and PostgreSQL says nothing.
        if any((kind, name) == subject for kind, name, *_ in self._granted(role)):
            error = SinkError if self._location == "sink" else SourceError
            raise error(
                f"{self._location}.privilege",
                f"the privileges stay: {sql}",
                detail="another role than the owner has granted them",
                hint="run it as the role that has granted them",
            )
        _privilege_done()

    def drop_query_role(self, databases: Sequence[str]) -> list[Removal]:
        """Return the role without rights, which is of all services of the server.

        databases: those in which its privileges are revoked.
        """
        role = self._session.rows(_ROLE, (QUERY_ROLE,))
        if not role:
            return []
        given = {"query_role": QUERY_ROLE, "role": self._role, "databases": list(databases)}
        users = self._session.rows(_USERS, given)
        what, sql = f'role "{QUERY_ROLE}"', f"DROP ROLE {QUERY_ROLE}"
        if users:
            return [Removal(self._location, what, note=f"used by {users[0][0]} too")]
        act = partial(self._drop_role, sql) if role[0][1] else None
        return [Removal(self._location, what, act, command=f"{sql};")]

    def _drop_role(self, sql: str) -> None:
        self._session.execute(sql, doing=f"cannot run {sql}")
        _privilege_done()

    def service_role(self) -> list[Removal]:
        """Return the service's role itself, which stays, with what drops it."""
        role = self._session.rows(_ROLE, (self._role,))
        if not role or role[0][0]:
            return []
        note = f"if it was made for the service: DROP ROLE {quote_name(self._role)};"
        return [Removal(self._location, f'role "{self._role}"', note=note)]


def _privilege_done() -> None:
    failpoint("uninstall.privilege.after")
