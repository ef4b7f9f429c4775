-- seed 777001/12, g34: booleans and bits, derived table, having, own aggregate, recursive union, sorted aggregates, values, window filter
-- schema
CREATE TABLE t3 (id integer NOT NULL, c2 date);
ALTER TABLE t3 ADD PRIMARY KEY (id);
-- rows
-- query
SELECT sum(2.50::numeric) FILTER (WHERE (''::text IS NULL)) OVER (PARTITION BY '\x'::bytea ORDER BY min(coalesce(timestamp '2023-06-15', timestamp '2024-01-01 12:00'))) AS c1 FROM (SELECT r1.c2 AS c0 FROM t3 r1) r2  ;
-- differed
-- (c1)
--   missing 1x (None,)
--   surplus 1x ('2.50',)
