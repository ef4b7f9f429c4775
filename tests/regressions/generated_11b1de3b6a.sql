-- seed 777001/9, g39: casts, dates, grouping sets, other types, range frame, row in, subquery in having, window filter
-- schema
CREATE TABLE t0 (id integer NOT NULL, a integer NOT NULL, c0 text COLLATE "en-x-icu");
ALTER TABLE t0 ADD PRIMARY KEY (a, id);
-- rows
INSERT INTO t0 VALUES ('8', '0', 'zed');
-- query
SELECT count(0::integer) FILTER (WHERE ((r8.c0 > timestamp '2023-06-15') IS NOT TRUE)) OVER (ORDER BY interval '1 day') AS c0 FROM (SELECT timestamp '2024-01-01 12:00' AS c0 FROM (SELECT r5.c0 AS c1 FROM t0 r5) r6) r8;
-- differed
-- (c0)
--   missing 1x ('0',)
--   surplus 1x ('1',)
