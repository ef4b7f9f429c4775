-- Which process answers a request that may come twice.

ALTER TABLE tidemark.idempotency_keys ADD COLUMN server text, ADD COLUMN process text;
COMMENT ON COLUMN tidemark.idempotency_keys.server IS 'The address that the request came to';
COMMENT ON COLUMN tidemark.idempotency_keys.process IS
    'Which of the processes, one after another, that have listened there is to answer it';
