-- The guard of views' tables: only an epoch writes to them (connectors/postgres/schema/table_guard.py).

ALTER TABLE tidemark.tables ADD COLUMN shape jsonb;
COMMENT ON COLUMN tidemark.tables.shape IS
    'columns, rule and server version at its creation; NULL until the guard is there';

-- The mark is the transaction's own number, so it ends with the transaction.
CREATE OR REPLACE FUNCTION tidemark.advance(writer text, new_epoch bigint, reached jsonb)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tidemark.progress
    SET epoch = new_epoch, positions = reached, updated_at = clock_timestamp()
    WHERE sink_key = writer AND epoch = new_epoch - 1;
    IF NOT FOUND THEN
        IF EXISTS (SELECT FROM tidemark.progress WHERE sink_key = writer) THEN
            RAISE EXCEPTION 'the sink is not at epoch %', new_epoch - 1
                USING ERRCODE = '{{fenced_state}}';
        END IF;
        INSERT INTO tidemark.progress (sink_key, epoch, positions)
        VALUES (writer, new_epoch, reached);
    END IF;
    PERFORM set_config('tidemark.epoch', pg_current_xact_id()::text, true);
END $$;

-- Evaluated while triggers of users may have another search path: its operator is PostgreSQL's.
CREATE OR REPLACE FUNCTION tidemark.expect(relation text, actual bigint, expected bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF actual OPERATOR(pg_catalog.<>) expected THEN
        RAISE EXCEPTION '% of % rows found in %', actual, expected, relation
            USING ERRCODE = '{{missing_state}}';
    END IF;
END $$;

-- It runs in the session of whoever writes, before the first row of each statement. A setting of the
-- function would cost more than the rest of it: so its names are qualified.
CREATE FUNCTION tidemark.refuse_write() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    mark text;
BEGIN
    IF pg_catalog.current_setting('tidemark.epoch', true) OPERATOR(pg_catalog.=)
            pg_catalog.pg_current_xact_id_if_assigned()::pg_catalog.text
        AND pg_catalog.pg_trigger_depth() OPERATOR(pg_catalog.=) 1 THEN
        RETURN NULL;
    END IF;
    mark := pg_catalog.concat(pg_catalog.pg_current_xact_id_if_assigned(), '{{with_triggers}}');
    IF pg_catalog.current_setting('tidemark.epoch', true) OPERATOR(pg_catalog.=) mark
        AND pg_catalog.pg_trigger_depth() OPERATOR(pg_catalog.=) 1 THEN
        -- Users have triggers here. The writer has planned its statement, and pins both again
        -- before the next one.
        SET LOCAL search_path TO DEFAULT;
        SET LOCAL row_security TO on;
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'table "%.%" is maintained by Tidemark: only its service writes to it',
            TG_TABLE_SCHEMA, TG_TABLE_NAME
        USING ERRCODE = '{{refused_state}}', DETAIL = 'its rows follow from the view''s query',
            HINT = 'change the tables that the query reads; keep rows of your own elsewhere';
END $$;
COMMENT ON FUNCTION tidemark.refuse_write IS
    'The trigger on the table of each view: refuses every write outside an epoch';

CREATE FUNCTION tidemark.add_guard(relation regclass) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    EXECUTE format('CREATE TRIGGER {{guard_name}} BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE'
        ' ON %s FOR EACH STATEMENT EXECUTE FUNCTION tidemark.refuse_write()', relation);
    -- Also where a session has switched triggers off as a replica does.
    EXECUTE format('ALTER TABLE %s ENABLE ALWAYS TRIGGER {{guard_name}}', relation);
END $$;
COMMENT ON FUNCTION tidemark.add_guard IS 'Lets only epochs write to the table of a view';

CREATE FUNCTION tidemark.add_guards() RETURNS TABLE (title text, why text)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET lock_timeout = '200ms' AS $$
DECLARE found record;
BEGIN
    FOR found IN SELECT t.schema, t.name, t.table_oid, t.view_oid FROM tidemark.tables AS t
        JOIN pg_class AS c ON c.oid = t.table_oid WHERE NOT t.is_staged AND t.shape IS NULL
    LOOP
        BEGIN
            PERFORM tidemark.add_guard(found.table_oid::regclass);
            UPDATE tidemark.tables AS t SET shape = {{shape}}
            WHERE t.table_oid = found.table_oid AND NOT t.is_staged;
        EXCEPTION WHEN others THEN
            title := format('%s.%s', found.schema, found.name);
            why := SQLERRM;
            RETURN NEXT;
        END;
    END LOOP;
END $$;
COMMENT ON FUNCTION tidemark.add_guards IS 'Guards the tables that an older version has made';
REVOKE EXECUTE ON FUNCTION tidemark.refuse_write, tidemark.add_guard, tidemark.add_guards
    FROM PUBLIC;

-- What differs from how a table was made, and would show other rows than those written.
CREATE FUNCTION tidemark.table_states(wide_index text) RETURNS TABLE (schema text, name text,
    is_gone boolean, what text, has_triggers boolean, is_foreign boolean, is_unguarded boolean)
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- PL/pgSQL caches the plan for the session.
    RETURN QUERY SELECT t.schema, t.name, c.oid IS NULL OR shown.oid IS NULL, found.what,
        coalesce(g.is_users, false),
        found.what IS NOT NULL AND tidemark.is_foreign(t.table_oid), t.shape IS NULL
    FROM tidemark.tables AS t
    LEFT JOIN pg_class AS c ON c.oid = t.table_oid
    LEFT JOIN pg_class AS shown ON shown.oid = coalesce(t.view_oid, t.table_oid)
    LEFT JOIN pg_namespace AS n ON n.oid = shown.relnamespace
    LEFT JOIN LATERAL (SELECT {{shape_of_table}} AS shape WHERE c.oid IS NOT NULL) AS s ON true
    LEFT JOIN LATERAL (
        SELECT bool_or(NOT {{is_guard}}) AS is_users, bool_or({{is_guard}}) AS is_guarded,
            min(g.tgname) FILTER (WHERE g.tgtype & 3 = 3) AS before_row
        FROM pg_trigger AS g
        WHERE g.tgrelid = t.table_oid AND NOT g.tgisinternal AND g.tgenabled <> 'D'
    ) AS g ON true
    CROSS JOIN LATERAL (SELECT CASE
        WHEN c.oid IS NULL OR shown.oid IS NULL
            THEN format('%I.%I was dropped', t.schema, t.name)
        WHEN (n.nspname, shown.relname) <> (t.schema, t.name)
            THEN format('it was renamed to %I.%I', n.nspname, shown.relname)
        WHEN g.before_row IS NOT NULL
            THEN format('trigger %I runs before each row and may change it', g.before_row)
        WHEN c.relhasrules AND EXISTS (SELECT FROM pg_rewrite AS w WHERE w.ev_class = c.oid)
            THEN (SELECT format('rule %I was added', min(w.rulename))
                FROM pg_rewrite AS w WHERE w.ev_class = c.oid)
        WHEN EXISTS (SELECT FROM pg_inherits AS i WHERE c.oid IN (i.inhparent, i.inhrelid))
            THEN 'it inherits, or others inherit from it'
        WHEN c.relpersistence <> 'p' THEN 'it is unlogged'
        WHEN t.shape IS NULL THEN NULL
        WHEN g.is_guarded IS NOT TRUE THEN 'its guard, a trigger, was disabled or dropped'
        WHEN (t.shape ->> 'server')::integer <> {{server}} THEN NULL
        WHEN t.shape -> 'columns' <> s.shape -> 'columns' THEN (SELECT CASE
                WHEN was.value IS NULL THEN format('column %I was added', now.key)
                WHEN now.value IS NULL THEN format('column %I was dropped or renamed', was.key)
                ELSE format('column %I has another type', was.key) END
            FROM jsonb_each(t.shape -> 'columns') AS was
            FULL JOIN jsonb_each(s.shape -> 'columns') AS now ON now.key = was.key
            WHERE was.value IS DISTINCT FROM now.value ORDER BY 1 LIMIT 1)
        WHEN t.shape <> s.shape THEN format('view %I was replaced', t.name)
        WHEN NOT EXISTS (SELECT FROM pg_index AS i JOIN pg_class AS x ON x.oid = i.indexrelid
                WHERE i.indrelid = c.oid
                    AND (i.indisprimary OR starts_with(x.relname, wide_index)))
            THEN 'its key was dropped'
        END AS what) AS found
    WHERE NOT t.is_staged;
END $$;
COMMENT ON FUNCTION tidemark.table_states IS 'What somebody has changed of each view''s table';
REVOKE EXECUTE ON FUNCTION tidemark.table_states FROM PUBLIC;

-- As of 0014, but for the trigger.
CREATE OR REPLACE FUNCTION tidemark.guard(
    view_schema text, view_name text, table_name text, writes boolean) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    wanted oid;
    made jsonb;
    relation text := format('%I.%I', view_schema, table_name);
    what text;
BEGIN
    SELECT table_oid, types INTO wanted, made FROM tidemark.tables
    WHERE schema = view_schema AND name = view_name AND NOT is_staged;
    IF NOT FOUND OR to_regclass(relation) IS NULL OR NOT tidemark.is_foreign(wanted) THEN
        RETURN;
    END IF;
    IF to_regclass(relation) = wanted AND writes THEN
        -- Nobody may add statistics or an index before we have written. A holder of this lock
        -- (autovacuum, CREATE INDEX CONCURRENTLY) excludes others too, and is not awaited.
        BEGIN
            EXECUTE format(
                'LOCK TABLE ONLY %s IN SHARE UPDATE EXCLUSIVE MODE NOWAIT', relation);
        EXCEPTION WHEN lock_not_available THEN
            EXECUTE format('LOCK TABLE ONLY %s IN ROW EXCLUSIVE MODE', relation);
        END;
    ELSIF to_regclass(relation) = wanted THEN
        EXECUTE format('LOCK TABLE ONLY %s IN ACCESS SHARE MODE', relation);
    END IF;
    IF to_regclass(relation) <> wanted THEN
        RAISE EXCEPTION '% is not the table that was made for the view', relation
            USING ERRCODE = '{{foreign_state}}';
    END IF;
    SELECT title INTO what FROM (
        SELECT 'relation ' || c.relname AS title FROM pg_class AS c
            WHERE c.oid = wanted AND (c.relkind <> 'r' OR c.relpersistence <> 'p')
        UNION ALL SELECT format('row level security of %s', relation) FROM pg_class AS c
            WHERE c.oid = wanted AND c.relrowsecurity
        UNION ALL SELECT format('inheritance of %s', relation) FROM pg_inherits
            WHERE writes AND wanted IN (inhrelid, inhparent)
        UNION ALL SELECT format('trigger %I', g.tgname) FROM pg_trigger AS g
            WHERE writes AND g.tgrelid = wanted AND NOT {{is_guard}}
        UNION ALL SELECT format('rule %I', w.rulename) FROM pg_rewrite AS w
            WHERE writes AND w.ev_class = wanted
        UNION ALL SELECT format('constraint %I', k.conname) FROM pg_constraint AS k
            WHERE writes AND k.conrelid = wanted AND k.contype NOT IN ('p', 'u', 'n')
        UNION ALL SELECT format('default of column %I', a.attname)
            FROM pg_attrdef AS f JOIN pg_attribute AS a
                ON a.attrelid = f.adrelid AND a.attnum = f.adnum
            WHERE writes AND f.adrelid = wanted
        UNION ALL SELECT format('index %I', x.relname)
            FROM pg_index AS i JOIN pg_class AS x ON x.oid = i.indexrelid
            WHERE writes AND i.indrelid = wanted AND {{index_uses_foreign_code}}
        -- The planner computes its expressions.
        UNION ALL SELECT format('statistics %I', s.stxname) FROM pg_statistic_ext AS s
            WHERE writes AND s.stxrelid = wanted
                AND {{statistics_use_foreign_code}}
        -- Its type has changed: the values that we write would be cast, by its owner's cast.
        UNION ALL SELECT format('the new type of column %I', a.attname)
            FROM pg_attribute AS a JOIN jsonb_each_text(made) AS m ON m.key = a.attname
            WHERE a.attrelid = wanted AND NOT a.attisdropped AND m.value::oid <> a.atttypid
        -- An added column, or a domain.
        UNION ALL SELECT format('column %I', a.attname)
            FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
            JOIN pg_roles AS r ON r.oid = t.typowner
            WHERE writes AND a.attrelid = wanted AND a.attnum > 0 AND NOT a.attisdropped
                AND NOT {{trusted_role}} AND (t.typtype = 'd' OR (made ->> a.attname) IS NULL)
    ) AS foreign_objects LIMIT 1;
    IF what IS NOT NULL THEN
        RAISE EXCEPTION '% would run with the rights of the service', what
            USING ERRCODE = '{{foreign_state}}';
    END IF;
END $$;
