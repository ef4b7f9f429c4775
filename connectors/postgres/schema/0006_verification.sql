-- The newest comparison of each view.

ALTER TABLE tidemark.views ADD COLUMN verification jsonb;
COMMENT ON COLUMN tidemark.views.verification IS
    'the newest comparison with PostgreSQL''s own answer: result, rows that differ, time';
