-- Forms that few queries have: rows of joins, mixed types, calls of outer levels, slices, VALUES, locks.
-- schema
CREATE TABLE t1 (f1 int, f2 int, f3 int); CREATE TABLE t2 (f2 int, f4 int);
ALTER TABLE t1 REPLICA IDENTITY FULL; ALTER TABLE t2 REPLICA IDENTITY FULL;
CREATE TABLE a (i int PRIMARY KEY, x text, fl float8, r real, n numeric, k int); CREATE TABLE b (i int PRIMARY KEY, y text, fl float8, r real, n numeric, arr int[], k bigint);
INSERT INTO t1 VALUES (1, 10, 100), (2, 20, 200), (NULL, NULL, 5); INSERT INTO t2 VALUES (10, 1), (30, 3), (10, 2), (NULL, 4);
INSERT INTO a VALUES (1, 'p', 1.5, 1.5, 1.50, 1), (2, 'q', 2, 0.1, 0.1, 2), (3, NULL, NULL, NULL, NULL, NULL);
INSERT INTO b VALUES (1, 'u', 1.5, 0.1, 0.1, '{1,2,3}', 1), (2, 'v', 3, 2.5, 1.5, '{4}', 5), (4, 'w', 0.1, 1.5, 7, '{}', NULL);
-- changes
INSERT INTO t2 VALUES (20, 9); INSERT INTO b VALUES (3, 'z', NULL, NULL, 2, NULL, 3);
UPDATE t1 SET f2 = f2 + 10; UPDATE a SET n = 0.1, fl = 0.1, k = 5 WHERE i = 1;
DELETE FROM t2 WHERE f4 = 1; DELETE FROM b WHERE i = 2; UPDATE b SET arr = arr || 5;
-- queries
SELECT * FROM t1 x(x0, x1) LEFT JOIN (t1 LEFT JOIN t2 USING (f2)) AS y(y0, y1, y2, y3) ON x.x0 =
    y.y1;
SELECT x.x0, y.y0, y.y3 FROM t1 x(x0, x1) LEFT JOIN (t1 LEFT JOIN t2 USING (f2)) AS y(y0, y1, y2,
    y3) ON x.x1 = y.y0;
SELECT y.f2, y.f1 FROM t1 x(x0, x1) LEFT JOIN (t1 LEFT JOIN t2 USING (f2)) AS y ON x.x1 = y.f2;
SELECT row_to_json(x.*) FROM a JOIN b USING (i) AS x;
SELECT x.i, x::text FROM a JOIN b USING (i) AS x;
SELECT x.*, a.x AS ax, b.y FROM a LEFT JOIN b USING (i) AS x;
SELECT to_jsonb(x.*), count(*) FROM a JOIN b USING (i, fl) AS x GROUP BY 1;
SELECT j.x0, j.y2 FROM (t1 JOIN t2 ON t1.f2 = t2.f2) AS j(x0, x1, x2, y1, y2);
SELECT j.* FROM (t1 NATURAL JOIN t2) AS j(m, p);
SELECT j.m, j.p, j.f4 FROM (t1 NATURAL LEFT JOIN t2) AS j(m, p) WHERE j.m > 1;
SELECT j.* FROM (t1 FULL JOIN t2 USING (f2)) AS j(m, p);
SELECT j.m FROM ((t1 CROSS JOIN t2) AS u(a, b, c) RIGHT JOIN t2 z ON z.f2 = u.b) AS j(m);
SELECT to_json(j) FROM (t1 JOIN t2 USING (f2)) AS j(m, p);
SELECT j::text FROM (t1 LEFT JOIN t2 USING (f2)) AS j(m, p);
SELECT i FROM a WHERE fl IN (SELECT n FROM b);
SELECT i FROM a WHERE fl NOT IN (SELECT n FROM b WHERE n IS NOT NULL);
SELECT i, fl IN (SELECT n FROM b) q, r IN (SELECT n FROM b) w, n IN (SELECT fl FROM b) z, n NOT IN
    (SELECT r FROM b) y FROM a;
SELECT i, fl = ANY (SELECT n FROM b) q, r <> ALL (SELECT fl FROM b) w, n < ANY (SELECT fl FROM b)
    z, k >= ALL (SELECT fl FROM b) y FROM a;
SELECT i FROM a WHERE r IN (SELECT fl FROM b);
SELECT i FROM a WHERE k IN (SELECT n FROM b);
SELECT i FROM a WHERE k IN (SELECT fl FROM b) OR k = ANY (SELECT k FROM b);
SELECT i FROM a WHERE (fl, k) IN (SELECT n, i FROM b);
SELECT i FROM a WHERE (fl, k) NOT IN (SELECT n, i FROM b);
SELECT i FROM a WHERE k NOT IN (SELECT n FROM b);
SELECT i FROM a WHERE fl IN (SELECT b.n FROM b WHERE b.i >= a.i);
SELECT i, fl = (SELECT n FROM b WHERE b.i = a.i) q FROM a;
SELECT i FROM a WHERE (fl, n) = (SELECT n, fl FROM b WHERE b.i = a.i);
SELECT a.k, count(*) FROM a GROUP BY a.k HAVING EXISTS (SELECT sum(a.k + b.i) FROM b);
SELECT a.k, sum(a.i) FROM a GROUP BY a.k HAVING EXISTS (SELECT 1 FROM b GROUP BY b.k HAVING
    sum(distinct a.k + b.i) > 2);
SELECT a.i FROM a WHERE EXISTS (SELECT 1 FROM b HAVING sum(a.k + b.i) > 5);
SELECT a.k, count(*) FROM a GROUP BY a.k HAVING EXISTS (SELECT b.i FROM b WHERE b.i = max(a.i)
    GROUP BY b.i HAVING sum(b.i + a.k) > min(a.i));
SELECT k, (SELECT grouping(a.k)) g, count(*) FROM a GROUP BY ROLLUP(k);
SELECT k, (SELECT grouping(a.k) + max(b.i) FROM b) g, count(*) FROM a GROUP BY ROLLUP(k);
SELECT k, x, (SELECT max(b.i) FROM b WHERE grouping(a.k, a.x) = b.i) g, count(*) FROM a GROUP BY
    CUBE(k, x);
SELECT k, count(*) FROM a GROUP BY ROLLUP(k) HAVING EXISTS (SELECT 1 FROM b WHERE b.i =
    grouping(a.k) + 1);
SELECT k, (SELECT sum(q) FROM (SELECT grouping(a.k) q FROM b) s) g FROM a GROUP BY ROLLUP(k);
WITH RECURSIVE r(i, arr, d) AS (SELECT i, arr, 0 FROM b UNION ALL SELECT i, arr[2:], d + 1 FROM r
    WHERE cardinality(arr) > 0) SELECT * FROM r;
WITH RECURSIVE r(i, arr, d) AS (SELECT i, arr, 0 FROM b UNION ALL SELECT i, arr[:cardinality(arr)
    - 1], d + 1 FROM r WHERE cardinality(arr) > 0) SELECT * FROM r;
WITH RECURSIVE r(i, arr, d) AS (SELECT i, arr, 0 FROM b UNION ALL SELECT i, arr[:], d + 1 FROM r
    WHERE d < 2) SELECT * FROM r;
WITH RECURSIVE r(i, arr, d) AS (SELECT i, arr, 0 FROM b UNION ALL SELECT i, arr[2:3], d + 1 FROM r
    WHERE d < 2) SELECT * FROM r;
WITH RECURSIVE r(i, n) AS (SELECT i, 0 FROM b UNION ALL SELECT r.i, r.n + 1 FROM r JOIN b ON
    b.arr[:r.n + 1] = ARRAY[r.n + 1]) SELECT * FROM r;
SELECT i, arr[:2], arr[2:] q, arr[:] w, arr[1:2] e, (arr)[:1] r, (arr || 1)[2:] z,
    ('{{1,2},{3,4}}'::int[])[:i][2:] y FROM b;
SELECT arr[:2] q, count(*) FROM b GROUP BY arr[:2];
SELECT i, (VALUES ((WITH c AS (SELECT max(n) m FROM b) SELECT m FROM c))) FROM a;
SELECT i, (SELECT v FROM (VALUES ((WITH c AS (SELECT count(*) m FROM b WHERE b.i > a.i) SELECT m
    FROM c))) s(v)) FROM a;
SELECT i, (VALUES ((SELECT max(n) FROM b))) FROM a;
SELECT (WITH c AS (SELECT 1 q) VALUES ((SELECT q FROM c))), i FROM a;
SELECT i, (VALUES ((WITH c AS (VALUES (a.k)) SELECT column1 FROM c))) FROM a;
SELECT i, (WITH c AS (SELECT max(n) m FROM b) SELECT v FROM (VALUES ((SELECT m FROM c))) s(v))
    FROM a;
SELECT i FROM a FOR UPDATE;
SELECT i FROM a FOR SHARE;
SELECT a.i, b.y FROM a JOIN b USING (i) FOR NO KEY UPDATE OF a SKIP LOCKED;
SELECT i FROM a FOR KEY SHARE OF a NOWAIT FOR UPDATE OF a;
SELECT s.i FROM (SELECT i FROM a ORDER BY i LIMIT 2 FOR UPDATE) s JOIN b USING (i);
WITH c AS (SELECT i, k FROM a FOR UPDATE SKIP LOCKED) SELECT k, count(*) FROM c GROUP BY k;
SELECT i FROM a ORDER BY i LIMIT 1 FOR UPDATE OF a;
SELECT i FROM a WHERE i IN (SELECT i FROM b FOR SHARE);
SELECT x.x1, count(*) FROM t1 x(x0, x1) LEFT JOIN (t1 y(f2, z) FULL JOIN t2 USING (f2)) ON x.x0 =
    z GROUP BY 1;
SELECT x0, f2 FROM (t1 LEFT JOIN t2 USING (f2)) RIGHT JOIN t1 x(x0, x1) ON x.x0 = t1.f1;
SELECT row_to_json(x.*) q, count(x.*), json_agg(x.* ORDER BY b.i)::text w, max(x.i) FROM a LEFT
    JOIN b USING (i) AS x GROUP BY x.*;
SELECT jsonb_agg(x.* ORDER BY x.i) q FROM a FULL JOIN b USING (i) AS x;
SELECT (SELECT row_to_json(x.*) FROM a JOIN b USING (i) AS x WHERE x.i = t1.f1) q, f1 FROM t1;
SELECT to_json(x.*)->>'i' q, x.* IS NULL n, x.*::text z FROM a LEFT JOIN b USING (i) AS x;
SELECT to_json(x.*) q, to_json(ROW(1, a.k)) w FROM a JOIN b USING (i) AS x;
SELECT k, (SELECT count(*) FROM (SELECT grouping(a.k) + grouping(b.k) v FROM b GROUP BY ROLLUP(k))
    s WHERE v > 0) FROM a GROUP BY ROLLUP(k);
SELECT k, (SELECT count(*) FROM b GROUP BY ROLLUP(b.k) HAVING grouping(b.k) > grouping(a.k)) n
    FROM a GROUP BY CUBE(k);
SELECT k FROM a GROUP BY ROLLUP(k) ORDER BY (SELECT grouping(a.k)), k LIMIT 2;
SELECT k, grouping(k) IN (SELECT b.k FROM b WHERE grouping(a.k) = 0) g FROM a GROUP BY ROLLUP(k);
SELECT a.k, (SELECT max(a.i) FROM b WHERE b.i = 1) q, (SELECT count(a.x) FROM b LIMIT 1) w FROM a
    GROUP BY a.k;
SELECT a.k, (SELECT max(b.i) + min(a.i) FROM b) q, (SELECT sum(b.i) FROM b HAVING sum(b.i) >
    max(a.i)) w FROM a GROUP BY a.k;
SELECT a.k, (SELECT sum(b.i + a.k) - sum(a.i) FROM b WHERE b.i >= min(a.i)) q FROM a GROUP BY a.k;
SELECT a.k FROM a GROUP BY a.k HAVING max(a.i) IN (SELECT b.i FROM b GROUP BY b.i HAVING count(a.k
    + b.i) = count(a.x));
SELECT a.k FROM a GROUP BY a.k HAVING NOT EXISTS (SELECT b.k FROM b GROUP BY b.k HAVING sum(a.k *
    b.i) > max(a.i) + count(*));
SELECT a.i, b.i j FROM a JOIN (SELECT i, n AS fl FROM b) b USING (fl);
SELECT fl, a.i FROM a FULL JOIN (SELECT n AS fl FROM b) b USING (fl);
SELECT i FROM a WHERE k::float4 IN (SELECT k FROM b) OR fl IN (SELECT n::numeric(12,4) FROM b);
SELECT i FROM a WHERE k::int2 IN (SELECT k FROM b) OR k::int2 IN (SELECT fl FROM b) OR k::int2 NOT
    IN (SELECT n FROM b WHERE n > 0);
SELECT i FROM a WHERE '2024-01-01'::date + i IN (SELECT '2024-01-01'::timestamp + i * '1 day'::interval
    FROM b);
WITH RECURSIVE r(i, arr, d) AS (SELECT i, arr, 3 FROM b UNION ALL SELECT i, arr[:d], d - 1 FROM r
    WHERE d > 0) SELECT * FROM r;
WITH RECURSIVE r(i, arr, d) AS (SELECT i, arr, 3 FROM b UNION ALL SELECT r.i, r.arr[:r.d] ||
    b.arr[b.i:], d - 1 FROM r JOIN b ON b.i = r.i WHERE d > 0) SELECT * FROM r;
SELECT i, arr[:i] q, arr[i:] w, arr[i:i] e, arr[:i + 1] r, arr[-1:i] z, arr[:(SELECT max(k) FROM
    a)] y, arr[:i][1] v FROM b;
SELECT (ARRAY[ARRAY[i, 2], ARRAY[3, 4]])[:1][2:] q, (ARRAY[ARRAY[i, 2], ARRAY[3, 4]])[:i][:] w,
    (ARRAY[ARRAY[i, 2], ARRAY[3, 4]])[2:][:i] e FROM b;
SELECT i FROM a WHERE i IN (VALUES ((SELECT max(i) FROM b)), (1));
SELECT i, i = ANY (VALUES ((SELECT max(i) FROM b)), (1)) q, k NOT IN (VALUES ((SELECT max(i) FROM
    b)), (a.i)) w FROM a;
SELECT i, ARRAY(VALUES ((SELECT max(i) FROM b)), ((WITH c AS (SELECT max(n) m FROM b) SELECT m
    FROM c))) FROM a;
SELECT i, v.* FROM a, LATERAL (VALUES ((WITH c AS (SELECT max(n) m FROM b WHERE b.i <> a.i) SELECT
    m FROM c), a.x)) v;
SELECT i, (WITH c AS (SELECT n FROM b) VALUES ((SELECT max(n) FROM c))) FROM a;
WITH c AS (SELECT n FROM b) VALUES ((SELECT max(n) FROM c), 1), (2, 3);
SELECT i, (VALUES ((VALUES ((SELECT min(i) FROM b))))) FROM a;
