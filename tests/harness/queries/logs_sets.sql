-- Set operations over tables without keys, where rows come many times.

-- name: set_bag_intersect_all
SELECT host FROM lines INTERSECT ALL SELECT host FROM hosts;
-- name: set_bag_except_all
SELECT host FROM lines EXCEPT ALL SELECT host FROM hosts;
-- name: set_bag_except
SELECT host, code FROM lines EXCEPT SELECT host, NULL FROM hosts;
-- name: set_bag_both_sides
SELECT level FROM lines WHERE code > 0 INTERSECT ALL SELECT level FROM lines WHERE elapsed_ms > 0.2;
-- name: set_bag_of_levels
SELECT level FROM lines EXCEPT ALL SELECT level FROM levels;
