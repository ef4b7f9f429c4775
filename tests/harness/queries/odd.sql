-- Queries over values that break engines.

-- name: carry
SELECT * FROM measures;
-- name: carry_lookups
SELECT * FROM lookups;
-- name: free_arithmetic
SELECT id, free + 1 AS a, free * 2.50 AS b, free - 0.001 AS c, free / 3 AS d, -free AS e, abs(free) AS f, free > 2 AS g, free = 'NaN' AS h FROM measures;
-- name: free_sums
SELECT padded, sum(free) AS total, avg(free) AS mean, count(free) AS n FROM measures WHERE free IS DISTINCT FROM 'NaN' AND abs(free) < 1e20 GROUP BY padded;
-- name: free_sums_nan
SELECT short, sum(free) AS total, min(free) AS low, max(free) AS high, avg(free) AS mean FROM measures GROUP BY short;
-- name: free_global
SELECT sum(free) AS total, max(free) AS high, min(free) AS low, count(DISTINCT free) AS n FROM measures;
-- name: free_group
SELECT free, count(*) AS n FROM measures GROUP BY free;
-- name: free_join_scales
SELECT m.id, l.id AS other, m.free, l.free AS same FROM measures m JOIN lookups l ON m.free = l.free;
-- name: free_join_fixed
SELECT m.id, l.id AS other FROM measures m JOIN lookups l ON m.small = l.free;
-- name: free_join_integer
SELECT m.id, l.id AS other, l.free FROM measures m JOIN lookups l ON m.id = l.free;
-- name: free_semi_join
SELECT id, free FROM measures WHERE free IN (SELECT free FROM lookups);
-- name: free_not_in
SELECT id, free FROM measures WHERE free NOT IN (SELECT free FROM lookups WHERE free IS NOT NULL);
-- name: big
SELECT id, big, big * 2 AS twice, big + 0.00000000001 AS more, big / 7 AS seventh, round(big, 2) AS rounded FROM measures;
-- name: big_sums
SELECT short, sum(big) AS total, avg(big) AS mean, max(big) AS high FROM measures GROUP BY short;
-- name: small
SELECT id, small + small AS a, small * small AS b, small / 3 AS c, small * 1000 AS d, round(small, 1) AS e, small::integer AS f, small > 1 AS g FROM measures WHERE small <> 'NaN';
-- name: small_sums
SELECT padded, sum(small) AS total, avg(small) AS mean, min(small) AS low, max(small) AS high FROM measures GROUP BY padded;
-- name: small_nan
SELECT id, small, small = 'NaN' AS nan, small > 5 AS large, small + 1 AS more FROM measures;
-- name: rounded
SELECT rounded, count(*) AS n, sum(rounded) AS total, avg(rounded) AS mean FROM measures GROUP BY rounded;
-- name: reals
SELECT id, real4, real4 * 2 AS twice, real4::float8 AS wide, real4 = 0.1::real AS tenth, real4 > 1 AS large, real4::numeric AS exact FROM measures WHERE real4 < 'Infinity';
-- name: doubles
SELECT id, real8, real8 + 1 AS more, -real8 AS inverse, real8 = 'NaN' AS nan, real8 > 0 AS positive, abs(real8) AS magnitude, real8 / 2 AS half FROM measures;
-- name: doubles_group
SELECT real8, count(*) AS n FROM measures WHERE real8 <> 0 GROUP BY real8;
-- name: zero_join
SELECT m.id, l.id AS other FROM measures m JOIN lookups l ON m.real8 = l.real8;
-- name: real_join_double
SELECT m.id, l.id AS other FROM measures m JOIN lookups l ON m.real4 = l.real8;
-- name: doubles_aggregates
SELECT short, min(real8) AS low, max(real8) AS high, count(DISTINCT real8) AS n, min(real4) AS low4, max(real4) AS high4 FROM measures GROUP BY short;
-- name: doubles_sums
SELECT padded, sum(real8) AS total, avg(real8) AS mean FROM measures GROUP BY padded;
-- name: doubles_huge_sums
SELECT short, sum(real8) AS total FROM measures WHERE real8 > 0 AND real8 < 'Infinity' GROUP BY short;
-- name: padded
SELECT padded, length(padded) AS n, padded || '|' AS text, padded = 'a' AS is_a, padded = 'a   '::text AS as_text, count(*) AS rows FROM measures GROUP BY padded;
-- name: padded_join
SELECT m.id, l.id AS other, m.padded, l.padded AS wider FROM measures m JOIN lookups l ON m.padded = l.padded;
-- name: padded_text_join
SELECT m.id, l.id AS other FROM measures m JOIN lookups l ON m.short = l.plain;
-- name: padded_like
SELECT id, padded LIKE 'a%' AS a, padded LIKE '% ' AS blank, padded < 'b' AS early, upper(padded) AS u FROM measures;
-- name: padded_extremes
SELECT real4 IS NULL AS missing, min(padded) AS low, max(padded) AS high, min(short) AS short_low, max(short) AS short_high FROM measures GROUP BY real4 IS NULL;
-- name: collated_extremes
SELECT short, min(loud) AS low, max(loud) AS high FROM measures GROUP BY short;
-- name: collated_compare
SELECT id, loud < 'b' AS early, loud = 'apple' AS same, loud > 'Eclair' AS late, loud BETWEEN 'apple' AND 'eclair' AS between FROM measures;
-- name: collated_group
SELECT loud, count(*) AS n FROM measures GROUP BY loud;
-- name: collated_join
SELECT m.id, l.id AS other FROM measures m JOIN lookups l ON m.loud = l.plain;
-- name: infinite_days
SELECT id, day, day > '2023-01-01' AS later, day = 'infinity' AS ever, isfinite(day) AS finite FROM measures;
-- name: infinite_extremes
SELECT short, min(day) AS first, max(day) AS last, min(stamp) AS early, max(stamp) AS late FROM measures GROUP BY short;
-- name: date_timestamp_join
SELECT m.id, l.id AS other FROM measures m JOIN lookups l ON m.day = l.day;
-- name: day_arithmetic
SELECT id, day + 30 AS later, day - date '2000-01-01' AS days, extract(year FROM day) AS year, date_trunc('month', stamp) AS month, stamp + interval '1 day' AS next FROM measures WHERE isfinite(day) AND isfinite(stamp);
-- name: int_overflow_free
SELECT sum(id * 100000000::bigint) AS wide, sum(id) AS n, avg(id) AS mean FROM measures;
-- name: numeric_functions
SELECT id, round(free, 1) AS a, trunc(free, 1) AS b, sign(free) AS c, free::text AS d, scale(free) AS e, trim_scale(free) AS f, mod(free, 2) AS g FROM measures WHERE free > -100 AND free < 1000;
-- name: numeric_casts
SELECT id, free::numeric(20,3) AS a, free::integer AS b, small::float8 AS c, real8::numeric AS d, id::numeric(5,1) AS e, small::text AS f FROM measures WHERE free BETWEEN -1000 AND 1000 AND abs(real8) < 1e10 AND small < 'NaN';
-- name: union_scales
SELECT free FROM measures UNION ALL SELECT free FROM lookups UNION ALL SELECT small FROM measures;
-- name: failing_nothing
SELECT id, CASE WHEN small <> 0 AND small <> 'NaN' THEN 1 / small END AS inverse FROM measures;
