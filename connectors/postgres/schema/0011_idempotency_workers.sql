-- The process that answers a repeated request.

ALTER TABLE tidemark.idempotency_keys ADD COLUMN server text, ADD COLUMN process text;
COMMENT ON COLUMN tidemark.idempotency_keys.server IS 'The address that received the request';
COMMENT ON COLUMN tidemark.idempotency_keys.process IS
    'The process that must answer, among those that have listened there';
