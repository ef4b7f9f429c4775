"""Whose rights a user's functions have: the view's creator's, never the service's.

SET ROLE alone is no wall: a function may say RESET ROLE, or set_config('role', ...), and is the
service again. Inside a SECURITY DEFINER function PostgreSQL refuses both (guc.c,
GUC_NOT_WHILE_SEC_REST), so what may call a user's function stands in a temporary one that belongs
to the creator. Invariant: nothing of a user's runs under another role outside of such a function,
and every transaction in which it ran is read-only and rolled back: what it set is gone with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg2

from connectors.postgres.quoting import quote_name
from connectors.postgres.session import to_error
from dataflow.errors import SourceError, SqlError

CONFINED = "tidemark_confined"
# What a view's rule depends on that somebody made; what came with PostgreSQL itself is pinned.
_CALLED = """
SELECT 'function', p.oid::regprocedure::text, a.rolname
FROM pg_rewrite r JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
LEFT JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
JOIN pg_proc p ON p.oid = CASE d.refclassid WHEN 'pg_proc'::regclass THEN d.refobjid
    ELSE o.oprcode::oid END
JOIN pg_roles a ON a.oid = p.proowner
WHERE r.ev_class = %s AND NOT a.rolsuper LIMIT 1
"""
# Functions in the conditions of domains, which run wherever a value of theirs is read or written.
_IN_DOMAINS = """
WITH RECURSIVE used(oid) AS (
    SELECT coalesce(c.atttypid, d.refobjid)
    FROM pg_rewrite r JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
    LEFT JOIN pg_attribute c ON d.refclassid = 'pg_class'::regclass AND c.attrelid = d.refobjid
        AND c.attnum = d.refobjsubid
    WHERE r.ev_class = %s AND (c.attnum > 0 OR d.refclassid = 'pg_type'::regclass)
    UNION SELECT t.typbasetype FROM pg_type t JOIN used ON used.oid = t.oid WHERE t.typbasetype <> 0
)
SELECT 'domain', k.contypid::regtype::text, a.rolname
FROM used JOIN pg_constraint k ON k.contypid = used.oid
JOIN pg_depend d ON d.classid = 'pg_constraint'::regclass AND d.objid = k.oid
JOIN pg_proc p ON d.refclassid = 'pg_proc'::regclass AND p.oid = d.refobjid
JOIN pg_roles a ON a.oid = p.proowner
WHERE NOT a.rolsuper AND a.rolname <> session_user LIMIT 1
"""
_MAY_SET = """
SELECT r.rolsuper, pg_has_role(session_user, r.oid, %s) FROM pg_roles r WHERE r.rolname = %s
"""
# Functions that came with PostgreSQL and tell nothing by the rights of whoever calls them.
_HARMFUL = """
SELECT p.oid::regprocedure::text FROM pg_proc p WHERE p.oid = ANY (%s) AND (
    p.oid >= 16384 OR p.provolatile = 'v'
    OR p.provolatile = 's' AND p.proname ~ '^pg_|_to_xml|^current_setting$')
UNION ALL
SELECT t.oid::regtype::text
FROM pg_rewrite r JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
JOIN pg_type t ON d.refclassid = 'pg_type'::regclass AND t.oid = d.refobjid
WHERE r.ev_class = %s AND t.typtype = 'd' AND t.oid >= 16384
LIMIT 1
"""


def assume(cursor: Any, role: str) -> None:
    """Go on as a role until the transaction ends. SourceError source.role."""
    try:
        cursor.execute(f"SET LOCAL ROLE {quote_name(role)}")
    except psycopg2.Error as error:
        if error.pgcode in ("22023", "42501", "42704"):
            raise no_role(role, str(error.diag.message_primary)) from None
        raise to_error(error, "source", f'cannot act as role "{role}"') from error


def try_assume(cursor: Any, role: str) -> bool:
    """The same, or False when there is no such role, or the session's is no member of it."""
    word = "SET" if cursor.connection.server_version >= 160000 else "MEMBER"
    cursor.execute(_MAY_SET, (word, role))
    found = cursor.fetchone()
    if found is None or not found[1]:
        return False
    assume(cursor, role)
    return True


def no_role(role: str, why: str) -> SourceError:
    """The error for a creator that the service cannot act for."""
    return SourceError(
        "source.role",
        f'the service cannot act as role "{role}" at the source',
        detail=why,
        hint=f"functions run with their creator's rights: GRANT {quote_name(role)} TO the "
        "service's role",
    )


def check_role(session: Any, role: str) -> None:
    """Whether views may be created for a role: it is there, ours to act as, and no superuser.

    session: of rows(sql, parameters). SourceError source.role.
    """
    word = "SET" if session.server_version >= 160000 else "MEMBER"
    found = session.rows(_MAY_SET, (word, role))
    if not found:
        raise no_role(role, "it does not exist there")
    is_super, may_set = found[0]
    if is_super:
        raise no_role(role, "it is a superuser, whose rights no token gives")
    if not may_set:
        raise no_role(role, "the service's role is no member of it")


def confine(cursor: Any, relation: str) -> str:
    """Make a function that reads a temporary view under the present role, whatever it calls;
    what stands after FROM."""
    cursor.execute(
        f"CREATE OR REPLACE FUNCTION pg_temp.{CONFINED}() RETURNS SETOF pg_temp.{relation}"
        f" LANGUAGE sql SECURITY DEFINER AS 'SELECT * FROM pg_temp.{relation}'"
    )
    return f"pg_temp.{CONFINED}()"


def check_trusted(cursor: Any, relation: int) -> None:
    """Nobody's function runs with more rights than its owner's, by way of a view's query.

    A superuser's session calls superusers' functions only; a domain's condition, which our own
    sessions compute wherever a value is read or written, calls theirs and ours only. SqlError
    sql.untrusted_function.
    """
    cursor.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user")
    (is_super,) = cursor.fetchone() or (False,)
    for question in (_CALLED, _IN_DOMAINS) if is_super else (_IN_DOMAINS,):
        cursor.execute(question, (relation,))
        found = cursor.fetchone()
        if found is not None:
            kind, name, owner = found
            raise SqlError(
                "sql.untrusted_function",
                f'{kind} "{name}" would run with more rights than its owner\'s',
                detail=f'its owner "{owner}" is no superuser, and the service calls it',
                hint="create the view for a database role (a token's db_role), or run the service "
                "as a role without superuser rights; give a domain's functions to a superuser",
            )


def check_harmless(cursor: Any, relation: int, called: Sequence[int], role: str) -> None:
    """For a creator that the service cannot act as: what a view calls must not depend on rights.

    SourceError source.role.
    """
    cursor.execute(_HARMFUL, (list(called), relation))
    found = cursor.fetchone()
    if found is not None:
        why = f"the service's role is no member of it, and the query calls {found[0]}"
        raise no_role(role, why)
