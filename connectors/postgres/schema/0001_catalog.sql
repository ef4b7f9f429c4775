-- Views, sources, progress with its fence, error rows, and the tables that Tidemark may drop.

-- IF NOT EXISTS would need CREATE on the database, also where an administrator made the schema.
DO $$ BEGIN
    IF to_regnamespace('tidemark') IS NULL THEN CREATE SCHEMA tidemark; END IF;
END $$;
COMMENT ON SCHEMA tidemark IS 'Tidemark: catalog of maintained views, their progress and errors';

CREATE TABLE tidemark.version (
    version integer PRIMARY KEY,
    installed_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tidemark.version IS 'Version of the tables in this schema';

CREATE TABLE tidemark.views (
    schema text NOT NULL,
    name text NOT NULL,
    status text NOT NULL DEFAULT 'analyzing',
    desired text NOT NULL DEFAULT 'live',
    kind text CHECK (kind IN ('keyed', 'bag')),
    query text NOT NULL,
    options jsonb NOT NULL DEFAULT '{}',
    row_estimate bigint,
    progress jsonb,
    code text,
    detail text,
    hint text,
    key jsonb,
    fields jsonb,
    plan jsonb,
    warnings jsonb NOT NULL DEFAULT '[]',
    epoch bigint,
    positions jsonb,
    identity text NOT NULL UNIQUE,
    created_by text NOT NULL DEFAULT current_user,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    live_at timestamptz,
    PRIMARY KEY (schema, name)
);
COMMENT ON TABLE tidemark.views IS 'Maintained views: the desired and the actual state of each';
COMMENT ON COLUMN tidemark.views.status IS
    'analyzing, backfilling, catching up, live, paused, degraded, failed, dropping';
COMMENT ON COLUMN tidemark.views.desired IS 'the requested state: live, paused or dropped';
COMMENT ON COLUMN tidemark.views.kind IS
    'keyed: a table with a primary key; bag: a table of rows with counts and a view over it';
COMMENT ON COLUMN tidemark.views.progress IS 'the backfill''s phase, parts, rows and estimate';
COMMENT ON COLUMN tidemark.views.code IS 'stable code of the newest failure, NULL when healthy';
COMMENT ON COLUMN tidemark.views.identity IS 'unique for each creation; names the view''s state';
COMMENT ON COLUMN tidemark.views.epoch IS 'the epoch in which the view became live';

CREATE TABLE tidemark.sources (
    name text PRIMARY KEY,
    dsn text NOT NULL,
    slot text,
    publication text,
    system_identifier text,
    timeline integer,
    position numeric(20,0),
    facts jsonb NOT NULL DEFAULT '{}',
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE tidemark.sources IS 'Sources of changes; passwords are not stored';

CREATE TABLE tidemark.progress (
    sink_key text PRIMARY KEY,
    epoch bigint NOT NULL,
    positions jsonb NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
COMMENT ON TABLE tidemark.progress IS
    'The newest epoch in this database and each source''s position in it; the writers'' fence';

CREATE TABLE tidemark.errors (
    hash uuid PRIMARY KEY,
    count bigint NOT NULL,
    view text,
    operator text,
    sqlstate text,
    message text,
    source_row text,
    first_seen timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON tidemark.errors (view);
COMMENT ON TABLE tidemark.errors IS
    'Rows left out of a view because an expression fails for them; removed once repaired';

CREATE TABLE tidemark.tables (
    schema text NOT NULL,
    name text NOT NULL,
    is_staged boolean NOT NULL,
    table_oid oid NOT NULL,
    view_oid oid,
    PRIMARY KEY (schema, name, is_staged)
);
COMMENT ON TABLE tidemark.tables IS 'Relations in this database that Tidemark created and may drop';

CREATE FUNCTION tidemark.advance(writer text, new_epoch bigint, reached jsonb) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tidemark.progress
    SET epoch = new_epoch, positions = reached, updated_at = clock_timestamp()
    WHERE sink_key = writer AND epoch = new_epoch - 1;
    IF FOUND THEN RETURN; END IF;
    IF EXISTS (SELECT FROM tidemark.progress WHERE sink_key = writer) THEN
        RAISE EXCEPTION 'the sink is not at epoch %', new_epoch - 1 USING ERRCODE = 'TM001';
    END IF;
    INSERT INTO tidemark.progress (sink_key, epoch, positions) VALUES (writer, new_epoch, reached);
END $$;
COMMENT ON FUNCTION tidemark.advance IS 'The fence: advances the progress by exactly one epoch';

CREATE FUNCTION tidemark.expect(relation text, actual bigint, expected bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF actual <> expected THEN
        RAISE EXCEPTION '% of % rows found in %', actual, expected, relation
            USING ERRCODE = 'TM002';
    END IF;
END $$;
COMMENT ON FUNCTION tidemark.expect IS 'Aborts an epoch if the rows that it changes are missing';

CREATE FUNCTION tidemark.announce() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('tidemark', TG_OP);
    RETURN NULL;
END $$;
CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE OF status, desired ON tidemark.views
    FOR EACH STATEMENT EXECUTE FUNCTION tidemark.announce();
