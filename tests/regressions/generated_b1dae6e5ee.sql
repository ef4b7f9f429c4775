-- seed 777001/11, g25: casts, counts and sums, cube, intersect, named windows, rows frame, scalar subquery in select, three-valued logic, union
-- schema
CREATE TYPE mood AS ENUM ('sad', 'fine', 'glad');
CREATE TABLE t2 (id integer NOT NULL, a integer, c1 numeric);
ALTER TABLE t2 ADD PRIMARY KEY (id);
-- rows
-- query
SELECT (time '12:00' - time '01:00') AS c1 FROM (SELECT (r3.a % 1000)::float8 AS c0, (r3.c1)::text AS c1 FROM t2 r3) r7 GROUP BY CUBE (r7.c0, r7.c1, justify_interval((time '12:00' - time '01:00'))) WINDOW w1 AS (PARTITION BY count(r7.c1)), w2 AS (w1 ORDER BY 'sad'::mood, grouping(r7.c0, r7.c1, justify_interval((time '12:00' - time '01:00'))), (r7.c0)::text, (r7.c1)::text, (justify_interval((time '12:00' - time '01:00')))::text);
-- differed
-- (c1)
--   missing 1x ('11:00:00',)
