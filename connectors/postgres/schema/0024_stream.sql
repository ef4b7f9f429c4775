-- A view as a stream: every change of its table in order, from its history.

CREATE FUNCTION tidemark.stream(
    of anyelement, since text DEFAULT NULL, until text DEFAULT NULL,
    retractions boolean DEFAULT true)
RETURNS TABLE (undo boolean, committed_at timestamptz, "position" pg_lsn, epoch bigint,
    "row" anyelement)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET extra_float_digits = 1 AS $$
DECLARE
    shown oid := (SELECT typrelid FROM pg_type WHERE oid = pg_typeof(of));
    relation regclass := nullif(shown, 0)::regclass;
    past record;
    begun bigint;
    ended bigint;
    image text;
BEGIN
    SELECT h.* INTO past FROM tidemark.history AS h WHERE h.relation = shown;
    -- Fails by name where there is no history.
    ended := (SELECT f.epoch FROM tidemark.find_epoch(
        relation, coalesce(until, past.newest_epoch::text, '0')) AS f);
    begun := CASE WHEN since IS NULL THEN past.oldest_epoch
        ELSE (SELECT f.epoch FROM tidemark.find_epoch(relation, since) AS f) END;
    IF begun > ended THEN
        RAISE EXCEPTION '"since" is after "until": epoch %, epoch %', begun, ended
            USING ERRCODE = 'TM013', DETAIL = 'code: history.bad_point', HINT = 'exchange them';
    END IF;
    image := (SELECT format('ROW(%s)::%s', string_agg(format('h.%I', attname), ', ' ORDER BY attnum),
        relation) FROM pg_attribute WHERE attrelid = shown AND attnum > 0 AND NOT attisdropped);
    -- Rows that an epoch both ends and begins are no change: a multiset has some of them more often.
    RETURN QUERY EXECUTE format('
        WITH changed AS (
            SELECT greatest(h.%1$I, $1) AS epoch, 1 AS weight, %4$s AS image FROM %3$s AS h
            WHERE h.%1$I > $1 AND h.%1$I <= $2
                OR $3 AND h.%1$I <= $1 AND (h.%2$I > $1 OR h.%2$I IS NULL)
            UNION ALL
            SELECT h.%2$I, -1, %4$s FROM %3$s AS h WHERE h.%2$I > $1 AND h.%2$I <= $2
        ), net AS (
            SELECT c.epoch, sum(c.weight) AS weight, c.image::text AS shown,
                (array_agg(c.image))[1] AS image
            FROM changed AS c GROUP BY c.epoch, c.image::text HAVING sum(c.weight) <> 0
        )
        SELECT n.weight < 0, coalesce(e.committed_at, $4), ''0/0''::pg_lsn + e."position", n.epoch,
            n.image
        FROM net AS n LEFT JOIN tidemark.history_epochs AS e
            ON (e.schema, e.name) = ($5, $6) AND e.epoch = n.epoch
        CROSS JOIN generate_series(1, abs(n.weight))
        WHERE n.weight > 0 OR $7
        ORDER BY n.epoch, n.weight > 0, n.shown',
        past.period[1], past.period[2], past.history, image)
        USING begun, ended, since IS NULL, past.oldest_at, past.schema, past.name, retractions;
END $$;
COMMENT ON FUNCTION tidemark.stream(anyelement, text, text, boolean) IS
    'Every change of a view in order: tidemark.stream(NULL::revenue, since, until)';

CREATE FUNCTION tidemark.stream(
    of anyelement, since timestamptz, until timestamptz DEFAULT NULL,
    retractions boolean DEFAULT true)
RETURNS TABLE (undo boolean, committed_at timestamptz, "position" pg_lsn, epoch bigint,
    "row" anyelement)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN QUERY SELECT * FROM tidemark.stream(of,
        to_char(since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00',
        to_char(until AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS.US') || '+00', retractions);
END $$;
COMMENT ON FUNCTION tidemark.stream(anyelement, timestamptz, timestamptz, boolean) IS
    'Every change of a view between two times, in order';
