"""The sandbox: users' text and users' functions run with rights that are worth nothing to steal.

SET ROLE alone is not safe: a function may run RESET ROLE, or set_config('role', ...), and becomes
the session's login again. Inside a SECURITY DEFINER function PostgreSQL refuses both (guc.c,
GUC_NOT_WHILE_SEC_REST). So a user's text is parsed, planned and run only inside such a function, a
frame. The frame belongs to the view's creator, or to QUERY_ROLE, a role with no right to any table.
Invariants: no user's code runs outside a frame, parsing included (a literal of a domain runs the
domain's conditions); every transaction that ran it is rolled back.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg2

from connectors.postgres.evaluation.query_role import QUERY_ROLE, lacking
from connectors.postgres.session.quoting import quote_name, quote_text
from connectors.postgres.session.session import PINNED_PATH, Session, to_error
from connectors.postgres.session.session_settings import statements
from dataflow.errors import SinkError, SourceError
from dataflow.types import UTC

_HEAD = f"LANGUAGE plpgsql SECURITY DEFINER SET search_path = {PINNED_PATH}"
_RUN = f"""(statement text, path text) RETURNS void {_HEAD} AS $frame$
BEGIN
    PERFORM set_config('search_path', path, true);
    EXECUTE statement;
END $frame$"""
_EXPLAIN = f"""(query text, path text) RETURNS SETOF json {_HEAD} AS $frame$
BEGIN
    PERFORM set_config('search_path', path, true);
    RETURN QUERY EXECUTE 'EXPLAIN (VERBOSE, FORMAT JSON) ' || query;
END $frame$"""
# Skip strings and quoted names, except names of functions that are keywords.
_SESSION = re.compile(
    r"""(?<!\.)"(?P<call>current_user|user|current_schema)"\(\)|'(?:[^']|'')*'|"(?:[^"]|"")*"
    |\b(?P<user>CURRENT_USER|CURRENT_ROLE|USER)\b|\b(?P<schema>CURRENT_SCHEMA)\b
    |(?<![.\w$])(?P<schemas>current_schemas\()|(?P<parenthesis>[()])""",
    re.VERBOSE,
)
_PARTS = re.compile(r'"((?:[^"]|"")*)"|[^\s,]+')
_SCHEMAS = """
SELECT n.nspname::text FROM unnest(%s::text[]) WITH ORDINALITY AS p(name, at)
JOIN pg_namespace n ON n.nspname = p.name
WHERE has_schema_privilege(%s, n.oid, 'USAGE') GROUP BY n.nspname ORDER BY min(p.at)
"""
_MAY_SET = """
SELECT r.rolsuper, pg_has_role(session_user, r.oid, %s) FROM pg_roles r WHERE r.rolname = %s
"""
EVENT_TRIGGER = """SELECT quote_ident(t.evtname) || ', which calls ' || p.oid::regprocedure
        FROM pg_event_trigger t JOIN pg_proc p ON p.oid = t.evtfoid
        JOIN pg_roles a ON a.oid = p.proowner
        WHERE t.evtenabled <> 'D' AND NOT a.rolsuper AND a.rolname <> session_user LIMIT 1"""
_READINESS = f"""
SELECT coalesce((SELECT pg_has_role(session_user, q.oid, %(word)s)
            AND pg_has_role(session_user, q.oid, 'USAGE')
            AND has_database_privilege(q.oid, current_database(), 'TEMPORARY')
            AND NOT (q.rolcanlogin OR q.rolsuper OR q.rolcreatedb OR q.rolcreaterole
                OR q.rolinherit OR q.rolreplication OR q.rolbypassrls)
            AND NOT EXISTS (SELECT FROM pg_auth_members WHERE member = q.oid)
        FROM pg_roles q WHERE q.rolname = %(role)s), false),
    (SELECT array_agg(n.nspname::text ORDER BY n.nspname)
        FROM pg_namespace n LEFT JOIN pg_roles r ON r.rolname = %(role)s
        WHERE n.nspname !~ '^pg_' AND n.nspname NOT IN ('information_schema', 'tidemark')
            AND NOT has_schema_privilege(coalesce(r.rolname, 'public'), n.oid, 'USAGE')
            AND has_schema_privilege(session_user, n.oid, 'USAGE WITH GRANT OPTION')),
    ({EVENT_TRIGGER})
"""


def _as_before(cursor: Any) -> str:
    """Return the statements that restore every setting to its value at the session's start.

    An ordinary SET outlives its function. Text after a frame must not be parsed under a path, or
    printed in a format, that code inside chose. Our own settings end with the rolled-back
    transaction.
    """
    set_again = statements(cursor.connection.server_version)
    return "; ".join(["RESET ALL", f"SET search_path TO {PINNED_PATH}", *set_again])


@dataclass(frozen=True)
class Sandbox:
    """Makes the frames of one transaction.

    role: their owner; path: the search_path under which a user's text is parsed. A function's owner
    may replace it: each frame serves a single call, under a name that no code could foresee.
    time_zone: in which their texts are read and run; what they return is printed in UTC.
    """

    role: str
    path: str
    time_zone: str = UTC

    def run(self, cursor: Any, statement: str, path: str = "") -> None:
        """Run a statement inside a frame; then restore every setting."""
        make, call = self._frame(cursor, _RUN, (statement, path or self.path))
        cursor.execute(f"{make} SELECT {call}; {_as_before(cursor)}")

    def explain(self, cursor: Any, query: str) -> list[Any]:
        """Return the plan of a query, planned inside a frame, since planning computes constants.

        The transaction is read-only from here on.
        """
        make, call = self._frame(cursor, _EXPLAIN, (query, PINNED_PATH))
        cursor.execute(f"{make} SET LOCAL transaction_read_only = on; SELECT * FROM {call}")
        ((plan,),) = cursor.fetchall()
        cursor.execute(_as_before(cursor))
        return plan

    def _frame(self, cursor: Any, body: str, arguments: tuple[str, str]) -> tuple[str, str]:
        """Return the statements that make a frame for one call, and the call."""
        name, body = new_name(), body.replace(" AS $frame$", f"{self._zone} AS $frame$", 1)
        literals = cursor.mogrify("%s::text, %s::text", arguments).decode()
        owner = f"ALTER FUNCTION {name}(text, text) OWNER TO {quote_name(self.role)}"
        return f"CREATE FUNCTION {name}{body}; {owner};", f"{name}({literals})"

    @property
    def _zone(self) -> str:
        return zone_clause(self.time_zone)

    def make_view(
        self, cursor: Any, name: str, query: str, path: str = "", *, is_users: bool = False
    ) -> None:
        """Create a temporary view of a text, which is parsed inside a frame.

        is_users: the text is as a user wrote it, and will not run; else it is PostgreSQL's own.
        """
        text = query if is_users else as_login(cursor, query, self.role, self.path)
        self.run(cursor, f"CREATE TEMP VIEW {name} AS {text}", path)

    def lend_tables(self, cursor: Any, view: str) -> None:
        """Let a temporary view, once created and checked, read tables with the login's rights.

        PostgreSQL checks relations for a view's owner and runs its functions as the caller. So
        relations are read as the login, and functions stay inside the frame.
        """
        cursor.execute(
            f"ALTER VIEW pg_temp.{view} OWNER TO {quote_name(_login(cursor))};"
            f" GRANT SELECT ON pg_temp.{view} TO {quote_name(self.role)}"
        )

    def confine(self, cursor: Any, view: str, limit: int | None = None) -> str:
        """Create a function that reads a temporary view inside a frame; return the text after
        FROM."""
        most, name = "" if limit is None else f" LIMIT {limit}", new_name()
        cursor.execute(
            f"SET LOCAL search_path TO {self.path};"
            f" CREATE FUNCTION {name}() RETURNS SETOF pg_temp.{view}"
            f" LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT{self._zone}"
            f" AS 'SELECT * FROM pg_temp.{view}{most}';"
            f" SET LOCAL search_path TO {PINNED_PATH};"
            f" ALTER FUNCTION {name}() OWNER TO {quote_name(self.role)}"
        )
        return f"{name}()"


def zone_clause(time_zone: str) -> str:
    """Return the clause of CREATE FUNCTION with which a function runs in a time zone.

    >>> zone_clause("UTC"), zone_clause("Asia/Tokyo")
    ('', " SET TimeZone TO 'Asia/Tokyo'")
    """
    return "" if time_zone == UTC else f" SET TimeZone TO {quote_text(time_zone)}"


def as_login(cursor: Any, text: str, role: str, path: str) -> str:
    """Return a text of PostgreSQL's own in which session functions answer as outside the frame.

    They answer for the login or the creator, not for the frame. path: the frame's search_path.
    """
    names_schema = "current_schema" in text.lower()
    schemas = schemas_of(cursor, role, path) if names_schema else ()
    return with_session(text, schemas, is_login=role == QUERY_ROLE)


def with_session(text: str, schemas: Sequence[str], *, is_login: bool) -> str:
    """Replace session functions in a text of PostgreSQL's own by their answers.

    The user is the login if is_login; schemas are those of the search_path.

    >>> with_session("SELECT CURRENT_USER AS u, 'CURRENT_USER'::text AS t", [], is_login=True)
    "SELECT SESSION_USER AS u, 'CURRENT_USER'::text AS t"
    >>> with_session("current_schemas(f(')')) || CURRENT_SCHEMA", ["a"], is_login=True)
    "(CASE f(')') WHEN true THEN ARRAY['pg_catalog', 'a']::name[] WHEN false THEN\
 ARRAY['a']::name[] END) || ('a'::name)"
    """
    first = f"({quote_text(schemas[0]) if schemas else 'NULL'}::name)"
    implied = schemas if "pg_catalog" in schemas else ["pg_catalog", *schemas]
    both = [f"ARRAY[{', '.join(map(quote_text, names))}]::name[]" for names in (implied, schemas)]
    answer = f" WHEN true THEN {both[0]} WHEN false THEN {both[1]} END)"
    # For each open parenthesis, whether it is that of current_schemas.
    opened: list[bool] = []

    def written(found: re.Match[str]) -> str:
        if found["schema"] or found["call"] == "current_schema":
            return first
        if found["user"] or found["call"]:
            return "SESSION_USER" if is_login else found[0]
        if found["schemas"]:
            opened.append(True)
            return "(CASE "
        if found["parenthesis"] == "(":
            opened.append(False)
        elif found["parenthesis"] and opened and opened.pop():
            return answer
        return found[0]

    return _SESSION.sub(written, text)


def schemas_of(cursor: Any, role: str, path: str) -> list[str]:
    """Return the existing, usable schemas of a frame's search_path, without the temporary one."""
    who = _login(cursor) if role == QUERY_ROLE else role
    parts = [
        found[0].lower() if found[1] is None else found[1].replace('""', '"')
        for found in _PARTS.finditer(path)
    ]
    cursor.execute(_SCHEMAS, ([who if part == "$user" else part for part in parts], who))
    return [name for (name,) in cursor.fetchall()]


def enter(cursor: Any, dsn: str, role: str = "", time_zone: str = UTC) -> Sandbox:
    """Return the sandbox of a transaction, for a role that the login may act as, "" for QUERY_ROLE.

    dsn: of the cursor's session. time_zone: a name that the server knows. The caller must roll the
    transaction back. SourceError source.role, source.query_role, source.event_trigger.
    """
    query_role = ready(cursor, dsn)
    owner = role or query_role
    name = new_name()
    try:
        cursor.execute(f"CREATE FUNCTION {name}{_RUN}")
        give(cursor, f"{name}(text, text)", owner)
    except psycopg2.Error as error:
        raise to_error(error, "source", f'cannot act as role "{owner}"') from error
    return Sandbox(owner, path_of(cursor, owner), time_zone)


def new_name() -> str:
    """Return a name for a frame, which no code can foresee."""
    return f"pg_temp.tidemark_frame_{secrets.token_hex(8)}"


def give(cursor: Any, function: str, role: str) -> None:
    """Transfer a SECURITY DEFINER function to a role. Its body has not been resolved yet."""
    try:
        cursor.execute(f"ALTER FUNCTION {function} OWNER TO {quote_name(role)}")
    except psycopg2.Error as error:
        if error.pgcode in ("22023", "42501", "42704"):
            raise no_role(role, str(error.diag.message_primary)) from None
        raise


def path_of(cursor: Any, role: str) -> str:
    """Return the login's default search_path, for a text that a role's frame parses."""
    cursor.execute(
        "SET LOCAL search_path TO DEFAULT;"
        " SELECT current_setting('search_path'), session_user::text"
    )
    path, login = cursor.fetchone()
    cursor.execute(f"SET LOCAL search_path TO {PINNED_PATH}")
    # An empty path is shown as an empty name, which SET rejects.
    parts = [part.strip() for part in path.split(",") if part.strip() not in ("", '""')]
    if role == QUERY_ROLE:
        # In a frame, "$user" means the frame's owner.
        parts = [quote_name(login) if p.strip('"') == "$user" else p for p in parts]
    parts = [p if p.startswith('"') else quote_name(p) for p in parts]
    if '"pg_temp"' not in parts:
        # Last, or a table named "text" would capture the word in casts.
        parts.append("pg_temp")
    return ", ".join(parts)


def ready(cursor: Any, dsn: str) -> str:
    """Return QUERY_ROLE once it is set up; set it up where the login may.

    SourceError source.query_role, source.event_trigger.
    """
    is_well, schemas, trigger = _facts(cursor)
    if trigger is not None:
        check_event_triggers([(trigger,)])
    if is_well and not schemas:
        return QUERY_ROLE
    left = _make_ready(dsn, schemas or [])
    if left:
        raise SourceError(
            "source.query_role",
            f'the service cannot act as role "{QUERY_ROLE}" at the source',
            detail="users' functions run as this role, which has no right to any table",
            hint=f"as an administrator, run tidemark init, or {' '.join(left)}",
        )
    return QUERY_ROLE


def check_event_triggers(found: Sequence[tuple[str]], *, is_sink: bool = False) -> None:
    """Refuse event triggers that run other roles' code when the service changes a database.

    found: the answer to EVENT_TRIGGER. SourceError source.event_trigger, SinkError
    sink.event_trigger.
    """
    if not found:
        return
    code, kind = "source.event_trigger", SourceError
    if is_sink:
        code, kind = "sink.event_trigger", SinkError
    raise kind(
        code,
        f"an event trigger would run with the service's rights: {found[0][0]}",
        detail="its function's owner is not a superuser",
        hint="drop or disable the trigger, or give its function to a superuser",
    )


def _facts(cursor: Any) -> tuple[Any, ...]:
    word = "SET" if cursor.connection.server_version >= 160000 else "MEMBER"
    cursor.execute(_READINESS, {"role": QUERY_ROLE, "word": word})
    return cursor.fetchone()


def _make_ready(dsn: str, schemas: list[str]) -> list[str]:
    """Set up the role, in a session that commits, as far as the login may.

    Return the statements that it may not run.
    """
    session = Session(dsn)
    try:
        ((login,),) = session.rows("SELECT session_user::text")
        for statement in lacking(session, login, schemas):
            # We may lack the right, or another process does it just now: checked again below.
            with suppress(SourceError):
                session.execute(statement)
        return lacking(session, login, ())
    finally:
        session.close()


def _login(cursor: Any) -> str:
    cursor.execute("SELECT session_user::text")
    return cursor.fetchone()[0]


def choose_role(cursor: Any, requester: str) -> tuple[str, bool]:
    """Return whose frames a requester's text gets: a role ("" for QUERY_ROLE), and a flag.

    The flag says that the login may not act as the requester. No text gets a superuser's rights: it
    gets QUERY_ROLE's.
    """
    if not requester:
        return "", False
    word = "SET" if cursor.connection.server_version >= 160000 else "MEMBER"
    cursor.execute(_MAY_SET, (word, requester))
    found = cursor.fetchone()
    if found is None or not found[1]:
        return "", True
    return ("" if found[0] else requester), False


def no_role(role: str, why: str, *, is_super: bool = False) -> SourceError:
    """Return the error for a creator that the service cannot act for."""
    hint = f"functions run with their creator's rights: GRANT {quote_name(role)} TO the service's"
    return SourceError(
        "source.role",
        f'the service cannot act as role "{role}" at the source',
        detail=why,
        hint="use a role that is not a superuser" if is_super else f"{hint} role",
    )


def check_role(session: Any, role: str) -> None:
    """Require that views may be created for a role: it exists, is ours to act as, and no superuser.

    session: has rows(sql, parameters). SourceError source.role.
    """
    word = "SET" if session.server_version >= 160000 else "MEMBER"
    found = session.rows(_MAY_SET, (word, role))
    if not found:
        raise no_role(role, "it does not exist there")
    is_super, may_set = found[0]
    if is_super:
        raise no_role(role, "it is a superuser, and no token may give its rights", is_super=True)
    if not may_set:
        raise no_role(role, "the service's role is not a member of it")
