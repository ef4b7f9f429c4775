-- Views whose owner may not read any more what they read.

ALTER TABLE tidemark.views ADD COLUMN rights text, ADD COLUMN withheld jsonb;
COMMENT ON COLUMN tidemark.views.rights IS
    'a digest of the rights by which the owner was last found to be allowed to read what it reads';
COMMENT ON COLUMN tidemark.views.withheld IS
    'why nobody may read its rows, and the rights to its relations to be given back; else NULL';
DROP TRIGGER announce ON tidemark.views;
CREATE TRIGGER announce AFTER INSERT OR DELETE OR UPDATE OF status, desired, change, withheld
    ON tidemark.views FOR EACH STATEMENT EXECUTE FUNCTION tidemark.announce();
