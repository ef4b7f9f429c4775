-- Window queries over bags: rows that are there many times have a number each.

-- name: window_of_copies
SELECT host, level, code, elapsed_ms, at, count(*) OVER (PARTITION BY host, level, code, elapsed_ms, at) AS copies, row_number() OVER (PARTITION BY host, level, code, elapsed_ms, at) AS copy FROM lines;
-- name: window_sums_of_copies
SELECT host, level, sum(code) OVER (PARTITION BY host ORDER BY level) AS running, avg(code) OVER (PARTITION BY host) AS mean, rank() OVER (PARTITION BY host ORDER BY at DESC NULLS LAST) AS rank, count(*) OVER (PARTITION BY level ORDER BY at GROUPS BETWEEN 1 PRECEDING AND CURRENT ROW EXCLUDE TIES) AS tieless FROM lines;
-- name: window_order_of_copies
SELECT host, code, row_number() OVER (ORDER BY host, level, code, elapsed_ms, at) AS place, lag(host) OVER (ORDER BY host, level, code, elapsed_ms, at) AS before, sum(elapsed_ms) OVER (ORDER BY host, level, code, elapsed_ms, at ROWS 3 PRECEDING) AS near FROM lines;
-- name: window_partitioned_table
SELECT site, seq, value - lag(value) OVER w AS step, sum(value) OVER w AS running, bool_and(flag) OVER (w ROWS 1 PRECEDING) AS both, count(*) FILTER (WHERE flag) OVER (w RANGE BETWEEN 2 PRECEDING AND 2 FOLLOWING) AS flags FROM readings WINDOW w AS (PARTITION BY site ORDER BY seq);
