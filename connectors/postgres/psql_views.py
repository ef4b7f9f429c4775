"""SQL of schema tidemark for readers: waiting for their own writes, and how views stand.

`tidemark.wait` is a function, which cannot commit and so not notify: where nothing else moves the
position it cancels the sleep of a session that the service keeps for that (service/doorbell.py).
The views run with the owner's rights and show each role only what it owns or may read anyway.
"""

from __future__ import annotations

DOORBELL = "tidemark doorbell"

WAITING = f"""
CREATE FUNCTION tidemark.is_source() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT EXISTS (
        SELECT FROM tidemark.sources AS s WHERE s.type = 'postgres' AND (
            s.system_identifier <> (SELECT system_identifier::text FROM pg_control_system())
            OR s.facts ->> 'database' <> current_database()))
$$;
COMMENT ON FUNCTION tidemark.is_source IS
    'Whether positions of this database are those that views are at';

CREATE FUNCTION tidemark.shown_position() RETURNS pg_lsn
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT '0/0'::pg_lsn + min((positions ->> 'source')::numeric) FROM tidemark.progress
$$;
COMMENT ON FUNCTION tidemark.shown_position IS
    'The source''s position that all views show; NULL when none reads the source';

CREATE FUNCTION tidemark.ring() RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_stat_clear_snapshot();
    SELECT pg_cancel_backend(pid) FROM pg_stat_activity
    WHERE application_name = '{DOORBELL}' AND datname = current_database()
        AND usename = current_user AND state = 'active';
$$;
COMMENT ON FUNCTION tidemark.ring IS
    'Makes the service move the position of an idle source on at once: a function cannot notify';

CREATE FUNCTION tidemark.await_ring(seconds double precision) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_sleep(seconds);
    RETURN false;
EXCEPTION WHEN query_canceled THEN
    RETURN true;
END $$;
COMMENT ON FUNCTION tidemark.await_ring IS 'Where the service sleeps until somebody rings';

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
"""

READABLE = """
CREATE FUNCTION tidemark.is_for(owner text, relation regclass) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT coalesce(has_table_privilege(relation, 'SELECT'), false) OR EXISTS (
        SELECT FROM pg_roles WHERE rolname = owner AND pg_has_role(oid, 'USAGE'))
$$;
COMMENT ON FUNCTION tidemark.is_for IS
    'Whether the current role may know of a view: its owner''s member, or a reader of it';

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
COMMENT ON VIEW tidemark.status IS 'The views that you own or may read, and how each one stands';
COMMENT ON COLUMN tidemark.status.progress IS 'how far it is while it is built, in words';
COMMENT ON COLUMN tidemark.status.first_rows IS 'how many rows it had when it became live';
COMMENT ON COLUMN tidemark.status."position" IS 'the source''s position that its rows show';
COMMENT ON COLUMN tidemark.status.lag_bytes IS
    'WAL written since; small and moving when all is well, NULL where the source is elsewhere';
COMMENT ON COLUMN tidemark.status.shown_at IS
    'when rows or position last changed; every five seconds even when nothing happens';
COMMENT ON COLUMN tidemark.status.failed_rows IS 'source rows left out, see tidemark.failed_rows';
COMMENT ON COLUMN tidemark.status.error IS 'why it has failed, or is being tried again';

CREATE VIEW tidemark.failed_rows WITH (security_barrier) AS
SELECT v.schema, v.name, e.count, e.sqlstate, e.message, e.operator, e.source_row, e.first_seen
FROM tidemark.errors AS e JOIN tidemark.views AS v ON e.view = v.schema || '.' || v.name
WHERE tidemark.is_for(v.created_by, NULL);
COMMENT ON VIEW tidemark.failed_rows IS
    'Rows left out of the views that you own, since an expression failed for them';

CREATE VIEW tidemark.asked WITH (security_barrier) AS
SELECT r.id, r.operation, r.arguments ->> 'name' AS name, r.status, r.asker, r.code, r.sqlstate,
    r.error, r.detail, r.hint, r.result, r.asked_at, r.ended_at
FROM tidemark.requests AS r
WHERE r.login = session_user OR tidemark.is_for(r.asker, NULL);
COMMENT ON VIEW tidemark.asked IS 'What you have asked for by CALL, and what became of it';

GRANT SELECT ON tidemark.status, tidemark.failed_rows, tidemark.asked TO PUBLIC;
REVOKE EXECUTE ON FUNCTION tidemark.await_ring, tidemark.advance, tidemark.expect FROM PUBLIC;
"""
