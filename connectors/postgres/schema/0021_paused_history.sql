-- The past of a view stays readable while all views are paused, although the progress is gone then.

ALTER TABLE tidemark.histories ADD COLUMN last_epoch bigint, ADD COLUMN last_positions jsonb;
COMMENT ON COLUMN tidemark.histories.last_epoch IS
    'the newest epoch when its progress was removed, with the last running view';

CREATE FUNCTION tidemark.forget_progress(writer text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    UPDATE tidemark.histories AS h SET last_epoch = p.epoch, last_positions = p.positions
    FROM tidemark.progress AS p WHERE p.sink_key = writer AND h.sink_key = writer;
    DELETE FROM tidemark.progress WHERE sink_key = writer;
END $$;
COMMENT ON FUNCTION tidemark.forget_progress IS
    'Removes a progress, and retains what readers of the past need of it';
REVOKE EXECUTE ON FUNCTION tidemark.forget_progress FROM PUBLIC;

CREATE OR REPLACE VIEW tidemark.history WITH (security_barrier) AS
SELECT h.schema, h.name, coalesce(t.view_oid, t.table_oid)::regclass AS relation,
    h.view_oid::regclass AS history, h.retained, h.period, h.begun_epoch, h.begun_at,
    h.oldest_epoch, h.oldest_at, n.epoch AS newest_epoch, n.positions AS newest_positions
FROM tidemark.histories AS h
JOIN pg_class AS c ON c.oid = h.view_oid
JOIN tidemark.tables AS t ON (t.schema, t.name) = (h.schema, h.name) AND NOT t.is_staged
CROSS JOIN LATERAL (
    SELECT p.epoch, p.positions FROM tidemark.progress AS p WHERE p.sink_key = h.sink_key
    UNION ALL
    SELECT h.last_epoch, h.last_positions WHERE h.last_epoch IS NOT NULL AND NOT EXISTS (
        SELECT FROM tidemark.progress AS p WHERE p.sink_key = h.sink_key)
    UNION ALL
    -- Removed by an earlier version.
    (SELECT e.epoch, e.positions FROM tidemark.epochs AS e
    WHERE h.last_epoch IS NULL AND e.sink_key = h.sink_key AND NOT EXISTS (
        SELECT FROM tidemark.progress AS p WHERE p.sink_key = h.sink_key)
    ORDER BY e.epoch DESC LIMIT 1)
) AS n
WHERE NOT h.is_staged AND has_table_privilege(h.view_oid, 'SELECT');
