-- seed 1795242987/23, g19: cube, distinct, extremes, in subquery, limit, named windows, values
-- restarts
-- schema
CREATE DOMAIN level AS integer CHECK (VALUE BETWEEN -5 AND 100);
CREATE TABLE t1 (id integer NOT NULL, a integer, b integer, c0 character(5), c1 numeric(10,2), c2 date, c3 boolean, c4 bigint, c5 level, c6 text, c7 text COLLATE "C", c8 date);
ALTER TABLE t1 ADD PRIMARY KEY (id);
-- rows
INSERT INTO t1 VALUES ('14', NULL, '6', NULL, '2.25', '0001-01-01', 'true', '6', '0', 'Zed', NULL, '2023-06-15');
INSERT INTO t1 VALUES ('15', '2', '5', 'a b', '0.00', '0044-03-15 BC', 'true', '6', '-1', '1.50', NULL, '0044-03-15 BC');
INSERT INTO t1 VALUES ('16', '6', '2', NULL, '-3.00', '0044-03-15 BC', NULL, '1', '4', '', 'A', 'infinity');
INSERT INTO t1 VALUES ('17', NULL, '2', 'A', '2.25', '2024-03-01', 'false', '3', '-1', 'b', 'A', '2024-05-25');
INSERT INTO t1 VALUES ('28', NULL, NULL, '', 'NaN', '1999-12-31', 'false', '9223372036854775807', '2', 'ba', 'zed', '2024-02-29');
INSERT INTO t1 VALUES ('30', '1', '1', 'é', '0.00', '0044-03-15 BC', NULL, '9223372036854775807', '0', NULL, '1.50', '2024-07-13');
INSERT INTO t1 VALUES ('4', '6', NULL, 'a', '1.50', NULL, 'false', '5', '7', 'o''x', NULL, '2024-02-29');
INSERT INTO t1 VALUES ('5', '6', '6', 'é', 'NaN', NULL, 'false', '2', '0', 'zed', '"q"', 'infinity');
INSERT INTO t1 VALUES ('8', '1', '4', 'a', '-3.00', '1999-12-31', NULL, '5', '5', 'a', 'Zed', '1999-12-31');
-- query
SELECT r5.c1 AS c0, r5.c0 AS c1, grouping(r5.c1, r5.c0) AS c2, sum(round((r5.c1 % 1000) / 7.0, 2)) AS c3, max(((r5.c1 % 1000)::float8 + 0)) AS c4, lag(r5.c1) OVER w2 AS c7 FROM (SELECT DISTINCT r4.c0 AS c0, r4.c0 AS c1 FROM (SELECT r1.a AS c0, r1.c3 AS c1 FROM t1 r1 RIGHT JOIN (VALUES (((-1)::integer)::bigint, trim_scale((trim_scale(2.50::numeric))::numeric)), (((-1)::integer)::bigint, trim_scale((trim_scale(0.001::numeric))::numeric))) r2 (c0, c1) ON (r1.id = r2.c0) WHERE r1.c3 ORDER BY r1.c7, r1.id, (r2.c0)::text, (r2.c1)::text LIMIT 5) r4 ORDER BY c0, c1 LIMIT 4) r5 GROUP BY DISTINCT CUBE (r5.c1, r5.c0), ROLLUP (r5.c1) WINDOW w1 AS (PARTITION BY r5.c0, r5.c0), w2 AS (w1 ORDER BY sum(round((r5.c1 % 1000) / 7.0, 2)), grouping(r5.c1, r5.c0), (r5.c1)::text, (r5.c0)::text);
-- differed
-- (c0, c1, c2, c3, c4, c7)
--   missing 1x (None, None, '3', None, None, None)
