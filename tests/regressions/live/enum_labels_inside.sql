-- RENAME VALUE was noticed for columns of the enum itself alone; a constant of the query with the old
-- label made error rows, and a deleted row stayed.
-- @schema
CREATE TYPE level AS ENUM ('lo', 'hi');
CREATE DOMAIN set_level AS level;
CREATE TYPE reading AS (at level, n int);
CREATE TABLE meters (id int PRIMARY KEY, levels level[], d set_level, r reading);
INSERT INTO meters VALUES (1, '{lo,hi}', 'lo', '(lo,1)'), (2, '{hi}', 'hi', '(hi,2)');
-- @view of_arrays
SELECT id, levels::text AS shown FROM meters
-- @view of_domains
SELECT d::text AS shown, count(*) AS n FROM meters GROUP BY 1
-- @view of_composites
SELECT id, r::text AS shown FROM meters
-- @view with_a_label
SELECT id FROM meters WHERE levels @> '{lo}'
-- @do
ALTER TYPE level RENAME VALUE 'lo' TO 'low';
-- @do
INSERT INTO meters VALUES (3, '{low}', 'low', '(low,3)');
-- @do
DELETE FROM meters WHERE id <> 2;
