-- Sums of floats that are 0, -0, or cancel out: -0 only where every value is. As text, since
-- comparisons of floats take 0 for -0.
-- schema
CREATE TABLE t (id int PRIMARY KEY, g int, f float8, r real, k int);
INSERT INTO t VALUES (1, 1, 0, 0, 1), (2, 2, '-0', '-0', 2), (3, 3, 5, 5, 1), (4, 3, '-0', '-0', 2),
    (5, 4, '-0', '-0', 3), (6, 4, '-0', NULL, 1), (7, 5, 1, 1, 1), (8, 5, -1, -1, 2), (9, 6, NULL, '-0', 1);
-- changes
UPDATE t SET f = -f, r = -r;
DELETE FROM t WHERE id IN (3, 7);
INSERT INTO t VALUES (10, 1, '-0', '-0', 7), (11, 4, '1e-300', '1e-30', 8), (12, 2, 'NaN', 'NaN', 9), (13, 6, '-0', '-inf', 1);
DELETE FROM t WHERE id IN (11, 12, 13);
UPDATE t SET f = '-0', r = '-0';
UPDATE t SET f = '0' WHERE g = 4;
DELETE FROM t WHERE g = 1;
-- queries
SELECT q::text FROM (
    SELECT g, sum(f) s, avg(f) a, min(f) mi, max(f) ma FROM t WHERE g <> 1 GROUP BY g) q;
SELECT q::text FROM (SELECT g, sum(r) s, avg(r) a FROM t GROUP BY g) q;
SELECT q::text FROM (SELECT sum(f) s, sum(r) r, avg(f) a FROM t WHERE g < 3) q;
SELECT q::text FROM (SELECT sum(f) s, sum(r) FROM t WHERE f = 0) q;
SELECT q::text FROM (
    SELECT sum(f) FILTER (WHERE k > 1) s, avg(f) FILTER (WHERE k > 1) a FROM t WHERE g = 2) q;
SELECT q::text FROM (
    SELECT g, sum(f + f) s, sum(f * k) w, sum(-f) n, sum(r * f) x FROM t GROUP BY g) q;
SELECT q::text FROM (SELECT g, k, sum(f) s FROM t GROUP BY ROLLUP(g, k)) q;
SELECT q::text FROM (
    SELECT sum(s) t, avg(s) a FROM (SELECT g, sum(f) s FROM t GROUP BY g) q WHERE g IN (2, 4)) q;
SELECT q::text FROM (SELECT sum(DISTINCT f) s, avg(DISTINCT f) a FROM t WHERE g = 2) q;
SELECT q::text FROM (
    SELECT g, var_pop(f) v, stddev_samp(f) d, regr_avgx(f, r) x, regr_sxy(f, r) y, covar_pop(f, r) c FROM t GROUP BY g) q;
SELECT q::text FROM (SELECT g, sum(f) s FROM t GROUP BY g HAVING sum(f) = 0) q;
SELECT q::text FROM (
    SELECT id, sum(f) OVER (PARTITION BY g ORDER BY id) s, avg(f) OVER (PARTITION BY g ORDER BY id) a FROM t) q;
SELECT q::text FROM (
    SELECT id, sum(f) OVER (PARTITION BY g) s, avg(r) OVER (PARTITION BY g) a FROM t) q;
SELECT q::text FROM (
    SELECT id, sum(r) OVER (ORDER BY id ROWS 1 PRECEDING) s, sum(f) OVER (ORDER BY id ROWS BETWEEN 1 FOLLOWING AND 2 FOLLOWING) a FROM t) q;
SELECT q::text FROM (
    SELECT id, sum(f) OVER (PARTITION BY g ORDER BY k RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE CURRENT ROW) s FROM t) q;
SELECT q::text FROM (
    SELECT id, sum(f) FILTER (WHERE k > 1) OVER (PARTITION BY g ORDER BY id) s FROM t) q;
SELECT q::text FROM (SELECT g, sum(sum(f)) OVER (ORDER BY g) s FROM t GROUP BY g) q;
SELECT q::text FROM (
    SELECT a.id, (SELECT sum(b.f) FROM t b WHERE b.g = a.g AND b.id >= a.id) s FROM t a) q;
SELECT q::text FROM (
    SELECT a.g, sum(a.f * b.k) s, sum(b.f) z FROM t a JOIN t b ON a.k = b.k GROUP BY a.g) q;
SELECT q::text FROM (
    SELECT coalesce(sum(f), 1) s, sum(f)::text x, 1 / nullif(sum(f), 0) y FROM t WHERE g = 2) q;
