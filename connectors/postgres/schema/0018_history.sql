-- The past of views (connectors/postgres/sink/history_tables.py).
--
-- The rows are in tables of this schema, which only the service writes; readers have a view beside
-- each maintained view. What is found here for a reader is what the reader may SELECT there.

CREATE TABLE tidemark.histories (
    schema text NOT NULL,
    name text NOT NULL,
    is_staged boolean NOT NULL,
    sink_key text NOT NULL,
    retained interval NOT NULL,
    table_oid oid NOT NULL,
    view_oid oid,
    period text[] NOT NULL,
    begun_epoch bigint,
    begun_at timestamptz,
    oldest_epoch bigint,
    oldest_at timestamptz,
    PRIMARY KEY (schema, name, is_staged)
);
COMMENT ON TABLE tidemark.histories IS 'Views whose past is retained, and since when it can be read';
COMMENT ON COLUMN tidemark.histories.table_oid IS 'the table of the rows, in schema tidemark';
COMMENT ON COLUMN tidemark.histories.view_oid IS 'what users read, beside the maintained view';
COMMENT ON COLUMN tidemark.histories.period IS
    'names of the columns from_epoch, to_epoch, valid_from, valid_to, from_positions, to_positions';
COMMENT ON COLUMN tidemark.histories.begun_epoch IS 'the epoch of the first rows';
COMMENT ON COLUMN tidemark.histories.oldest_epoch IS 'the oldest epoch that can still be read';

CREATE TABLE tidemark.epochs (
    sink_key text NOT NULL,
    epoch bigint NOT NULL,
    committed_at timestamptz NOT NULL,
    positions jsonb NOT NULL,
    "position" numeric GENERATED ALWAYS AS ((positions ->> 'source')::numeric) STORED,
    PRIMARY KEY (sink_key, epoch)
);
CREATE INDEX ON tidemark.epochs (sink_key, committed_at, epoch);
CREATE INDEX ON tidemark.epochs (sink_key, "position", epoch);
COMMENT ON TABLE tidemark.epochs IS 'The epochs that changed a view whose past is retained';
COMMENT ON COLUMN tidemark.epochs.committed_at IS
    'when its newest transaction committed at the source; never before the previous epoch';

CREATE TABLE tidemark.rewinds (
    sink_key text NOT NULL,
    epoch bigint NOT NULL,
    follows bigint NOT NULL,
    positions jsonb NOT NULL,
    repaired_at timestamptz NOT NULL,
    PRIMARY KEY (sink_key, epoch)
);
COMMENT ON TABLE tidemark.rewinds IS
    'Epochs that a rewound sink has lost: those after `follows` and before `epoch`';

-- The clock of an epoch is that of its source, or of the sink where that is unknown or ahead.
CREATE FUNCTION tidemark.note_epoch(writer text, number bigint, committed_us bigint, reached jsonb)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    committed timestamptz := least(clock_timestamp(), CASE WHEN committed_us > 0
        THEN 'epoch'::timestamptz + committed_us * interval '1 microsecond' END);
BEGIN
    INSERT INTO tidemark.epochs (sink_key, epoch, committed_at, positions)
    VALUES (writer, number, greatest(committed, (
        SELECT e.committed_at FROM tidemark.epochs AS e WHERE e.sink_key = writer
        ORDER BY e.epoch DESC LIMIT 1)), reached)
    ON CONFLICT DO NOTHING;
END $$;

CREATE FUNCTION tidemark.note_rewind(writer text, number bigint) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    INSERT INTO tidemark.rewinds (sink_key, epoch, follows, positions, repaired_at)
    SELECT writer, number, p.epoch, p.positions, clock_timestamp()
    FROM tidemark.progress AS p WHERE p.sink_key = writer AND p.epoch < number - 1
        AND EXISTS (SELECT FROM tidemark.histories AS h WHERE h.sink_key = writer)
    ON CONFLICT DO NOTHING;
END $$;

CREATE FUNCTION tidemark.prune_histories(writer text, most bigint) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    one record;
    reached record;
    rows bigint;
    total bigint := 0;
    least_epoch bigint;
BEGIN
    FOR one IN SELECT h.*, c.oid::regclass AS relation FROM tidemark.histories AS h
        JOIN pg_class AS c ON c.oid = h.table_oid WHERE h.sink_key = writer AND NOT h.is_staged
    LOOP
        SELECT e.epoch, e.committed_at INTO reached FROM tidemark.epochs AS e
        WHERE e.sink_key = writer AND e.committed_at <= clock_timestamp() - one.retained
        ORDER BY e.committed_at DESC, e.epoch DESC LIMIT 1;
        IF FOUND AND reached.epoch > one.oldest_epoch THEN
            UPDATE tidemark.histories
            SET oldest_epoch = reached.epoch, oldest_at = reached.committed_at
            WHERE (schema, name) = (one.schema, one.name) AND NOT is_staged;
        ELSE
            reached.epoch := one.oldest_epoch;
        END IF;
        EXECUTE format('DELETE FROM ONLY %s WHERE ctid = ANY (ARRAY('
            'SELECT ctid FROM ONLY %s WHERE %I <= %s AND %I < {{open_epoch}} LIMIT %s))',
            one.relation, one.relation, one.period[2], reached.epoch, one.period[2], most - total);
        GET DIAGNOSTICS rows = ROW_COUNT;
        total := total + rows;
        least_epoch := least(least_epoch, reached.epoch);
    END LOOP;
    IF total < most THEN
        DELETE FROM tidemark.epochs WHERE sink_key = writer AND epoch = ANY (ARRAY(
            SELECT e.epoch FROM tidemark.epochs AS e
            WHERE e.sink_key = writer AND e.epoch < least_epoch
            ORDER BY e.epoch LIMIT most - total));
        DELETE FROM tidemark.rewinds WHERE sink_key = writer AND epoch <= least_epoch;
    END IF;
    RETURN total;
END $$;
COMMENT ON FUNCTION tidemark.prune_histories IS
    'Moves the oldest readable epochs on, and deletes some of the rows that ended before them';
COMMENT ON FUNCTION tidemark.note_epoch IS
    'Enters an epoch that changes a view whose past is retained, with its clock';
COMMENT ON FUNCTION tidemark.note_rewind IS
    'Enters the epochs that a rewound sink has lost, before the one that repairs it';
REVOKE EXECUTE ON FUNCTION
    tidemark.note_epoch, tidemark.note_rewind, tidemark.prune_histories FROM PUBLIC;

CREATE VIEW tidemark.history WITH (security_barrier) AS
SELECT h.schema, h.name, coalesce(t.view_oid, t.table_oid)::regclass AS relation,
    h.view_oid::regclass AS history, h.retained, h.period, h.begun_epoch, h.begun_at,
    h.oldest_epoch, h.oldest_at, p.epoch AS newest_epoch, p.positions AS newest_positions
FROM tidemark.histories AS h
JOIN pg_class AS c ON c.oid = h.view_oid
JOIN tidemark.tables AS t ON (t.schema, t.name) = (h.schema, h.name) AND NOT t.is_staged
JOIN tidemark.progress AS p ON p.sink_key = h.sink_key
WHERE NOT h.is_staged AND has_table_privilege(h.view_oid, 'SELECT');
COMMENT ON VIEW tidemark.history IS 'The pasts of views that you may read, and since when';

CREATE VIEW tidemark.history_epochs WITH (security_barrier) AS
SELECT h.schema, h.name, e.epoch, e.committed_at, e."position", e.positions
FROM tidemark.histories AS h JOIN tidemark.epochs AS e ON e.sink_key = h.sink_key
JOIN pg_class AS c ON c.oid = h.view_oid
WHERE NOT h.is_staged AND e.epoch >= h.oldest_epoch AND has_table_privilege(h.view_oid, 'SELECT');
COMMENT ON VIEW tidemark.history_epochs IS
    'The epochs of which the past of a view can be read; the view may not differ in each of them';

CREATE VIEW tidemark.history_rewinds WITH (security_barrier) AS
SELECT h.schema, h.name, r.epoch, r.follows, (r.positions ->> 'source')::numeric AS "position",
    r.repaired_at
FROM tidemark.histories AS h JOIN tidemark.rewinds AS r ON r.sink_key = h.sink_key
JOIN pg_class AS c ON c.oid = h.view_oid
WHERE NOT h.is_staged AND has_table_privilege(h.view_oid, 'SELECT');
COMMENT ON VIEW tidemark.history_rewinds IS
    'Epochs that are missing since the sink was rewound: those after `follows` and before `epoch`';
GRANT SELECT ON tidemark.history, tidemark.history_epochs, tidemark.history_rewinds TO PUBLIC;

CREATE FUNCTION tidemark.find_epoch(
    relation regclass, point text, OUT epoch bigint, OUT committed_at timestamptz,
    OUT positions jsonb)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    past record;
    reached record;
    lost record;
    number bigint;
    at timestamptz;
    lsn numeric;
    newest_lsn numeric;
BEGIN
    SELECT h.* INTO past FROM tidemark.history AS h WHERE h.relation = find_epoch.relation;
    IF NOT FOUND THEN
        RAISE EXCEPTION '% has no history that you may read', coalesce(relation::text, 'NULL')
            USING ERRCODE = 'TM010', DETAIL = 'code: history.none',
            HINT = 'create or replace the view with the option history, or ask for SELECT on it';
    END IF;
    newest_lsn := (past.newest_positions ->> 'source')::numeric;
    IF point ~ '^[0-9]{1,18}$' THEN
        number := point::bigint;
        SELECT e.* INTO reached FROM tidemark.history_epochs AS e
        WHERE (e.schema, e.name) = (past.schema, past.name) AND e.epoch <= number
        ORDER BY e.epoch DESC LIMIT 1;
        SELECT r.* INTO lost FROM tidemark.history_rewinds AS r
        WHERE (r.schema, r.name) = (past.schema, past.name)
            AND number > r.follows AND number < r.epoch LIMIT 1;
    ELSIF point ~ '^[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}$' THEN
        lsn := point::pg_lsn - '0/0'::pg_lsn;
        SELECT e.* INTO reached FROM tidemark.history_epochs AS e
        WHERE (e.schema, e.name) = (past.schema, past.name) AND e."position" <= lsn
        ORDER BY e."position" DESC, e.epoch DESC LIMIT 1;
        SELECT r.* INTO lost FROM tidemark.history_rewinds AS r
        WHERE (r.schema, r.name) = (past.schema, past.name)
            AND lsn > r."position" AND r.epoch > reached.epoch LIMIT 1;
    ELSE
        BEGIN
            at := point::timestamptz;
        EXCEPTION WHEN data_exception OR invalid_text_representation THEN
            at := NULL;
        END;
        IF at IS NULL OR NOT isfinite(at) THEN
            RAISE EXCEPTION '"%" is not a point in the past', left(point, 80)
                USING ERRCODE = 'TM013', DETAIL = 'code: history.bad_point',
                HINT = 'give a time, an epoch such as 42, or a position such as 0/1A2B3C';
        END IF;
        SELECT e.* INTO reached FROM tidemark.history_epochs AS e
        WHERE (e.schema, e.name) = (past.schema, past.name) AND e.committed_at <= at
        ORDER BY e.committed_at DESC, e.epoch DESC LIMIT 1;
        -- The clocks of lost epochs are unknown.
        SELECT r.* INTO lost FROM tidemark.history_rewinds AS r
        WHERE (r.schema, r.name) = (past.schema, past.name)
            AND at > reached.committed_at AND r.epoch > reached.epoch AND r.follows >= reached.epoch
            LIMIT 1;
    END IF;
    IF number > past.newest_epoch OR lsn > newest_lsn OR at > clock_timestamp() THEN
        RAISE EXCEPTION '% is not reached yet', point
            USING ERRCODE = 'TM012', DETAIL = format('code: history.not_reached; newest is epoch %s',
                past.newest_epoch) || coalesce(', position ' || ('0/0'::pg_lsn + newest_lsn), ''),
            HINT = 'wait until the view shows it';
    END IF;
    IF reached.epoch IS NULL THEN
        RAISE EXCEPTION '% is before the oldest readable point', point
            USING ERRCODE = 'TM011', DETAIL = format(
                'code: history.too_old; the history of %s begins with epoch %s, at %s%s',
                past.relation, past.oldest_epoch, past.oldest_at, coalesce((
                    SELECT ', position ' || ('0/0'::pg_lsn + e."position")
                    FROM tidemark.history_epochs AS e
                    WHERE (e.schema, e.name) = (past.schema, past.name)
                        AND e.epoch = past.oldest_epoch), '')),
            HINT = 'read a later point; the option history of the view retains more from now on';
    END IF;
    IF lost.epoch IS NOT NULL THEN
        RAISE EXCEPTION '% was lost when the sink was rewound', point
            USING ERRCODE = 'TM014', DETAIL = format(
                'code: history.lost; epochs %s to %s are unknown', lost.follows + 1, lost.epoch - 1),
            HINT = format('read epoch %s or %s', reached.epoch, lost.epoch);
    END IF;
    epoch := reached.epoch;
    committed_at := reached.committed_at;
    positions := reached.positions;
END $$;
COMMENT ON FUNCTION tidemark.find_epoch IS
    'The newest epoch of a view''s past at a time, position or epoch';

CREATE FUNCTION tidemark.as_of(of anyelement, point text) RETURNS SETOF anyelement
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    shown oid := (SELECT typrelid FROM pg_type WHERE oid = pg_typeof(of));
    number bigint;
    past record;
BEGIN
    number := (SELECT f.epoch FROM tidemark.find_epoch(nullif(shown, 0)::regclass, point) AS f);
    SELECT h.history, h.period INTO past FROM tidemark.history AS h WHERE h.relation = shown;
    RETURN QUERY EXECUTE format('SELECT %s FROM %s WHERE %I <= $1 AND (%I > $1 OR %I IS NULL)',
        (SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
            WHERE attrelid = shown AND attnum > 0 AND NOT attisdropped),
        past.history, past.period[1], past.period[2], past.period[2]) USING number;
END $$;
COMMENT ON FUNCTION tidemark.as_of(anyelement, text) IS
    'The rows of a view at a time, position or epoch: tidemark.as_of(NULL::revenue, ''2026-01-31'')';

CREATE FUNCTION tidemark.as_of(of anyelement, point timestamptz) RETURNS SETOF anyelement
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT * FROM tidemark.as_of(of, to_char(
        point AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00');
END $$;
COMMENT ON FUNCTION tidemark.as_of(anyelement, timestamptz) IS 'The rows of a view at a time';

CREATE TABLE tidemark.subscriptions (
    view_identity text NOT NULL REFERENCES tidemark.views (identity) ON DELETE CASCADE,
    name text NOT NULL,
    epoch bigint NOT NULL,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    acknowledged_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (view_identity, name)
);
COMMENT ON TABLE tidemark.subscriptions IS 'Named readers of views, and the epoch that each has read';

CREATE VIEW tidemark.subscription_status WITH (security_barrier) AS
SELECT h.schema, h.name, s.name AS subscription,
    CASE WHEN s.epoch >= h.oldest_epoch THEN 'ready' ELSE 'expired' END AS status,
    s.epoch, h.newest_epoch, h.oldest_epoch, s.created_by, s.created_at, s.acknowledged_at
FROM tidemark.history AS h
JOIN tidemark.views AS v ON (v.schema, v.name) = (h.schema, h.name)
JOIN tidemark.subscriptions AS s ON s.view_identity = v.identity;
COMMENT ON VIEW tidemark.subscription_status IS
    'The named readers of views whose past you may read, and what each has acknowledged';
GRANT SELECT ON tidemark.subscription_status TO PUBLIC;
