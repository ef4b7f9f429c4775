-- Hold the catalog to the states of a view, as connectors/view_states.py lists them. No database
-- runs a released step again: adding a state requires another step like this one.
ALTER TABLE tidemark.views DROP CONSTRAINT IF EXISTS views_status_known;
ALTER TABLE tidemark.views ADD CONSTRAINT views_status_known CHECK (status IN ({{view_states}}));

ALTER TABLE tidemark.views DROP CONSTRAINT IF EXISTS views_desired_known;
ALTER TABLE tidemark.views ADD CONSTRAINT views_desired_known
    CHECK (desired IN ({{desired_states}}));

COMMENT ON COLUMN tidemark.views.status IS {{view_states_named}};
