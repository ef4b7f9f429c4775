-- Functions of text at the least and the greatest integer.
-- schema
CREATE TABLE t (id int PRIMARY KEY, s text, n int, b bigint, m smallint);
INSERT INTO t SELECT row_number() OVER (), s, n, n::bigint, greatest(least(n, 32767), -32768) FROM
    unnest(ARRAY['', 'a', 'äbc', 'hello, world', NULL, ',,a,']) s, unnest(ARRAY[-2147483648,
    -2147483647, -3, -1, 0, 1, 2, 3, 2147483647, NULL]) n;
-- changes
UPDATE t SET s = 'xyz' WHERE s = 'a';
-- queries
SELECT id, right(s, n) FROM t;
SELECT id, left(s, n) FROM t;
SELECT id, right(s, -2147483648) FROM t;
SELECT id, left(s, -2147483648) FROM t;
SELECT id, right(s, 2147483647) FROM t;
SELECT id, left(s, 2147483647) FROM t;
SELECT id, repeat(s, n) FROM t WHERE n < 100;
SELECT id, lpad(s, n) FROM t WHERE n < 100;
SELECT id, rpad(s, n, 'xy') FROM t WHERE n < 100;
SELECT id, lpad(s, n, '') FROM t;
SELECT id, substr(s, n) FROM t;
SELECT id, substr(s, n, 3) FROM t;
SELECT id, substr(s, 2, n) FROM t WHERE n >= 0;
SELECT id, substr(s, n, 2147483647) FROM t;
SELECT id, substr(s, -2147483648, 2147483647) FROM t;
SELECT id, substring(s FROM n FOR 2147483647) FROM t;
SELECT id, split_part(s, ',', n) FROM t WHERE n <> 0;
SELECT id, split_part(s, ',', -2147483648) FROM t;
SELECT id, split_part(s, '', n) FROM t WHERE n <> 0;
SELECT id, left(s, m), right(s, m) FROM t;
