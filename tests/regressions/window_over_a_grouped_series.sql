-- restarts
-- schema
CREATE TABLE t (id integer PRIMARY KEY, a integer, xs integer[]);
-- rows
INSERT INTO t VALUES (1, 1, '{3,1}'), (2, 1, '{}'), (3, 2, NULL), (4, NULL, '{1,1,2}');
-- transaction
INSERT INTO t VALUES (5, 2, '{3}');
UPDATE t SET a = 2, xs = xs || 7 WHERE id < 3;
-- transaction
DELETE FROM t WHERE id = 4;
-- transaction
DELETE FROM t;
-- query
SELECT generate_series(1, 3) AS g, sum(count(*)) OVER (PARTITION BY generate_series(1, 3)) AS s FROM t GROUP BY generate_series(1, 3);
-- differed
-- (g, s)
--   surplus 2x ('1', '4')
--   surplus 2x ('2', '4')
--   surplus 2x ('3', '4')
