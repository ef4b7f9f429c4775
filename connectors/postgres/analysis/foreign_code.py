"""Find other people's code in a view's query, from PostgreSQL's catalogs: the second line of
defense.

The sandbox is the first: functions run there with the rights of the view's creator, or none. This
module refuses, by name, what must not be called at all. That is: other people's functions called by
a superuser; conditions of domains at any nesting; extension functions that run text; and columns
whose values our session could not write without running the type owner's code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from connectors.postgres.evaluation.sandbox import no_role
from connectors.postgres.session.session_settings import PINNED
from dataflow.errors import SqlError
from dataflow.sql.bind.analysis import Routine

# Functions that a view's rule depends on, without PostgreSQL's own, which are pinned.
_CALLED = """
SELECT 'function', p.oid::regprocedure::text, a.rolname
FROM pg_rewrite r JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
LEFT JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
JOIN pg_proc p ON p.oid = CASE d.refclassid WHEN 'pg_proc'::regclass THEN d.refobjid
    ELSE o.oprcode::oid END
JOIN pg_roles a ON a.oid = p.proowner
WHERE r.ev_class = %s AND NOT a.rolsuper LIMIT 1
"""
# The types that a view's query uses, and all types they consist of.
_USED_TYPES = """
WITH RECURSIVE used(oid) AS (
    SELECT coalesce(c.atttypid, d.refobjid)
    FROM pg_rewrite r JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
    LEFT JOIN pg_attribute c ON d.refclassid = 'pg_class'::regclass AND c.attrelid = d.refobjid
        AND c.attnum = d.refobjsubid
    WHERE r.ev_class = %(view)s AND (c.attnum > 0 OR d.refclassid = 'pg_type'::regclass)
    UNION
    SELECT p.type
    FROM pg_rewrite r JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
    JOIN pg_proc f ON d.refclassid = 'pg_proc'::regclass AND f.oid = d.refobjid
    CROSS JOIN unnest(f.proargtypes::oid[] || f.prorettype) AS p(type)
    WHERE r.ev_class = %(view)s
    UNION
    SELECT a.atttypid FROM pg_attribute a
    WHERE a.attrelid = %(view)s AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT part.oid FROM used JOIN pg_type t ON t.oid = used.oid CROSS JOIN LATERAL (
        SELECT t.typbasetype WHERE t.typbasetype <> 0
        UNION ALL SELECT t.typelem WHERE t.typelem <> 0
        UNION ALL SELECT a.atttypid FROM pg_attribute a
            WHERE t.typrelid <> 0 AND a.attrelid = t.typrelid AND a.attnum > 0
                AND NOT a.attisdropped
        UNION ALL SELECT g.rngsubtype FROM pg_range g WHERE t.oid IN (g.rngtypid, g.rngmultitypid)
        -- A condition may turn its value into another domain's.
        UNION ALL SELECT d.refobjid FROM pg_constraint k JOIN pg_depend d
            ON d.classid = 'pg_constraint'::regclass AND d.objid = k.oid
            WHERE k.contypid = t.oid AND d.refclassid = 'pg_type'::regclass
    ) AS part(oid)
)
"""
# Functions in conditions of domains; they run whenever such a value is read or written.
_IN_DOMAINS = (
    _USED_TYPES
    + """
SELECT 'domain', k.contypid::regtype::text, a.rolname
FROM used JOIN pg_constraint k ON k.contypid = used.oid
JOIN pg_depend d ON d.classid = 'pg_constraint'::regclass AND d.objid = k.oid
LEFT JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
JOIN pg_proc p ON p.oid = CASE d.refclassid WHEN 'pg_proc'::regclass THEN d.refobjid
    ELSE o.oprcode::oid END
JOIN pg_roles a ON a.oid = p.proowner
WHERE NOT a.rolsuper AND a.rolname <> session_user LIMIT 1
"""
)
# Column types that our session must not write. A domain itself, or an array of it, is stored
# without its conditions. Inside rows and ranges they would be computed, and a row type can get
# such a part at any time. ANALYZE measures ranges by their owner's function.
_IN_OUTPUT = """
WITH RECURSIVE used(oid, is_inside) AS (
    SELECT a.atttypid, false FROM pg_attribute a
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
    UNION
    SELECT part.oid, part.is_inside
    FROM used JOIN pg_type t ON t.oid = used.oid CROSS JOIN LATERAL (
        SELECT t.typbasetype, used.is_inside WHERE t.typbasetype <> 0
        UNION ALL SELECT t.typelem, used.is_inside OR EXISTS (SELECT FROM pg_type AS e
            JOIN pg_type AS b ON b.oid = e.typbasetype
            WHERE e.oid = t.typelem AND b.typlen = -1 AND b.typelem <> 0) WHERE t.typelem <> 0
        UNION ALL SELECT a.atttypid, true FROM pg_attribute a
            WHERE t.typrelid <> 0 AND a.attrelid = t.typrelid AND a.attnum > 0
                AND NOT a.attisdropped
        UNION ALL SELECT g.rngsubtype, true FROM pg_range g
            WHERE t.oid IN (g.rngtypid, g.rngmultitypid)
    ) AS part(oid, is_inside)
)
SELECT t.oid::regtype::text, r.rolname
FROM used JOIN pg_type t ON t.oid = used.oid JOIN pg_roles r ON r.oid = t.typowner
WHERE (t.typtype IN ('c', 'r', 'm') OR t.typtype = 'd' AND used.is_inside)
    AND NOT r.rolsuper AND r.rolname <> session_user LIMIT 1
"""
# Calls and domains that may depend on the caller's rights, or have side effects. Only built-in
# functions, without these exceptions, are harmless.
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
# Settings that are equal in all our sessions, or that are the server's and not secret.
_SETTING = re.compile(r"current_setting\('([\w.]*)'::text(?:, (?:true|false))?\)")
_PUBLIC = {name.lower() for name in PINNED} | {
    *("server_version", "server_version_num", "server_encoding", "block_size"),
    *("integer_datetimes", "max_identifier_length"),
}
# Exceptions: functions with such a prefix that depend on their arguments only.
_OF_ARGUMENTS = ("pg_typeof", "pg_collation_for", "pg_column_size", "pg_size_pretty")
_OF_SESSIONS = ("current_setting", "getpgusername", "system_user")
# Functions of extensions belong to a superuser, and some run any text they receive.
_OF_EXTENSIONS = """
SELECT DISTINCT p.oid::regprocedure::text, e.extname
FROM pg_rewrite r JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
LEFT JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
JOIN pg_proc p ON p.oid = CASE d.refclassid WHEN 'pg_proc'::regclass THEN d.refobjid
    ELSE o.oprcode::oid END
JOIN pg_depend x ON x.classid = 'pg_proc'::regclass AND x.objid = p.oid AND x.deptype = 'e'
    AND x.refclassid = 'pg_extension'::regclass
JOIN pg_extension e ON e.oid = x.refobjid
WHERE r.ev_class = %s AND p.provolatile <> 'i'
"""
# Extensions with functions that run SQL text, read files or open connections. Their stable
# functions are always refused.
_REFUSED_EXTENSIONS = (
    *("adminpack", "amcheck", "dblink", "file_fdw", "http", "lo", "oracle_fdw", "pageinspect"),
    *("pg_background", "pg_buffercache", "pg_cron", "pg_net", "pg_prewarm", "pg_stat_statements"),
    *("pg_surgery", "pg_visibility", "pg_walinspect", "pgrowlocks", "pgstattuple", "plperlu"),
    *("plpython3u", "pltclu", "postgres_fdw", "sslinfo", "tablefunc", "xml2"),
)


def depends_on_session(routine: Routine) -> bool:
    """Return whether a built-in stable function depends on more than its arguments.

    Examples: settings, rights, sessions or tables.
    """
    name = routine.name
    if "." in name or routine.volatility != "s" or name in _OF_ARGUMENTS:
        return False
    is_question = name.startswith(("pg_", "has_", "inet_", "row_security", "txid_"))
    return is_question or "_to_xml" in name or name in _OF_SESSIONS


def check_routines(text: str, routines: Sequence[Routine]) -> None:
    """Require that a view's functions return the same for every session. text: the canonical query.

    SqlError sql.session_function.
    """
    settings = [name.lower() for name in _SETTING.findall(text)]
    is_pinned = len(settings) == text.count("current_setting(") and _PUBLIC.issuperset(settings)
    for routine in routines:
        if depends_on_session(routine) and not (is_pinned and routine.name == "current_setting"):
            raise SqlError(
                "sql.session_function",
                f"function {routine.name}() depends on the server or the session",
                detail="a view is computed once, in the service's own sessions",
                hint="remove it, or write its value as a constant",
            )


def check_trusted(cursor: Any, relation: int, role: str) -> None:
    """Require that no function called by a view's query runs with more rights than its owner's.

    A superuser (the service itself, when no role is given) may call only superusers' functions. A
    domain's condition may call only theirs and ours, however deep the domain lies in arrays, rows
    and ranges. SqlError sql.untrusted_function, sql.extension_function.
    """
    cursor.execute(
        "SELECT rolsuper FROM pg_roles WHERE rolname = coalesce(nullif(%s, ''), current_user)",
        (role,),
    )
    (is_super,) = cursor.fetchone() or (False,)
    questions: list[tuple[str, Any]] = [(_IN_DOMAINS, {"view": relation})]
    if is_super:
        questions.insert(0, (_CALLED, (relation,)))
    for question, parameters in questions:
        cursor.execute(question, parameters)
        found = cursor.fetchone()
        if found is not None:
            kind, name, owner = found
            raise SqlError(
                "sql.untrusted_function",
                f'{kind} "{name}" would run with more rights than its owner\'s',
                detail=f'its owner "{owner}" is not a superuser, and the service would call it',
                hint="create the view for a database role (a token's db_role), or run the service "
                "as a role without superuser rights; give a domain's functions to a superuser",
            )
    cursor.execute(_OF_EXTENSIONS, (relation,))
    for name, extension in cursor.fetchall():
        if extension in _REFUSED_EXTENSIONS:
            raise SqlError(
                "sql.extension_function",
                f'function "{name}" of extension "{extension}" is not allowed',
                detail="it runs text passed to it, or depends on more than its arguments",
                hint="write it in SQL instead: a join, or an aggregate with FILTER",
            )


def check_outputs(cursor: Any, relation: int) -> None:
    """Require that writing a view's columns in our session runs nobody else's code.

    SqlError sql.untrusted_type.
    """
    cursor.execute(_IN_OUTPUT, (relation,))
    found = cursor.fetchone()
    if found is not None:
        name, owner = found
        raise SqlError(
            "sql.untrusted_type",
            f'type "{name}" is not allowed in a column of a view',
            detail=f'its owner "{owner}" can make the service run code whenever a value is written',
            hint="cast the column to text, select its fields, or use to_jsonb(); or give the"
            " type to a superuser",
        )


def check_harmless(cursor: Any, relation: int, called: Sequence[int], role: str) -> None:
    """Require, for a creator that the service cannot act as, that the view's calls ignore rights.

    SourceError source.role.
    """
    cursor.execute(_HARMFUL, (list(called), relation))
    found = cursor.fetchone()
    if found is not None:
        why = f"the service's role is not a member of it, and the query calls {found[0]}"
        raise no_role(role, why)
