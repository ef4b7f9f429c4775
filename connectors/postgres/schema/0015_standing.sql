-- The status of views, sources and the service.
--
-- The service decides it (service/api/health.py) and writes it to tidemark.standings. If no service
-- is left, that is shown: none has advanced its progress for 15 seconds.

CREATE TABLE tidemark.standings (
    kind text NOT NULL,
    name text NOT NULL,
    status text NOT NULL,
    of_status text NOT NULL,
    code text,
    error text,
    hint text,
    reasons text[] NOT NULL,
    decided_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, name)
);
COMMENT ON TABLE tidemark.standings IS
    'Status of views (by identity), sources and the service, as the service last decided it';
COMMENT ON COLUMN tidemark.standings.of_status IS 'the view''s own status on which it is based';

ALTER TABLE tidemark.sources ADD COLUMN retry_at timestamptz;
COMMENT ON COLUMN tidemark.sources.retry_at IS 'when a retry was last requested';
DROP TRIGGER announce ON tidemark.sources;
CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE OF options, relations, retry_at
    ON tidemark.sources FOR EACH STATEMENT EXECUTE FUNCTION tidemark.announce();

CREATE FUNCTION tidemark.is_absent() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT tidemark.is_served() AND coalesce(max(updated_at)
        < clock_timestamp() - interval '15 seconds', true) FROM tidemark.progress
$$;
COMMENT ON FUNCTION tidemark.is_absent IS
    'Returns true if no service listens here or has advanced the progress recently';

CREATE OR REPLACE VIEW tidemark.status WITH (security_barrier) AS
WITH service AS MATERIALIZED (SELECT tidemark.is_absent() AS is_absent)
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
    CASE WHEN a.is_absent THEN 'service.absent' ELSE coalesce(s.code, v.code) END AS code,
    CASE WHEN a.is_absent THEN 'no Tidemark service keeps this database''s views up to date'
        WHEN s.code IS NOT NULL THEN s.error ELSE v.detail END AS error,
    CASE WHEN a.is_absent THEN 'start it: tidemark serve, with this database as its sink'
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
COMMENT ON COLUMN tidemark.status.status IS
    'degraded: its rows are readable but not updated, see code, error and hint';

CREATE VIEW tidemark.source_status WITH (security_barrier) AS
WITH service AS MATERIALIZED (SELECT tidemark.is_absent() AS is_absent)
SELECT o.name, o.type,
    CASE WHEN service.is_absent THEN 'stopped' ELSE coalesce(s.status, o.status) END AS status,
    CASE WHEN service.is_absent THEN 'service.absent'
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
COMMENT ON VIEW tidemark.source_status IS
    'The sources that your views read or that you may declare, with their status';
COMMENT ON COLUMN tidemark.source_status.error IS
    'for those who may read a view of the source: it may quote a record';

CREATE VIEW tidemark.health WITH (security_barrier) AS
WITH service AS MATERIALIZED (SELECT tidemark.is_absent() AS is_absent)
SELECT CASE WHEN service.is_absent THEN 'degraded' ELSE coalesce(s.status, 'starting') END
        AS status,
    CASE WHEN service.is_absent
        THEN ARRAY['no Tidemark service is listening to this database [service.absent]']
        WHEN pg_has_role(c.relowner, 'USAGE') THEN s.reasons END AS reasons,
    s.decided_at AS since
FROM service
JOIN pg_class AS c ON c.oid = 'tidemark.standings'::regclass
LEFT JOIN tidemark.standings AS s ON s.kind = 'service';
COMMENT ON VIEW tidemark.health IS
    'Status of the service; only members of its owner see the reasons, which may quote rows';
GRANT SELECT ON tidemark.source_status, tidemark.health TO PUBLIC;

CREATE PROCEDURE tidemark.retry_source(name text, options jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE arguments jsonb := jsonb_build_object('name', retry_source.name);
BEGIN
    CALL tidemark.request('retry_source', arguments, options);
END $$;
COMMENT ON PROCEDURE tidemark.retry_source(text, jsonb) IS 'Retries an unreachable or stopped source now';
REVOKE EXECUTE ON PROCEDURE tidemark.retry_source(text, jsonb) FROM PUBLIC;
