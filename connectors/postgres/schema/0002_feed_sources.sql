-- External sources, and their malformed records.

ALTER TABLE tidemark.sources
    ADD COLUMN type text NOT NULL DEFAULT 'postgres',
    ADD COLUMN options json NOT NULL DEFAULT '{}',
    ADD COLUMN relations json NOT NULL DEFAULT '[]',
    ADD COLUMN status text NOT NULL DEFAULT 'running',
    ADD COLUMN code text,
    ADD COLUMN detail text,
    ADD COLUMN hint text,
    ALTER COLUMN dsn SET DEFAULT '';
COMMENT ON TABLE tidemark.sources IS
    'Sources of changes; secrets are stored as references, passwords not at all';
COMMENT ON COLUMN tidemark.sources.type IS 'postgres, kafka or files';
COMMENT ON COLUMN tidemark.sources.options IS 'in the order in which they were set';
COMMENT ON COLUMN tidemark.sources.relations IS 'its relations: names, columns, keys';
COMMENT ON COLUMN tidemark.sources.status IS
    'running; retrying: unreachable; stopped: needs your action, see code, detail and hint';

CREATE TABLE tidemark.dead_letters (
    sink_key text NOT NULL,
    source text NOT NULL,
    relation text NOT NULL,
    place text NOT NULL,
    code text NOT NULL,
    reason text NOT NULL,
    key bytea,
    value bytea,
    desired text CHECK (desired IN ('retry', 'drop')),
    first_seen timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (sink_key, source, relation, place)
);
COMMENT ON TABLE tidemark.dead_letters IS 'Malformed records, stored whole';
COMMENT ON COLUMN tidemark.dead_letters.sink_key IS
    'the reader of the source, as in tidemark.progress: each group of views has its own records';
COMMENT ON COLUMN tidemark.dead_letters.place IS
    'partition:offset of a topic, or path:line of a file';
COMMENT ON COLUMN tidemark.dead_letters.desired IS 'requested by a user: retry or drop';

CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE OF options, relations
    ON tidemark.sources FOR EACH STATEMENT EXECUTE FUNCTION tidemark.announce();
CREATE TRIGGER announce AFTER UPDATE OF desired ON tidemark.dead_letters
    FOR EACH STATEMENT EXECUTE FUNCTION tidemark.announce();
