-- Roles by OID and tokens by id: a name that is given a second time names somebody else.
--
-- The name is stored beside the OID. While the database stays on its server, the OID alone decides,
-- so a renamed role keeps what it has. Elsewhere (a dump that was restored) name and OID must both
-- be equal, until an administrator calls tidemark.bind_roles().

CREATE TABLE tidemark.server_of_roles (
    is_one boolean PRIMARY KEY DEFAULT true CHECK (is_one),
    system_identifier text NOT NULL
);
COMMENT ON TABLE tidemark.server_of_roles IS 'The server whose OIDs of roles are stored here';
INSERT INTO tidemark.server_of_roles (system_identifier)
SELECT system_identifier::text FROM pg_control_system();

CREATE FUNCTION tidemark.role_of(title text, id oid) RETURNS oid
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce((
        SELECT r.oid FROM pg_roles AS r WHERE r.oid = id AND CASE WHEN r.rolname = title THEN true
            ELSE EXISTS (SELECT FROM tidemark.server_of_roles AS s WHERE s.system_identifier
                = (SELECT c.system_identifier::text FROM pg_control_system() AS c)) END
    ), (
        -- The service's own role is whoever the operator lets write here.
        SELECT n.nspowner FROM pg_namespace AS n
        WHERE n.nspname = 'tidemark' AND pg_get_userbyid(n.nspowner) = title
    ));
END $$;
COMMENT ON FUNCTION tidemark.role_of IS
    'The role that was stored by name and OID; NULL if it was dropped, whoever has its name now';

CREATE FUNCTION tidemark.role_title(title text, id oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    -- No role can be given a name that begins with pg_.
    RETURN coalesce(pg_get_userbyid(tidemark.role_of(title, id))::text, '{{dropped_role}}' || title);
END $$;
COMMENT ON FUNCTION tidemark.role_title IS
    'The name of a stored role now; of a dropped one, a name that no role can have';

-- Arguments: pairs of a column with a role's name and the column with its OID.
CREATE FUNCTION tidemark.note_role() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    FOR i IN 0 .. TG_NARGS - 1 BY 2 LOOP
        CONTINUE WHEN TG_OP = 'INSERT' AND to_jsonb(NEW) ->> TG_ARGV[i + 1] <> '';
        NEW := jsonb_populate_record(NEW, jsonb_build_object(TG_ARGV[i + 1], (
            SELECT r.oid FROM pg_roles AS r WHERE r.rolname = to_jsonb(NEW) ->> TG_ARGV[i])));
    END LOOP;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION tidemark.note_role IS 'Stores the OIDs of the roles that a row names';

CREATE FUNCTION tidemark.bind_roles(title text DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    found record;
    bound bigint;
    total bigint := 0;
BEGIN
    FOR found IN SELECT * FROM (VALUES ('views', 'created_by', 'created_oid'),
        ('sinks', 'created_by', 'created_oid'), ('tokens', 'db_role', 'db_role_oid'),
        ('requests', 'asker', 'asker_oid'), ('requests', 'login', 'login_oid')
    ) AS c (relation, named, id) LOOP
        EXECUTE format('UPDATE tidemark.%1$I AS t SET %3$I = r.oid FROM pg_roles AS r'
            ' WHERE r.rolname = t.%2$I AND t.%3$I IS DISTINCT FROM r.oid'
            ' AND ($1 IS NULL OR t.%2$I = $1)', found.relation, found.named, found.id)
            USING title;
        GET DIAGNOSTICS bound = ROW_COUNT;
        total := total + bound;
    END LOOP;
    IF title IS NULL THEN
        UPDATE tidemark.server_of_roles SET system_identifier =
            (SELECT c.system_identifier::text FROM pg_control_system() AS c);
    END IF;
    RETURN total;
END $$;
COMMENT ON FUNCTION tidemark.bind_roles IS
    'Gives what is stored by the name of a role, or of any, to the role that has the name now';

ALTER TABLE tidemark.views ADD COLUMN created_oid oid;
ALTER TABLE tidemark.sinks ADD COLUMN created_oid oid;
ALTER TABLE tidemark.tokens ADD COLUMN db_role_oid oid;
ALTER TABLE tidemark.requests ADD COLUMN asker_oid oid, ADD COLUMN login_oid oid;
COMMENT ON COLUMN tidemark.views.created_oid IS 'OID of the role created_by, see tidemark.role_of';
COMMENT ON COLUMN tidemark.sinks.created_oid IS 'OID of the role created_by, see tidemark.role_of';
COMMENT ON COLUMN tidemark.tokens.db_role_oid IS 'OID of db_role, see tidemark.role_of';
COMMENT ON COLUMN tidemark.requests.asker_oid IS 'OID of asker, see tidemark.role_of';
COMMENT ON COLUMN tidemark.requests.login_oid IS 'OID of login, see tidemark.role_of';
SELECT tidemark.bind_roles();
CREATE TRIGGER note_role BEFORE INSERT OR UPDATE OF created_by ON tidemark.views
    FOR EACH ROW EXECUTE FUNCTION tidemark.note_role('created_by', 'created_oid');
CREATE TRIGGER note_role BEFORE INSERT OR UPDATE OF created_by ON tidemark.sinks
    FOR EACH ROW EXECUTE FUNCTION tidemark.note_role('created_by', 'created_oid');
CREATE TRIGGER note_role BEFORE INSERT OR UPDATE OF db_role ON tidemark.tokens
    FOR EACH ROW EXECUTE FUNCTION tidemark.note_role('db_role', 'db_role_oid');
CREATE TRIGGER note_role BEFORE INSERT OR UPDATE OF asker, login ON tidemark.requests
    FOR EACH ROW EXECUTE FUNCTION tidemark.note_role('asker', 'asker_oid', 'login', 'login_oid');

CREATE FUNCTION tidemark.is_for(owner oid, relation regclass) RETURNS boolean
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    RETURN coalesce(has_table_privilege(relation, 'SELECT'), false)
        OR coalesce(pg_has_role(owner, 'USAGE'), false);
END $$;
COMMENT ON FUNCTION tidemark.is_for(oid, regclass) IS
    'Returns true if the caller has the rights of an owner, or may read a relation';
DO $$
DECLARE
    found record;
    shown text;
BEGIN
    FOR found IN SELECT c.oid, c.relname FROM pg_class AS c
        WHERE c.relnamespace = 'tidemark'::regnamespace AND c.relkind = 'v'
            AND pg_get_viewdef(c.oid) LIKE '%tidemark.is_for(v.%'
    LOOP
        shown := replace(pg_get_viewdef(found.oid), 'tidemark.is_for(v.created_by,',
            'tidemark.is_for(tidemark.role_of(v.created_by, v.created_oid),');
        shown := replace(shown, 'v.created_by AS owner',
            'tidemark.role_title(v.created_by, v.created_oid) AS owner');
        EXECUTE format('CREATE OR REPLACE VIEW tidemark.%I WITH (security_barrier) AS %s',
            found.relname, shown);
    END LOOP;
END $$;
CREATE OR REPLACE VIEW tidemark.asked WITH (security_barrier) AS
SELECT r.id, r.operation, r.arguments ->> 'name' AS name, r.status, r.asker, r.code, r.sqlstate,
    r.error, r.detail, r.hint, r.result, r.asked_at, r.ended_at
FROM tidemark.requests AS r
WHERE tidemark.role_of(r.login, r.login_oid) = to_regrole(quote_ident(current_user))
    OR tidemark.is_for(tidemark.role_of(r.asker, r.asker_oid), NULL);
-- Fails if a view still compares names.
DROP FUNCTION tidemark.is_for(text, regclass);
CREATE OR REPLACE FUNCTION tidemark.look(
    number bigint, OUT status text, OUT progress text, OUT code text, OUT sqlstate text,
    OUT error text, OUT detail text, OUT hint text, OUT result jsonb)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT r.status,
        CASE WHEN v.name IS NULL THEN NULL
            WHEN r.operation = 'create_view'
            THEN format('view %I.%I: ', v.schema, v.name)
                || tidemark.shown_progress(v.status, v.progress)
            WHEN r.operation IN ('replace_view', 'rebuild_view', 'resume_view')
                AND v.change IS NOT NULL
            THEN format('view %I.%I: ', v.schema, v.name)
                || tidemark.shown_progress(v.replacing ->> 'kind', v.replacing -> 'progress') END,
        r.code, r.sqlstate, r.error, r.detail, r.hint, r.result
    FROM tidemark.requests AS r
    LEFT JOIN tidemark.views AS v ON v.identity = coalesce(r.target, r.identity)
    WHERE r.id = number AND r.login_oid = to_regrole(quote_ident(session_user))
$$;
REVOKE EXECUTE ON FUNCTION tidemark.note_role, tidemark.bind_roles FROM PUBLIC;

-- Tokens: names are used again after a revocation, ids never.
ALTER TABLE tidemark.subscriptions ADD COLUMN token_id text;
COMMENT ON COLUMN tidemark.subscriptions.created_by IS 'the name of the token that created it';
COMMENT ON COLUMN tidemark.subscriptions.token_id IS
    'the id of the token that created it; NULL if that is not known any more';
UPDATE tidemark.subscriptions AS s SET token_id = (
    SELECT t.id FROM tidemark.tokens AS t WHERE t.name = s.created_by
        AND t.created_at <= s.created_at AND coalesce(t.revoked_at > s.created_at, true));
UPDATE tidemark.idempotency_keys AS k SET caller = t.id FROM tidemark.tokens AS t
WHERE t.name = k.caller AND t.revoked_at IS NULL
    AND t.created_at < k.good_until - interval '1 day';
COMMENT ON COLUMN tidemark.idempotency_keys.caller IS 'the id of its token';
