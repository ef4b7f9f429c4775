"""The table of requests that may come twice (connectors/postgres/idempotency.py)."""

IDEMPOTENCY = """
CREATE TABLE tidemark.idempotency_keys (
    caller text NOT NULL,
    path text NOT NULL,
    key text NOT NULL,
    fingerprint text NOT NULL,
    status integer,
    headers jsonb,
    body bytea,
    good_until timestamptz NOT NULL,
    PRIMARY KEY (caller, path, key)
);
COMMENT ON TABLE tidemark.idempotency_keys IS
    'Answers to requests with an Idempotency-Key, for those that come again; kept for a day';
COMMENT ON COLUMN tidemark.idempotency_keys.status IS 'NULL while the request is being answered';
"""

WORKERS = """
ALTER TABLE tidemark.idempotency_keys ADD COLUMN server text, ADD COLUMN process text;
COMMENT ON COLUMN tidemark.idempotency_keys.server IS 'The address that the request came to';
COMMENT ON COLUMN tidemark.idempotency_keys.process IS
    'Which of the processes, one after another, that have listened there is to answer it';
"""
