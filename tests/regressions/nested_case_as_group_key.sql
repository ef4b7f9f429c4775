-- A CASE inside another one is indented more in PostgreSQL's text than the same one in GROUP BY.
-- schema
CREATE TABLE t (id integer PRIMARY KEY, a integer);
-- rows
INSERT INTO t VALUES (1, 1);
INSERT INTO t VALUES (2, 2);
-- transaction
INSERT INTO t VALUES (3, 5);
-- query
SELECT CASE CASE WHEN a < 3 THEN 1 END WHEN 1 THEN 10 END AS x, count(*) AS n FROM t GROUP BY CASE WHEN a < 3 THEN 1 END;
-- differed
-- (x, n)
--   missing 1x ('10', '2')
--   surplus 2x ('10', '1')
