-- Queries over wide rows that are mostly NULL.

-- name: carry
SELECT * FROM sparse;
-- name: narrow
SELECT part, code, t1, n1 FROM sparse WHERE t1 IS NOT NULL;
-- name: three_valued
SELECT part, code, o1 AND o2 AS both, o1 OR o2 AS either, NOT o3 AS inverse, o1 = o2 AS same, o4 IS UNKNOWN AS unknown, (i1 > i2 OR i3 IS NULL) IS TRUE AS odd FROM sparse;
-- name: filter_three_valued
SELECT part, code FROM sparse WHERE NOT (o1 AND i1 > 0) OR t1 = 'ünï';
-- name: coalesced
SELECT coalesce(t1, t2, t3) AS text, count(*) AS n, sum(coalesce(i1, i2, 0)) AS i, avg(n1) AS n1, sum(f1 + f2) AS f FROM sparse GROUP BY coalesce(t1, t2, t3);
-- name: null_keys_inner
SELECT s.part, s.code, p.id FROM sparse s JOIN partners p ON s.i1 = p.i1;
-- name: null_keys_two
SELECT s.part, s.code, p.id FROM sparse s LEFT JOIN partners p ON s.i1 = p.i1 AND s.s1 = p.s1;
-- name: null_keys_full
SELECT s.part, s.code, p.id, p.t1 FROM sparse s FULL JOIN partners p ON s.s1 = p.i1;
-- name: not_distinct_join
SELECT s.part, s.code, p.id FROM sparse s JOIN partners p ON s.o1 IS NOT DISTINCT FROM p.o1 AND s.i1 = p.i1;
-- name: not_in_nulls_both_sides
SELECT part, code, i1 FROM sparse WHERE i1 NOT IN (SELECT i1 FROM partners WHERE id > 25);
-- name: not_exists_nulls
SELECT part, code, i1 FROM sparse s WHERE NOT EXISTS (SELECT 1 FROM partners p WHERE p.i1 = s.i1 AND p.s1 < s.s1);
-- name: group_nulls
SELECT part, o1, s1, count(*) AS n, count(t1) AS texts, bool_and(o2) AS all_o2, bool_or(o3) AS any_o3, sum(b1) AS b FROM sparse GROUP BY part, o1, s1;
-- name: distinct_nulls
SELECT DISTINCT o1, o2, s1 FROM sparse;
-- name: many_aggregates
SELECT part,
       sum(i1) AS sum_i1, sum(b2) AS sum_b2, sum(s3) AS sum_s3, sum(n4) AS sum_n4, avg(i2) AS avg_i2, avg(b3) AS avg_b3, avg(s4) AS avg_s4, avg(n5) AS avg_n5, min(t1) AS min_t1, max(t2) AS max_t2, min(d1) AS min_d1, max(d2) AS max_d2, min(f1) AS min_f1, max(f2) AS max_f2, min(n1) AS min_n1, max(b4) AS max_b4, count(DISTINCT t3) AS count_distinct_t3, count(DISTINCT n2) AS count_distinct_n2
FROM sparse GROUP BY part;
-- name: key_text
SELECT code, count(*) AS n, max(part) AS top, code = 'a' AS is_a, code < 'b' AS early FROM sparse GROUP BY code;
-- name: self_composite
SELECT a.part, a.code, b.code AS other, a.i1 - b.i1 AS apart FROM sparse a JOIN sparse b ON a.part = b.part AND a.code < b.code;
-- name: integer_limits
SELECT part, code, b1 * 1000 AS thousand, i1 * b2 AS product, s1 + s2 AS small, b1 / nullif(i1, 0) AS quotient, b3 % 7 AS rest FROM sparse;
-- name: null_text
SELECT part, code, t1 || t2 AS joined, concat(t1, t2) AS both, length(t1) AS n, upper(t1) AS u, t1 LIKE '%\t%' AS tab, t1 = '' AS empty, nullif(t1, ' ') AS shown FROM sparse;
-- name: case_types
SELECT part, code, CASE WHEN o1 THEN i1 ELSE n1 END AS number, CASE WHEN i1 > 0 THEN d1 WHEN i2 > 0 THEN d2 END AS day, greatest(i1, i2, i3) AS most, least(n1, n2) AS least FROM sparse;
