-- GROUPING SETS, ROLLUP, CUBE, GROUPING.

-- name: gs_rollup
SELECT region, segment, count(*) AS n, sum(credit) AS credit FROM customers GROUP BY ROLLUP (region, segment);
-- name: gs_cube
SELECT region, vip, segment, count(*) AS n, GROUPING(region, vip, segment) AS g FROM customers GROUP BY CUBE (region, vip, segment);
-- name: gs_sets
SELECT region, segment, max(joined) AS newest FROM customers GROUP BY GROUPING SETS ((region, segment), (segment), (), (region));
-- name: gs_duplicate_sets
SELECT region, count(*) AS n FROM customers GROUP BY GROUPING SETS ((region), (region), (), ());
-- name: gs_distinct_sets
SELECT region, segment, vip, count(*) AS n FROM customers GROUP BY DISTINCT ROLLUP (region, segment), ROLLUP (region, vip);
-- name: gs_product
SELECT region, segment, vip, count(*) AS n, GROUPING(vip) + GROUPING(region) * 10 AS g FROM customers GROUP BY region, GROUPING SETS ((segment), (vip)), GROUPING SETS ((vip), ());
-- name: gs_composite
SELECT region, segment, vip, count(*) AS n FROM customers GROUP BY ROLLUP ((region, segment), vip);
-- name: gs_nested
SELECT status, sold, customer_id, count(*) AS n, sum(total) AS total FROM orders GROUP BY GROUPING SETS (ROLLUP (status, sold), CUBE (customer_id), GROUPING SETS ((sold), ()));
-- name: gs_of_nothing
SELECT status, count(*) AS n, max(total) AS most, GROUPING(status) AS g FROM orders WHERE order_id < 0 GROUP BY ROLLUP (status);
-- name: gs_empty_group_by
SELECT count(*) AS n, min(total) AS least FROM orders WHERE total > 1000 GROUP BY ();
-- name: gs_empty_without_calls
SELECT 'one' AS always FROM orders WHERE order_id < 0 GROUP BY ();
-- name: gs_keys_and_empty
SELECT region, count(*) AS n FROM customers GROUP BY region, ();
-- name: gs_expressions
SELECT upper(region) AS region, date_trunc('month', joined::timestamp) AS month, count(*) AS n, upper(region) || '!' AS loud FROM customers GROUP BY CUBE (upper(region), date_trunc('month', joined::timestamp));
-- name: gs_expression_and_its_column
SELECT credit, credit + 1 AS more, coalesce(credit + 1, -1) AS known, count(*) AS n FROM customers GROUP BY GROUPING SETS ((credit), (credit + 1));
-- name: gs_argument_is_a_key
SELECT quantity, line_no, sum(quantity) AS q, sum(line_no + quantity) AS s FROM order_lines GROUP BY ROLLUP (quantity, line_no);
-- name: gs_having
SELECT region, segment, count(*) AS n FROM customers GROUP BY CUBE (region, segment) HAVING count(*) > 2 AND (region IS NOT NULL OR GROUPING(region) = 1);
-- name: gs_having_on_grouping
SELECT region, vip, count(*) AS n FROM customers GROUP BY CUBE (region, vip) HAVING GROUPING(region, vip) IN (0, 3);
-- name: gs_filter_and_distinct
SELECT status, sold, count(DISTINCT customer_id) AS customers, sum(total) FILTER (WHERE total > 50) AS large, avg(total) AS mean FROM orders GROUP BY ROLLUP (status, sold);
-- name: gs_case_on_grouping
SELECT CASE GROUPING(region, segment) WHEN 0 THEN region WHEN 1 THEN 'all of ' || region ELSE 'all' END AS label, count(*) AS n FROM customers GROUP BY ROLLUP (region, segment);
-- name: gs_nulls_and_totals
SELECT coalesce(email, '-') AS email, GROUPING(email) AS g, count(*) AS n FROM customers GROUP BY ROLLUP (email);
-- name: gs_determined_column
SELECT c.customer_id, c.name, o.status, count(o.order_id) AS n FROM customers c LEFT JOIN orders o USING (customer_id) GROUP BY c.customer_id, ROLLUP (o.status);
-- name: gs_over_join_filtered
SELECT x.region, x.category, x.n FROM (SELECT c.region, p.category, count(*) AS n FROM order_lines l JOIN orders o USING (order_id) JOIN customers c USING (customer_id) JOIN products p USING (product_id) GROUP BY CUBE (c.region, p.category)) x WHERE x.category = 'toys' OR x.region IS NULL;
-- name: gs_pushed_filter
SELECT x.region, x.n FROM (SELECT region, segment, count(*) AS n FROM customers GROUP BY CUBE (region, segment)) x WHERE x.region > 'm';
-- name: gs_in_with_twice
WITH g AS (SELECT region, vip, count(*) AS n FROM customers GROUP BY ROLLUP (region, vip)) SELECT a.region, a.vip, a.n, b.n AS of FROM g a JOIN g b ON a.region = b.region AND b.vip IS NULL;
-- name: gs_grouping_without_sets
SELECT region, GROUPING(region) AS g, count(*) AS n FROM customers GROUP BY region;
-- name: gs_scalar_subquery
SELECT status, count(*) AS n, count(*) * 100 / nullif((SELECT count(*) FROM orders), 0) AS share FROM orders GROUP BY ROLLUP (status);
-- name: gs_exists_above
SELECT region, count(*) AS n FROM customers GROUP BY ROLLUP (region) HAVING EXISTS (SELECT 1 FROM orders WHERE status = 'paid');
-- name: gs_distinct_select
SELECT DISTINCT region, GROUPING(segment) AS g FROM customers GROUP BY CUBE (region, segment);
-- name: gs_union
SELECT region, count(*) AS n FROM customers GROUP BY ROLLUP (region) EXCEPT SELECT region, 1 FROM customers;
-- name: gs_prefixed_words
SELECT sold, placed::date AS day, count(*) AS n, string_agg(status, ',' ORDER BY order_id) AS statuses FROM orders GROUP BY GROUPING SETS ((sold), (placed::date));
-- name: gs_unnested_key
SELECT unnest(tags) AS tag, category, count(*) AS n FROM products GROUP BY ROLLUP (category, unnest(tags));
