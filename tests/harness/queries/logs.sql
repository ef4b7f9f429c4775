-- Queries over bags: duplicates must be counted on every way through an operator.

-- name: carry
SELECT * FROM lines;
-- name: project_bag
SELECT level FROM lines;
-- name: distinct
SELECT DISTINCT host, level FROM lines;
-- name: bag_join_bag
SELECT l.host, l.level, h.rack FROM lines l JOIN hosts h ON l.host = h.host;
-- name: bag_left_join
SELECT l.host, l.code, h.rack FROM lines l LEFT JOIN hosts h ON l.host = h.host AND h.rack = 'r1';
-- name: bag_full_join
SELECT l.host AS seen, h.host, h.rack FROM (SELECT DISTINCT host FROM lines WHERE level = 'warn') l FULL JOIN hosts h ON l.host = h.host;
-- name: bag_self_join
SELECT a.host, a.level, b.code FROM hosts h JOIN lines a ON a.host = h.host JOIN lines b ON b.host = a.host AND b.code = a.code AND b.level = 'warn';
-- name: counts
SELECT host, level, count(*) AS n, count(code) AS codes, sum(code) AS total, sum(elapsed_ms) AS elapsed, avg(elapsed_ms) AS mean, min(elapsed_ms) AS fastest, max(at) AS last FROM lines GROUP BY host, level;
-- name: distinct_sums
SELECT host, count(DISTINCT code) AS codes, sum(DISTINCT code) AS total, count(DISTINCT elapsed_ms) AS times, sum(DISTINCT elapsed_ms) AS elapsed FROM lines GROUP BY host;
-- name: semi_bag
SELECT host, level, code FROM lines WHERE host IN (SELECT host FROM hosts WHERE rack = 'r2');
-- name: anti_bag
SELECT host, level FROM lines l WHERE NOT EXISTS (SELECT 1 FROM hosts h WHERE h.host = l.host);
-- name: not_in_bag
SELECT host, code FROM lines WHERE host NOT IN (SELECT host FROM hosts);
-- name: union_all_bag
SELECT host FROM lines UNION ALL SELECT host FROM hosts UNION ALL SELECT host FROM lines WHERE code = 1;
-- name: union_bag
SELECT host, level FROM lines UNION SELECT host, rack FROM hosts;
-- name: weights
SELECT l.level, w.weight, count(*) AS n, sum(w.weight) AS total FROM lines l LEFT JOIN levels w USING (level) GROUP BY l.level, w.weight;
-- name: notes
SELECT host, length(note) AS n, left(note, 5) AS start FROM hosts;
-- name: carry_notes
SELECT * FROM hosts;
-- name: cross
SELECT h.rack, v.level FROM hosts h CROSS JOIN levels v;
-- name: scalar_over_bag
SELECT host, count(*) AS n FROM lines GROUP BY host HAVING count(*) > (SELECT avg(n) FROM (SELECT count(*) AS n FROM lines GROUP BY host) x);
-- name: single_row_subquery
SELECT level, weight, (SELECT count(*) FROM lines) AS all_lines FROM levels;
-- name: partitions
SELECT * FROM readings;
-- name: partition_sums
SELECT site, count(*) AS n, sum(value) AS total, bool_or(flag) AS flagged, max(seq) AS last FROM readings GROUP BY site;
-- name: partition_join
SELECT r.site, r.seq, r.value - s.value AS apart FROM readings r JOIN readings s ON s.seq = r.seq AND s.site < r.site;
