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
SELECT a, g, n, sum(n) OVER () AS s FROM (SELECT a, generate_series(1, 2) AS g, count(*) AS n FROM t GROUP BY CUBE (a, generate_series(1, 2))) r;
-- differed
-- (a, g, n, s)
--   missing 1x (None, None, '8', '32')
--   surplus 2x ('1', '1', '2', '64')
