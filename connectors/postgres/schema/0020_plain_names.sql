-- Plain names for what users see: positions of dead letters, multiset views, their own requests.
-- The earlier column and view stay for one release.

ALTER TABLE tidemark.dead_letters RENAME COLUMN place TO "position";
ALTER TABLE tidemark.dead_letters ADD COLUMN place text GENERATED ALWAYS AS ("position") STORED;
COMMENT ON TABLE tidemark.dead_letters IS 'Malformed records, stored whole';
COMMENT ON COLUMN tidemark.dead_letters.sink_key IS
    'the reader of the source, as in tidemark.progress: each group of views has its own records';
COMMENT ON COLUMN tidemark.dead_letters."position" IS
    'partition:offset of a topic, or path:line of a file';
COMMENT ON COLUMN tidemark.dead_letters.place IS 'earlier name of position, for one release';
COMMENT ON COLUMN tidemark.dead_letters.desired IS 'requested by a user: retry or drop';

ALTER TABLE tidemark.views DROP CONSTRAINT IF EXISTS views_kind_check;
UPDATE tidemark.views SET kind = 'multiset' WHERE kind = 'bag';
ALTER TABLE tidemark.views ADD CONSTRAINT views_kind_check CHECK (kind IN ('keyed', 'multiset'));
COMMENT ON COLUMN tidemark.views.kind IS
    'keyed: a table with a primary key; multiset: a table of rows with counts and a view over it';

CREATE VIEW tidemark.my_requests WITH (security_barrier) AS
SELECT id, operation, name, status, asker AS requested_by, code, sqlstate, error, detail, hint,
    result, asked_at AS requested_at, ended_at
FROM tidemark.asked;
COMMENT ON VIEW tidemark.my_requests IS 'Your requests by CALL, and their results';
COMMENT ON VIEW tidemark.asked IS 'earlier name of tidemark.my_requests, for one release';
GRANT SELECT ON tidemark.my_requests TO PUBLIC;

{{request}}
