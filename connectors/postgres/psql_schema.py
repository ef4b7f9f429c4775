"""What makes psql alone enough: procedures, the requests that they write, and views for people.

A procedure writes a row of tidemark.requests, commits, and looks at it until it has ended; the
service does what was asked (service/psql_desk.py). Invariant: who asks is never the caller's word
alone: `ask` runs with the owner's rights, takes a role only from a login that may act as it, and
only for a procedure that this role may execute. Nobody but the owner reads a table of this schema;
readers get views that show each role what it owns or may read.
"""

from __future__ import annotations

from connectors.postgres.psql_views import READABLE, WAITING

REQUESTS = "tidemark_requests"

_TABLES = """
CREATE TABLE tidemark.requests (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    operation text NOT NULL,
    arguments jsonb NOT NULL,
    asker text NOT NULL,
    login text NOT NULL,
    status text NOT NULL DEFAULT 'waiting',
    identity text NOT NULL UNIQUE DEFAULT replace(gen_random_uuid()::text, '-', ''),
    target text,
    result jsonb,
    code text,
    sqlstate text,
    error text,
    detail text,
    hint text,
    taken_pid integer,
    taken_start timestamptz,
    asked_at timestamptz NOT NULL DEFAULT now(),
    ended_at timestamptz
);
CREATE INDEX ON tidemark.requests (id) WHERE ended_at IS NULL;
COMMENT ON TABLE tidemark.requests IS
    'What was asked for by CALL tidemark....: taken up by the service, kept for a day';
COMMENT ON COLUMN tidemark.requests.asker IS 'the role that asked, whose rights count';
COMMENT ON COLUMN tidemark.requests.login IS 'the role that had logged in';
COMMENT ON COLUMN tidemark.requests.status IS 'waiting, taken, running, done or failed';
COMMENT ON COLUMN tidemark.requests.identity IS 'what a view that it creates is identified by';
COMMENT ON COLUMN tidemark.requests.target IS 'identity of the view that it is about';
COMMENT ON COLUMN tidemark.requests.taken_pid IS 'with taken_start: the session that works on it';

CREATE TABLE tidemark.listeners (
    backend_pid integer NOT NULL,
    backend_start timestamptz NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (backend_pid, backend_start)
);
COMMENT ON TABLE tidemark.listeners IS
    'Sessions of the service that take requests up; one that is not running has died';

CREATE FUNCTION tidemark.is_served() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM tidemark.listeners AS l JOIN pg_stat_activity AS a ON a.pid = l.backend_pid
        WHERE a.backend_start IS NULL OR a.backend_start = l.backend_start
    )
$$;
COMMENT ON FUNCTION tidemark.is_served IS 'Whether a service takes requests up just now';

CREATE FUNCTION tidemark.was_served() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM tidemark.listeners)
$$;
COMMENT ON FUNCTION tidemark.was_served IS 'Whether a service ran here and was not stopped';

CREATE FUNCTION tidemark.shown_progress(status text, progress jsonb) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT concat_ws(', ',
        coalesce(progress ->> 'phase', status),
        nullif((progress ->> 'rows')::bigint, 0) || ' rows',
        (progress ->> 'parts_done')::bigint * 100
            / nullif((progress ->> 'parts_total')::bigint, 0) || ' %',
        'about ' || ceil((progress ->> 'remaining_s')::numeric) || ' s left')
$$;
COMMENT ON FUNCTION tidemark.shown_progress IS 'How far a view is, in words';
"""

_REQUEST = """
CREATE OR REPLACE PROCEDURE tidemark.request(operation text, arguments jsonb, options jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    path text := pg_catalog.current_setting('search_path');
    waits boolean;
    number bigint;
    found record;
    said text;
    told text := '';
    told_at timestamptz := '-infinity';
    alone_since timestamptz;
BEGIN
    -- A SET clause would forbid COMMIT: each transaction is given the path again.
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    waits := coalesce((options ->> 'wait')::boolean, true);
    IF waits THEN
        -- A transaction block and a function refuse the COMMIT before they look at the
        -- subtransaction that this block is; elsewhere the subtransaction is what is refused.
        BEGIN
            COMMIT;
        EXCEPTION WHEN invalid_transaction_termination THEN
            said := SQLERRM;
        END;
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
        IF said = tidemark.refused_commit() THEN
            RAISE EXCEPTION 'CALL tidemark.%() cannot wait inside a transaction block',
                operation USING ERRCODE = '25001',
                DETAIL = 'the service sees what is asked once it is committed',
                HINT = 'CALL it outside of a transaction block (psycopg2: connection.autocommit = '
                    'True), or with options {"wait": false}: then it is done after your COMMIT';
        END IF;
        IF NOT tidemark.was_served() THEN
            RAISE EXCEPTION 'no Tidemark service is listening to this database'
                USING ERRCODE = '57P03', DETAIL = 'code: service.absent; nothing was asked for',
                HINT = 'tidemark serve --sink with this database, or ask with {"wait": false}';
        END IF;
    END IF;
    number := tidemark.ask(operation, coalesce(arguments, '{}')
        || jsonb_build_object('options', coalesce(options, '{}') - 'wait'), current_user);
    IF NOT waits THEN
        RAISE NOTICE 'request % is written; SELECT * FROM tidemark.asked shows how it stands',
            number;
        -- The caller's transaction goes on.
        PERFORM set_config('search_path', path, true);
        RETURN;
    END IF;
    COMMIT;
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    LOOP
        SELECT * INTO found FROM tidemark.look(number);
        EXIT WHEN found.status IS NULL OR found.status IN ('done', 'failed');
        IF found.progress <> told AND (told_at < clock_timestamp() - interval '1 second'
            OR split_part(found.progress, ',', 1) <> split_part(told, ',', 1)) THEN
            IF told = '' THEN
                RAISE NOTICE 'request % is accepted; Ctrl-C ends the waiting, not the work', number;
            END IF;
            RAISE NOTICE '%', found.progress;
            told := found.progress;
            told_at := clock_timestamp();
        END IF;
        IF tidemark.is_served() THEN
            alone_since := NULL;
        ELSE
            alone_since := coalesce(alone_since, clock_timestamp());
            IF alone_since < clock_timestamp() - interval '30 seconds' THEN
                RAISE EXCEPTION 'the Tidemark service does not answer' USING ERRCODE = '57P03',
                    DETAIL = format('code: service.absent; request %s stays and is done when it '
                        'is back', number),
                    HINT = 'start the service, then look at tidemark.asked';
            END IF;
        END IF;
        COMMIT;
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
        PERFORM pg_sleep(CASE WHEN told_at = '-infinity' THEN 0.02 ELSE 0.1 END);
        COMMIT;
        PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
    END LOOP;
    IF found.status = 'failed' THEN
        IF coalesce(found.hint, '') = '' THEN
            RAISE EXCEPTION USING ERRCODE = found.sqlstate, MESSAGE = found.error,
                DETAIL = found.detail;
        END IF;
        RAISE EXCEPTION USING ERRCODE = found.sqlstate, MESSAGE = found.error,
            DETAIL = found.detail, HINT = found.hint;
    END IF;
    IF found.status IS NULL THEN
        RAISE EXCEPTION 'request % is gone', number USING ERRCODE = '55000';
    END IF;
    FOR said IN SELECT jsonb_array_elements_text(coalesce(found.result -> 'warnings', '[]')) LOOP
        RAISE WARNING '%', said;
    END LOOP;
    IF found.result ->> 'said' <> '' THEN
        RAISE NOTICE '%', found.result ->> 'said';
    END IF;
END $$;
"""

_ASKING = f"""
CREATE FUNCTION tidemark.ask(operation text, arguments jsonb, asker text) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    called regprocedure;
    number bigint;
    -- Since version 16 a member may be one that cannot SET ROLE.
    needed text := CASE WHEN current_setting('server_version_num')::integer >= 160000
        THEN 'SET' ELSE 'MEMBER' END;
BEGIN
    SELECT p.oid INTO called FROM pg_proc AS p
    WHERE p.pronamespace = 'tidemark'::regnamespace AND p.prokind = 'p'
        AND p.proname = operation AND operation <> 'request';
    IF called IS NULL THEN
        RAISE EXCEPTION 'there is no operation "%"', operation USING ERRCODE = '42883';
    END IF;
    IF NOT pg_has_role(session_user, asker, needed) THEN
        RAISE EXCEPTION 'role "%" may not act as role "%"', session_user, asker
            USING ERRCODE = '42501';
    END IF;
    IF NOT has_function_privilege(asker, called, 'EXECUTE') THEN
        RAISE EXCEPTION 'permission denied for procedure %', called USING ERRCODE = '42501',
            HINT = format('GRANT EXECUTE ON PROCEDURE %s TO %I;', called, asker);
    END IF;
    INSERT INTO tidemark.requests (operation, arguments, asker, login)
    VALUES (operation, arguments, asker, session_user) RETURNING id INTO number;
    PERFORM pg_notify('{REQUESTS}', number::text);
    RETURN number;
END $$;
COMMENT ON FUNCTION tidemark.ask IS
    'Writes a request, for the procedures; who may execute the procedure may ask';

CREATE FUNCTION tidemark.look(
    number bigint, OUT status text, OUT progress text, OUT code text, OUT sqlstate text,
    OUT error text, OUT detail text, OUT hint text, OUT result jsonb)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.status,
        CASE WHEN v.name IS NOT NULL
            THEN format('view %I.%I: ', v.schema, v.name)
                || tidemark.shown_progress(v.status, v.progress) END,
        r.code, r.sqlstate, r.error, r.detail, r.hint, r.result
    FROM tidemark.requests AS r
    LEFT JOIN tidemark.views AS v ON v.identity = coalesce(r.target, r.identity)
    WHERE r.id = number AND r.login = session_user
$$;
COMMENT ON FUNCTION tidemark.look IS 'How a request of the caller''s stands';

CREATE FUNCTION tidemark.refused_commit() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    COMMIT;
    RETURN '';
EXCEPTION WHEN invalid_transaction_termination THEN
    RETURN SQLERRM;
END $$;
COMMENT ON FUNCTION tidemark.refused_commit IS
    'What a COMMIT answers where there can be none, in the language of the session';

{_REQUEST}
COMMENT ON PROCEDURE tidemark.request IS 'Asks and waits; what the other procedures have in common';
"""


def _procedure(name: str, parameters: str, comment: str) -> str:
    """A procedure that asks for the operation of its name. parameters: texts, by name."""
    names = parameters.split(", ")
    arguments = ", ".join(f"'{n}', {name}.{n}" for n in names)
    declared = ", ".join(f"{n} text" for n in names)
    signature = f"tidemark.{name}({', '.join(['text'] * len(names))}, jsonb)"
    return f"""
CREATE PROCEDURE tidemark.{name}({declared}, options jsonb DEFAULT '{{}}')
LANGUAGE plpgsql AS $$
DECLARE arguments jsonb := jsonb_build_object({arguments});
BEGIN
    CALL tidemark.request('{name}', arguments, options);
END $$;
COMMENT ON PROCEDURE {signature} IS '{comment}';
REVOKE EXECUTE ON PROCEDURE {signature} FROM PUBLIC;
"""


_PROCEDURES = "".join(
    _procedure(*facts)
    for facts in (
        ("create_view", "name, query", "Creates a view and waits until it is live"),
        ("drop_view", "name", "Drops a view with its table and its state"),
        ("create_source", "name, type", "Declares a source: Kafka topics or files"),
        ("drop_source", "name", "Forgets a source that no view reads"),
    )
)

PSQL = _TABLES + _ASKING + WAITING + READABLE + _PROCEDURES
PSQL_VERIFY = _procedure(
    "verify_view", "name", "Compares a view with PostgreSQL''s answer of its query"
)
PSQL_RETRY = _procedure("retry_source", "name", "Tries a source that is away or stopped now")
PSQL_LIFE = "".join(
    _procedure(*facts)
    for facts in (
        ("replace_view", "name, query", "Gives a view another query; its rows stay readable"),
        ("rebuild_view", "name", "Computes a view anew; the way out of failed"),
        ("pause_view", "name", "Leaves a view''s rows as they are"),
        ("resume_view", "name", "Keeps a paused view up to date again"),
        ("rename_view", "name, new_name", "Gives a view another name in its schema"),
        ("move_view", "name, new_schema", "Moves a view to another schema"),
        ("cancel_change", "name", "Gives up what is under way for a view"),
    )
)
# How far a change of a view is, beside how the view itself stands.
PSQL_CHANGES = """
CREATE OR REPLACE FUNCTION tidemark.look(
    number bigint, OUT status text, OUT progress text, OUT code text, OUT sqlstate text,
    OUT error text, OUT detail text, OUT hint text, OUT result jsonb)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.status,
        CASE WHEN v.name IS NULL THEN NULL
            WHEN r.operation = 'create_view'
            THEN format('view %I.%I: ', v.schema, v.name)
                || tidemark.shown_progress(v.status, v.progress)
            WHEN r.operation IN ('replace_view', 'rebuild_view', 'resume_view')
                AND v.change IS NOT NULL
            THEN format('view %I.%I: ', v.schema, v.name)
                || tidemark.shown_progress(v.replacing ->> 'kind', v.replacing -> 'progress') END,
        r.code, r.sqlstate, r.error, r.detail, r.hint, r.result
    FROM tidemark.requests AS r
    LEFT JOIN tidemark.views AS v ON v.identity = coalesce(r.target, r.identity)
    WHERE r.id = number AND r.login = session_user
$$;
"""

# What looks names up for whoever calls it must find PostgreSQL's own, whatever the caller's path
# has of these names.
PSQL_PINNED = (
    _REQUEST
    + """
-- In PL/pgSQL their plans are kept for the session.
CREATE OR REPLACE FUNCTION tidemark.is_for(owner text, relation regclass) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(has_table_privilege(relation, 'SELECT'), false) OR EXISTS (
        SELECT FROM pg_roles WHERE rolname = owner AND pg_has_role(oid, 'USAGE'));
END $$;
CREATE OR REPLACE FUNCTION tidemark.shown_progress(status text, progress jsonb) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN concat_ws(', ',
        coalesce(progress ->> 'phase', status),
        nullif((progress ->> 'rows')::bigint, 0) || ' rows',
        (progress ->> 'parts_done')::bigint * 100
            / nullif((progress ->> 'parts_total')::bigint, 0) || ' %',
        'about ' || ceil((progress ->> 'remaining_s')::numeric) || ' s left');
END $$;
CREATE OR REPLACE VIEW tidemark.asked WITH (security_barrier) AS
SELECT r.id, r.operation, r.arguments ->> 'name' AS name, r.status, r.asker, r.code, r.sqlstate,
    r.error, r.detail, r.hint, r.result, r.asked_at, r.ended_at
FROM tidemark.requests AS r
WHERE r.login = current_user OR tidemark.is_for(r.asker, NULL);
"""
)
# A request tells the warnings of what it has made.
PSQL_WARNINGS = _REQUEST
