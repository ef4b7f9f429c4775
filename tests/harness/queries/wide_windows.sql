-- Window queries over wide rows: NULLs everywhere, and functions of the user.

-- name: window_of_users
SELECT part, code, longest(t1) OVER w AS longest, longest(t2) OVER (PARTITION BY part ORDER BY i1) AS by_peers, longest(t1) OVER (PARTITION BY i2) AS whole, longest(t3) FILTER (WHERE o1) OVER (w ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE CURRENT ROW) AS beside FROM sparse WINDOW w AS (PARTITION BY part ORDER BY code);
-- name: window_functions_of_users
SELECT part, code, place() OVER (PARTITION BY part ORDER BY code) AS place, standing() OVER (PARTITION BY part ORDER BY i1 DESC NULLS LAST) AS standing, beginning(t1) OVER (PARTITION BY part ORDER BY code ROWS BETWEEN 1 PRECEDING AND CURRENT ROW) AS beginning, beginning(code) OVER (PARTITION BY part ORDER BY code RANGE BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING EXCLUDE GROUP) AS next FROM sparse;
-- name: window_many_orders
SELECT part, code, rank() OVER (ORDER BY i1, s1 DESC, b1 NULLS FIRST) AS a, rank() OVER (PARTITION BY o1 ORDER BY d1 DESC NULLS LAST, f1) AS b, rank() OVER (PARTITION BY s1, o2 ORDER BY n1) AS c, sum(b1) OVER (PARTITION BY i1 ORDER BY part, code) AS d, avg(b2) OVER (PARTITION BY o1 ORDER BY part, code ROWS 2 PRECEDING) AS e, sum(s1) OVER (ORDER BY i2) AS f, avg(i1) OVER (ORDER BY s2 RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS g, sum(n1) OVER (ORDER BY d2 RANGE BETWEEN '100 days' PRECEDING AND CURRENT ROW) AS h FROM sparse;
-- name: window_null_distances
SELECT part, code, count(*) OVER (ORDER BY i1 NULLS FIRST RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS a, count(*) OVER (ORDER BY i1 DESC NULLS FIRST RANGE BETWEEN UNBOUNDED PRECEDING AND 1 FOLLOWING) AS b, count(*) OVER (ORDER BY i1 DESC NULLS LAST RANGE BETWEEN 2 PRECEDING AND UNBOUNDED FOLLOWING) AS c, count(*) OVER (PARTITION BY part ORDER BY b1 RANGE BETWEEN 1000000000 PRECEDING AND 9223372036854775807 FOLLOWING) AS d, count(*) OVER (ORDER BY n1 RANGE BETWEEN 0 PRECEDING AND 0 FOLLOWING) AS e, count(*) OVER (ORDER BY i2 RANGE BETWEEN 2 FOLLOWING AND 3 FOLLOWING) AS f FROM sparse;
-- name: window_partners
SELECT p.id, s.part, s.code, lag(s.t1) OVER (PARTITION BY p.id ORDER BY s.part, s.code) AS before, count(s.code) OVER (PARTITION BY p.id) AS n FROM partners p LEFT JOIN sparse s ON s.i1 = p.i1 AND s.s1 = p.s1;
