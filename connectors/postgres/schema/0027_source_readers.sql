-- Readers of declared sources: who declared each, and to whom it or one of its relations is granted.
-- Roles are stored by oid (regrole): a role that is dropped and created again has no rights, and a
-- dump names them.

ALTER TABLE tidemark.sources ADD COLUMN declared_by regrole;
COMMENT ON COLUMN tidemark.sources.declared_by IS
    'the role that declared it: it and its members read and grant it; NULL: the service';

CREATE TABLE tidemark.source_readers (
    source text NOT NULL REFERENCES tidemark.sources (name) ON UPDATE CASCADE ON DELETE CASCADE,
    relation text NOT NULL,
    grantee regrole NOT NULL,
    granted_by text NOT NULL,
    granted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source, relation, grantee)
);
COMMENT ON TABLE tidemark.source_readers IS
    'Who may read the rows of declared sources, besides the service and each source''s declarer';
COMMENT ON COLUMN tidemark.source_readers.relation IS 'empty: all relations, also later ones';
COMMENT ON COLUMN tidemark.source_readers.grantee IS '-: PUBLIC, which is every role';
COMMENT ON COLUMN tidemark.source_readers.granted_by IS 'a role, or the name of a token';

CREATE TRIGGER announce AFTER INSERT OR DELETE ON tidemark.source_readers
    FOR EACH STATEMENT EXECUTE FUNCTION tidemark.announce();

CREATE FUNCTION tidemark.forget_readers() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    DELETE FROM tidemark.source_readers AS r
    WHERE r.source = new.name AND r.relation <> '' AND NOT EXISTS (
        SELECT FROM json_array_elements(new.relations) AS o WHERE o ->> 'name' = r.relation);
    RETURN NULL;
END $$;
COMMENT ON FUNCTION tidemark.forget_readers IS 'Grants of a relation end with the relation';
CREATE TRIGGER forget_readers AFTER UPDATE OF relations ON tidemark.sources
    FOR EACH ROW EXECUTE FUNCTION tidemark.forget_readers();

CREATE FUNCTION tidemark.owns_source(role oid, source text) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT EXISTS (
        SELECT FROM tidemark.sources AS s
        JOIN pg_roles AS o ON o.oid = s.declared_by OR o.oid = (
            SELECT nspowner FROM pg_namespace WHERE nspname = 'tidemark')
        JOIN pg_roles AS a ON a.oid = owns_source.role
        WHERE s.name = owns_source.source AND pg_has_role(a.oid, o.oid, 'USAGE'))
$$;
COMMENT ON FUNCTION tidemark.owns_source IS
    'Returns true for members of a source''s declarer and of the service';

CREATE FUNCTION tidemark.reads_source(role oid, source text, relation text DEFAULT '')
RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT tidemark.owns_source(reads_source.role, reads_source.source) OR EXISTS (
        SELECT FROM tidemark.source_readers AS r
        JOIN pg_roles AS a ON a.oid = reads_source.role
        LEFT JOIN pg_roles AS g ON g.oid = r.grantee
        WHERE r.source = reads_source.source AND r.relation IN ('', reads_source.relation)
            AND (r.grantee = 0::oid OR pg_has_role(a.oid, g.oid, 'USAGE')))
$$;
COMMENT ON FUNCTION tidemark.reads_source IS
    'Returns true if a role may read a relation of a source, or without one all of them';

-- Views that exist go on: their creators get what their views read.
INSERT INTO tidemark.source_readers (source, relation, grantee, granted_by)
SELECT DISTINCT s.name, o ->> 'name', c.oid::regrole, 'upgrade'
FROM tidemark.views AS v
JOIN pg_roles AS c ON c.rolname = v.created_by
CROSS JOIN LATERAL jsonb_array_elements(coalesce(v.plan -> 'reads', '[]')) AS a (reads)
JOIN tidemark.sources AS s ON s.name = a.reads ->> 0
JOIN LATERAL json_array_elements(s.relations) AS o ON o ->> 'name' = a.reads ->> 1
WHERE v.desired <> 'dropped' AND NOT tidemark.owns_source(c.oid, s.name);

CREATE VIEW tidemark.source_grants WITH (security_barrier) AS
SELECT r.source, nullif(r.relation, '') AS relation,
    CASE WHEN r.grantee = 0::oid THEN 'public' ELSE g.rolname END AS role, r.granted_by,
    r.granted_at
FROM tidemark.source_readers AS r
LEFT JOIN pg_roles AS g ON g.oid = r.grantee
CROSS JOIN (SELECT oid FROM pg_roles WHERE rolname = current_user) AS me
WHERE r.grantee = 0::oid OR g.oid IS NOT NULL AND (
    tidemark.owns_source(me.oid, r.source) OR pg_has_role(me.oid, g.oid, 'USAGE'));
COMMENT ON VIEW tidemark.source_grants IS
    'Grants of sources: those that you have, and all of sources that you declared';
COMMENT ON COLUMN tidemark.source_grants.relation IS 'NULL: all relations, also later ones';
GRANT SELECT ON tidemark.source_grants TO PUBLIC;

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
CROSS JOIN (SELECT oid FROM pg_roles WHERE rolname = current_user) AS me
CROSS JOIN tidemark.sources AS o
LEFT JOIN tidemark.standings AS s ON (s.kind, s.name) = ('source', o.name)
CROSS JOIN LATERAL (SELECT EXISTS (
    SELECT FROM tidemark.views AS v
    CROSS JOIN LATERAL jsonb_array_elements(v.plan -> 'reads') AS a (reads)
    LEFT JOIN tidemark.tables AS t ON (t.schema, t.name) = (v.schema, v.name) AND NOT t.is_staged
    WHERE a.reads ->> 0 = split_part(o.name, '/', 1) AND v.desired <> 'dropped'
        AND tidemark.is_for(v.created_by, coalesce(t.view_oid, t.table_oid)::regclass)
) AS has_view) AS w
CROSS JOIN LATERAL (SELECT count(*) AS relations,
    count(*) FILTER (WHERE tidemark.reads_source(me.oid, o.name, x ->> 'name')) AS readable
    FROM json_array_elements(o.relations) AS x) AS c
CROSS JOIN LATERAL (SELECT CASE split_part(o.name, '/', 1) WHEN 'source' THEN w.has_view
    ELSE c.readable = c.relations END AS may_read) AS r
WHERE r.may_read OR w.has_view OR c.readable > 0 OR has_function_privilege(
    'tidemark.drop_source(text, jsonb)'::regprocedure, 'EXECUTE');
COMMENT ON COLUMN tidemark.source_status.error IS
    'for those who may read the whole source: it may quote a record';

CREATE PROCEDURE tidemark.grant_source(name text, role text, options jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE arguments jsonb := jsonb_build_object('name', grant_source.name, 'role', grant_source.role);
BEGIN
    CALL tidemark.request('grant_source', arguments, options);
END $$;
COMMENT ON PROCEDURE tidemark.grant_source(text, text, jsonb) IS
    'Lets a role read a source, or one relation: source.relation';
REVOKE EXECUTE ON PROCEDURE tidemark.grant_source(text, text, jsonb) FROM PUBLIC;

CREATE PROCEDURE tidemark.revoke_source(name text, role text, options jsonb DEFAULT '{}')
LANGUAGE plpgsql AS $$
DECLARE arguments jsonb := jsonb_build_object('name', revoke_source.name, 'role', revoke_source.role);
BEGIN
    CALL tidemark.request('revoke_source', arguments, options);
END $$;
COMMENT ON PROCEDURE tidemark.revoke_source(text, text, jsonb) IS
    'Takes back what grant_source gave';
REVOKE EXECUTE ON PROCEDURE tidemark.revoke_source(text, text, jsonb) FROM PUBLIC;

-- Those who may declare sources may grant them, too.
DO $$
DECLARE statement text;
BEGIN
    FOR statement IN
        SELECT format('GRANT EXECUTE ON PROCEDURE tidemark.%I(text, text, jsonb) TO %s', p.name,
            CASE WHEN a.grantee = 0::oid THEN 'PUBLIC' ELSE quote_ident(g.rolname) END)
        FROM pg_proc AS f
        CROSS JOIN LATERAL aclexplode(f.proacl) AS a
        LEFT JOIN pg_roles AS g ON g.oid = a.grantee
        CROSS JOIN (VALUES ('grant_source'), ('revoke_source')) AS p (name)
        WHERE f.oid = 'tidemark.create_source(text, text, jsonb)'::regprocedure
            AND a.privilege_type = 'EXECUTE' AND a.grantee <> f.proowner
    LOOP
        EXECUTE statement;
    END LOOP;
END $$;
