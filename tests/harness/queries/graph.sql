-- Queries over graphs: WITH RECURSIVE in all the forms that PostgreSQL takes.

-- name: carry
SELECT * FROM roads;
-- name: reachable_pairs
WITH RECURSIVE reach(a, b) AS (
    SELECT a, b FROM roads
    UNION SELECT r.a, e.b FROM reach r JOIN roads e ON e.a = r.b)
SELECT a, b FROM reach;
-- name: reachable_from_one
WITH RECURSIVE reach AS (
    SELECT 1 AS place
    UNION SELECT e.b FROM reach r, roads e WHERE e.a = r.place AND e.kind = 'rail')
SELECT r.place, p.name FROM reach r LEFT JOIN places p USING (place);
-- name: both_directions
WITH RECURSIVE near(place) AS (
    SELECT place FROM places WHERE name < 'f'
    UNION SELECT CASE WHEN e.a = n.place THEN e.b ELSE e.a END FROM near n JOIN roads e ON n.place IN (e.a, e.b))
SELECT place FROM near WHERE place IS NOT NULL;
-- name: components
WITH RECURSIVE pairs(a, b) AS (
    SELECT place, place FROM places
    UNION SELECT p.a, x.b FROM pairs p JOIN (SELECT a, b FROM roads UNION ALL SELECT b, a FROM roads) x ON x.a = p.b)
SELECT a, min(b) AS component, count(*) AS size FROM pairs GROUP BY a;
-- name: not_through_closed
WITH RECURSIVE reach(place) AS (
    SELECT place FROM places WHERE place <= 2
    UNION SELECT e.b FROM reach r JOIN roads e ON e.a = r.place
    WHERE NOT EXISTS (SELECT 1 FROM places p WHERE p.place = e.b AND p.is_closed))
SELECT place FROM reach;
-- name: unreachable
WITH RECURSIVE reach(place) AS (
    SELECT 3 UNION SELECT e.b FROM reach r JOIN roads e ON e.a = r.place)
SELECT p.place, p.name FROM places p WHERE NOT EXISTS (SELECT 1 FROM reach r WHERE r.place = p.place);
-- name: in_circles
WITH RECURSIVE reach(a, b) AS (
    SELECT a, b FROM roads UNION SELECT r.a, e.b FROM reach r JOIN roads e ON e.a = r.b)
SELECT count(*) AS n, min(a) AS least FROM reach WHERE a = b;
-- name: walks
WITH RECURSIVE walk(place, steps, cost) AS (
    SELECT a, 0, 0::numeric FROM roads WHERE id < 5
    UNION ALL SELECT e.b, w.steps + 1, w.cost + e.cost FROM walk w JOIN roads e ON e.a = w.place WHERE w.steps < 3)
SELECT place, steps, count(*) AS n, sum(cost) AS total, min(cost) AS least FROM walk GROUP BY place, steps;
-- name: walks_bag
WITH RECURSIVE walk(place, steps) AS (
    SELECT a, 0 FROM roads
    UNION ALL SELECT e.b, w.steps + 1 FROM walk w JOIN roads e ON e.a = w.place WHERE w.steps < 2)
SELECT place, steps FROM walk;
-- name: paths
WITH RECURSIVE path(place, visited, cost) AS (
    SELECT place, ARRAY[place], 0::numeric FROM places WHERE place < 4
    UNION ALL SELECT e.b, p.visited || e.b, p.cost + e.cost FROM path p JOIN roads e ON e.a = p.place
    WHERE e.b <> ALL (p.visited) AND cardinality(p.visited) < 5)
SELECT place, visited, cost FROM path;
-- name: path_texts
WITH RECURSIVE path(place, shown, is_circle, visited) AS (
    SELECT place, name, false, ARRAY[place] FROM places WHERE place = 1
    UNION ALL SELECT e.b, p.shown || ' > ' || coalesce(e.kind, '?'), e.b = ANY (p.visited), p.visited || e.b
    FROM path p JOIN roads e ON e.a = p.place WHERE NOT p.is_circle AND cardinality(p.visited) < 5)
SELECT shown, is_circle FROM path;
-- name: cheapest
WITH RECURSIVE path(place, visited, cost) AS (
    SELECT 1, ARRAY[1], 0::numeric
    UNION ALL SELECT e.b, p.visited || e.b, p.cost + e.cost FROM path p JOIN roads e ON e.a = p.place
    WHERE NOT e.b = ANY (p.visited) AND p.cost < 3)
SELECT place, min(cost) AS cost FROM path GROUP BY place;
-- name: steps_away
WITH RECURSIVE away(place, steps) AS (
    SELECT place, 0 FROM places WHERE place IN (1, 2)
    UNION SELECT e.b, a.steps + 1 FROM away a JOIN roads e ON e.a = a.place WHERE a.steps < 8)
SELECT place, min(steps) AS steps FROM away GROUP BY place;
-- name: dead_ends
WITH RECURSIVE walk(place, steps) AS (
    SELECT place, 0 FROM places
    UNION ALL SELECT e.b, w.steps + 1 FROM walk w LEFT JOIN roads e ON e.a = w.place AND e.cost > 0 WHERE w.steps < 2)
SELECT steps, count(*) AS n, count(place) AS places FROM walk GROUP BY steps;
-- name: bill_of_materials
WITH RECURSIVE needed(holder, part, quantity) AS (
    SELECT holder, part, quantity::bigint FROM contents
    UNION ALL SELECT n.holder, c.part, n.quantity * c.quantity FROM needed n JOIN contents c ON c.holder = n.part)
SELECT n.holder, n.part, p.name, sum(n.quantity) AS quantity, sum(n.quantity * p.price) AS price
FROM needed n LEFT JOIN parts p USING (part) GROUP BY n.holder, n.part, p.name;
-- name: cost_of_parts
WITH RECURSIVE needed AS (
    SELECT part AS top, part, 1::numeric AS quantity FROM parts
    UNION ALL SELECT n.top, c.part, n.quantity * c.quantity FROM needed n JOIN contents c ON c.holder = n.part AND c.quantity <> 0)
SELECT n.top, sum(n.quantity * p.price) AS cost, count(*) AS n FROM needed n JOIN parts p USING (part) GROUP BY n.top;
-- name: where_used
WITH RECURSIVE used(part, holder, depth) AS (
    SELECT part, holder, 1 FROM contents WHERE part = 10
    UNION ALL SELECT u.part, c.holder, u.depth + 1 FROM used u JOIN contents c ON c.part = u.holder)
SELECT holder, depth FROM used;
-- name: hierarchy
WITH RECURSIVE chain AS (
    SELECT id, name, 1 AS depth, name AS title FROM staff WHERE boss IS NULL
    UNION ALL SELECT s.id, s.name, c.depth + 1, c.title || '/' || s.name FROM staff s JOIN chain c ON s.boss = c.id)
SELECT id, name, depth, title FROM chain;
-- name: hierarchy_upwards
WITH RECURSIVE above(id, boss, distance) AS (
    SELECT id, boss, 1 FROM staff
    UNION ALL SELECT a.id, s.boss, a.distance + 1 FROM above a JOIN staff s ON s.id = a.boss)
SELECT a.id, a.boss, a.distance, s.salary FROM above a JOIN staff s ON s.id = a.boss;
-- name: pay_below
WITH RECURSIVE below(top, id, salary) AS (
    SELECT id, id, salary FROM staff
    UNION ALL SELECT b.top, s.id, s.salary FROM below b JOIN staff s ON s.boss = b.id)
SELECT top, count(*) AS staff, sum(salary) AS pay, max(salary) AS most FROM below GROUP BY top HAVING count(*) > 1;
-- name: counter
WITH RECURSIVE n(n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM n WHERE n < 9)
SELECT n.n, count(r.id) AS roads FROM n LEFT JOIN roads r ON r.a = n.n GROUP BY n.n;
-- name: counter_to_data
WITH RECURSIVE n AS (
    SELECT 1 AS n UNION ALL SELECT n.n + 1 FROM n WHERE n.n < (SELECT max(id) FROM staff))
SELECT n FROM n WHERE NOT EXISTS (SELECT 1 FROM staff s WHERE s.id = n.n);
-- name: fibonacci
WITH RECURSIVE f(n, a, b) AS (
    SELECT 0, 0::numeric, 1::numeric UNION ALL SELECT n + 1, b, a + b FROM f WHERE n < (SELECT count(*) FROM roads))
SELECT n, a FROM f;
-- name: two_entries
WITH RECURSIVE up(id, boss) AS (
    SELECT id, boss FROM staff WHERE id > 10
    UNION SELECT s.id, s.boss FROM up u JOIN staff s ON s.id = u.boss),
down(id) AS (
    SELECT id FROM up WHERE boss IS NULL
    UNION SELECT s.id FROM down d JOIN staff s ON s.boss = d.id)
SELECT d.id, u.boss FROM down d LEFT JOIN up u USING (id);
-- name: used_twice
WITH RECURSIVE reach(a, b) AS (
    SELECT a, b FROM roads WHERE b IS NOT NULL UNION SELECT r.a, e.b FROM reach r JOIN roads e ON e.a = r.b)
SELECT x.a, x.b FROM reach x JOIN reach y ON x.a = y.b AND x.b = y.a WHERE x.a <= x.b;
-- name: over_another
WITH RECURSIVE open_roads AS (SELECT a, b FROM roads JOIN places p ON p.place = b AND p.is_closed IS NOT TRUE),
    reach(place) AS (SELECT a FROM open_roads WHERE a < 3 UNION SELECT o.b FROM reach r JOIN open_roads o ON o.a = r.place)
SELECT count(*) AS n, max(place) AS last FROM reach;
-- name: over_a_group
WITH RECURSIVE cheap AS (SELECT a, b, min(cost) AS cost FROM roads GROUP BY a, b HAVING count(*) < 3),
    walk(place, steps) AS (SELECT 1, 0 UNION ALL SELECT c.b, w.steps + 1 FROM walk w JOIN cheap c ON c.a = w.place WHERE w.steps < 3)
SELECT place, steps FROM walk;
-- name: grouped_rounds
WITH RECURSIVE walk(place, steps) AS (
    SELECT place, 0 FROM places
    UNION ALL SELECT e.b, w.steps + 1 FROM walk w JOIN roads e ON e.a = w.place WHERE w.steps < 6 GROUP BY e.b, w.steps)
SELECT place, steps FROM walk;
-- name: distinct_rounds
WITH RECURSIVE walk(place, steps) AS (
    SELECT DISTINCT a, 0 FROM roads
    UNION ALL SELECT DISTINCT e.b, w.steps + 1 FROM walk w JOIN roads e ON e.a = w.place WHERE w.steps < 6)
SELECT steps, count(*) AS n FROM walk GROUP BY steps;
-- name: greatest_of_round
WITH RECURSIVE best(place, steps) AS (
    SELECT 1, 0
    UNION ALL SELECT m.place, m.steps + 1 FROM (
        SELECT max(e.b) AS place, max(x.steps) AS steps FROM (SELECT place, steps FROM best) x JOIN roads e ON e.a = x.place) m
    WHERE m.steps < 7)
SELECT place, steps FROM best;
-- name: rows_of_its_own
WITH RECURSIVE reach(place) AS (
    SELECT a FROM roads WHERE kind = 'rail'
    UNION (SELECT place FROM places WHERE is_closed UNION ALL SELECT e.b FROM reach r JOIN roads e ON e.a = r.place AND e.cost < 2))
SELECT place FROM reach;
-- name: union_in_a_subquery_of_the_step
WITH RECURSIVE reach(a, b) AS (
    SELECT place, place FROM places WHERE height > 1
    UNION SELECT x.a, x.b FROM (SELECT r.a, e.b FROM reach r JOIN roads e ON e.a = r.b UNION SELECT 0, place FROM places WHERE height IS NULL) x)
SELECT a, b FROM reach;
-- name: semi_join_in_step
WITH RECURSIVE down(id, depth) AS (
    SELECT id, 0 FROM staff WHERE boss IS NULL
    UNION ALL SELECT s.id, d.depth + 1 FROM down d JOIN staff s ON s.boss = d.id
    WHERE s.id IN (SELECT part FROM contents) AND s.name NOT IN (SELECT name FROM parts))
SELECT id, depth FROM down;
-- name: scalar_in_step
WITH RECURSIVE down AS (
    SELECT id, salary::numeric FROM staff WHERE boss IS NULL
    UNION ALL SELECT s.id, s.salary + d.salary FROM down d JOIN staff s ON s.boss = d.id
    WHERE s.salary < (SELECT avg(salary) FROM staff))
SELECT id, salary FROM down;
-- name: linked_texts
WITH RECURSIVE chain(source, target) AS (
    SELECT source, target FROM links UNION SELECT c.source, l.target FROM chain c JOIN links l ON l.source = c.target)
SELECT source, target FROM chain;
-- name: linked_bag
WITH RECURSIVE chain(source, target, n) AS (
    SELECT source, target, 1 FROM links UNION ALL SELECT c.source, l.target, n + 1 FROM chain c JOIN links l ON l.source = c.target WHERE n < 2)
SELECT source, target, n FROM chain;
-- name: null_rows
WITH RECURSIVE n(x, y) AS (
    SELECT b, kind FROM roads WHERE id < 8 UNION SELECT e.b, n.y FROM n LEFT JOIN roads e ON e.a = n.x AND e.kind IS NULL)
SELECT x, y FROM n;
-- name: typed_by_the_first_term
WITH RECURSIVE t(x, y) AS (
    SELECT place::bigint, name::varchar FROM places WHERE place < 3
    UNION ALL SELECT t.x + e.a, e.kind::varchar FROM t JOIN roads e ON e.id = t.x WHERE t.x < 20)
SELECT x, y FROM t;
-- name: recursion_of_a_recursion
WITH RECURSIVE reach(a, b) AS (
    SELECT a, b FROM roads WHERE id < 7 UNION SELECT r.a, e.b FROM reach r JOIN roads e ON e.a = r.b),
    far(place, rounds) AS (
    SELECT 1, 0 UNION SELECT r.b, f.rounds + 1 FROM far f JOIN reach r ON r.a = f.place WHERE f.rounds < 4)
SELECT place, rounds FROM far;
-- name: inner_recursion
WITH RECURSIVE outer_walk(place, n) AS (
    SELECT 1, 0
    UNION (WITH RECURSIVE rail(place, n) AS (
            SELECT place, n FROM outer_walk
            UNION SELECT e.b, r.n FROM rail r JOIN roads e ON e.a = r.place AND e.kind = 'rail')
        SELECT e.b, r.n + 1 FROM rail r JOIN roads e ON e.a = r.place AND e.kind = 'road' WHERE r.n < 3))
SELECT place, n FROM outer_walk;
-- name: recursion_in_a_subquery
SELECT p.place, p.name FROM places p WHERE p.place IN (
    WITH RECURSIVE reach(place) AS (SELECT 2 UNION SELECT e.b FROM reach r JOIN roads e ON e.a = r.place)
    SELECT place FROM reach);
-- name: not_recursive_after_all
WITH RECURSIVE x AS (SELECT a AS place FROM roads UNION SELECT place FROM places), y AS (SELECT place FROM x WHERE place > 2)
SELECT place FROM y;
-- name: windows_in_the_step
WITH RECURSIVE walk(place, steps, rank) AS (
    SELECT place, 0, 0::bigint FROM places
    UNION ALL SELECT x.b, x.steps + 1, x.rank FROM (
        SELECT e.b, w.steps, rank() OVER (PARTITION BY w.place ORDER BY e.cost, e.b) AS rank, count(*) OVER () AS rows
        FROM walk w JOIN roads e ON e.a = w.place) x
    WHERE x.rank <= 2 AND x.steps < 4 AND x.rows > 1)
SELECT place, steps, rank, count(*) AS n FROM walk GROUP BY place, steps, rank;
-- name: cheapest_next
WITH RECURSIVE walk(place, steps) AS (
    SELECT DISTINCT a, 0 FROM roads
    UNION ALL SELECT x.b, x.steps + 1 FROM (
        SELECT DISTINCT ON (w.place) w.place, e.b, w.steps FROM (SELECT place, steps FROM walk) w
        JOIN roads e ON e.a = w.place ORDER BY w.place, e.cost, e.id) x
    WHERE x.steps < 5)
SELECT place, steps FROM walk;
-- name: first_rows_of_a_round
WITH RECURSIVE walk(place, steps) AS (
    SELECT place, 0 FROM places
    UNION ALL SELECT x.b, x.steps + 1 FROM (
        SELECT e.b, w.steps FROM walk w JOIN roads e ON e.a = w.place WHERE w.steps < 6 ORDER BY e.b DESC, e.id LIMIT 3) x)
SELECT place, steps FROM walk;
-- name: series_in_the_step
WITH RECURSIVE walk(part, n) AS (
    SELECT 1, 1 UNION ALL SELECT c.part, g FROM walk w JOIN contents c ON c.holder = w.part, generate_series(1, c.quantity) g WHERE g < 3 AND w.n < 3)
SELECT part, n FROM walk;
-- name: intersect_in_the_step
WITH RECURSIVE reach(place) AS (
    SELECT 1 UNION (SELECT e.b FROM reach r JOIN roads e ON e.a = r.place INTERSECT SELECT place FROM places WHERE is_closed IS NOT TRUE))
SELECT place FROM reach;
-- name: except_in_the_step
WITH RECURSIVE walk(place, steps) AS (
    SELECT 2, 0 UNION ALL (SELECT e.b, w.steps + 1 FROM walk w JOIN roads e ON e.a = w.place WHERE w.steps < 4
    EXCEPT SELECT place, g FROM places, generate_series(1, 3) g WHERE is_closed))
SELECT place, steps FROM walk;
-- name: ranked_recursion
WITH RECURSIVE chain AS (
    SELECT id, boss, ARRAY[id] AS line FROM staff WHERE boss IS NULL
    UNION ALL SELECT s.id, s.boss, c.line || s.id FROM chain c JOIN staff s ON s.boss = c.id)
SELECT id, cardinality(line) AS depth, row_number() OVER (PARTITION BY line[1] ORDER BY line) AS place FROM chain;
-- name: longest_lines
WITH RECURSIVE chain AS (
    SELECT id, 1 AS depth FROM staff WHERE boss IS NULL
    UNION ALL SELECT s.id, c.depth + 1 FROM chain c JOIN staff s ON s.boss = c.id)
SELECT id, depth FROM chain ORDER BY depth DESC, id LIMIT 4;
-- name: cycle_clause
WITH RECURSIVE walk(a, b) AS (
    SELECT a, b FROM roads WHERE a < 3 AND b IS NOT NULL
    UNION ALL SELECT e.a, e.b FROM walk w JOIN roads e ON e.a = w.b WHERE e.id < 12)
    CYCLE a, b SET is_circle USING path
SELECT a, b, is_circle, path::text AS path FROM walk;
-- name: cycle_clause_union
WITH RECURSIVE walk(place) AS (
    SELECT 1 UNION SELECT e.b FROM walk w JOIN roads e ON e.a = w.place WHERE e.kind = 'rail')
    CYCLE place SET mark TO 'Y' DEFAULT 'N' USING path
SELECT place, mark, path::text AS path, cardinality(ARRAY[place]) AS one FROM walk WHERE mark = 'N' OR place > 2;
-- name: search_depth_first
WITH RECURSIVE chain(id, boss) AS (
    SELECT id, boss FROM staff WHERE boss IS NULL
    UNION ALL SELECT s.id, s.boss FROM chain c JOIN staff s ON s.boss = c.id)
    SEARCH DEPTH FIRST BY id SET place
SELECT id, boss, place::text AS place FROM chain ORDER BY place;
-- name: search_breadth_first
WITH RECURSIVE chain AS (
    SELECT id, name, boss FROM staff WHERE boss IS NULL
    UNION ALL SELECT s.id, s.name, s.boss FROM staff s, chain c WHERE s.boss = c.id)
    SEARCH BREADTH FIRST BY name, id SET place
SELECT id, place::text AS place FROM chain;
-- name: search_and_cycle
WITH RECURSIVE walk(place, name) AS (
    SELECT place, name FROM places WHERE place < 3
    UNION ALL SELECT p.place, p.name FROM walk w JOIN roads e ON e.a = w.place AND e.cost > 0 JOIN places p ON p.place = e.b WHERE e.id < 14)
    SEARCH BREADTH FIRST BY name SET rank CYCLE place SET circle TO 1 DEFAULT 0 USING path,
    ends AS (SELECT count(*) AS n, sum(circle) AS circles FROM walk)
SELECT w.place, w.name, w.rank::text AS rank, w.circle, w.path::text AS path, e.n, e.circles FROM walk w, ends e;
-- name: cycle_only_counted
WITH RECURSIVE walk(a, b, steps) AS (
    SELECT a, b, 1 FROM roads UNION ALL SELECT w.a, e.b, w.steps + 1 FROM walk w, roads e WHERE e.a = w.b AND w.steps < 4)
    CYCLE b SET is_circle USING path
SELECT a, count(*) FILTER (WHERE is_circle) AS circles, max(steps) AS steps FROM walk GROUP BY a;
