"""Create and upgrade the control tables in schema "tidemark" of the sink database.

The SQL is in `schema/`, one file per version: NNNN_name.sql leads from version NNNN - 1 to NNNN.
Never edit a released file; add a new one. `{{name}}` in a file is an entry of PARTS, or the text of
schema/name.sql. Invariant: `ensure` is safe at any time, in several processes at once, and never
loses rows: it continues from the number in tidemark.version.
"""

from __future__ import annotations

import re
from importlib import resources
from typing import Any

from psycopg2.extensions import connection as Connection

from connectors.postgres.schema.channels import REQUESTS, WAKE_UP
from connectors.postgres.schema.history_target import OPEN_EPOCH
from connectors.postgres.schema.lease import FENCED_STATE
from connectors.postgres.schema.stored_roles import DROPPED
from connectors.postgres.schema.table_guard import (
    IS_GUARD,
    NAME,
    REFUSED_STATE,
    SERVER,
    SHAPE_OF,
    WITH_TRIGGERS,
)
from connectors.postgres.schema.trigger_guard import (
    FOREIGN_STATE,
    STATISTICS_USE_FOREIGN_CODE,
    TRUSTED,
    TYPES_OF,
    USES_FOREIGN_CODE,
)
from connectors.postgres.session.quoting import quote_name, quote_text
from connectors.postgres.session.session import Session, translated
from connectors.view_states import DesiredState, ViewState
from dataflow.errors import SinkError
from storage.failpoints import failpoint

MISSING_STATE = "TM002"

_LOCK = 7_954_889_273_471_283

# Parts shared by the SQL files and our own statements.
PARTS = {
    "requests_channel": REQUESTS,
    "doorbell": WAKE_UP,
    "dropped_role": DROPPED,
    "fenced_state": FENCED_STATE,
    "foreign_state": FOREIGN_STATE,
    "missing_state": MISSING_STATE,
    "refused_state": REFUSED_STATE,
    "with_triggers": WITH_TRIGGERS,
    "guard_name": quote_name(NAME),
    "is_guard": IS_GUARD,
    "shape_of_table": SHAPE_OF.format("t.table_oid", "t.view_oid"),
    "server": SERVER,
    "shape": SHAPE_OF.format("found.table_oid", "found.view_oid"),
    "trusted_role": TRUSTED,
    "types_of_table": TYPES_OF.format("table_oid"),
    "index_uses_foreign_code": USES_FOREIGN_CODE,
    "statistics_use_foreign_code": STATISTICS_USE_FOREIGN_CODE,
    "open_epoch": str(OPEN_EPOCH),
    "view_states": ", ".join(map(quote_text, ViewState)),
    "desired_states": ", ".join(map(quote_text, DesiredState)),
    "view_states_named": quote_text(", ".join(ViewState)),
}
_PART = re.compile(r"\{\{(\w+)\}\}")
_STEP = re.compile(r"\d{4}_\w+\.sql")
_FOLDER = resources.files("connectors.postgres.schema")


def _read(name: str) -> str:
    text = (_FOLDER / name).read_text("utf-8")
    return _PART.sub(lambda part: PARTS.get(part[1]) or _read(f"{part[1]}.sql"), text)


def _read_steps() -> tuple[str, ...]:
    names = sorted(file.name for file in _FOLDER.iterdir() if _STEP.fullmatch(file.name))
    numbers = [int(name[:4]) for name in names]
    assert numbers == list(range(1, len(names) + 1)), f"files of schema/ are missing: {names}"
    return tuple(map(_read, names))


# Step i leads from version i to i + 1; the first one from nothing.
STEPS = _read_steps()
VERSION = len(STEPS)


# Owners of schema tidemark and its contents, with whether a role has their rights.
_OWNERS = """
SELECT o.rolname, o.rolsuper, pg_has_role(%(role)s, o.oid, 'USAGE') FROM pg_roles AS o
WHERE o.oid IN (
    SELECT nspowner FROM pg_namespace WHERE nspname = 'tidemark'
    UNION SELECT relowner FROM pg_class WHERE relnamespace = to_regnamespace('tidemark')
    UNION SELECT proowner FROM pg_proc WHERE pronamespace = to_regnamespace('tidemark')
    UNION SELECT typowner FROM pg_type WHERE typnamespace = to_regnamespace('tidemark'))
ORDER BY 1
"""
# An identity's sequence follows its table; array and row types follow theirs.
_GIVE = """
DO $give$ DECLARE what text; BEGIN FOR what IN
SELECT 'SCHEMA tidemark' UNION ALL
SELECT format('TABLE %s', c.oid::regclass) FROM pg_class c
WHERE c.relnamespace = 'tidemark'::regnamespace AND c.relkind = ANY ('{{r,p,v,m,f,S}}')
AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid
AND d.refclassid = 'pg_class'::regclass AND d.deptype IN ('a', 'i') AND c.relkind = 'S') UNION ALL
SELECT format('ROUTINE %s', p.oid::regprocedure) FROM pg_proc p
WHERE p.pronamespace = 'tidemark'::regnamespace UNION ALL
SELECT format('TYPE %s', t.oid::regtype) FROM pg_type t LEFT JOIN pg_class c ON c.oid = t.typrelid
WHERE t.typnamespace = 'tidemark'::regnamespace
AND (t.typtype = ANY ('{{e,d,r}}') OR c.relkind = 'c')
LOOP EXECUTE format('ALTER %s OWNER TO %I', what, {0}); END LOOP;
IF to_regclass('tidemark.tables') IS NOT NULL THEN FOR what IN
SELECT c.oid::regclass FROM tidemark.tables t JOIN pg_class c ON c.oid IN (t.table_oid, t.view_oid)
JOIN pg_roles o ON o.oid = c.relowner WHERE o.rolsuper
LOOP EXECUTE format('ALTER TABLE %s OWNER TO %I', what, {0}); END LOOP; END IF;
IF to_regclass('tidemark.histories') IS NOT NULL THEN FOR what IN
SELECT c.oid::regclass FROM tidemark.histories h JOIN pg_class c ON c.oid = h.view_oid
LOOP EXECUTE format('ALTER VIEW %s OWNER TO %I', what, {0}); END LOOP; END IF; END $give$;
"""


def ensure(connection: Connection, service: str = "") -> None:
    """Create what is missing, register a service if one is named, and commit.

    SinkError sink.privilege, sink.version.
    """
    with (
        translated("sink", 'cannot create schema "tidemark"', code="sink.schema"),
        connection,
        connection.cursor() as cursor,
    ):
        _upgrade(cursor)
        if service and not _is_registered(cursor, service):
            cursor.execute("SELECT tidemark.register_service(%s)", (service,))


def _is_registered(cursor: Any, service: str) -> bool:
    cursor.execute("SELECT FROM tidemark.services WHERE name = %s", (service,))
    return cursor.fetchone() is not None


def _upgrade(cursor: Any) -> None:
    if _version(cursor) == VERSION:
        return
    cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
    found = _version(cursor) or 0  # another process may have been faster
    if found > VERSION:
        raise _other_version(found, "use the version of Tidemark that created it, or a newer one")
    for number, step in enumerate(STEPS[found:], found + 1):
        cursor.execute(step)
        cursor.execute("INSERT INTO tidemark.version (version) VALUES (%s)", (number,))
        failpoint("catalog.step.after")


def require_version(cursor: Any) -> None:
    """Require the schema as this version makes it. SinkError sink.version."""
    found = _version(cursor) or 0
    if found != VERSION:
        raise _other_version(found, "use the version of Tidemark that wrote it last")


def _other_version(found: int, hint: str) -> SinkError:
    return SinkError(
        "sink.version",
        'schema "tidemark" was created by another version',
        detail=f"found version {found}, supported up to {VERSION}",
        hint=hint,
    )


def owners_of_schema(session: Session, role: str) -> list[tuple[str, bool, bool]]:
    """Return (owner, whether it is a superuser, whether the role has its rights).

    Covers schema tidemark and everything in it; [] without a schema.
    """
    return session.rows(_OWNERS, {"role": role})


def give_schema_to(role: str) -> str:
    """Return the statement that makes a role the owner of schema tidemark and everything in it.

    Tables and views with rows are included where a superuser owns them; those of other roles stay
    their creators'. One line, to be copied; for a superuser, or the owner of everything.
    """
    return _GIVE.replace("\n", " ").strip().format(quote_text(role))


def _version(cursor: Any) -> int | None:
    # Not to_regclass: it may have cached that there was no such table before we had the lock.
    cursor.execute(
        "SELECT FROM pg_class JOIN pg_namespace AS n ON n.oid = relnamespace "
        "WHERE relname = 'version' AND nspname = 'tidemark'"
    )
    if cursor.fetchone() is None:
        return None
    cursor.execute("SELECT max(version) FROM tidemark.version")
    return cursor.fetchone()[0]
