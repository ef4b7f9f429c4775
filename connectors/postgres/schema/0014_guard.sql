-- Foreign objects on a view's table (connectors/postgres/schema/trigger_guard.py).
--
-- Functions that resolve names for their callers must find PostgreSQL's own, whatever the caller's
-- search path contains.

ALTER TABLE tidemark.tables ADD COLUMN types jsonb;
COMMENT ON COLUMN tidemark.tables.types IS 'oid of the type of each column at its creation';
UPDATE tidemark.tables SET types = {{types_of_table}};

CREATE FUNCTION tidemark.is_foreign(relation oid) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- PL/pgSQL caches its plan for the session; SQL would not.
    RETURN NOT coalesce((
        SELECT bool_and({{trusted_role}} AND (r.rolname <> 'pg_database_owner'))
        FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
        JOIN pg_roles AS r ON r.oid IN (c.relowner, CASE WHEN n.nspowner = (
                SELECT oid FROM pg_roles WHERE rolname = 'pg_database_owner')
            THEN (SELECT datdba FROM pg_database WHERE datname = current_database())
            ELSE n.nspowner END)
        WHERE c.oid = relation), false);
END $$;
COMMENT ON FUNCTION tidemark.is_foreign IS
    'Returns true if roles other than the service and superusers control a table, or it is gone';

CREATE FUNCTION tidemark.guard(
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
            WHERE writes AND g.tgrelid = wanted
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
COMMENT ON FUNCTION tidemark.guard IS
    'Refuses a view''s table that was replaced, or that would run other roles'' code';
REVOKE EXECUTE ON FUNCTION tidemark.guard, tidemark.is_foreign FROM PUBLIC;

{{request}}

-- PL/pgSQL caches their plans for the session.
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
