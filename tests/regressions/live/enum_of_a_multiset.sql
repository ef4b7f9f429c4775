-- A view without a key failed for good once a label of a column that it shows was renamed.
-- @schema
CREATE TYPE grade AS ENUM ('lo', 'hi');
CREATE TABLE papers (id int PRIMARY KEY, g grade, v int);
INSERT INTO papers VALUES (1, 'lo', 1), (2, 'hi', 2), (3, 'lo', 3);
-- @view counted
SELECT g, count(*) AS n FROM papers GROUP BY g
-- @view listed
SELECT g, v FROM papers
-- @view keyed
SELECT id, g FROM papers
-- @do
ALTER TYPE grade RENAME VALUE 'lo' TO 'low';
-- @do
DELETE FROM papers WHERE id = 3;
UPDATE papers SET v = 9 WHERE id = 1;
