-- Repeated requests (connectors/postgres/catalog/idempotency.py).

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
    'Responses to requests with an Idempotency-Key, for repeated ones; retained for a day';
COMMENT ON COLUMN tidemark.idempotency_keys.status IS 'NULL while the request is being answered';
