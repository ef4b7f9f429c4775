-- Additional sinks of views.

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
    'Additional sinks of views: the desired and the actual state of each';
COMMENT ON COLUMN tidemark.sinks.status IS 'starting, live, retrying, failed, dropping';
COMMENT ON COLUMN tidemark.sinks.desired IS
    'the requested state: live, dropped, or erased (dropped with its output)';
COMMENT ON COLUMN tidemark.sinks.options IS 'as requested; secrets are references';
COMMENT ON COLUMN tidemark.sinks.epoch IS 'the newest epoch that the sink holds';
COMMENT ON COLUMN tidemark.sinks.backlog_bytes IS 'bytes on disk that the sink does not have yet';
COMMENT ON COLUMN tidemark.sinks.identity IS 'unique for each creation; names the sink''s writer';

CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE OF status, desired ON tidemark.sinks
    FOR EACH STATEMENT EXECUTE FUNCTION tidemark.announce();
