-- Up to where the windows of a view were closed in each epoch of its past: with that, the final rows
-- that an epoch published can be read again (connectors/postgres/query/history_rows.py).

CREATE TABLE tidemark.window_edges (
    table_oid oid NOT NULL,
    epoch bigint NOT NULL,
    edge_us bigint,
    PRIMARY KEY (table_oid, epoch)
);
COMMENT ON TABLE tidemark.window_edges IS
    'Up to where the windows of a view are closed, since when; of views whose past is retained';
COMMENT ON COLUMN tidemark.window_edges.table_oid IS 'the table of the history, in schema tidemark';
COMMENT ON COLUMN tidemark.window_edges.edge_us IS
    'in microseconds since 2000 UTC; NULL: no window is closed';

-- An epoch that moves an edge removes a note and adds another one, in either order.
CREATE FUNCTION tidemark.note_edge() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO tidemark.window_edges (table_oid, epoch, edge_us)
        SELECT h.table_oid, p.epoch, btrim(NEW.source_row, '()')::bigint
        FROM tidemark.histories AS h JOIN tidemark.progress AS p ON p.sink_key = h.sink_key
        WHERE h.schema || '.' || h.name = NEW.view AND NOT h.is_staged
        ON CONFLICT (table_oid, epoch) DO UPDATE SET edge_us = EXCLUDED.edge_us;
    ELSE
        INSERT INTO tidemark.window_edges (table_oid, epoch)
        SELECT h.table_oid, p.epoch
        FROM tidemark.histories AS h JOIN tidemark.progress AS p ON p.sink_key = h.sink_key
        WHERE h.schema || '.' || h.name = OLD.view AND NOT h.is_staged
        ON CONFLICT DO NOTHING;
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER note_edge_added AFTER INSERT ON tidemark.notes
    FOR EACH ROW WHEN (NEW.sqlstate = 'TML04') EXECUTE FUNCTION tidemark.note_edge();
CREATE TRIGGER note_edge_removed AFTER DELETE ON tidemark.notes
    FOR EACH ROW WHEN (OLD.sqlstate = 'TML04') EXECUTE FUNCTION tidemark.note_edge();

-- The edges begin, are pruned and end with their history; the one before the oldest epoch stays.
CREATE FUNCTION tidemark.follow_history() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        DELETE FROM tidemark.window_edges WHERE table_oid = OLD.table_oid;
    ELSIF NEW.begun_epoch IS DISTINCT FROM OLD.begun_epoch THEN
        INSERT INTO tidemark.window_edges (table_oid, epoch, edge_us)
        SELECT NEW.table_oid, NEW.begun_epoch, (
            SELECT btrim(n.source_row, '()')::bigint FROM tidemark.notes AS n
            WHERE n.view = NEW.schema || '.' || NEW.name AND n.sqlstate = 'TML04')
        ON CONFLICT DO NOTHING;
    ELSE
        DELETE FROM tidemark.window_edges WHERE table_oid = NEW.table_oid AND epoch < (
            SELECT max(e.epoch) FROM tidemark.window_edges AS e
            WHERE e.table_oid = NEW.table_oid AND e.epoch <= NEW.oldest_epoch);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER follow_history AFTER DELETE OR UPDATE OF begun_epoch, oldest_epoch
    ON tidemark.histories FOR EACH ROW EXECUTE FUNCTION tidemark.follow_history();
REVOKE EXECUTE ON FUNCTION tidemark.note_edge, tidemark.follow_history FROM PUBLIC;

-- What was published before is not known of earlier histories.
INSERT INTO tidemark.window_edges (table_oid, epoch, edge_us)
SELECT h.table_oid, p.epoch, (
    SELECT btrim(n.source_row, '()')::bigint FROM tidemark.notes AS n
    WHERE n.view = h.schema || '.' || h.name AND n.sqlstate = 'TML04')
FROM tidemark.histories AS h JOIN tidemark.progress AS p ON p.sink_key = h.sink_key
WHERE NOT h.is_staged;
