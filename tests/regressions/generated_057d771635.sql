-- seed 777001/7, g39: all subquery, extremes, global aggregate, hypothetical, lateral subquery, not exists, self join, statistics, window filter
-- schema
CREATE TYPE mood AS ENUM ('sad', 'fine', 'glad');
CREATE DOMAIN level AS integer CHECK (VALUE BETWEEN -5 AND 100);
CREATE TABLE t1 (id integer, a integer, b bigint, c0 text COLLATE "C", c1 numeric(10,2), c2 date, c3 boolean, c4 level, c5 real, c6 character(5), c7 uuid);
ALTER TABLE t1 REPLICA IDENTITY FULL;
-- rows
INSERT INTO t1 VALUES (NULL, '6', '5', '', '0.00', '2024-02-29', 'false', '4', NULL, 'a b', '00000000-0000-4000-8000-000000000002');
-- query
SELECT sum(2.50::numeric) FILTER (WHERE (r9.c3 > 'sad'::mood)) OVER (PARTITION BY (r9.c3)::text ORDER BY coalesce(date '2023-06-15', date '2023-06-15') DESC NULLS LAST) AS c2 FROM (SELECT 'sad'::mood AS c3 FROM (SELECT r1.c7 AS c0 FROM t1 r1 ) r5  ) r9;
-- differed
-- (c2)
--   missing 1x (None,)
--   surplus 1x ('2.50',)
