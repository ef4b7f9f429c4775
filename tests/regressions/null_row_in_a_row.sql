-- NULL in a row hashes as a row of NULLs, and is another value
-- schema
CREATE TYPE place AS (street text, city text);
CREATE DOMAIN seat AS place;
CREATE TYPE person AS (name text, home seat, n numeric);
CREATE TABLE notes (id integer PRIMARY KEY, home place, who person);
-- rows
INSERT INTO notes VALUES (1, NULL, NULL), (2, '(,)', '(x,,1.0)'), (3, '(a,b)', '(x,"(,)",1.00)'), (4, NULL, '(x,"(a,b)",1)');
-- transaction
INSERT INTO notes VALUES (5, '(,)', '(x,"(,)",1)'), (6, NULL, '(,,)'), (7, '(a,)', '(,"(,)",)');
-- transaction
DELETE FROM notes WHERE id IN (1, 3, 4);
-- transaction
UPDATE notes SET home = NULL, who = NULL WHERE id = 2;
-- transaction
DELETE FROM notes WHERE id = 6;
-- query
SELECT a.id AS c0, b.id AS c1 FROM notes a JOIN notes b ON a.who = b.who;
-- differed
