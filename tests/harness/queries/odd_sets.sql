-- Set operations over values that are equal and not the same.

-- name: set_scales
SELECT trim_scale(x.free) AS free FROM (SELECT free FROM measures INTERSECT SELECT free FROM lookups) x;
-- name: set_scales_all
SELECT trim_scale(x.free) AS free FROM (SELECT free FROM measures EXCEPT ALL SELECT free FROM lookups) x;
-- name: set_scales_of_two_types
SELECT trim_scale(x.small) AS small FROM (SELECT small FROM measures EXCEPT SELECT free FROM lookups) x;
-- name: set_zeros
SELECT x.real8 + 0 AS real8 FROM (SELECT real8 FROM measures EXCEPT ALL SELECT real8 FROM lookups) x;
-- name: set_padded
SELECT rtrim(x.padded) AS padded, count(*) AS n FROM (SELECT padded FROM measures INTERSECT ALL SELECT padded FROM lookups) x GROUP BY 1;
-- name: set_padded_and_plain
SELECT padded FROM lookups EXCEPT SELECT plain FROM lookups;
-- name: set_rows_with_nulls
SELECT trim_scale(x.free) AS free, x.real8 + 0 AS real8, rtrim(x.padded) AS padded FROM (SELECT free, real8, padded FROM measures EXCEPT SELECT free, real8, padded FROM lookups) x;
