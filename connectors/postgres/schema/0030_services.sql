-- Several services on one database: each row belongs to one of them, by its prefix.
--
-- Rows with a sink_key belong to the service before its "/"; rows with the identity of a view to the
-- view's service; tables, errors and notes to the view of their name, since names are unique over all
-- services. What an earlier version has written belongs to the service that wrote it, as far as that
-- is known here, else to the first one that registers.

CREATE TABLE tidemark.services (
    name text PRIMARY KEY,
    since timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tidemark.services IS 'The services that keep views in this database';
COMMENT ON COLUMN tidemark.services.name IS 'the setting prefix of the service';

DO $$
DECLARE
    relation text;
    known text := coalesce(
        (SELECT regexp_replace(s.publication, '_source(_[a-z0-9]+)?$', '')
            FROM tidemark.sources AS s WHERE s.publication <> '' ORDER BY s.name LIMIT 1),
        (SELECT min(w.name) FROM (
            SELECT split_part(sink_key, '/', 1) AS name FROM tidemark.progress
            UNION SELECT split_part(sink_key, '/', 1) FROM tidemark.owners) AS w
            HAVING count(*) = 1),
        '');
BEGIN
    FOREACH relation IN ARRAY ARRAY['views', 'sources', 'sinks', 'tokens', 'requests', 'listeners',
        'standings', 'idempotency_keys', 'source_readers']
    LOOP
        EXECUTE format('ALTER TABLE tidemark.%I ADD COLUMN service text NOT NULL DEFAULT %L',
            relation, known);
        EXECUTE format('ALTER TABLE tidemark.%I ALTER COLUMN service DROP DEFAULT', relation);
        EXECUTE format('COMMENT ON COLUMN tidemark.%I.service IS %L',
            relation, 'the service that it belongs to');
    END LOOP;
    INSERT INTO tidemark.services (name) SELECT known WHERE known <> '';
END $$;

ALTER TABLE tidemark.source_readers DROP CONSTRAINT source_readers_source_fkey,
    DROP CONSTRAINT source_readers_pkey;
ALTER TABLE tidemark.sources DROP CONSTRAINT sources_pkey, ADD PRIMARY KEY (service, name);
ALTER TABLE tidemark.source_readers ADD PRIMARY KEY (service, source, relation, grantee),
    ADD FOREIGN KEY (service, source) REFERENCES tidemark.sources (service, name)
        ON UPDATE CASCADE ON DELETE CASCADE;
ALTER TABLE tidemark.standings DROP CONSTRAINT standings_pkey,
    ADD PRIMARY KEY (service, kind, name);
ALTER TABLE tidemark.idempotency_keys DROP CONSTRAINT idempotency_keys_pkey,
    ADD PRIMARY KEY (service, caller, path, key);
DROP INDEX tidemark.tokens_name;
CREATE UNIQUE INDEX tokens_name ON tidemark.tokens (service, name) WHERE revoked_at IS NULL;

CREATE FUNCTION tidemark.register_service(title text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE relation text;
BEGIN
    INSERT INTO tidemark.services (name) VALUES (title) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN RETURN; END IF;
    -- Of rows that refer to each other, those referred to come first: the others follow.
    FOREACH relation IN ARRAY ARRAY['views', 'sources', 'sinks', 'tokens', 'requests', 'listeners',
        'standings', 'idempotency_keys', 'source_readers']
    LOOP
        EXECUTE format('UPDATE tidemark.%I SET service = $1 WHERE service = %L', relation, '')
            USING title;
    END LOOP;
END $$;
COMMENT ON FUNCTION tidemark.register_service IS
    'Notes a service; the first one gets what no service is known of';
REVOKE EXECUTE ON FUNCTION tidemark.register_service FROM PUBLIC;

-- --- whose request it is, and whose position --------------------------------------------------

CREATE FUNCTION tidemark.is_served(title text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM tidemark.listeners AS l JOIN pg_stat_activity AS a ON a.pid = l.backend_pid
        WHERE l.service = title AND (a.backend_start IS NULL OR a.backend_start = l.backend_start)
    )
$$;
COMMENT ON FUNCTION tidemark.is_served(text) IS 'Returns true if this service executes requests';

CREATE FUNCTION tidemark.was_served(title text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (SELECT FROM tidemark.listeners AS l WHERE l.service = title)
$$;
COMMENT ON FUNCTION tidemark.was_served(text) IS
    'Returns true if this service ran here and was not stopped';

CREATE FUNCTION tidemark.is_absent(title text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT tidemark.is_served(title) AND coalesce(max(p.updated_at)
        < clock_timestamp() - interval '15 seconds', true)
    FROM tidemark.progress AS p WHERE split_part(p.sink_key, '/', 1) = title
$$;
COMMENT ON FUNCTION tidemark.is_absent(text) IS
    'Returns true if this service does not listen here and has not advanced its progress recently';

CREATE FUNCTION tidemark.chosen_service() RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE title text := nullif(current_setting('tidemark.service', true), '');
BEGIN
    PERFORM tidemark.require_service(title);
    RETURN title;
END $$;
COMMENT ON FUNCTION tidemark.chosen_service IS
    'The service that the setting tidemark.service of the session names; NULL if it names none';

CREATE FUNCTION tidemark.require_service(title text) RETURNS void
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF title IS NULL OR EXISTS (SELECT FROM tidemark.services AS s WHERE s.name = title) THEN
        RETURN;
    END IF;
    RAISE EXCEPTION 'there is no service "%" in this database', title USING ERRCODE = '22023',
        DETAIL = format('code: service.unknown; services: %s', (
            SELECT string_agg(s.name, ', ' ORDER BY s.name) FROM tidemark.services AS s)),
        HINT = 'the name of a service is its prefix: SELECT * FROM tidemark.service_status';
END $$;
COMMENT ON FUNCTION tidemark.require_service IS 'Fails if there is no service of this name';

-- A service without views that does not run either has left: nobody means it.
CREATE FUNCTION tidemark.present_services() RETURNS text[]
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(
        array_agg(s.name ORDER BY s.name) FILTER (WHERE EXISTS (
            SELECT FROM tidemark.views AS v WHERE v.service = s.name)
            OR tidemark.was_served(s.name)),
        array_agg(s.name ORDER BY s.name), '{}')
    FROM tidemark.services AS s
$$;
COMMENT ON FUNCTION tidemark.present_services IS 'The services with views, or that run';

CREATE FUNCTION tidemark.service_for(operation text, arguments jsonb, options jsonb) RETURNS text
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    title text := coalesce(nullif(options ->> 'service', ''), tidemark.chosen_service());
    parts text[];
    found text[];
BEGIN
    PERFORM tidemark.require_service(title);
    IF title IS NOT NULL THEN
        RETURN title;
    END IF;
    IF operation LIKE '%\_source' AND operation <> 'create_source' THEN
        SELECT array_agg(s.service) INTO found FROM tidemark.sources AS s
        WHERE s.name = split_part(arguments ->> 'name', '.', 1);
    ELSIF operation NOT IN ('create_view', 'create_source') THEN
        BEGIN
            parts := parse_ident(arguments ->> 'name');
        EXCEPTION WHEN invalid_parameter_value THEN
            parts := '{}';
        END;
        SELECT array_agg(v.service) INTO found FROM tidemark.views AS v
        WHERE v.name = parts[cardinality(parts)]
            AND v.schema = CASE cardinality(parts) WHEN 1 THEN 'public' ELSE parts[1] END;
    END IF;
    IF found IS NULL THEN
        found := tidemark.present_services();
    END IF;
    IF cardinality(found) > 1 THEN
        RAISE EXCEPTION 'several services keep views in this database: %',
                array_to_string(found, ', ')
            USING ERRCODE = '42P09', DETAIL = 'code: service.ambiguous; nothing was requested',
            HINT = format('name one: pass {"service": "%s"}, or SET tidemark.service = %L',
                found[1], found[1]);
    END IF;
    RETURN coalesce(found[1], '');
END $$;
COMMENT ON FUNCTION tidemark.service_for IS
    'The service that a request is for: the one it names, else the one that has its subject';

CREATE FUNCTION tidemark.is_source_of(title text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT NOT EXISTS (
        SELECT FROM tidemark.sources AS s WHERE s.service = title AND s.type = 'postgres' AND (
            s.system_identifier <> (SELECT system_identifier::text FROM pg_control_system())
            OR s.facts ->> 'database' <> current_database()))
$$;
COMMENT ON FUNCTION tidemark.is_source_of IS
    'Returns true if positions of this service''s views are positions of this database';

-- Whoever waits has written here: services that read another database are not meant.
CREATE FUNCTION tidemark.awaited_services() RETURNS text[]
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    title text := tidemark.chosen_service();
    found text[] := tidemark.present_services();
    here text[];
BEGIN
    IF title IS NOT NULL THEN
        RETURN ARRAY[title];
    END IF;
    here := ARRAY(SELECT s FROM unnest(found) AS s WHERE tidemark.is_source_of(s));
    IF cardinality(here) = 0 AND cardinality(found) > 1 THEN
        RAISE EXCEPTION 'several services keep views in this database: %',
                array_to_string(found, ', ')
            USING ERRCODE = '42P09', DETAIL = 'code: service.ambiguous',
            HINT = format('SET tidemark.service = %L, then wait', found[1]);
    END IF;
    RETURN CASE WHEN cardinality(here) > 0 THEN here ELSE found END;
END $$;
COMMENT ON FUNCTION tidemark.awaited_services IS
    'The services whose views tidemark.wait waits for: the one that the session has chosen, else '
    'all that read this database, else the only one';

CREATE OR REPLACE FUNCTION tidemark.is_source() RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT coalesce(bool_and(tidemark.is_source_of(s)), true)
    FROM unnest(tidemark.awaited_services()) AS s
$$;

CREATE OR REPLACE FUNCTION tidemark.shown_position() RETURNS pg_lsn
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT '0/0'::pg_lsn + min((p.positions ->> 'source')::numeric) FROM tidemark.progress AS p
    WHERE split_part(p.sink_key, '/', 1) = ANY (tidemark.awaited_services())
$$;

DROP FUNCTION tidemark.ask(text, jsonb, text);
CREATE FUNCTION tidemark.ask(
    operation text, arguments jsonb, asker text, title text DEFAULT NULL)
RETURNS bigint
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
    PERFORM tidemark.require_service(nullif(title, ''));
    title := coalesce(title, tidemark.service_for(operation, arguments, arguments -> 'options'));
    INSERT INTO tidemark.requests (operation, arguments, asker, login, service)
    VALUES (operation, arguments, asker, session_user, title) RETURNING id INTO number;
    PERFORM pg_notify('{{requests_channel}}', number::text);
    RETURN number;
END $$;
COMMENT ON FUNCTION tidemark.ask IS
    'Writes a request to a service, for roles that may execute the procedure';

{{request}}

-- --- readers of sources -----------------------------------------------------------------------

CREATE OR REPLACE FUNCTION tidemark.forget_readers() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM tidemark.source_readers AS r
    WHERE (r.service, r.source) = (new.service, new.name) AND r.relation <> '' AND NOT EXISTS (
        SELECT FROM json_array_elements(new.relations) AS o WHERE o ->> 'name' = r.relation);
    RETURN NULL;
END $$;

CREATE FUNCTION tidemark.owns_source(role oid, title text, source text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM tidemark.sources AS s
        JOIN pg_roles AS o ON o.oid = s.declared_by OR o.oid = (
            SELECT nspowner FROM pg_namespace WHERE nspname = 'tidemark')
        JOIN pg_roles AS a ON a.oid = owns_source.role
        WHERE (s.service, s.name) = (owns_source.title, owns_source.source)
            AND pg_has_role(a.oid, o.oid, 'USAGE'))
$$;
COMMENT ON FUNCTION tidemark.owns_source(oid, text, text) IS
    'Returns true for members of the declarer of a service''s source, and of the service';

CREATE FUNCTION tidemark.reads_source(role oid, title text, source text, relation text)
RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT tidemark.owns_source(reads_source.role, reads_source.title, reads_source.source)
        OR EXISTS (
            SELECT FROM tidemark.source_readers AS r
            JOIN pg_roles AS a ON a.oid = reads_source.role
            LEFT JOIN pg_roles AS g ON g.oid = r.grantee
            WHERE (r.service, r.source) = (reads_source.title, reads_source.source)
                AND r.relation IN ('', reads_source.relation)
                AND (r.grantee = 0::oid OR pg_has_role(a.oid, g.oid, 'USAGE')))
$$;
COMMENT ON FUNCTION tidemark.reads_source(oid, text, text, text) IS
    'Returns true if a role may read a relation of a service''s source; relation "": all of them';

-- --- what users see ---------------------------------------------------------------------------

CREATE VIEW tidemark.service_status AS
SELECT s.name, tidemark.is_served(s.name) AS is_running, s.since
FROM tidemark.services AS s WHERE s.name = ANY (tidemark.present_services());
COMMENT ON VIEW tidemark.service_status IS 'The services that keep views in this database';
GRANT SELECT ON tidemark.service_status TO PUBLIC;

CREATE OR REPLACE VIEW tidemark.status WITH (security_barrier) AS
WITH why AS MATERIALIZED (SELECT u.* FROM tidemark.unserved() AS u),
service AS MATERIALIZED (
    SELECT s.name, tidemark.is_absent(s.name) AS is_absent, tidemark.is_source_of(s.name) AS is_here
    FROM tidemark.services AS s)
SELECT v.schema, v.name,
    CASE WHEN a.is_absent THEN 'degraded' ELSE coalesce(s.status, v.status) END AS status,
    v.kind, tidemark.role_title(v.created_by, v.created_oid) AS owner,
    tidemark.shown_progress(v.status, v.progress) AS progress,
    v.row_estimate AS first_rows,
    coalesce(v.options ->> 'group', 'default') AS "group",
    '0/0'::pg_lsn + (p.positions ->> 'source')::numeric AS "position",
    CASE WHEN NOT pg_is_in_recovery() AND service.is_here
        THEN greatest(0, pg_current_wal_insert_lsn()
            - ('0/0'::pg_lsn + (p.positions ->> 'source')::numeric)) END AS lag_bytes,
    p.updated_at AS shown_at,
    (SELECT sum(e.count) FROM tidemark.errors AS e WHERE e.view = v.schema || '.' || v.name)
        AS failed_rows,
    CASE WHEN a.is_absent THEN why.code ELSE coalesce(s.code, v.code) END AS code,
    CASE WHEN a.is_absent THEN why.what
        WHEN s.code IS NOT NULL THEN s.error ELSE v.detail END AS error,
    CASE WHEN a.is_absent THEN why.hint
        WHEN s.code IS NOT NULL THEN s.hint ELSE v.hint END AS hint,
    v.query, v.created_at, v.live_at, v.service
FROM why
CROSS JOIN tidemark.views AS v
LEFT JOIN service ON service.name = v.service
LEFT JOIN tidemark.tables AS t ON (t.schema, t.name) = (v.schema, v.name) AND NOT t.is_staged
LEFT JOIN tidemark.progress AS p ON v.status = 'live' AND p.sink_key = v.service
    || CASE coalesce(v.options ->> 'group', 'default')
        WHEN 'default' THEN '' ELSE '/' || (v.options ->> 'group') END
LEFT JOIN tidemark.standings AS s
    ON (s.service, s.kind, s.name, s.of_status) = (v.service, 'view', v.identity, v.status)
CROSS JOIN LATERAL (
    SELECT v.status = 'live' AND coalesce(service.is_absent, true) AS is_absent) AS a
WHERE tidemark.is_for(tidemark.role_of(v.created_by, v.created_oid),
    coalesce(t.view_oid, t.table_oid)::regclass);
COMMENT ON COLUMN tidemark.status.service IS 'the service that keeps it up to date';

CREATE OR REPLACE VIEW tidemark.source_status WITH (security_barrier) AS
WITH why AS MATERIALIZED (SELECT u.* FROM tidemark.unserved() AS u),
service AS MATERIALIZED (
    SELECT s.name, tidemark.is_absent(s.name) AS is_absent FROM tidemark.services AS s)
SELECT o.name, o.type,
    CASE WHEN a.is_absent THEN 'stopped' ELSE coalesce(s.status, o.status) END AS status,
    CASE WHEN a.is_absent THEN why.code
        WHEN s.name IS NULL THEN o.code ELSE s.code END AS code,
    CASE WHEN r.may_read AND s.name IS NULL THEN o.detail WHEN r.may_read THEN s.error END AS error,
    CASE WHEN r.may_read AND s.name IS NULL THEN o.hint WHEN r.may_read THEN s.hint END AS hint,
    o.retry_at, o.created_at, o.service
FROM why
CROSS JOIN (SELECT oid FROM pg_roles WHERE rolname = current_user) AS me
CROSS JOIN tidemark.sources AS o
LEFT JOIN service ON service.name = o.service
CROSS JOIN LATERAL (SELECT coalesce(service.is_absent, true) AS is_absent) AS a
LEFT JOIN tidemark.standings AS s
    ON (s.service, s.kind, s.name) = (o.service, 'source', o.name)
CROSS JOIN LATERAL (SELECT EXISTS (
    SELECT FROM tidemark.views AS v
    CROSS JOIN LATERAL jsonb_array_elements(v.plan -> 'reads') AS a (reads)
    LEFT JOIN tidemark.tables AS t ON (t.schema, t.name) = (v.schema, v.name) AND NOT t.is_staged
    WHERE v.service = o.service AND a.reads ->> 0 = split_part(o.name, '/', 1)
        AND v.desired <> 'dropped'
        AND tidemark.is_for(tidemark.role_of(v.created_by, v.created_oid),
            coalesce(t.view_oid, t.table_oid)::regclass)
) AS has_view) AS w
CROSS JOIN LATERAL (SELECT count(*) AS relations, count(*) FILTER (
        WHERE tidemark.reads_source(me.oid, o.service, o.name, x ->> 'name')) AS readable
    FROM json_array_elements(o.relations) AS x) AS c
CROSS JOIN LATERAL (SELECT CASE split_part(o.name, '/', 1) WHEN 'source' THEN w.has_view
    ELSE c.readable = c.relations END AS may_read) AS r
WHERE r.may_read OR w.has_view OR c.readable > 0 OR has_function_privilege(
    'tidemark.drop_source(text, jsonb)'::regprocedure, 'EXECUTE');
COMMENT ON COLUMN tidemark.source_status.service IS 'the service that reads it';

CREATE OR REPLACE VIEW tidemark.health WITH (security_barrier) AS
WITH why AS MATERIALIZED (SELECT u.* FROM tidemark.unserved() AS u),
service AS MATERIALIZED (
    SELECT s AS name, tidemark.is_absent(s) AS is_absent
    FROM unnest(coalesce(nullif(tidemark.present_services(), '{}'), ARRAY[''])) AS s)
SELECT CASE WHEN service.is_absent THEN 'degraded' ELSE coalesce(s.status, 'starting') END
        AS status,
    CASE WHEN service.is_absent
        THEN ARRAY[format('%s [%s]', why.what, why.code)]
        WHEN pg_has_role(c.relowner, 'USAGE') THEN s.reasons END AS reasons,
    s.decided_at AS since, nullif(service.name, '') AS service
FROM why CROSS JOIN service
JOIN pg_class AS c ON c.oid = 'tidemark.standings'::regclass
LEFT JOIN tidemark.standings AS s ON (s.service, s.kind) = (service.name, 'service');
COMMENT ON VIEW tidemark.health IS
    'Status of each service; only members of its owner see the reasons, which may quote rows';

CREATE OR REPLACE VIEW tidemark.source_grants WITH (security_barrier) AS
SELECT r.source, nullif(r.relation, '') AS relation,
    CASE WHEN r.grantee = 0::oid THEN 'public' ELSE g.rolname END AS role, r.granted_by,
    r.granted_at, r.service
FROM tidemark.source_readers AS r
LEFT JOIN pg_roles AS g ON g.oid = r.grantee
CROSS JOIN (SELECT oid FROM pg_roles WHERE rolname = current_user) AS me
WHERE r.grantee = 0::oid OR g.oid IS NOT NULL AND (
    tidemark.owns_source(me.oid, r.service, r.source) OR pg_has_role(me.oid, g.oid, 'USAGE'));

-- Nothing asks for all services together any more, or by the name of a source alone.
DROP FUNCTION tidemark.is_absent();
DROP FUNCTION tidemark.was_served();
DROP FUNCTION tidemark.reads_source(oid, text, text);
DROP FUNCTION tidemark.owns_source(oid, text);
