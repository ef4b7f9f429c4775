-- LIMIT above tables that are joined without a condition.
-- schema
CREATE TABLE a (i int PRIMARY KEY, x text, k int); CREATE TABLE b (i int PRIMARY KEY, y text, k int); CREATE TABLE c (i int, z int);
ALTER TABLE c REPLICA IDENTITY FULL;
INSERT INTO a VALUES (1, 'p', 1), (2, 'q', 2), (3, NULL, NULL), (4, 'q', 1); INSERT INTO b VALUES (1, 'u', 1), (2, 'v', 5), (4, 'w', NULL); INSERT INTO c VALUES (1, 1), (1, 1), (2, NULL);
-- changes
INSERT INTO a VALUES (0, 'z', 7); INSERT INTO b VALUES (9, 'a', 9);
DELETE FROM a WHERE i < 2; UPDATE b SET i = i - 8 WHERE i = 9;
DELETE FROM c WHERE z = 1; UPDATE a SET x = 'a' WHERE i = 3;
DELETE FROM b;
INSERT INTO b VALUES (5, 'u', 1), (6, 'u', 2); INSERT INTO c VALUES (7, 7);
-- queries
SELECT a.i, b.i j FROM a, b ORDER BY a.i, b.i LIMIT 4;
SELECT a.i, b.i j FROM a, b ORDER BY b.i DESC, a.i LIMIT 3 OFFSET 2;
SELECT a.i, b.i j FROM a, b ORDER BY a.x DESC NULLS LAST, b.k NULLS FIRST, a.i, b.i LIMIT 5;
SELECT a.i FROM a, b ORDER BY a.i LIMIT 4;
SELECT b.i FROM a, b, c ORDER BY b.i LIMIT 7;
SELECT a.i, b.i j, c.z FROM a, b, c ORDER BY c.z, b.i, a.i LIMIT 5;
SELECT a.i + 1 p, b.i * 2 q, 'c' r FROM a, b ORDER BY b.i * 2, a.i + 1 LIMIT 5;
SELECT a.i + b.i p FROM a, b ORDER BY 1, a.i LIMIT 5;
SELECT a.i, b.i j FROM a, b ORDER BY a.x FETCH FIRST 3 ROWS WITH TIES;
SELECT 1 q FROM a, b LIMIT 2;
SELECT count(*) FROM (SELECT 1 q FROM a, b, c LIMIT 5) s;
SELECT x.i, (SELECT max(s.j) FROM (SELECT a.i, b.i j FROM a, b WHERE a.k = x.k ORDER BY a.i, b.i LIMIT 2) s) FROM a x;
SELECT a.i, b.i j FROM a, b WHERE a.k > 0 AND b.k > 0 ORDER BY b.i, a.i LIMIT 3;
SELECT s.i, s.n FROM (SELECT k i, count(*) n FROM a GROUP BY k) s, b ORDER BY s.n DESC, s.i, b.i LIMIT 3;
SELECT a.i, b.i j FROM a, b ORDER BY a.k, b.i LIMIT 1;
