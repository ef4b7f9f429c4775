"""The control tables in schema "tidemark" of the sink database, and how they come to be.

Invariant: `ensure` is safe to run at any time, by several processes at once, and never loses
rows: a later version migrates from the version number that stands in tidemark.version.
"""

from __future__ import annotations

from typing import Any

from psycopg2.extensions import connection as Connection

from connectors.postgres import control_life
from connectors.postgres.claim_schema import OWNERS
from connectors.postgres.idempotency_schema import IDEMPOTENCY, WORKERS
from connectors.postgres.psql_schema import (
    PSQL,
    PSQL_CHANGES,
    PSQL_LIFE,
    PSQL_PINNED,
    PSQL_RETRY,
    PSQL_VERIFY,
    PSQL_WARNINGS,
)
from connectors.postgres.quoting import quote_text
from connectors.postgres.session import Session, translated
from connectors.postgres.sink_guard import GUARD
from connectors.postgres.standing_schema import STANDING
from connectors.postgres.token_schema import TOKENS
from connectors.postgres.view_state_schema import KNOWN_STATES
from dataflow.errors import SinkError
from storage.failpoints import failpoint

CHANNEL = "tidemark"
MISSING_STATE = "TM002"

_LOCK = 7_954_889_273_471_283

_TABLES = """
CREATE SCHEMA IF NOT EXISTS tidemark;
COMMENT ON SCHEMA tidemark IS 'Tidemark: catalog of maintained views, their progress and errors';

CREATE TABLE tidemark.version (
    version integer PRIMARY KEY,
    installed_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tidemark.version IS 'Version of the tables in this schema';

CREATE TABLE tidemark.views (
    schema text NOT NULL,
    name text NOT NULL,
    status text NOT NULL DEFAULT 'analyzing',
    desired text NOT NULL DEFAULT 'live',
    kind text CHECK (kind IN ('keyed', 'bag')),
    query text NOT NULL,
    options jsonb NOT NULL DEFAULT '{}',
    row_estimate bigint,
    progress jsonb,
    code text,
    detail text,
    hint text,
    key jsonb,
    fields jsonb,
    plan jsonb,
    warnings jsonb NOT NULL DEFAULT '[]',
    epoch bigint,
    positions jsonb,
    identity text NOT NULL UNIQUE,
    created_by text NOT NULL DEFAULT current_user,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    live_at timestamptz,
    PRIMARY KEY (schema, name)
);
COMMENT ON TABLE tidemark.views IS 'Maintained views: what is wanted and how each one stands';
COMMENT ON COLUMN tidemark.views.status IS
    'analyzing, backfilling, catching up, live, paused, degraded, failed, dropping';
COMMENT ON COLUMN tidemark.views.desired IS 'what the user wants: live, paused or dropped';
COMMENT ON COLUMN tidemark.views.kind IS
    'keyed: a table with a primary key; bag: a table of rows with counts and a view over it';
COMMENT ON COLUMN tidemark.views.progress IS 'the backfill''s phase, parts, rows and estimate';
COMMENT ON COLUMN tidemark.views.code IS 'stable code of the newest failure, NULL when healthy';
COMMENT ON COLUMN tidemark.views.identity IS 'new for each creation, names the view''s state';
COMMENT ON COLUMN tidemark.views.epoch IS 'the epoch in which the view became live';

CREATE TABLE tidemark.sources (
    name text PRIMARY KEY,
    dsn text NOT NULL,
    slot text,
    publication text,
    system_identifier text,
    timeline integer,
    position numeric(20,0),
    facts jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tidemark.sources IS 'Databases that changes come from; passwords are not kept';

CREATE TABLE tidemark.progress (
    sink_key text PRIMARY KEY,
    epoch bigint NOT NULL,
    positions jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
COMMENT ON TABLE tidemark.progress IS
    'The newest epoch in this database and each source''s position in it; the writers'' fence';

CREATE TABLE tidemark.errors (
    hash uuid PRIMARY KEY,
    count bigint NOT NULL,
    view text,
    operator text,
    sqlstate text,
    message text,
    source_row text,
    first_seen timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON tidemark.errors (view);
COMMENT ON TABLE tidemark.errors IS
    'Rows left out of a view because an expression failed; gone when the row is repaired';

CREATE TABLE tidemark.tables (
    schema text NOT NULL,
    name text NOT NULL,
    is_staged boolean NOT NULL,
    table_oid oid NOT NULL,
    view_oid oid,
    PRIMARY KEY (schema, name, is_staged)
);
COMMENT ON TABLE tidemark.tables IS 'Relations in this database that Tidemark made and may drop';

CREATE FUNCTION tidemark.advance(writer text, new_epoch bigint, reached jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tidemark.progress
    SET epoch = new_epoch, positions = reached, updated_at = clock_timestamp()
    WHERE sink_key = writer AND epoch = new_epoch - 1;
    IF FOUND THEN RETURN; END IF;
    IF EXISTS (SELECT FROM tidemark.progress WHERE sink_key = writer) THEN
        RAISE EXCEPTION 'the sink is not at epoch %', new_epoch - 1 USING ERRCODE = 'TM001';
    END IF;
    INSERT INTO tidemark.progress (sink_key, epoch, positions) VALUES (writer, new_epoch, reached);
END $$;
COMMENT ON FUNCTION tidemark.advance IS 'The fence: moves the progress on by exactly one epoch';

CREATE FUNCTION tidemark.expect(relation text, actual bigint, expected bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF actual <> expected THEN
        RAISE EXCEPTION '% of % rows found in %', actual, expected, relation
            USING ERRCODE = 'TM002';
    END IF;
END $$;
COMMENT ON FUNCTION tidemark.expect IS 'Stops an epoch that does not meet the rows it changes';

CREATE FUNCTION tidemark.announce() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('tidemark', TG_OP);
    RETURN NULL;
END $$;
CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE OF status, desired ON tidemark.views
    FOR EACH STATEMENT EXECUTE FUNCTION tidemark.announce();
"""

_FEED_SOURCES = """
ALTER TABLE tidemark.sources
    ADD COLUMN type text NOT NULL DEFAULT 'postgres',
    ADD COLUMN options json NOT NULL DEFAULT '{}',
    ADD COLUMN relations json NOT NULL DEFAULT '[]',
    ADD COLUMN status text NOT NULL DEFAULT 'running',
    ADD COLUMN code text,
    ADD COLUMN detail text,
    ADD COLUMN hint text,
    ALTER COLUMN dsn SET DEFAULT '';
COMMENT ON TABLE tidemark.sources IS
    'What changes come from; secrets are kept as references, passwords not at all';
COMMENT ON COLUMN tidemark.sources.type IS 'postgres, kafka or files';
COMMENT ON COLUMN tidemark.sources.options IS 'as they were given, in that order';
COMMENT ON COLUMN tidemark.sources.relations IS 'what can be read of it: names, columns, keys';
COMMENT ON COLUMN tidemark.sources.status IS
    'running; retrying: away just now; stopped: needs someone, see code, detail and hint';

CREATE TABLE tidemark.dead_letters (
    sink_key text NOT NULL,
    source text NOT NULL,
    relation text NOT NULL,
    place text NOT NULL,
    code text NOT NULL,
    reason text NOT NULL,
    key bytea,
    value bytea,
    desired text CHECK (desired IN ('retry', 'drop')),
    first_seen timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (sink_key, source, relation, place)
);
COMMENT ON TABLE tidemark.dead_letters IS 'Records that are not rows of their relation, whole';
COMMENT ON COLUMN tidemark.dead_letters.sink_key IS
    'who reads the source, as in tidemark.progress: each group of views has records of its own';
COMMENT ON COLUMN tidemark.dead_letters.place IS
    'where it lies: partition:offset of a topic, path:line of a file';
COMMENT ON COLUMN tidemark.dead_letters.desired IS 'what the user wants: retry, drop, or to wait';

CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE OF options, relations
    ON tidemark.sources FOR EACH STATEMENT EXECUTE FUNCTION tidemark.announce();
CREATE TRIGGER announce AFTER UPDATE OF desired ON tidemark.dead_letters
    FOR EACH STATEMENT EXECUTE FUNCTION tidemark.announce();
"""

_SINKS = """
CREATE TABLE tidemark.sinks (
    schema text NOT NULL,
    view text NOT NULL,
    name text NOT NULL,
    type text NOT NULL,
    status text NOT NULL DEFAULT 'starting',
    desired text NOT NULL DEFAULT 'live',
    options jsonb NOT NULL DEFAULT '{}',
    epoch bigint,
    positions jsonb,
    backlog_bytes bigint,
    code text,
    detail text,
    hint text,
    view_identity text NOT NULL,
    view_group text NOT NULL,
    identity text NOT NULL UNIQUE,
    created_by text NOT NULL DEFAULT current_user,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    live_at timestamptz,
    PRIMARY KEY (view_identity, name)
);
COMMENT ON TABLE tidemark.sinks IS
    'Where views go beside their tables: what is wanted and how each one stands';
COMMENT ON COLUMN tidemark.sinks.status IS 'starting, live, retrying, failed, dropping';
COMMENT ON COLUMN tidemark.sinks.desired IS
    'what the user wants: live, dropped, or erased (dropped with what it has written)';
COMMENT ON COLUMN tidemark.sinks.options IS 'as they were given; secrets are references';
COMMENT ON COLUMN tidemark.sinks.epoch IS 'the newest epoch that the sink holds';
COMMENT ON COLUMN tidemark.sinks.backlog_bytes IS 'what is kept on disk until the sink has it';
COMMENT ON COLUMN tidemark.sinks.identity IS 'new for each creation, names the sink''s writer';

CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE OF status, desired ON tidemark.sinks
    FOR EACH STATEMENT EXECUTE FUNCTION tidemark.announce();
"""

_VERIFICATION = """
ALTER TABLE tidemark.views ADD COLUMN verification jsonb;
COMMENT ON COLUMN tidemark.views.verification IS
    'the newest comparison with PostgreSQL''s own answer: result, rows that differ, time';
"""

_PAUSED_AT = """
COMMENT ON COLUMN tidemark.views.epoch IS 'the epoch in which the view became live, or was paused';
"""

# Each leads from the version of its place in the list to the next one, the first from nothing.
STEPS = (
    _TABLES,
    _FEED_SOURCES,
    _SINKS,
    PSQL,
    TOKENS,
    _VERIFICATION,
    PSQL_VERIFY,
    IDEMPOTENCY,
    control_life.STEP + PSQL_LIFE,
    PSQL_CHANGES,
    WORKERS,
    OWNERS,
    _PAUSED_AT,
    GUARD + PSQL_PINNED,
    STANDING + PSQL_RETRY,
    PSQL_WARNINGS,
    KNOWN_STATES,
)
VERSION = len(STEPS)


# Owners of schema tidemark and of what is in it whose rights a role lacks.
_OWNERS = """
SELECT o.rolname, o.rolsuper, pg_has_role(%(role)s, o.oid, 'USAGE') FROM pg_roles AS o
WHERE o.oid IN (
    SELECT nspowner FROM pg_namespace WHERE nspname = 'tidemark'
    UNION SELECT relowner FROM pg_class WHERE relnamespace = to_regnamespace('tidemark')
    UNION SELECT proowner FROM pg_proc WHERE pronamespace = to_regnamespace('tidemark')
    UNION SELECT typowner FROM pg_type WHERE typnamespace = to_regnamespace('tidemark'))
ORDER BY 1
"""
# An identity's sequence goes with its table, an array's and a row's type with what they are of.
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
LOOP EXECUTE format('ALTER TABLE %s OWNER TO %I', what, {0}); END LOOP; END IF; END $give$;
"""


def ensure(connection: Connection) -> None:
    """Create what is missing and commit. SinkError sink.privilege, sink.version."""
    with (
        translated("sink", 'cannot create schema "tidemark"', code="sink.schema"),
        connection,
        connection.cursor() as cursor,
    ):
        if _version(cursor) == VERSION:
            return
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        found = _version(cursor) or 0  # another process may have been faster
        if found > VERSION:
            raise SinkError(
                "sink.version",
                'schema "tidemark" was made by another version',
                detail=f"found {found}, known {VERSION}",
                hint="use the version of Tidemark that made it, or a newer one",
            )
        for number, step in enumerate(STEPS[found:], found + 1):
            cursor.execute(step)
            cursor.execute("INSERT INTO tidemark.version (version) VALUES (%s)", (number,))
            failpoint("catalog.step.after")


def owners_of_schema(session: Session, role: str) -> list[tuple[str, bool, bool]]:
    """(owner, whether a superuser, whether the role has its rights) of schema tidemark and of what
    is in it; [] without a schema."""
    return session.rows(_OWNERS, {"role": role})


def give_schema_to(role: str) -> str:
    """The statement that makes a role the owner of schema tidemark and of all that is in it.

    Tables and views that show rows go along where a superuser owns them; those of other roles are
    their creators'. On one line, to be copied; for a superuser, or the owner of all of it.
    """
    return _GIVE.replace("\n", " ").strip().format(quote_text(role))


def _version(cursor: Any) -> int | None:
    # Not to_regclass: it may remember that there was no such table before we had the lock.
    cursor.execute(
        "SELECT FROM pg_class JOIN pg_namespace AS n ON n.oid = relnamespace "
        "WHERE relname = 'version' AND nspname = 'tidemark'"
    )
    if cursor.fetchone() is None:
        return None
    cursor.execute("SELECT max(version) FROM tidemark.version")
    return cursor.fetchone()[0]
