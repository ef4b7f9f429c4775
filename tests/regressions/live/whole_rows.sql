-- Views of a table's whole row failed at the first change after ADD COLUMN, and after RENAME COLUMN
-- they showed the old name, with NULL for what the table has.
-- @schema
CREATE TABLE boxes (id int PRIMARY KEY, a int, b text);
INSERT INTO boxes VALUES (1, 1, 'x'), (2, 2, 'y'), (3, 3, 'w');
-- @view as_json
SELECT id, to_jsonb(t) AS j FROM boxes t
-- @view as_text
SELECT t.id, t::text AS s FROM boxes t
-- @view gathered
SELECT jsonb_agg(t ORDER BY t.id) AS j FROM boxes t
-- @view beside
SELECT l.id, to_jsonb(r) AS j FROM boxes l LEFT JOIN boxes r ON r.id = l.id + 1
-- @view by_field
SELECT to_jsonb(t) ->> 'b' AS b, count(*) AS n FROM boxes t GROUP BY 1
-- @do
ALTER TABLE boxes ADD spare int;
-- @do
UPDATE boxes SET b = 'q' WHERE id = 2;
-- @do
ALTER TABLE boxes RENAME a TO aa;
-- @do
UPDATE boxes SET b = 'z' WHERE id = 1;
-- @do
ALTER TABLE boxes ADD c int DEFAULT 7;
-- @do
UPDATE boxes SET b = 'r' WHERE id = 2;
DELETE FROM boxes WHERE id = 3;
