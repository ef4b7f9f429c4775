-- INTERSECT and EXCEPT, VALUES with more than constants.

-- name: set_intersect
SELECT region FROM customers WHERE vip INTERSECT SELECT region FROM customers WHERE NOT vip;
-- name: set_intersect_all
SELECT region, vip FROM customers INTERSECT ALL SELECT c.region, o.status = 'paid' FROM orders o JOIN customers c USING (customer_id);
-- name: set_except
SELECT customer_id FROM customers EXCEPT SELECT customer_id FROM orders WHERE status = 'paid';
-- name: set_except_all
SELECT customer_id, status FROM orders EXCEPT ALL SELECT o.customer_id, o.status FROM orders o JOIN order_lines l USING (order_id) WHERE l.line_no = 1;
-- name: set_except_nulls
SELECT region, email FROM customers EXCEPT SELECT region, NULL FROM customers WHERE vip;
-- name: set_of_one_side_twice
SELECT category FROM products EXCEPT ALL SELECT DISTINCT category FROM products;
-- name: set_mixed_types
SELECT customer_id AS id, 1::numeric AS n FROM customers INTERSECT SELECT order_id, line_no FROM order_lines;
-- name: set_mixed_numeric
SELECT customer_id AS id FROM customers EXCEPT SELECT round(total) FROM orders;
-- name: set_mixed_text
SELECT segment FROM customers EXCEPT SELECT category FROM products;
-- name: set_nested
(SELECT customer_id FROM customers WHERE vip UNION SELECT customer_id FROM orders WHERE status = 'new') EXCEPT (SELECT customer_id FROM orders WHERE total > 50 INTERSECT SELECT customer_id FROM customers WHERE region IS NOT NULL);
-- name: set_precedence
SELECT customer_id FROM orders UNION ALL SELECT customer_id FROM customers INTERSECT SELECT referrer FROM customers;
-- name: set_chain_of_excepts
SELECT product_id FROM products EXCEPT SELECT product_id FROM order_lines WHERE quantity > 5 EXCEPT SELECT customer_id FROM customers WHERE vip;
-- name: set_except_of_except
SELECT product_id FROM products EXCEPT (SELECT product_id FROM order_lines EXCEPT SELECT product_id FROM order_lines WHERE quantity > 4);
-- name: set_all_chain
SELECT status FROM orders EXCEPT ALL SELECT status FROM orders WHERE total > 100 INTERSECT ALL SELECT status FROM orders WHERE sold IS NOT NULL;
-- name: set_in_where
SELECT customer_id, name FROM customers WHERE customer_id IN (SELECT customer_id FROM orders INTERSECT SELECT referrer FROM customers);
-- name: set_not_in_where
SELECT product_id FROM products WHERE product_id NOT IN (SELECT product_id FROM order_lines EXCEPT SELECT customer_id FROM orders WHERE customer_id IS NOT NULL);
-- name: set_exists
SELECT customer_id FROM customers WHERE EXISTS (SELECT region FROM customers WHERE vip EXCEPT SELECT region FROM customers WHERE NOT vip);
-- name: set_in_from
SELECT x.region, count(*) AS n FROM (SELECT region, segment FROM customers INTERSECT SELECT region, segment FROM customers WHERE vip) x GROUP BY x.region;
-- name: set_in_from_filtered
SELECT x.id FROM (SELECT customer_id AS id, status FROM orders EXCEPT ALL SELECT customer_id, 'paid' FROM customers) x WHERE x.status <> 'new' AND x.id > 5;
-- name: set_in_with
WITH both_ways AS (SELECT customer_id FROM orders INTERSECT SELECT customer_id FROM customers WHERE vip), rest AS (SELECT customer_id FROM customers EXCEPT SELECT * FROM both_ways) SELECT r.customer_id, b.customer_id AS other FROM rest r FULL JOIN both_ways b ON b.customer_id = r.customer_id + 1;
-- name: set_joined
SELECT o.order_id, k.customer_id FROM orders o LEFT JOIN (SELECT customer_id FROM customers WHERE vip INTERSECT ALL SELECT customer_id FROM orders) k USING (customer_id);
-- name: set_of_aggregates
SELECT customer_id, count(*) AS n, max(total) AS most FROM orders GROUP BY customer_id EXCEPT SELECT c.customer_id, 1, c.credit FROM customers c;
-- name: set_enum_and_time
SELECT sold, placed::date AS day FROM orders INTERSECT SELECT o.sold, c.joined FROM orders o JOIN customers c USING (customer_id);
-- name: set_arrays
SELECT tags FROM products EXCEPT SELECT tags FROM products WHERE price > 50;
-- name: set_constants
SELECT region FROM customers INTERSECT ALL (VALUES ('north'), ('north'), ('south'), (NULL));
-- name: set_without_columns_that_matter
SELECT 1 AS one FROM customers EXCEPT ALL SELECT 1 FROM orders WHERE status = 'paid';
-- name: set_of_grouped_in_scalar
SELECT customer_id, (SELECT count(*) FROM (SELECT region FROM customers EXCEPT SELECT region FROM customers WHERE vip) x) AS n FROM customers WHERE vip;
-- name: values_with_subqueries
VALUES ('orders', (SELECT count(*) FROM orders)), ('vips', (SELECT count(*) FROM customers WHERE vip)), ('none', NULL);
-- name: values_of_one_row
VALUES ((SELECT max(total) FROM orders), (SELECT min(region) FROM customers));
-- name: values_joined
SELECT c.customer_id, v.what FROM customers c JOIN (VALUES ((SELECT max(customer_id) FROM orders), 'last'), (3, 'third'), ((SELECT min(customer_id) FROM customers), 'first')) v (id, what) ON v.id = c.customer_id;
-- name: values_with_exists
SELECT column1 AS has_paid, column2 AS n FROM (VALUES (EXISTS (SELECT 1 FROM orders WHERE status = 'paid'), 1), (NOT EXISTS (SELECT 1 FROM customers WHERE vip), 2)) v;
