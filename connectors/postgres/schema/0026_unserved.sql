-- Why no service answers here: there is none, or none can write.

CREATE FUNCTION tidemark.unserved(OUT code text, OUT what text, OUT hint text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN is_read_only THEN 'sink.read_only' ELSE 'service.absent' END,
        CASE WHEN pg_is_in_recovery() THEN 'this database is a standby: no service can write to it'
            WHEN is_read_only THEN 'this database is read-only: no service can write to it'
            ELSE 'no Tidemark service is listening to this database' END,
        CASE WHEN pg_is_in_recovery() THEN 'ask the primary, or promote this one'
            WHEN is_read_only THEN 'ALTER DATABASE ... RESET default_transaction_read_only'
            ELSE 'start it: tidemark serve, with this database as its sink' END
    FROM (SELECT pg_is_in_recovery() OR EXISTS (
        SELECT FROM pg_db_role_setting AS s CROSS JOIN unnest(s.setconfig) AS o (setting)
        WHERE s.setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
            AND s.setrole IN (0, (SELECT nspowner FROM pg_namespace WHERE nspname = 'tidemark'))
            AND lower(o.setting) IN ('default_transaction_read_only=on',
                'default_transaction_read_only=true', 'default_transaction_read_only=yes',
                'default_transaction_read_only=1')
    ) OR EXISTS (
        SELECT FROM pg_settings WHERE name = 'default_transaction_read_only' AND setting = 'on'
            AND source = 'configuration file'
    )) AS f (is_read_only)
$$;
COMMENT ON FUNCTION tidemark.unserved IS 'Returns why no service answers requests here';

CREATE OR REPLACE FUNCTION tidemark.wait("position" pg_lsn, timeout interval) RETURNS pg_lsn
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
                    ELSE (SELECT u.what || ': ' || u.hint FROM tidemark.unserved() AS u) END;
        END IF;
        IF round % 50 = 2 THEN
            PERFORM tidemark.ring();
        END IF;
        PERFORM pg_sleep(least(0.001 * 1.3 ^ least(round, 12), 0.02));
        round := round + 1;
    END LOOP;
END $$;
CREATE OR REPLACE VIEW tidemark.status WITH (security_barrier) AS
WITH service AS MATERIALIZED (SELECT tidemark.is_absent() AS is_absent, u.* FROM tidemark.unserved() AS u)
SELECT v.schema, v.name,
    CASE WHEN a.is_absent THEN 'degraded' ELSE coalesce(s.status, v.status) END AS status,
    v.kind, v.created_by AS owner,
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
    CASE WHEN a.is_absent THEN service.code ELSE coalesce(s.code, v.code) END AS code,
    CASE WHEN a.is_absent THEN service.what
        WHEN s.code IS NOT NULL THEN s.error ELSE v.detail END AS error,
    CASE WHEN a.is_absent THEN service.hint
        WHEN s.code IS NOT NULL THEN s.hint ELSE v.hint END AS hint,
    v.query, v.created_at, v.live_at
FROM service
CROSS JOIN tidemark.views AS v
LEFT JOIN tidemark.tables AS t ON (t.schema, t.name) = (v.schema, v.name) AND NOT t.is_staged
LEFT JOIN tidemark.progress AS p ON v.status = 'live'
    AND CASE coalesce(v.options ->> 'group', 'default')
        WHEN 'default' THEN p.sink_key NOT LIKE '%/%'
        ELSE split_part(p.sink_key, '/', 2) = v.options ->> 'group' END
LEFT JOIN tidemark.standings AS s
    ON (s.kind, s.name, s.of_status) = ('view', v.identity, v.status)
CROSS JOIN LATERAL (SELECT v.status = 'live' AND service.is_absent AS is_absent) AS a
WHERE tidemark.is_for(v.created_by, coalesce(t.view_oid, t.table_oid)::regclass);
CREATE OR REPLACE VIEW tidemark.source_status WITH (security_barrier) AS
WITH service AS MATERIALIZED (SELECT tidemark.is_absent() AS is_absent, u.* FROM tidemark.unserved() AS u)
SELECT o.name, o.type,
    CASE WHEN service.is_absent THEN 'stopped' ELSE coalesce(s.status, o.status) END AS status,
    CASE WHEN service.is_absent THEN service.code
        WHEN s.name IS NULL THEN o.code ELSE s.code END AS code,
    CASE WHEN r.may_read AND s.name IS NULL THEN o.detail WHEN r.may_read THEN s.error END AS error,
    CASE WHEN r.may_read AND s.name IS NULL THEN o.hint WHEN r.may_read THEN s.hint END AS hint,
    o.retry_at, o.created_at
FROM service
CROSS JOIN tidemark.sources AS o
LEFT JOIN tidemark.standings AS s ON (s.kind, s.name) = ('source', o.name)
CROSS JOIN LATERAL (SELECT EXISTS (
    SELECT FROM tidemark.views AS v
    CROSS JOIN LATERAL jsonb_array_elements(v.plan -> 'reads') AS a (reads)
    LEFT JOIN tidemark.tables AS t ON (t.schema, t.name) = (v.schema, v.name) AND NOT t.is_staged
    WHERE a.reads ->> 0 = split_part(o.name, '/', 1) AND v.desired <> 'dropped'
        AND tidemark.is_for(v.created_by, coalesce(t.view_oid, t.table_oid)::regclass)
) AS may_read) AS r
WHERE r.may_read OR has_function_privilege(
    'tidemark.drop_source(text, jsonb)'::regprocedure, 'EXECUTE');
CREATE OR REPLACE VIEW tidemark.health WITH (security_barrier) AS
WITH service AS MATERIALIZED (SELECT tidemark.is_absent() AS is_absent, u.* FROM tidemark.unserved() AS u)
SELECT CASE WHEN service.is_absent THEN 'degraded' ELSE coalesce(s.status, 'starting') END
        AS status,
    CASE WHEN service.is_absent
        THEN ARRAY[format('%s [%s]', service.what, service.code)]
        WHEN pg_has_role(c.relowner, 'USAGE') THEN s.reasons END AS reasons,
    s.decided_at AS since
FROM service
JOIN pg_class AS c ON c.oid = 'tidemark.standings'::regclass
LEFT JOIN tidemark.standings AS s ON s.kind = 'service';
