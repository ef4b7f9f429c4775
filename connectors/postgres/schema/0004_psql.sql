-- The interface for psql: procedures, the requests that they write, and views for users.
--
-- A procedure writes a row of tidemark.requests, commits, and polls it until it has ended; the
-- service executes it (service/psql/request_worker.py). Invariant: the requesting role is never just
-- claimed: `ask` runs with the owner's rights, accepts a role only from a login that may act as it, and
-- only for a procedure that this role may execute. Nobody but the owner reads a table of this schema;
-- readers get views, which run with the owner's rights and show each role what it owns or may read.
--
-- `tidemark.wait` is a function, which cannot commit and so not notify: where nothing else moves the
-- position, it cancels the sleep of a session that the service opens for this (`requests.Doorbell`).

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
    'Requests by CALL tidemark...., executed by the service and retained for a day';
COMMENT ON COLUMN tidemark.requests.asker IS 'the requesting role, whose rights apply';
COMMENT ON COLUMN tidemark.requests.login IS 'the login role';
COMMENT ON COLUMN tidemark.requests.status IS 'waiting, taken, running, done or failed';
COMMENT ON COLUMN tidemark.requests.identity IS 'identity of the view that it creates';
COMMENT ON COLUMN tidemark.requests.target IS 'identity of the view that it concerns';
COMMENT ON COLUMN tidemark.requests.taken_pid IS 'with taken_start: the session that executes it';

CREATE TABLE tidemark.listeners (
    backend_pid integer NOT NULL,
    backend_start timestamptz NOT NULL,
    started_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (backend_pid, backend_start)
);
COMMENT ON TABLE tidemark.listeners IS
    'Sessions of the service that execute requests; one that is not running has died';

CREATE FUNCTION tidemark.is_served() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM tidemark.listeners AS l JOIN pg_stat_activity AS a ON a.pid = l.backend_pid
        WHERE a.backend_start IS NULL OR a.backend_start = l.backend_start
    )
$$;
COMMENT ON FUNCTION tidemark.is_served IS 'Returns true if a service is executing requests';

CREATE FUNCTION tidemark.was_served() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM tidemark.listeners)
$$;
COMMENT ON FUNCTION tidemark.was_served IS 'Returns true if a service ran here and was not stopped';

CREATE FUNCTION tidemark.shown_progress(status text, progress jsonb) RETURNS text
LANGUAGE sql STABLE AS $$
    SELECT concat_ws(', ',
        coalesce(progress ->> 'phase', status),
        nullif((progress ->> 'rows')::bigint, 0) || ' rows',
        (progress ->> 'parts_done')::bigint * 100
            / nullif((progress ->> 'parts_total')::bigint, 0) || ' %',
        'about ' || ceil((progress ->> 'remaining_s')::numeric) || ' s left')
$$;
COMMENT ON FUNCTION tidemark.shown_progress IS 'Progress of a view as text';

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
    PERFORM pg_notify('{{requests_channel}}', number::text);
    RETURN number;
END $$;
COMMENT ON FUNCTION tidemark.ask IS
    'Writes a request, for roles that may execute the procedure';

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
COMMENT ON FUNCTION tidemark.look IS 'Status of a request of the caller';

CREATE FUNCTION tidemark.refused_commit() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    COMMIT;
    RETURN '';
EXCEPTION WHEN invalid_transaction_termination THEN
    RETURN SQLERRM;
END $$;
COMMENT ON FUNCTION tidemark.refused_commit IS
    'The error text of a COMMIT where none is allowed, in the language of the session';


{{request}}

COMMENT ON PROCEDURE tidemark.request IS 'Writes a request and waits; shared by the other procedures';

CREATE FUNCTION tidemark.is_source() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT EXISTS (
        SELECT FROM tidemark.sources AS s WHERE s.type = 'postgres' AND (
            s.system_identifier <> (SELECT system_identifier::text FROM pg_control_system())
            OR s.facts ->> 'database' <> current_database()))
$$;
COMMENT ON FUNCTION tidemark.is_source IS
    'Returns true if views'' positions are positions of this database';

CREATE FUNCTION tidemark.shown_position() RETURNS pg_lsn
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT '0/0'::pg_lsn + min((positions ->> 'source')::numeric) FROM tidemark.progress
$$;
COMMENT ON FUNCTION tidemark.shown_position IS
    'The source''s position that all views show; NULL if none reads the source';

CREATE FUNCTION tidemark.ring() RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_stat_clear_snapshot();
    SELECT pg_cancel_backend(pid) FROM pg_stat_activity
    WHERE application_name = '{{doorbell}}' AND datname = current_database()
        AND usename = current_user AND state = 'active';
$$;
COMMENT ON FUNCTION tidemark.ring IS
    'Makes the service advance the position of an idle source at once: a function cannot notify';

CREATE FUNCTION tidemark.await_ring(seconds double precision) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_sleep(seconds);
    RETURN false;
EXCEPTION WHEN query_canceled THEN
    RETURN true;
END $$;
COMMENT ON FUNCTION tidemark.await_ring IS 'The call in which the service sleeps until tidemark.ring';

CREATE FUNCTION tidemark.wait("position" pg_lsn, timeout interval) RETURNS pg_lsn
LANGUAGE plpgsql AS $$
DECLARE
    until timestamptz := clock_timestamp() + timeout;
    reached pg_lsn;
    round integer := 0;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE EXCEPTION 'tidemark.wait() cannot see new rows in this transaction'
            USING ERRCODE = '25001',
            DETAIL = format('its isolation level is %s: one snapshot for all statements',
                current_setting('transaction_isolation')),
            HINT = 'call it before BEGIN, or in a READ COMMITTED transaction';
    END IF;
    IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
        RAISE EXCEPTION 'tidemark.wait() cannot wait for what is not committed'
            USING ERRCODE = '25001', DETAIL = 'this transaction has written something itself',
            HINT = 'COMMIT, then call it';
    END IF;
    LOOP
        reached := tidemark.shown_position();
        IF reached IS NULL OR reached >= wait."position" THEN
            RETURN reached;
        END IF;
        IF clock_timestamp() >= until THEN
            RAISE EXCEPTION 'position % is not visible in time', wait."position"
                USING ERRCODE = '57014',
                DETAIL = format('code: view.wait_timeout; visible now: %s', reached),
                HINT = CASE WHEN tidemark.is_served()
                    THEN 'SELECT * FROM tidemark.status; wait longer if the lag falls'
                    ELSE 'no Tidemark service is listening to this database: start it' END;
        END IF;
        IF round % 50 = 2 THEN
            PERFORM tidemark.ring();
        END IF;
        PERFORM pg_sleep(least(0.001 * 1.3 ^ least(round, 12), 0.02));
        round := round + 1;
    END LOOP;
END $$;
COMMENT ON FUNCTION tidemark.wait(pg_lsn, interval) IS
    'Returns once every commit up to a position of the source is visible in the views';

CREATE FUNCTION tidemark.wait(timeout interval DEFAULT '10 seconds') RETURNS pg_lsn
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT tidemark.is_source() THEN
        RAISE EXCEPTION 'the source of the views is another database' USING ERRCODE = '55000',
            HINT = 'SELECT pg_current_wal_insert_lsn() there after your COMMIT, then here '
                'SELECT tidemark.wait(that position, ''10 s'')';
    END IF;
    RETURN tidemark.wait(pg_current_wal_insert_lsn(), timeout);
END $$;
COMMENT ON FUNCTION tidemark.wait(interval) IS
    'Returns once everything that you have committed is visible in the views';

CREATE FUNCTION tidemark.is_for(owner text, relation regclass) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT coalesce(has_table_privilege(relation, 'SELECT'), false) OR EXISTS (
        SELECT FROM pg_roles WHERE rolname = owner AND pg_has_role(oid, 'USAGE'))
$$;
COMMENT ON FUNCTION tidemark.is_for IS
    'Returns true if the current role may see a view: as a member of its owner, or as a reader';

CREATE VIEW tidemark.status WITH (security_barrier) AS
SELECT v.schema, v.name, v.status, v.kind, v.created_by AS owner,
    tidemark.shown_progress(v.status, v.progress) AS progress,
    v.row_estimate AS first_rows,
    coalesce(v.options ->> 'group', 'default') AS "group",
    '0/0'::pg_lsn + (p.positions ->> 'source')::numeric AS "position",
    CASE WHEN NOT pg_is_in_recovery() AND tidemark.is_source()
        THEN greatest(0, pg_current_wal_insert_lsn()
            - ('0/0'::pg_lsn + (p.positions ->> 'source')::numeric)) END AS lag_bytes,
    p.updated_at AS shown_at,
    (SELECT sum(e.count) FROM tidemark.errors AS e WHERE e.view = v.schema || '.' || v.name)
        AS failed_rows,
    v.code, v.detail AS error, v.hint, v.query, v.created_at, v.live_at
FROM tidemark.views AS v
LEFT JOIN tidemark.tables AS t ON (t.schema, t.name) = (v.schema, v.name) AND NOT t.is_staged
LEFT JOIN tidemark.progress AS p ON v.status = 'live'
    AND CASE coalesce(v.options ->> 'group', 'default')
        WHEN 'default' THEN p.sink_key NOT LIKE '%/%'
        ELSE split_part(p.sink_key, '/', 2) = v.options ->> 'group' END
WHERE tidemark.is_for(v.created_by, coalesce(t.view_oid, t.table_oid)::regclass);
COMMENT ON VIEW tidemark.status IS 'The views that you own or may read, with their status';
COMMENT ON COLUMN tidemark.status.progress IS 'progress of its build as text';
COMMENT ON COLUMN tidemark.status.first_rows IS 'number of rows when it became live';
COMMENT ON COLUMN tidemark.status."position" IS 'the source''s position that its rows show';
COMMENT ON COLUMN tidemark.status.lag_bytes IS
    'WAL written since; small and changing in normal operation, NULL if the source is elsewhere';
COMMENT ON COLUMN tidemark.status.shown_at IS
    'when rows or position last changed; every five seconds even when nothing happens';
COMMENT ON COLUMN tidemark.status.failed_rows IS 'source rows left out, see tidemark.failed_rows';
COMMENT ON COLUMN tidemark.status.error IS 'why it has failed or is being retried';

CREATE VIEW tidemark.failed_rows WITH (security_barrier) AS
SELECT v.schema, v.name, e.count, e.sqlstate, e.message, e.operator, e.source_row, e.first_seen
FROM tidemark.errors AS e JOIN tidemark.views AS v ON e.view = v.schema || '.' || v.name
WHERE tidemark.is_for(v.created_by, NULL);
COMMENT ON VIEW tidemark.failed_rows IS
    'Rows left out of the views that you own, because an expression fails for them';

CREATE VIEW tidemark.asked WITH (security_barrier) AS
SELECT r.id, r.operation, r.arguments ->> 'name' AS name, r.status, r.asker, r.code, r.sqlstate,
    r.error, r.detail, r.hint, r.result, r.asked_at, r.ended_at
FROM tidemark.requests AS r
WHERE r.login = session_user OR tidemark.is_for(r.asker, NULL);
COMMENT ON VIEW tidemark.asked IS 'Your requests by CALL, and their results';

GRANT SELECT ON tidemark.status, tidemark.failed_rows, tidemark.asked TO PUBLIC;
REVOKE EXECUTE ON FUNCTION tidemark.await_ring, tidemark.advance, tidemark.expect FROM PUBLIC;

CREATE PROCEDURE tidemark.create_view(name text, query text, options jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE arguments jsonb := jsonb_build_object('name', create_view.name, 'query', create_view.query);
BEGIN
    CALL tidemark.request('create_view', arguments, options);
END $$;
COMMENT ON PROCEDURE tidemark.create_view(text, text, jsonb) IS 'Creates a view and waits until it is live';
REVOKE EXECUTE ON PROCEDURE tidemark.create_view(text, text, jsonb) FROM PUBLIC;

CREATE PROCEDURE tidemark.drop_view(name text, options jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE arguments jsonb := jsonb_build_object('name', drop_view.name);
BEGIN
    CALL tidemark.request('drop_view', arguments, options);
END $$;
COMMENT ON PROCEDURE tidemark.drop_view(text, jsonb) IS 'Drops a view with its table and its state';
REVOKE EXECUTE ON PROCEDURE tidemark.drop_view(text, jsonb) FROM PUBLIC;

CREATE PROCEDURE tidemark.create_source(name text, type text, options jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE arguments jsonb := jsonb_build_object('name', create_source.name, 'type', create_source.type);
BEGIN
    CALL tidemark.request('create_source', arguments, options);
END $$;
COMMENT ON PROCEDURE tidemark.create_source(text, text, jsonb) IS 'Declares a source: Kafka topics or files';
REVOKE EXECUTE ON PROCEDURE tidemark.create_source(text, text, jsonb) FROM PUBLIC;

CREATE PROCEDURE tidemark.drop_source(name text, options jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE arguments jsonb := jsonb_build_object('name', drop_source.name);
BEGIN
    CALL tidemark.request('drop_source', arguments, options);
END $$;
COMMENT ON PROCEDURE tidemark.drop_source(text, jsonb) IS 'Drops a source that no view reads';
REVOKE EXECUTE ON PROCEDURE tidemark.drop_source(text, jsonb) FROM PUBLIC;
