-- restarts
-- schema
CREATE TABLE t (id integer PRIMARY KEY, g integer, f double precision);
-- rows
INSERT INTO t VALUES (1, 1, 0), (2, 2, '-0'), (3, 3, 5), (4, 3, '-0');
-- transaction
UPDATE t SET f = -f;
-- transaction
DELETE FROM t WHERE id = 3;
-- transaction
UPDATE t SET f = '-0';
-- query
SELECT g, sum(f)::text AS s, avg(f)::text AS a FROM t GROUP BY g;
-- differed
-- (g, s, a)
--   missing 1x ('2', '-0', '0')
--   surplus 1x ('2', '0', '0')
