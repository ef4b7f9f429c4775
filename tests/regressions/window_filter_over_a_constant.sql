-- seed 1795242987/13, g39: distinct, limit, named windows, own aggregate, statistics, window filter
-- restarts
-- schema
CREATE TABLE t3 (id integer NOT NULL, b integer, c3 boolean);
ALTER TABLE t3 ADD PRIMARY KEY (id);
-- rows
INSERT INTO t3 VALUES ('30', '0', 'false');
-- query
SELECT DISTINCT sum(2.50::numeric) FILTER (WHERE (NOT 't'::boolean)) OVER (ORDER BY 'f'::boolean) AS c0 FROM (SELECT r1.b AS c1 FROM t3 r1 WINDOW w1 AS (), w2 AS (w1 ORDER BY r1.c3 DESC NULLS LAST, r1.id)) r4;
-- differed
-- (c0)
--   missing 1x (None,)
--   surplus 1x ('2.50',)
