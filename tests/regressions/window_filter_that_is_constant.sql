-- schema
CREATE FUNCTION after_product(state bigint, x integer) RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT (coalesce(state, 1) * (coalesce(x, 3) % 7 + 10)) % 10007';
CREATE AGGREGATE product(integer) (sfunc = after_product, stype = bigint);
CREATE TABLE t (id integer PRIMARY KEY, a integer);
-- rows
INSERT INTO t VALUES (1, 1);
INSERT INTO t VALUES (2, NULL);
-- transaction
INSERT INTO t VALUES (3, 5);
-- query
SELECT id, product(2) FILTER (WHERE false) OVER (ORDER BY id) AS none, product(a) FILTER (WHERE true) OVER (ORDER BY id) AS every, count(*) FILTER (WHERE NULL) OVER () AS n FROM t;
-- differed
-- (id, none, every, n)
--   missing 1x ('1', None, '11', '0')
--   surplus 1x ('1', '13', '11', '0')
