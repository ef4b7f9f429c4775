-- schema
CREATE TABLE t (id integer PRIMARY KEY, a integer);
-- rows
INSERT INTO t VALUES (1, 1);
INSERT INTO t VALUES (2, 2);
-- transaction
DELETE FROM t WHERE id = 1;
-- query
SELECT a, CASE grouping(a, CASE WHEN a < a THEN 1 END) WHEN 1 THEN 10 END AS x FROM t GROUP BY ROLLUP (a, (CASE WHEN a < a THEN 1 END));
-- differed
-- (a, x)
--   missing 1x ('1', None)
--   surplus 1x ('1', '10')
