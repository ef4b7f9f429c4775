-- A view over an ordinary view kept that one's old definition for ever, live.
-- @schema
CREATE TABLE parts (id int PRIMARY KEY, weight int);
INSERT INTO parts VALUES (1, 1), (2, 2), (3, 3);
CREATE VIEW heavy AS SELECT id, weight FROM parts WHERE weight > 1;
CREATE VIEW very_heavy AS SELECT id FROM heavy WHERE weight > 2;
-- @view of_heavy
SELECT id, weight FROM heavy
-- @view of_very_heavy
SELECT count(*) AS n FROM very_heavy
-- @do
CREATE OR REPLACE VIEW heavy AS SELECT id, weight FROM parts WHERE weight < 3;
-- @do
INSERT INTO parts VALUES (9, 0);
-- @do
ALTER VIEW heavy RENAME TO light;
UPDATE parts SET weight = weight + 1;
