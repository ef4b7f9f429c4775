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
SELECT DISTINCT ON (a) a, unnest(xs) AS x, generate_series(1, 2) AS g FROM t ORDER BY a, id DESC;
-- differed
-- (a, x, g)
--   missing 1x ('1', None, '2')
--   missing 1x (None, '1', '2')
--   missing 1x (None, '2', None)
