-- name: scalar_by_key
SELECT b.id, (SELECT a.y FROM a WHERE a.id = b.a_id) AS y FROM b;
-- name: scalar_sum
SELECT a.id, (SELECT sum(b.x) FROM b WHERE b.a_id = a.id) AS s FROM a;
-- name: scalar_count_is_zero
SELECT a.id, (SELECT count(*) FROM b WHERE b.a_id = a.id AND b.x > 1) AS n, (SELECT count(b.x) + 10 FROM b WHERE b.a_id = a.id) AS m FROM a;
-- name: scalar_coalesced
SELECT a.id, (SELECT coalesce(sum(b.x), -1) FROM b WHERE b.x = a.x) AS s FROM a;
-- name: scalar_not_equal
SELECT a.id, (SELECT count(*) FROM b WHERE b.x < a.x) AS less, (SELECT max(b.n) FROM b WHERE b.x IS DISTINCT FROM a.x) AS other FROM a;
-- name: scalar_shows_scale
SELECT a.id, (SELECT count(*) || '/' || a.m FROM b WHERE b.x = a.x) AS t, (SELECT max(b.n) * a.m FROM b WHERE b.x > a.x) AS p FROM a;
-- name: scalar_scale_deep
SELECT a.id, (SELECT string FROM (SELECT a.m || ':' || count(*) AS string FROM b WHERE b.n > a.m) q) AS s FROM a;
-- name: scalar_having
SELECT a.id, (SELECT sum(b.x) FROM b WHERE b.a_id = a.id HAVING count(*) > 1) AS s FROM a;
-- name: scalar_having_outer
SELECT a.id, (SELECT sum(b.x) + a.k FROM b WHERE b.x = a.x HAVING count(*) > a.k) AS s FROM a;
-- name: scalar_without_from
SELECT a.id, (SELECT a.x + 1) AS more, (SELECT a.y WHERE a.x > 1) AS y, (SELECT 5) AS five FROM a;
-- name: scalar_outer_in_select
SELECT a.id, (SELECT max(b.x * a.k) FROM b) AS m, (SELECT sum(b.x) + a.x FROM b) AS s FROM a;
-- name: scalar_two_levels
SELECT a.id, (SELECT count(*) FROM b WHERE b.a_id = a.id AND b.x > (SELECT avg(c.x) FROM c WHERE c.b_id = b.id)) AS n FROM a;
-- name: scalar_reaches_two_out
SELECT a.id, (SELECT sum((SELECT count(*) FROM c WHERE c.b_id = b.id AND c.x = a.x)) FROM b WHERE b.a_id = a.id) AS s FROM a;
-- name: scalar_three_deep
SELECT a.id, (SELECT max(b.x) FROM b WHERE b.a_id = a.id AND EXISTS (SELECT FROM c WHERE c.b_id = b.id AND c.x > (SELECT min(b2.x) FROM b b2 WHERE b2.y = a.y))) AS m FROM a;
-- name: scalar_group_by
SELECT (SELECT max(b.y) FROM b WHERE b.x = a.x) AS y, count(*) AS n, sum(a.k) AS k FROM a GROUP BY (SELECT max(b.y) FROM b WHERE b.x = a.x);
-- name: scalar_in_aggregate
SELECT a.x, sum((SELECT count(*) FROM b WHERE b.a_id = a.id)) AS n, max((SELECT min(c.y) FROM c WHERE c.x = a.k)) AS y FROM a GROUP BY a.x;
-- name: scalar_in_filter
SELECT a.k, count(*) FILTER (WHERE a.x > (SELECT avg(b.x) FROM b WHERE b.y = a.y)) AS n FROM a GROUP BY a.k;
-- name: scalar_in_case
SELECT a.id, CASE WHEN a.x > 2 THEN (SELECT max(b.id) FROM b WHERE b.x = a.x) WHEN a.y IS NULL THEN -1 ELSE (SELECT min(c.id) FROM c) END AS v FROM a;
-- name: scalar_in_where
SELECT a.id FROM a WHERE a.n > (SELECT avg(b.n) FROM b WHERE b.x = a.x) OR (SELECT count(*) FROM c WHERE c.x = a.x) = 0;
-- name: scalar_in_having
SELECT a.x, count(*) AS n FROM a GROUP BY a.x HAVING count(*) > (SELECT count(*) FROM b WHERE b.x = a.x);
-- name: having_determined
SELECT a.id, count(b.id) AS n FROM a LEFT JOIN b ON b.a_id = a.id GROUP BY a.id HAVING EXISTS (SELECT FROM c WHERE c.x = a.k) OR (SELECT max(c.y) FROM c) = a.y;
-- name: determined_in_select
SELECT a.id, (SELECT count(*) FROM c WHERE c.y = a.y) AS c, sum(b.x) AS s FROM a JOIN b ON b.a_id = a.id GROUP BY a.id;
-- name: outer_aggregate_inside
SELECT a.x, (SELECT count(*) FROM b WHERE b.x > count(a.id)) AS n, (SELECT max(c.y) FROM c WHERE c.x = sum(a.k) - min(a.k)) AS y FROM a GROUP BY a.x;
-- name: outer_aggregate_alone
SELECT (SELECT sum(a.k)) AS s, (SELECT b.y FROM b WHERE b.id = max(a.id)) AS y FROM a;
-- name: inner_groups
SELECT a.id, (SELECT max(q.n) FROM (SELECT b.y, count(*) AS n FROM b WHERE b.x >= a.x GROUP BY b.y) q) AS most FROM a;
-- name: inner_distinct
SELECT a.id, (SELECT count(*) FROM (SELECT DISTINCT b.y, b.x FROM b WHERE b.a_id = a.id OR b.x = a.k) q) AS n, (SELECT count(DISTINCT b.y) FROM b WHERE b.x <= a.x) AS d FROM a;
-- name: inner_union
SELECT a.id, (SELECT count(*) FROM (SELECT b.x FROM b WHERE b.a_id = a.id UNION SELECT c.x FROM c WHERE c.b_id = a.id UNION ALL SELECT a.x) q) AS n FROM a;
-- name: inner_joins
SELECT a.id, (SELECT sum(b.x) FROM b JOIN c ON c.b_id = b.id AND c.x = a.x) AS j, (SELECT count(c.id) FROM b LEFT JOIN c ON c.b_id = b.id AND c.x >= a.x WHERE b.a_id = a.id) AS l FROM a;
-- name: inner_outer_joins
SELECT a.id, (SELECT count(*) FROM b RIGHT JOIN c ON c.b_id = b.id AND b.x = a.x) AS r, (SELECT count(*) FROM b FULL JOIN (SELECT c.b_id FROM c WHERE c.x = a.x) q ON q.b_id = b.id) AS f FROM a;
-- name: inner_cte
SELECT a.id, (WITH q AS (SELECT b.x FROM b WHERE b.a_id <= a.id), p AS (SELECT max(q.x) AS x FROM q) SELECT p.x + count(q.x) FROM q, p GROUP BY p.x) AS v FROM a;
-- name: cte_read_deeper
WITH q AS (SELECT x, count(*) AS n FROM b GROUP BY x) SELECT a.id, (SELECT q.n FROM q WHERE q.x = a.x) AS n, (SELECT max(q.n) FROM q WHERE q.x > (SELECT min(q.x) FROM q WHERE q.x < a.k)) AS m FROM a;
-- name: inner_values
SELECT a.id, (SELECT max(v.w) FROM (VALUES (1), (a.x), (3)) v(w) WHERE v.w <= a.k) AS w FROM a;
-- name: inner_values_joined
SELECT a.id, (SELECT count(*) FROM b, (VALUES (a.x), (a.k)) v(w) WHERE v.w = b.x) AS w FROM a;
-- name: row_functions_only
SELECT a.id, (SELECT upper(a.y) || count(*) FROM unnest(a.tags) t(v) WHERE t.v > 'x') AS u, (SELECT count(*) FROM generate_series(1, a.x)) AS g FROM a;
-- name: exists_mark
SELECT a.id, EXISTS (SELECT 1 FROM b WHERE b.x = a.x) AS e, NOT EXISTS (SELECT FROM b WHERE b.x > a.x AND b.y = a.y) AS n FROM a;
-- name: exists_with_groups
SELECT a.id FROM a WHERE EXISTS (SELECT b.y FROM b WHERE b.x = a.x GROUP BY b.y HAVING count(*) > 1);
-- name: not_exists_with_groups
SELECT a.id FROM a WHERE NOT EXISTS (SELECT sum(b.x) FROM b WHERE b.x >= a.x GROUP BY b.y HAVING sum(b.x) > a.k);
-- name: exists_global_aggregate
SELECT a.id FROM a WHERE EXISTS (SELECT max(b.x) FROM b WHERE b.x = a.x) AND NOT EXISTS (SELECT count(*) FROM b WHERE b.x = a.x HAVING count(*) > 2);
-- name: exists_two_out
SELECT a.id FROM a WHERE EXISTS (SELECT FROM b WHERE b.a_id >= a.id AND NOT EXISTS (SELECT FROM c WHERE c.b_id = b.id AND (c.x = a.x OR c.y = a.y)));
-- name: exists_under_or
SELECT a.id FROM a WHERE a.x = 1 OR EXISTS (SELECT FROM b WHERE b.x = a.x AND EXISTS (SELECT FROM c WHERE c.x = a.k)) OR a.k IN (SELECT c.x FROM c WHERE c.y = a.y);
-- name: in_nulls
SELECT a.id, a.x IN (SELECT b.x FROM b) AS i, a.x NOT IN (SELECT b.x FROM b WHERE b.y = 'x') AS n, a.x NOT IN (SELECT b.x FROM b WHERE false) AS none FROM a;
-- name: in_correlated_nulls
SELECT a.id, a.x IN (SELECT b.x FROM b WHERE b.y = a.y) AS i, a.k NOT IN (SELECT b.x FROM b WHERE b.a_id = a.id) AS n FROM a;
-- name: not_in_correlated
SELECT a.id FROM a WHERE a.x NOT IN (SELECT b.x FROM b WHERE b.y = a.y);
-- name: not_in_rows
SELECT a.id FROM a WHERE (a.x, a.y) NOT IN (SELECT b.x, b.y FROM b);
-- name: not_in_rows_correlated
SELECT a.id FROM a WHERE (a.x, a.y) NOT IN (SELECT b.x, b.y FROM b WHERE b.a_id > a.k);
-- name: in_rows_mark
SELECT a.id, (a.x, a.y) IN (SELECT b.x, b.y FROM b) AS i, ROW(a.k, a.x) NOT IN (SELECT c.b_id, c.x FROM c) AS n FROM a;
-- name: in_groups
SELECT a.id FROM a WHERE (a.x, a.k) IN (SELECT b.x, count(*) FROM b WHERE b.n > a.n GROUP BY b.x);
-- name: in_scales
SELECT a.id, a.n IN (SELECT b.n FROM b) AS i, a.m NOT IN (SELECT b.f FROM b WHERE b.f IS NOT NULL) AS f FROM a;
-- name: in_padded
SELECT a.id, a.d IN (SELECT b.y FROM b) AS i FROM a WHERE a.y IN (SELECT a2.d FROM a a2 WHERE a2.k >= a.k) OR a.d <> ALL (SELECT c.y FROM c);
-- name: any_orders
SELECT a.id, a.x < ANY (SELECT b.x FROM b) AS lt, a.x <= ANY (SELECT b.x FROM b WHERE b.y = a.y) AS le, a.n > ANY (SELECT b.n FROM b) AS gt, a.x >= ANY (SELECT c.x FROM c WHERE c.b_id = a.k) AS ge FROM a;
-- name: all_orders
SELECT a.id, a.x < ALL (SELECT b.x FROM b) AS lt, a.x <= ALL (SELECT b.x FROM b WHERE b.y = a.y) AS le, a.n > ALL (SELECT b.n FROM b WHERE b.n IS NOT NULL) AS gt, a.x >= ALL (SELECT c.x FROM c WHERE c.b_id = a.k) AS ge FROM a;
-- name: any_all_others
SELECT a.id, a.x = ALL (SELECT b.x FROM b WHERE b.y = a.y) AS eq, a.x <> ANY (SELECT b.x FROM b) AS ne, a.y LIKE ANY (SELECT b.y || '%' FROM b) AS lk, a.y !~ ALL (SELECT c.y FROM c WHERE c.x = a.x) AS nm, a.y < ANY (SELECT b.y FROM b) AS t FROM a;
-- name: all_in_where
SELECT a.id FROM a WHERE a.x > ALL (SELECT b.x FROM b WHERE b.a_id = a.id) AND NOT a.k < ANY (SELECT c.x FROM c WHERE c.y = a.y);
-- name: any_floats
SELECT a.id, a.n >= ANY (SELECT b.f FROM b) AS ge, a.m < ALL (SELECT b.f FROM b WHERE b.f > 0) AS lt FROM a;
-- name: row_equals_row
SELECT a.id, (a.x, a.y) = (SELECT b.x, b.y FROM b WHERE b.id = a.id) AS eq, (a.x, a.y) <> (SELECT b.x, b.y FROM b WHERE b.id = a.id) AS ne FROM a;
-- name: row_less_row
SELECT a.id, ROW(a.x, a.k) < (SELECT max(b.x), count(*)::integer FROM b WHERE b.y = a.y) AS lt, (a.y, a.k) >= (SELECT c.y, c.b_id FROM c WHERE c.id = a.id) AS ge FROM a;
-- name: row_any
SELECT a.id, (a.x, a.k) < ANY (SELECT c.x, c.b_id FROM c) AS lt, (a.k, a.y) >= ALL (SELECT c.b_id, c.y FROM c WHERE c.x = a.x) AS ge FROM a;
-- name: lateral_filtered
SELECT a.id, q.id AS b, q.z FROM a, LATERAL (SELECT b.id, b.x + a.k AS z FROM b WHERE b.a_id = a.id AND b.x >= a.x) q;
-- name: lateral_left
SELECT a.id, q.id AS b, q.z, q.one FROM a LEFT JOIN LATERAL (SELECT b.id, coalesce(b.x, a.x) AS z, 1 AS one FROM b WHERE b.x = a.x) q ON q.z > 1;
-- name: lateral_aggregate
SELECT a.id, q.n, q.s FROM a CROSS JOIN LATERAL (SELECT count(*) AS n, sum(b.x) AS s FROM b WHERE b.x = a.x) q WHERE q.n <> 1;
-- name: lateral_left_aggregate
SELECT a.id, q.n, q.s FROM a LEFT JOIN LATERAL (SELECT count(*) AS n, sum(b.x) AS s FROM b WHERE b.a_id = a.id) q ON q.n > a.k;
-- name: lateral_groups
SELECT a.id, q.y, q.n FROM a LEFT JOIN LATERAL (SELECT b.y, count(*) AS n FROM b WHERE b.x <= a.x GROUP BY b.y) q ON true;
-- name: lateral_group_having
SELECT a.id, q.y, q.n FROM a, LATERAL (SELECT b.y, count(*) + a.k AS n FROM b WHERE b.x = a.x GROUP BY b.y HAVING count(*) >= a.k) q;
-- name: lateral_of_lateral
SELECT a.id, p.s, q.t FROM a, LATERAL (SELECT sum(b.x) AS s FROM b WHERE b.a_id = a.id) p, LATERAL (SELECT p.s * a.k + count(*) AS t FROM c WHERE c.x > p.s) q;
-- name: lateral_nested
SELECT a.id, q.y, q.w FROM a, LATERAL (SELECT b.y, p.w FROM b LEFT JOIN LATERAL (SELECT c.y AS w FROM c WHERE c.b_id = b.id AND c.x >= a.x) p ON true WHERE b.a_id <> a.id) q;
-- name: lateral_union
SELECT a.id, q.v FROM a, LATERAL (SELECT a.x AS v UNION ALL SELECT a.k UNION ALL SELECT b.x FROM b WHERE b.a_id = a.id) q;
-- name: lateral_union_rows
SELECT a.id, q.v FROM a, LATERAL (SELECT a.x AS v UNION ALL SELECT a.k WHERE a.x > 1) q;
-- name: lateral_distinct
SELECT a.id, q.y FROM a, LATERAL (SELECT DISTINCT b.y FROM b WHERE b.x = a.x) q;
-- name: lateral_in_parentheses
SELECT a.id, c.id AS c, q.m FROM a, (c JOIN LATERAL (SELECT max(b.n) AS m FROM b WHERE b.x = a.x AND b.id = c.b_id) q ON q.m IS NOT NULL);
-- name: lateral_computed
SELECT a.id, p.v, q.w FROM a, LATERAL (SELECT a.x * 2 AS v) p, LATERAL (SELECT p.v + a.k AS w WHERE p.v > 2) q;
-- name: lateral_left_computed
SELECT a.id, p.v FROM a LEFT JOIN LATERAL (SELECT coalesce(a.x, 0) AS v WHERE a.k > 1) p ON p.v <> 3;
-- name: on_inner
SELECT a.id, b.id AS b FROM a JOIN b ON b.x = a.x AND EXISTS (SELECT FROM c WHERE c.b_id = b.id AND c.y <> a.y);
-- name: on_left_of_left
SELECT a.id, b.id AS b FROM a LEFT JOIN b ON b.a_id = a.id AND a.x > (SELECT min(c.x) FROM c WHERE c.y = a.y);
-- name: on_left_of_right
SELECT a.id, b.id AS b FROM a LEFT JOIN b ON b.x = a.x AND b.id IN (SELECT c.b_id FROM c) AND (SELECT count(*) FROM c WHERE c.b_id = b.id) < 3;
-- name: on_left_of_both
SELECT a.id, b.id AS b FROM a LEFT JOIN b ON b.x >= a.x AND EXISTS (SELECT FROM c WHERE c.b_id = b.id AND c.x = a.x);
-- name: on_right
SELECT a.id, b.id AS b FROM a RIGHT JOIN b ON b.a_id = a.id AND b.x < ALL (SELECT c.x FROM c WHERE c.y = a.y);
-- name: on_full
SELECT a.id, b.id AS b FROM a FULL JOIN b ON b.a_id = a.id AND b.x > (SELECT min(c.x) FROM c WHERE c.b_id = b.id) AND a.id IN (SELECT c.id FROM c);
-- name: correlated_to_derived
SELECT q.y, q.n, (SELECT count(*) FROM b WHERE b.y = q.y) AS m FROM (SELECT y, count(*) AS n FROM a GROUP BY y) q;
-- name: correlated_to_using
SELECT x, (SELECT count(*) FROM c WHERE c.x = x) AS n, (SELECT max(c.y) FROM c WHERE c.x > j.x) AS y FROM (a FULL JOIN b USING (x)) AS j;
-- name: correlated_to_view_columns
SELECT a.id, (SELECT p.n FROM (SELECT b.x, count(*) AS n FROM b GROUP BY b.x) p WHERE p.x = a.x) AS n FROM a;
-- name: distinct_subqueries
SELECT DISTINCT (SELECT max(b.x) FROM b WHERE b.y = a.y) AS m, a.x IN (SELECT c.x FROM c WHERE c.x = a.k) AS i FROM a;
-- name: union_of_subqueries
SELECT (SELECT count(*) FROM b WHERE b.x = a.x) AS n FROM a UNION SELECT (SELECT sum(c.x) FROM c WHERE c.b_id = b.id) FROM b;
-- name: same_subquery_twice
SELECT a.id, (SELECT sum(b.x) FROM b WHERE b.a_id = a.id) AS s FROM a WHERE (SELECT sum(b.x) FROM b WHERE b.a_id = a.id) > 1;
-- name: duplicates_keep_their_number
SELECT a.x, a.y, (SELECT count(*) FROM b WHERE b.x = a.x) AS n FROM a;
-- name: not_only_equalities
SELECT a.id, (SELECT max(b.n) FROM b WHERE b.x = a.x AND b.id > a.k) AS m, (SELECT count(*) FROM b WHERE b.x = a.x AND a.k > 1) AS g FROM a;
-- name: two_for_one_outer
SELECT a.id, (SELECT count(*) FROM b WHERE b.x = a.k AND b.a_id = a.k) AS n FROM a;
-- name: key_of_an_expression
SELECT a.id, (SELECT count(*) FROM b WHERE lower(b.y) = lower(a.y) AND b.x + 1 = a.k) AS n FROM a;
-- name: other_types
SELECT a.id, (SELECT count(*) FROM b WHERE b.n = a.m) AS n, (SELECT count(*) FROM b WHERE b.f = a.n) AS f, (SELECT count(*) FROM b WHERE b.y = a.d) AS d FROM a;
-- name: subquery_in_function
SELECT a.id, coalesce((SELECT max(b.y) FROM b WHERE b.x = a.x), 'none') AS y, regexp_replace((SELECT min(c.y) FROM c WHERE c.x = a.x), 'x', '-') AS r FROM a;
-- name: uncorrelated_everywhere
SELECT a.id, (SELECT max(b.x) FROM b) + (SELECT count(*) FROM c) AS v FROM a WHERE a.k >= (SELECT min(c.x) FROM c) OR NOT EXISTS (SELECT FROM c);
-- name: anti_in_lateral
SELECT a.id, q.id AS b FROM a, LATERAL (SELECT b.id FROM b WHERE b.a_id = a.id AND NOT EXISTS (SELECT FROM c WHERE c.b_id = b.id AND c.x = a.x) AND b.x NOT IN (SELECT c.x FROM c WHERE c.x IS NOT NULL)) q;
-- name: not_in_below_lateral
SELECT a.id, q.n FROM a, LATERAL (SELECT count(*) AS n FROM b WHERE b.x NOT IN (SELECT c.x FROM c WHERE c.y = a.y)) q;
-- name: arrays
SELECT a.id, ARRAY(SELECT b.id FROM b WHERE b.a_id = a.id ORDER BY b.x DESC, b.id) AS ids, ARRAY(SELECT b.x FROM b WHERE b.x <= a.x ORDER BY b.x) AS xs FROM a;
-- name: arrays_of_unions
SELECT a.id, ARRAY(SELECT b.y FROM b WHERE b.x = a.x UNION SELECT c.y FROM c WHERE c.b_id = a.id ORDER BY 1 DESC NULLS LAST) AS ys FROM a WHERE cardinality(ARRAY(SELECT c.id FROM c WHERE c.x = a.x)) < 3;
-- name: arrays_limited
SELECT a.id, ARRAY(SELECT b.id FROM b WHERE b.x >= a.x ORDER BY b.n NULLS FIRST, b.id DESC LIMIT 2) AS ids, ARRAY(SELECT DISTINCT b.y FROM b WHERE b.x = a.k ORDER BY b.y) AS ys FROM a;
-- name: arrays_everywhere
SELECT ARRAY(SELECT DISTINCT a.y FROM a ORDER BY a.y) AS ys, b.id, b.x = ANY (ARRAY(SELECT a.x FROM a WHERE a.y = b.y)) AS i FROM b;
-- name: top_of_each
SELECT a.id, q.id AS b, q.n FROM a, LATERAL (SELECT b.id, b.n FROM b WHERE b.x = a.x ORDER BY b.n DESC NULLS LAST, b.id LIMIT 2) q;
-- name: top_of_each_left
SELECT a.id, q.id AS b, q.k FROM a LEFT JOIN LATERAL (SELECT b.id, a.k + 1 AS k FROM b WHERE b.x > a.x ORDER BY b.id DESC OFFSET 1 LIMIT 2) q ON q.id <> a.k;
-- name: top_scalar
SELECT a.id, (SELECT b.y FROM b WHERE b.a_id = a.id ORDER BY b.x DESC NULLS LAST, b.id LIMIT 1) AS y, (SELECT b.id FROM b WHERE b.n > a.n ORDER BY b.n, b.id LIMIT 1) AS nearest FROM a;
-- name: top_with_ties
SELECT a.id, q.id AS b FROM a, LATERAL (SELECT b.id FROM b WHERE b.x = a.x ORDER BY b.n FETCH FIRST 1 ROW WITH TIES) q;
-- name: top_distinct_on
SELECT a.id, q.y, q.id AS b FROM a, LATERAL (SELECT DISTINCT ON (b.y) b.y, b.id FROM b WHERE b.x <= a.x ORDER BY b.y, b.id DESC) q;
-- name: top_exists
SELECT a.id FROM a WHERE EXISTS (SELECT b.id FROM b WHERE b.x = a.x ORDER BY b.id OFFSET 1) AND NOT EXISTS (SELECT b.id FROM b WHERE b.a_id = a.id ORDER BY b.id LIMIT 5);
-- name: top_in
SELECT a.id FROM a WHERE a.x IN (SELECT b.x FROM b WHERE b.y = a.y ORDER BY b.id LIMIT 2) OR a.k < ALL (SELECT c.x FROM c WHERE c.b_id > a.id ORDER BY c.id LIMIT 2);
-- name: windows_inside
SELECT a.id, q.id AS b, q.r, q.s FROM a, LATERAL (SELECT b.id, row_number() OVER (ORDER BY b.id) AS r, sum(b.x) OVER (PARTITION BY b.y) + a.k AS s FROM b WHERE b.x >= a.x) q WHERE q.r <= 3;
-- name: window_scalar
SELECT a.id, (SELECT max(q.d) FROM (SELECT dense_rank() OVER (ORDER BY b.n) AS d FROM b WHERE b.x = a.x) q) AS d FROM a;
-- name: set_operations_inside
SELECT a.id, (SELECT count(*) FROM (SELECT b.x FROM b WHERE b.y = a.y EXCEPT SELECT c.x FROM c WHERE c.y = a.y) q) AS e, (SELECT max(q.x) FROM (SELECT b.x FROM b INTERSECT ALL SELECT c.x FROM c WHERE c.x <= a.x) q) AS i FROM a;
-- name: functions_inside
SELECT a.id, (SELECT count(*) FROM b, unnest(a.tags) t(v) WHERE b.y = t.v) AS n, q.v, q.o FROM a LEFT JOIN LATERAL (SELECT u.v, u.o FROM unnest(a.tags) WITH ORDINALITY u(v, o) JOIN b ON b.y = u.v AND b.x >= a.x) q ON true;
-- name: functions_of_inner_rows
SELECT a.id, (SELECT string_agg(g.n::text, ',' ORDER BY g.n, b.id) FROM b, generate_series(1, b.x) g(n) WHERE b.a_id >= a.id AND g.n < a.k + 2) AS s FROM a;
-- name: recursion_inside
SELECT a.id, (WITH RECURSIVE r(x) AS (SELECT a.k UNION SELECT b.id FROM r JOIN b ON b.a_id = r.x AND b.x >= a.x) SELECT count(*) FROM r) AS n FROM a;
-- name: aggregates_inside
SELECT a.id, (SELECT string_agg(b.y, '/' ORDER BY b.y, b.id) FROM b WHERE b.x = a.x) AS t, (SELECT array_agg(b.id ORDER BY b.id) FROM b WHERE b.x > a.x) AS i, (SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY b.n) FROM b WHERE b.y = a.y) AS p FROM a;
-- name: aggregates_of_nothing
SELECT a.id, (SELECT regr_count(b.f, b.f) FROM b WHERE b.x = a.x AND b.f < 3) AS r, (SELECT rank(2) WITHIN GROUP (ORDER BY b.x) FROM b WHERE b.a_id = a.id) AS k, (SELECT grouping(b.y) + count(*) FROM b WHERE b.x = a.x GROUP BY ROLLUP (b.y) ORDER BY 1 DESC LIMIT 1) AS g FROM a;
