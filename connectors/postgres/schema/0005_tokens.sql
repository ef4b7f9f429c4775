-- The API's tokens.

CREATE TABLE tidemark.tokens (
    id text PRIMARY KEY,
    name text NOT NULL,
    role text NOT NULL CHECK (role IN ('reader', 'operator', 'admin')),
    hash bytea NOT NULL,
    db_role text,
    created_by text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    last_used_at timestamptz,
    expires_at timestamptz,
    revoked_at timestamptz
);
CREATE UNIQUE INDEX tokens_name ON tidemark.tokens (name) WHERE revoked_at IS NULL;
COMMENT ON TABLE tidemark.tokens IS 'Tokens of the API; only their hashes are stored';
COMMENT ON COLUMN tidemark.tokens.hash IS 'SHA-256 of the token, which is 256 random bits';
COMMENT ON COLUMN tidemark.tokens.db_role IS
    'the database role that views created with it have the rights of; NULL: the service''s own';
COMMENT ON COLUMN tidemark.tokens.created_by IS 'the name of the token that created it';
COMMENT ON COLUMN tidemark.tokens.last_used_at IS 'to within some minutes';
