-- seed 1795242987/3, g34: collations, dates, distinct on, exists, offset, rollup, running aggregate
-- restarts
-- schema
CREATE TYPE mood AS ENUM ('sad', 'fine', 'glad');
CREATE TABLE t2 (id text NOT NULL, a integer, b integer, c0 text COLLATE "en-x-icu", c1 numeric(30,12), c2 date, c3 boolean, c4 smallint, c5 bytea, c6 integer, c7 text, c8 text[]);
ALTER TABLE t2 ADD PRIMARY KEY (id);
-- rows
INSERT INTO t2 VALUES ('a', '1', '5', '', '123456789012345678.012345678901', '0001-01-01', NULL, NULL, E'\\x', '4', E'a%_b\\', '{}');
INSERT INTO t2 VALUES ('b', '6', '1', 'ba', '-0.500000000000', '2024-02-29', 'true', '-32768', E'\\xdeadbeef', '4', 'É', '{}');
INSERT INTO t2 VALUES ('d', '3', '3', '{a,b}', '-0.500000000000', '1999-12-31', 'true', '32767', E'\\xdeadbeef', '-2147483648', 'b', '{}');
INSERT INTO t2 VALUES ('k', '3', '2', 'b', '123456789012345678.012345678901', 'infinity', 'true', NULL, NULL, '-2147483648', 'ß', '{}');
-- query
SELECT r3.c1 AS c0, num_nulls(2, r3.c1) AS c1, bool_and((bit_and((length(r3.c2) % 100)::integer) BETWEEN 0 AND bit_and((length(r3.c2) % 100)::integer))) OVER (PARTITION BY r3.c1 ORDER BY time '24:00' DESC) AS c6 FROM (SELECT r2.c1 AS c0, greatest('glad'::mood, 'glad'::mood) AS c1, r2.c0 AS c2 FROM (SELECT DISTINCT ON (timestamp '2023-06-15') upper(replace(r1.id, 'a', 'bb') COLLATE "C") AS c0, r1.c8 AS c1 FROM t2 r1 ORDER BY timestamp '2023-06-15', r1.b, r1.id) r2 ORDER BY CASE WHEN (r2.c0 ~ '^[a-z]') THEN 'NaN'::numeric END DESC, (r2.c0)::text, (r2.c1)::text OFFSET 5) r3 GROUP BY ROLLUP (r3.c1, (r3.c2, num_nulls(2, r3.c1)));
-- differed
-- (c0, c1, c6)
--   missing 1x (None, None, None)
