-- Window queries over shop: numbering, shifting, frames of numeric sums, windows over groups and joins.

-- name: window_numbering
SELECT order_id, customer_id, row_number() OVER w AS place, rank() OVER (PARTITION BY customer_id ORDER BY status) AS rank, dense_rank() OVER (PARTITION BY customer_id ORDER BY status DESC) AS dense, percent_rank() OVER (PARTITION BY customer_id ORDER BY total) AS percent, cume_dist() OVER (PARTITION BY customer_id ORDER BY total DESC NULLS LAST) AS dist, ntile(3) OVER w AS third FROM orders WINDOW w AS (PARTITION BY customer_id ORDER BY placed, order_id);
-- name: window_shifting
SELECT order_id, lag(total) OVER w AS before, lead(total, 2) OVER w AS after_next, lag(total, 1, 0) OVER w AS or_zero, lag(status, -1, 'none') OVER w AS next_status, lead(note, 0) OVER w AS own, lag(sold) OVER w AS sold_before FROM orders WINDOW w AS (PARTITION BY customer_id ORDER BY placed DESC, order_id);
-- name: window_shift_by_row
SELECT order_id, line_no, lag(price, quantity, discount) OVER w AS far, lead(product_id, line_no::int) OVER w AS ahead, lag(quantity, NULLIF(quantity, 3)) OVER w AS maybe FROM order_lines WINDOW w AS (ORDER BY order_id, line_no);
-- name: window_picking
SELECT order_id, first_value(total) OVER w AS first, last_value(total) OVER w AS last, nth_value(total, 2) OVER w AS second, nth_value(status, 3) OVER (PARTITION BY customer_id ORDER BY order_id ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS third, last_value(note) OVER (PARTITION BY status ORDER BY order_id RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS final FROM orders WINDOW w AS (PARTITION BY customer_id ORDER BY order_id);
-- name: window_nth_by_row
SELECT order_id, line_no, nth_value(quantity, line_no::int) OVER (PARTITION BY order_id ORDER BY line_no) AS own_place, nth_value(quantity, NULLIF(quantity, 2)) OVER (PARTITION BY order_id ORDER BY line_no ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS odd FROM order_lines;
-- name: window_running_sums
SELECT order_id, sum(total) OVER w AS running, avg(total) OVER w AS mean, count(total) OVER w AS n, count(*) OVER w AS rows, min(total) OVER w AS least, max(total) OVER w AS most FROM orders WINDOW w AS (PARTITION BY customer_id ORDER BY placed, order_id);
-- name: window_by_peers
SELECT order_id, status, sum(total) OVER w AS running, count(*) OVER w AS n, avg(total) OVER w AS mean, max(total) OVER w AS most FROM orders WINDOW w AS (ORDER BY status NULLS FIRST);
-- name: window_rows_frames
SELECT order_id, line_no, sum(price) OVER (w ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS three, avg(price) OVER (w ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS mean, sum(quantity) OVER (w ROWS BETWEEN 3 FOLLOWING AND 5 FOLLOWING) AS ahead, count(*) OVER (w ROWS BETWEEN 4 PRECEDING AND 2 PRECEDING) AS behind, min(price) OVER (w ROWS BETWEEN 3 PRECEDING AND 2 FOLLOWING) AS least, max(price) OVER (w ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS most FROM order_lines WINDOW w AS (PARTITION BY product_id % 3 ORDER BY order_id, line_no);
-- name: window_groups_frames
SELECT order_id, line_no, sum(price) OVER (w GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW) AS two, count(*) OVER (w GROUPS BETWEEN 1 FOLLOWING AND 2 FOLLOWING) AS ahead, avg(discount) OVER (w GROUPS 2 PRECEDING) AS mean, max(price) OVER (w GROUPS BETWEEN CURRENT ROW AND 1 FOLLOWING) AS most FROM order_lines WINDOW w AS (ORDER BY quantity DESC);
-- name: window_range_numbers
SELECT order_id, line_no, sum(quantity) OVER (ORDER BY quantity RANGE BETWEEN 2 PRECEDING AND 1 FOLLOWING) AS near, count(*) OVER (ORDER BY price DESC RANGE BETWEEN 10 PRECEDING AND 5.5 FOLLOWING) AS similar, sum(price) OVER (PARTITION BY line_no ORDER BY price NULLS FIRST RANGE BETWEEN 3 PRECEDING AND CURRENT ROW) AS below, count(*) OVER (ORDER BY discount RANGE BETWEEN 0.05 PRECEDING AND 0.05 FOLLOWING) AS discounts FROM order_lines;
-- name: window_range_dates
SELECT customer_id, joined, count(*) OVER (ORDER BY joined RANGE BETWEEN '30 days' PRECEDING AND CURRENT ROW) AS month, sum(credit) OVER (ORDER BY joined DESC RANGE BETWEEN '1 mon' PRECEDING AND '2 mons 3 days' FOLLOWING) AS around, count(*) OVER (PARTITION BY region ORDER BY joined RANGE BETWEEN '1 year' PRECEDING AND '1 day' PRECEDING) AS before FROM customers;
-- name: window_range_times
SELECT order_id, count(*) OVER (ORDER BY placed RANGE BETWEEN '7 days' PRECEDING AND CURRENT ROW) AS week, sum(total) OVER (PARTITION BY status ORDER BY placed RANGE BETWEEN '36:00' PRECEDING AND '1 day' FOLLOWING) AS near, max(total) OVER (ORDER BY placed DESC RANGE BETWEEN UNBOUNDED PRECEDING AND '10 days' FOLLOWING) AS most FROM orders;
-- name: window_exclude
SELECT order_id, line_no, sum(price) OVER (w RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING EXCLUDE CURRENT ROW) AS others, count(*) OVER (w GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE GROUP) AS beside, avg(price) OVER (w RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW EXCLUDE TIES) AS tieless, max(price) OVER (w RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING EXCLUDE GROUP) AS most, min(quantity) OVER (w RANGE BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING EXCLUDE NO OTHERS) AS least FROM order_lines WINDOW w AS (PARTITION BY line_no ORDER BY quantity);
-- name: window_exclude_rows
SELECT order_id, line_no, sum(price) OVER (ORDER BY order_id, line_no ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING EXCLUDE CURRENT ROW) AS around, first_value(line_no) OVER (ORDER BY order_id, line_no ROWS BETWEEN CURRENT ROW AND 2 FOLLOWING EXCLUDE CURRENT ROW) AS next, nth_value(price, 3) OVER (ORDER BY order_id, line_no ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING EXCLUDE CURRENT ROW) AS third, last_value(price) OVER (ORDER BY order_id, line_no ROWS BETWEEN 2 PRECEDING AND CURRENT ROW EXCLUDE GROUP) AS before FROM order_lines;
-- name: window_empty_over
SELECT customer_id, count(*) OVER () AS n, sum(credit) OVER () AS credit, avg(credit) OVER () AS mean, bool_and(vip) OVER () AS all_vip, bool_or(vip) OVER () AS some_vip, credit / sum(credit) OVER () AS share FROM customers WHERE credit <> 0;
-- name: window_filter
SELECT order_id, count(*) FILTER (WHERE total > 100) OVER w AS large, sum(total) FILTER (WHERE status = 'paid') OVER w AS paid, string_agg(status, ',') FILTER (WHERE total < 200) OVER w AS statuses, sum(100 / nullif(total, 0)) FILTER (WHERE total <> 0) OVER w AS safe FROM orders WINDOW w AS (PARTITION BY customer_id ORDER BY order_id);
-- name: window_text_aggregates
SELECT order_id, line_no, string_agg(quantity::text, '-') OVER (PARTITION BY order_id ORDER BY line_no) AS path, array_agg(price) OVER (PARTITION BY order_id ORDER BY line_no ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS near, array_agg(line_no) OVER (PARTITION BY order_id ORDER BY line_no ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS rest, array_agg(line_no) OVER (PARTITION BY order_id ORDER BY line_no ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING EXCLUDE CURRENT ROW) AS others, string_agg(discount::text, '') OVER (PARTITION BY order_id ORDER BY line_no ROWS BETWEEN 3 PRECEDING AND 2 PRECEDING) AS far FROM order_lines;
-- name: window_statistics
SELECT order_id, line_no, stddev(price) OVER w AS deviation, variance(quantity) OVER (w ROWS BETWEEN 3 PRECEDING AND CURRENT ROW) AS variance, bit_and(quantity) OVER w AS bits, bool_or(quantity > 5) OVER (PARTITION BY order_id ORDER BY line_no) AS any_large, corr(price, quantity) OVER (PARTITION BY order_id) AS corr, jsonb_agg(quantity) OVER (PARTITION BY order_id ORDER BY line_no) AS quantities FROM order_lines WINDOW w AS (PARTITION BY product_id ORDER BY order_id, line_no);
-- name: window_over_groups
SELECT customer_id, status, sum(total) AS total, sum(sum(total)) OVER (PARTITION BY customer_id ORDER BY status) AS running, rank() OVER (ORDER BY count(*) DESC) AS rank, count(*)::numeric / sum(count(*)) OVER () AS share FROM orders GROUP BY customer_id, status;
-- name: window_over_groups_named
SELECT region, count(*) AS n, lag(count(*)) OVER w AS before, max(sum(credit) FILTER (WHERE vip)) OVER w AS most FROM customers GROUP BY region HAVING count(*) > 1 WINDOW w AS (ORDER BY region, count(*));
-- name: window_over_left_join
SELECT c.customer_id, o.order_id, count(o.order_id) OVER (PARTITION BY c.customer_id) AS orders, sum(o.total) OVER (PARTITION BY c.customer_id ORDER BY o.order_id) AS running, row_number() OVER (PARTITION BY c.customer_id ORDER BY o.order_id) AS place FROM customers c LEFT JOIN orders o USING (customer_id);
-- name: window_in_subquery
SELECT s.customer_id, s.order_id, s.place, c.name FROM (SELECT customer_id, order_id, row_number() OVER (PARTITION BY customer_id ORDER BY placed DESC, order_id) AS place FROM orders) s JOIN customers c USING (customer_id) WHERE s.place <= 2 AND s.customer_id > 3;
-- name: window_of_windows
SELECT order_id, sum(step) OVER (PARTITION BY customer_id ORDER BY order_id) AS island FROM (SELECT order_id, customer_id, CASE WHEN lag(status) OVER (PARTITION BY customer_id ORDER BY order_id) IS DISTINCT FROM status THEN 1 ELSE 0 END AS step FROM orders) s;
-- name: window_in_expressions
SELECT order_id, CASE WHEN row_number() OVER w = 1 THEN 'first' WHEN lead(order_id) OVER w IS NULL THEN 'last' ELSE 'inner' END AS kind, coalesce(total - lag(total) OVER w, total) AS step, round(100 * total / NULLIF(sum(total) OVER (PARTITION BY customer_id), 0), 1) AS percent FROM orders WINDOW w AS (PARTITION BY customer_id ORDER BY order_id);
-- name: window_distinct
SELECT DISTINCT customer_id, first_value(order_id) OVER (PARTITION BY customer_id ORDER BY placed, order_id) AS first, count(*) OVER (PARTITION BY customer_id) AS n FROM orders;
-- name: window_grouped_above
SELECT place, count(*) AS n, sum(total) AS total FROM (SELECT total, row_number() OVER (PARTITION BY customer_id ORDER BY order_id) AS place FROM orders) s GROUP BY place;
-- name: window_inherited_names
SELECT order_id, sum(total) OVER running AS running, sum(total) OVER whole AS whole, count(*) OVER (running ROWS 1 PRECEDING) AS two FROM orders WINDOW whole AS (PARTITION BY status), running AS (whole ORDER BY order_id);
-- name: window_by_expressions
SELECT order_id, row_number() OVER (PARTITION BY extract(year FROM placed), total IS NULL ORDER BY upper(status), -order_id) AS place, dense_rank() OVER (PARTITION BY lower(left(note, 1)) ORDER BY length(note) NULLS FIRST) AS dense FROM orders;
-- name: window_volatile_order
SELECT product_id, category, ntile(4) OVER (ORDER BY price, product_id) AS quarter, ntile((SELECT count(*)::int + 1 FROM products WHERE category = 'toys')) OVER (ORDER BY title, product_id) AS tile, sum(weight_kg) OVER (PARTITION BY category ORDER BY product_id) AS weight, avg(weight_kg) OVER (ORDER BY product_id ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING) AS near FROM products;
-- name: window_ends
SELECT title, lag(tags) OVER (ORDER BY product_id) AS tags_before, max(title) OVER (PARTITION BY category ORDER BY product_id) AS last_title, min(discontinued) OVER (PARTITION BY category) AS first_gone FROM products;
-- name: window_union
SELECT order_id AS id, rank() OVER (ORDER BY status) AS rank FROM orders UNION ALL SELECT product_id, rank() OVER (PARTITION BY category ORDER BY price DESC) FROM products;
-- name: window_moving_join
SELECT a.order_id, a.place, b.order_id AS next FROM (SELECT order_id, customer_id, row_number() OVER (PARTITION BY customer_id ORDER BY order_id) AS place FROM orders) a LEFT JOIN (SELECT order_id, customer_id, row_number() OVER (PARTITION BY customer_id ORDER BY order_id) AS place FROM orders) b ON b.customer_id = a.customer_id AND b.place = a.place + 1;
-- name: window_beside_hypothetical
SELECT customer_id, percent_rank(100) WITHIN GROUP (ORDER BY total) AS of_100, percent_rank() OVER (ORDER BY count(*)) AS percent, ntile(2) OVER (ORDER BY customer_id) AS half FROM orders GROUP BY customer_id;
