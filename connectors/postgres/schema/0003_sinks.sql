-- Where views go beside their tables.

CREATE TABLE tidemark.sinks (
    schema text NOT NULL,
    view text NOT NULL,
    name text NOT NULL,
    type text NOT NULL,
    status text NOT NULL DEFAULT 'starting',
    desired text NOT NULL DEFAULT 'live',
    options jsonb NOT NULL DEFAULT '{}',
    epoch bigint,
    positions jsonb,
    backlog_bytes bigint,
    code text,
    detail text,
    hint text,
    view_identity text NOT NULL,
    view_group text NOT NULL,
    identity text NOT NULL UNIQUE,
    created_by text NOT NULL DEFAULT current_user,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    live_at timestamptz,
    PRIMARY KEY (view_identity, name)
);
COMMENT ON TABLE tidemark.sinks IS
    'Where views go beside their tables: what is wanted and how each one stands';
COMMENT ON COLUMN tidemark.sinks.status IS 'starting, live, retrying, failed, dropping';
COMMENT ON COLUMN tidemark.sinks.desired IS
    'what the user wants: live, dropped, or erased (dropped with what it has written)';
COMMENT ON COLUMN tidemark.sinks.options IS 'as they were given; secrets are references';
COMMENT ON COLUMN tidemark.sinks.epoch IS 'the newest epoch that the sink holds';
COMMENT ON COLUMN tidemark.sinks.backlog_bytes IS 'what is kept on disk until the sink has it';
COMMENT ON COLUMN tidemark.sinks.identity IS 'new for each creation, names the sink''s writer';

CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE OF status, desired ON tidemark.sinks
    FOR EACH STATEMENT EXECUTE FUNCTION tidemark.announce();
