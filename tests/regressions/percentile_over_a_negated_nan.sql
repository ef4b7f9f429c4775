-- a percentile between infinities
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
SELECT r1.g AS c0, percentile_cont(0.5) WITHIN GROUP (ORDER BY r1.c1) AS c1, percentile_disc(0.5) WITHIN GROUP (ORDER BY r1.c1) AS c2 FROM (SELECT g, - a AS c1 FROM t0) r1 GROUP BY r1.g;
-- differed
