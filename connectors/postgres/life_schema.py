"""Columns of tidemark.views for the life of a view (control_life)."""

VIEW_CHANGES = """
ALTER TABLE tidemark.views
    ADD COLUMN version integer NOT NULL DEFAULT 0,
    ADD COLUMN change jsonb,
    ADD COLUMN replacing jsonb;
COMMENT ON COLUMN tidemark.views.version IS 'counts the queries and rebuilds that it has had';
COMMENT ON COLUMN tidemark.views.change IS
    'what the user wants changed: another version of the query, or another name';
COMMENT ON COLUMN tidemark.views.replacing IS
    'how far the newest change is, or why it was given up; NULL when there is nothing to tell';
COMMENT ON COLUMN tidemark.views.positions IS 'where a paused view stands, by source';

DROP TRIGGER announce ON tidemark.views;
CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE OF status, desired, change
    ON tidemark.views FOR EACH STATEMENT EXECUTE FUNCTION tidemark.announce();
"""
