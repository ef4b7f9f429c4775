-- Window queries over odd values: NaN, infinities, -0, scales, padding, collations, infinite times.

-- name: window_decimals
SELECT id, sum(free) OVER w AS running, avg(free) OVER w AS mean, sum(free) OVER (w ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS near, avg(small) OVER (w ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) AS small, sum(small) OVER (w ROWS BETWEEN CURRENT ROW AND 1 FOLLOWING) AS next, sum(big) OVER w AS big, sum(rounded) OVER (w ROWS 2 PRECEDING) AS rounded FROM measures WINDOW w AS (ORDER BY id);
-- name: window_decimal_extremes
SELECT id, min(free) OVER w AS least, max(free) OVER w AS most, min(small) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND 2 FOLLOWING) AS near, max(big) OVER (ORDER BY id DESC) AS big, max(rounded) OVER w AS rounded FROM measures WINDOW w AS (ORDER BY id ROWS BETWEEN 3 PRECEDING AND CURRENT ROW EXCLUDE CURRENT ROW);
-- name: window_decimal_order
SELECT id, rank() OVER (ORDER BY free) AS rank, dense_rank() OVER (ORDER BY free DESC NULLS LAST) AS dense, cume_dist() OVER (ORDER BY small) AS dist, count(*) OVER (ORDER BY free RANGE BETWEEN 1 PRECEDING AND 0.75 FOLLOWING) AS near, count(*) OVER (ORDER BY small DESC RANGE BETWEEN 2 PRECEDING AND 1 FOLLOWING) AS smalls FROM measures;
-- name: window_floats
SELECT id, sum(real8) OVER w AS running, avg(real8) OVER w AS mean, sum(real8) OVER (w ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS two, sum(real4) OVER w AS single, avg(real4) OVER (w ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS singles, max(real8) OVER (w ROWS BETWEEN 2 PRECEDING AND 2 FOLLOWING) AS most, min(real4) OVER (w GROUPS 1 PRECEDING) AS least FROM measures WINDOW w AS (ORDER BY id);
-- name: window_float_order
SELECT id, rank() OVER (ORDER BY real8) AS rank, dense_rank() OVER (ORDER BY real8 DESC) AS dense, count(*) OVER (ORDER BY real8 RANGE BETWEEN 0.5 PRECEDING AND 1e99 FOLLOWING) AS near, count(*) OVER (ORDER BY real4 DESC RANGE BETWEEN 1 PRECEDING AND UNBOUNDED FOLLOWING) AS rest, count(*) OVER (PARTITION BY real8) AS same, percent_rank() OVER (ORDER BY real4 NULLS FIRST) AS percent FROM measures;
-- name: window_texts
SELECT id, rank() OVER (ORDER BY loud) AS loud, rank() OVER (ORDER BY padded DESC) AS padded, dense_rank() OVER (ORDER BY short COLLATE "C") AS short, lag(padded, 1, 'none') OVER (ORDER BY loud, id) AS before, max(loud) OVER (ORDER BY id) AS loudest, min(padded) OVER (ORDER BY id) AS first, min(short COLLATE "C") OVER (ORDER BY id ROWS 2 PRECEDING) AS least, count(*) OVER (PARTITION BY padded) AS same FROM measures;
-- name: window_infinite_times
SELECT id, count(*) OVER (ORDER BY stamp RANGE BETWEEN '1 day' PRECEDING AND '1 day' FOLLOWING) AS near, count(*) OVER (ORDER BY stamp DESC RANGE BETWEEN '30 days' PRECEDING AND CURRENT ROW) AS month, first_value(stamp) OVER (ORDER BY stamp, id) AS first, last_value(stamp) OVER (ORDER BY stamp NULLS FIRST RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING) AS last, max(day) OVER (ORDER BY id) AS day FROM measures;
-- name: window_infinite_dates
SELECT id, count(*) OVER (ORDER BY day RANGE BETWEEN '1 mon' PRECEDING AND '2 days' FOLLOWING) AS near, count(*) OVER (PARTITION BY rounded > 0 ORDER BY day DESC RANGE BETWEEN '10 days' PRECEDING AND UNBOUNDED FOLLOWING) AS rest, lead(day, 1, DATE 'infinity') OVER (ORDER BY day, id) AS next FROM measures;
-- name: window_aggregates_of_odd
SELECT id, stddev(real8) OVER (ORDER BY id ROWS 3 PRECEDING) AS deviation, array_agg(free) OVER (ORDER BY id GROUPS BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS frees, string_agg(padded, '|') OVER (ORDER BY id DESC ROWS BETWEEN 1 PRECEDING AND 2 FOLLOWING EXCLUDE CURRENT ROW) AS texts, array_agg(day) OVER (PARTITION BY short ORDER BY id RANGE BETWEEN 5 PRECEDING AND 5 FOLLOWING EXCLUDE TIES) AS days FROM measures;
-- name: window_join_odd
SELECT m.id, l.id AS other, row_number() OVER (PARTITION BY m.padded ORDER BY m.id, l.id) AS place, sum(l.free) OVER (PARTITION BY m.id ORDER BY l.id) AS running FROM measures m LEFT JOIN lookups l ON l.padded = m.padded;
