-- Queries over the shop: joins of all kinds, subqueries, every aggregate, views on views.

-- name: carry_all_types
SELECT * FROM customers;
-- name: carry_orders_with_notes
SELECT order_id, status, sold, note, total FROM orders;
-- name: carry_arrays
SELECT product_id, tags, weight_kg, discontinued FROM products;
-- name: inner_join_group
SELECT c.region, c.segment, count(*) AS n, sum(o.total) AS total, avg(o.total) AS mean
FROM orders o JOIN customers c USING (customer_id)
WHERE o.status <> 'cancelled'
GROUP BY c.region, c.segment;
-- name: left_join
SELECT o.order_id, o.status, c.name, c.credit FROM orders o LEFT JOIN customers c ON o.customer_id = c.customer_id;
-- name: left_join_residual
SELECT o.order_id, c.name, c.joined FROM orders o
LEFT JOIN customers c ON o.customer_id = c.customer_id AND c.joined < o.placed::date AND c.vip;
-- name: left_join_where_padded
SELECT c.customer_id, c.name FROM customers c LEFT JOIN orders o USING (customer_id) WHERE o.order_id IS NULL;
-- name: right_join
SELECT l.order_id, l.line_no, p.title, p.product_id FROM order_lines l RIGHT JOIN products p ON l.product_id = p.product_id AND l.quantity > 2;
-- name: full_join
SELECT o.order_id, o.customer_id AS ordered_by, c.customer_id, c.segment
FROM orders o FULL JOIN customers c ON o.customer_id = c.customer_id;
-- name: full_join_using
SELECT customer_id, o.status, c.region FROM orders o FULL JOIN customers c USING (customer_id);
-- name: cross_join
SELECT a.product_id, b.customer_id FROM products a CROSS JOIN customers b WHERE a.price > 90 AND b.vip;
-- name: inequality_join
SELECT a.product_id, b.product_id AS dearer FROM products a JOIN products b ON a.price < b.price AND a.category = b.category;
-- name: range_join_without_keys
SELECT c.customer_id, p.product_id FROM customers c JOIN products p ON c.credit BETWEEN p.price AND p.price * 2;
-- name: self_join
SELECT c.customer_id, c.name, r.name AS referred_by, rr.region FROM customers c
JOIN customers r ON c.referrer = r.customer_id LEFT JOIN customers rr ON r.referrer = rr.customer_id;
-- name: five_way_join
SELECT o.order_id, l.line_no, p.title, c.name, r.name AS referred_by
FROM orders o JOIN order_lines l USING (order_id) JOIN products p USING (product_id)
JOIN customers c ON c.customer_id = o.customer_id LEFT JOIN customers r ON r.customer_id = c.referrer;
-- name: join_on_expression
SELECT c.customer_id, p.product_id FROM customers c JOIN products p ON c.customer_id % 5 = p.product_id % 5 AND length(trim(c.segment)) = length(p.category);
-- name: join_different_integers
SELECT o.order_id, l.product_id FROM orders o JOIN order_lines l ON o.customer_id = l.product_id AND o.order_id % 3 = l.line_no;
-- name: semi_join_in
SELECT customer_id, name FROM customers WHERE customer_id IN (SELECT customer_id FROM orders WHERE status = 'returned');
-- name: semi_join_exists_residual
SELECT o.order_id FROM orders o WHERE EXISTS (
    SELECT 1 FROM order_lines l WHERE l.order_id = o.order_id AND l.price * l.quantity > coalesce(o.total, 0) / 2);
-- name: anti_join_not_exists
SELECT p.product_id, p.title FROM products p WHERE NOT EXISTS (SELECT FROM order_lines l WHERE l.product_id = p.product_id AND l.quantity > 1);
-- name: not_in_with_nulls
SELECT p.product_id FROM products p WHERE p.product_id NOT IN (SELECT customer_id FROM orders WHERE status = 'cancelled');
-- name: not_in_without_nulls
SELECT name FROM customers WHERE customer_id NOT IN (SELECT customer_id FROM orders WHERE customer_id IS NOT NULL AND status = 'paid');
-- name: not_in_nullable_left
SELECT o.order_id, o.customer_id FROM orders o WHERE o.customer_id NOT IN (SELECT customer_id FROM customers WHERE vip);
-- name: in_row_pair
SELECT order_id, line_no, quantity FROM order_lines WHERE (line_no, product_id) IN (SELECT o.order_id % 4, o.customer_id FROM orders o);
-- name: scalar_subquery_select
SELECT order_id, total - (SELECT avg(total) FROM orders) AS above_mean FROM orders WHERE status = 'paid';
-- name: scalar_subquery_where
SELECT product_id, price FROM products WHERE price > (SELECT avg(price) FROM products);
-- name: scalar_subquery_empty
SELECT customer_id, (SELECT max(price) FROM products WHERE category = 'nothing') AS best FROM customers WHERE region IS NULL;
-- name: cte_twice
WITH spent AS (SELECT customer_id, sum(total) AS total FROM orders GROUP BY customer_id)
SELECT a.customer_id, a.total FROM spent a WHERE a.total > (SELECT avg(total) FROM spent);
-- name: cte_chain
WITH lines AS (SELECT order_id, sum(quantity) AS pieces FROM order_lines GROUP BY order_id),
big AS (SELECT order_id FROM lines WHERE pieces > 10)
SELECT o.status, count(*) AS n FROM orders o JOIN big USING (order_id) GROUP BY o.status;
-- name: union_all
SELECT region AS label, 'customer' AS kind FROM customers UNION ALL SELECT category, 'product' FROM products;
-- name: union_distinct
SELECT customer_id AS id FROM customers UNION SELECT product_id FROM products UNION SELECT order_id FROM orders WHERE total IS NULL;
-- name: union_mixed_numeric
SELECT credit AS amount FROM customers UNION ALL SELECT total FROM orders UNION ALL SELECT price FROM products;
-- name: distinct_rows
SELECT DISTINCT c.region, o.status, o.sold FROM orders o LEFT JOIN customers c USING (customer_id);
-- name: every_aggregate
SELECT region, count(*) AS rows, count(credit) AS credits, sum(credit) AS sum, avg(credit) AS avg, min(credit) AS min,
       max(credit) AS max, bool_and(vip) AS all_vip, bool_or(vip) AS any_vip, min(joined) AS first, max(name) AS last_name
FROM customers GROUP BY region;
-- name: aggregates_distinct
SELECT status, count(DISTINCT customer_id) AS customers, sum(DISTINCT customer_id) AS ids, avg(DISTINCT customer_id) AS mean,
       count(DISTINCT sold) AS channels, min(DISTINCT total) AS low FROM orders GROUP BY status;
-- name: aggregates_filter
SELECT customer_id, count(*) FILTER (WHERE status = 'paid') AS paid, sum(total) FILTER (WHERE status <> 'cancelled' AND total > 10) AS kept,
       count(DISTINCT status) FILTER (WHERE total IS NOT NULL) AS kinds, max(placed) FILTER (WHERE sold = 'web') AS last_web
FROM orders GROUP BY customer_id;
-- name: aggregate_integers
SELECT product_id, sum(quantity) AS s4, sum(line_no) AS s2, sum(order_id) AS s8, avg(quantity) AS a4, avg(line_no) AS a2, avg(order_id) AS a8
FROM order_lines GROUP BY product_id;
-- name: aggregate_floats
SELECT category, sum(weight_kg) AS s, avg(weight_kg) AS a, min(weight_kg) AS low, max(weight_kg::float8) AS high FROM products GROUP BY category;
-- name: global_aggregates
SELECT count(*), count(total) AS totals, sum(total), avg(total), min(placed), max(order_id), bool_and(total > 0), bool_or(status = 'new') FROM orders;
-- name: global_aggregates_over_nothing
SELECT count(*) AS n, sum(total) AS s, avg(total) AS a, min(total) AS low, bool_or(true) AS any FROM orders WHERE order_id < 0;
-- name: global_having
SELECT count(*) AS n FROM orders HAVING count(*) > 30;
-- name: having
SELECT customer_id, count(*) AS n, sum(total) AS total FROM orders GROUP BY customer_id HAVING count(*) > 1 AND sum(total) > 200;
-- name: having_without_output
SELECT region FROM customers GROUP BY region HAVING bool_or(vip) AND min(joined) < '2024-01-01';
-- name: group_by_expression
SELECT date_trunc('month', placed) AS month, extract(year FROM placed) AS year, coalesce(status, '-') || '!' AS state, count(*) AS n
FROM orders GROUP BY 1, 2, 3;
-- name: group_by_nullable_enum
SELECT sold, count(*) AS n, min(sold) AS low, max(status) AS high FROM orders GROUP BY sold;
-- name: aggregate_of_join_of_aggregates
SELECT c.segment, count(*) AS customers, sum(s.n) AS orders, max(s.total) AS best
FROM customers c JOIN (SELECT customer_id, count(*) AS n, sum(total) AS total FROM orders GROUP BY customer_id) s USING (customer_id)
GROUP BY c.segment;
-- name: aggregate_twice
SELECT n, count(*) AS customers FROM (SELECT customer_id, count(*) AS n FROM orders GROUP BY customer_id) x GROUP BY n;
-- name: expression_in_aggregate
SELECT o.status, sum(l.quantity * l.price * (1 - l.discount)) AS revenue, avg(l.quantity * l.price) AS mean, max(l.price / l.quantity) AS unit
FROM order_lines l JOIN orders o USING (order_id) GROUP BY o.status;
-- name: case_and_coalesce
SELECT order_id, CASE WHEN total > 100 THEN 'large' WHEN total IS NULL THEN 'unknown' ELSE 'small' END AS size,
       CASE status WHEN 'new' THEN 1 WHEN 'paid' THEN 2 END AS rank, coalesce(total, -1) AS total, nullif(status, 'new') AS moved FROM orders;
-- name: comparisons
SELECT customer_id, credit > 100 AS rich, credit IS DISTINCT FROM 0 AS known, region IN ('north', 'south') AS here, region NOT IN ('east', NULL) AS there,
       joined BETWEEN '2023-06-01' AND '2024-06-01' AS mid, name LIKE 'a%' AS a, email ILIKE '%.ORG' AS org, vip IS NOT TRUE AS plain FROM customers;
-- name: arithmetic
SELECT order_id, line_no, quantity + line_no AS a, quantity - 7 AS b, quantity * order_id AS c, order_id / quantity AS d, order_id % quantity AS e,
       price / quantity AS f, price * discount AS g, -price AS h, round(price * 1.5) AS i, round(price / 3, 4) AS j, abs(price - 50) AS k,
       price % 7 AS l, power(quantity, 2) AS m, quantity::numeric / 3 AS n, trunc(price) AS o, ceil(price) AS p, floor(price / 2) AS q FROM order_lines;
-- name: text_functions
SELECT customer_id, upper(name) AS u, length(name) AS n, name || '/' || coalesce(region, '') AS c, substring(name FROM 2 FOR 3) AS s,
       trim(segment) AS t, replace(name, 'a', '') AS r, position('e' IN name) AS p, lpad(region, 7, '*') AS l, split_part(name, ' ', 2) AS w,
       segment || '|' AS padded, initcap(name) AS i, reverse(name) AS v, repeat(region, 2) AS x, concat(region, 1, vip) AS k FROM customers;
-- name: casts
SELECT order_id, order_id::text AS a, total::integer AS b, total::float8 AS c, total::numeric(10,1) AS d, placed::date AS e, placed::time AS f,
       customer_id::smallint AS g, status::varchar(3) AS h, status::char(10) AS i, sold::text AS j, (total > 10)::int AS k FROM orders;
-- name: times
SELECT order_id, extract(epoch FROM placed) AS epoch, extract(dow FROM placed) AS dow, date_trunc('hour', placed) AS hour, placed + interval '1 month 2 hours' AS later,
       placed - timestamptz '2024-01-01' AS since, placed::date - date '2024-01-01' AS days, placed AT TIME ZONE 'Europe/Berlin' AS local FROM orders;
-- name: in_postgres_regexp
SELECT customer_id, regexp_replace(name, '[aeiou]', '#', 'g') AS masked, md5(name) AS digest FROM customers WHERE name ~ 'r.*e';
-- name: in_postgres_tsvector
SELECT order_id, to_tsvector('english', note) AS words FROM orders WHERE length(note) < 100;
-- name: in_postgres_plpgsql
SELECT o.order_id, rebate(o.total, c.vip) AS rebate FROM orders o JOIN customers c USING (customer_id);
-- name: in_postgres_aggregate_of
SELECT c.region, sum(rebate(o.total, c.vip)) AS rebates, max(format('%s-%s', o.status, c.segment)) AS top
FROM orders o JOIN customers c USING (customer_id) GROUP BY c.region;
-- name: in_postgres_join_condition
SELECT a.customer_id, p.product_id FROM customers a JOIN products p ON sounds_like(a.name, p.title);
-- name: arrays_in_postgres
SELECT product_id, tags[1] AS first, cardinality(tags) AS n, 'delta' = ANY (tags) AS has, array_to_string(tags, '+') AS joined FROM products;
-- name: group_by_array
SELECT tags, count(*) AS n, max(price) AS best FROM products GROUP BY tags;
-- name: view_on_view
SELECT p.region, p.n, p.total, c.customers FROM paid_by_region p
JOIN (SELECT region, count(*) AS customers FROM customers GROUP BY region) c ON c.region IS NOT DISTINCT FROM p.region;
-- name: view_filtered
SELECT order_id, region FROM paid_orders WHERE total > 50;
-- name: values_join
SELECT v.rank, count(o.order_id) AS n FROM (VALUES ('new', 1), ('paid', 2), ('lost', 3)) AS v(status, rank)
LEFT JOIN orders o USING (status) GROUP BY v.rank;
-- name: constant_rows
SELECT 1 AS one, 'x' AS x, NULL::numeric AS nothing;
-- name: duplicate_columns_bag
SELECT status, sold FROM orders WHERE customer_id > 5;
-- name: where_false
SELECT order_id FROM orders WHERE false;
-- name: ordered
SELECT order_id, total FROM orders WHERE status = 'paid' ORDER BY total DESC NULLS LAST, order_id;
-- name: having_filtered_count
SELECT c.region FROM customers c WHERE c.region IS NOT NULL GROUP BY c.region HAVING count(*) FILTER (WHERE c.vip) = 2;
-- name: lateral_free_exists_or
SELECT customer_id FROM customers c WHERE vip OR customer_id IN (SELECT referrer FROM customers);
-- name: deep_nesting
SELECT region, avg(n) AS mean FROM (
    SELECT c.region, c.customer_id, count(l.order_id) AS n FROM customers c
    LEFT JOIN orders o USING (customer_id) LEFT JOIN order_lines l USING (order_id)
    GROUP BY c.region, c.customer_id) per_customer GROUP BY region;
