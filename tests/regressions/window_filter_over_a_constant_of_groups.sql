-- seed 1795242987/28, g13: arithmetic, counts and sums, distinct on, full join, function in from, groups frame, offset, rows frame, window filter
-- schema
CREATE TYPE mood AS ENUM ('sad', 'fine', 'glad');
CREATE TABLE t0 (id integer NOT NULL, a integer, c1 numeric(6,-2));
ALTER TABLE t0 ADD PRIMARY KEY (id);
CREATE TABLE t2 (id integer NOT NULL, b smallint, c2 date, c4 bigint);
ALTER TABLE t2 ADD PRIMARY KEY (id);
-- rows
INSERT INTO t2 VALUES ('12', NULL, NULL, '9223372036854775807');
-- query
SELECT DISTINCT ON (r5.c2, trim_scale(sum(r5.c4))) sum(3::integer % 1000) FILTER (WHERE (r5.c2 IS NOT NULL)) OVER (PARTITION BY trim_scale(sum(r5.c4)), time '12:00' ORDER BY r5.c2) AS c2 FROM (SELECT r3.c0 AS c3 FROM (SELECT r1.a AS c0, r1.c1 AS c1, r1.c1 AS c2 FROM t0 r1 ) r3 ORDER BY timestamp '2023-06-15' NULLS FIRST, (r3.c0)::text, (r3.c1)::text, (r3.c2)::text LIMIT 6 OFFSET 5) r4 FULL JOIN t2 r5 ON (r4.c3 = r5.b) GROUP BY r5.c2 ORDER BY r5.c2, trim_scale(sum(r5.c4)), 'sad'::mood DESC, (r5.c2)::text;
-- differed
-- (c2)
--   missing 1x (None,)
--   surplus 1x ('3',)
