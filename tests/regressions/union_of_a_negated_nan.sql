-- rows of NaN and -NaN are the same row
-- schema
CREATE TABLE t0 (id integer PRIMARY KEY, g integer, a double precision);
-- rows
INSERT INTO t0 VALUES (1, 1, 'NaN'), (2, 1, 2.5), (3, 1, 'Infinity'), (4, 2, 'NaN'), (5, 2, '-Infinity'), (6, 3, 1), (7, 3, NULL);
-- transaction
UPDATE t0 SET a = 'NaN' WHERE id = 6;
-- transaction
DELETE FROM t0 WHERE id = 2;
-- transaction
INSERT INTO t0 VALUES (8, 1, '-Infinity'), (9, 4, '-0'), (10, 4, 'NaN');
-- transaction
UPDATE t0 SET a = 3 WHERE a = 'NaN' AND g < 3;
-- transaction
DELETE FROM t0 WHERE g = 3;
-- query
SELECT t0.g AS c0, - t0.a AS c1 FROM t0 UNION SELECT t0.g, t0.a FROM t0 UNION SELECT t0.g, t0.a - t0.a FROM t0;
-- differed
