-- Queries whose rows are chosen by an order. Where ORDER BY leaves rows equal, the rows are alike.

-- name: newest
SELECT id, day FROM scores ORDER BY day DESC NULLS LAST, id LIMIT 5;
-- name: oldest_after_some
SELECT id, player, day FROM scores ORDER BY day, id DESC OFFSET 3 LIMIT 4;
-- name: offset_alone
SELECT id FROM scores ORDER BY points DESC, speed, id OFFSET 10;
-- name: offset_beyond_the_end
SELECT id FROM scores ORDER BY id OFFSET 1000 LIMIT 5;
-- name: offset_near_the_end
SELECT id FROM scores ORDER BY id OFFSET 45 LIMIT 20;
-- name: no_rows
SELECT id FROM scores ORDER BY id LIMIT 0;
-- name: all_rows
SELECT id FROM scores ORDER BY id OFFSET 0 LIMIT ALL;
-- name: null_limit
SELECT id FROM scores ORDER BY id LIMIT NULL OFFSET NULL;
-- name: huge_limit
SELECT id FROM scores ORDER BY id LIMIT 9223372036854775807 OFFSET 2;
-- name: computed_limit
SELECT id FROM scores ORDER BY id LIMIT 2.5 + 1 OFFSET '1';
-- name: ties_of_points
SELECT id, points FROM scores ORDER BY points DESC NULLS LAST FETCH FIRST 3 ROWS WITH TIES;
-- name: ties_of_two
SELECT id, speed, medal FROM scores ORDER BY speed, medal DESC FETCH FIRST 4 ROWS WITH TIES;
-- name: ties_of_intervals
SELECT id, took FROM scores ORDER BY took FETCH NEXT 2 ROWS WITH TIES;
-- name: ties_after_offset
SELECT DISTINCT points::text AS p, length(points::text) AS n FROM scores ORDER BY n, p OFFSET 1 ROW FETCH FIRST 1 ROW WITH TIES;
-- name: ties_of_no_rows
SELECT id FROM scores ORDER BY medal OFFSET 2 FETCH FIRST 0 ROWS WITH TIES;
-- name: ties_beyond_the_end
SELECT id FROM scores ORDER BY medal FETCH FIRST 60 ROWS WITH TIES;
-- name: nulls_first
SELECT id FROM scores ORDER BY points NULLS FIRST, id FETCH FIRST 6 ROWS ONLY;
-- name: nulls_of_descending
SELECT id FROM scores ORDER BY player DESC, id LIMIT 9;
-- name: equal_numbers
SELECT id, points FROM scores ORDER BY points, id LIMIT 12;
-- name: equal_floats
SELECT id, speed FROM scores ORDER BY speed DESC, id DESC LIMIT 12;
-- name: collated
SELECT id, game FROM scores ORDER BY game, id LIMIT 7;
-- name: collated_descending_ties
SELECT id, game FROM scores ORDER BY game DESC FETCH FIRST 5 ROWS WITH TIES;
-- name: other_collation
SELECT id, game FROM scores ORDER BY game COLLATE "C" NULLS FIRST, id LIMIT 7;
-- name: by_operator
SELECT id, game FROM scores ORDER BY game USING ~>~, id LIMIT 7;
-- name: by_enum
SELECT id, medal FROM scores ORDER BY medal DESC, id LIMIT 5;
-- name: by_expression
SELECT id, points FROM scores ORDER BY player % 3, coalesce(day, 'infinity') DESC, id LIMIT 6;
-- name: not_selected
SELECT player FROM scores ORDER BY day, id LIMIT 8;
-- name: by_number_and_name
SELECT id AS number, player AS id FROM scores ORDER BY 2 NULLS FIRST, number LIMIT 5;
-- name: distinct_rows
SELECT DISTINCT player, medal FROM scores ORDER BY medal DESC, player LIMIT 5;
-- name: duplicates
SELECT player, page FROM visits ORDER BY page, player LIMIT 6 OFFSET 2;
-- name: whole_duplicates
SELECT page FROM visits ORDER BY page DESC LIMIT 10;
-- name: duplicates_with_ties
SELECT page FROM visits ORDER BY page OFFSET 1 ROWS FETCH FIRST 2 ROWS WITH TIES;
-- name: grouped
SELECT player, count(*) AS n FROM scores GROUP BY player ORDER BY count(*) DESC, player LIMIT 3;
-- name: grouped_by_another_aggregate
SELECT player FROM scores GROUP BY player HAVING count(*) > 1 ORDER BY max(day) DESC NULLS LAST, player LIMIT 3;
-- name: one_row_in_order
SELECT count(*) AS n FROM scores ORDER BY max(id) LIMIT 1;
-- name: aggregate_in_order_only
SELECT 1 AS one FROM scores ORDER BY count(*);
-- name: each_players_best
SELECT DISTINCT ON (player) player, id, points FROM scores ORDER BY player, points DESC NULLS LAST, id;
-- name: each_pair
SELECT DISTINCT ON (medal, player) id FROM scores ORDER BY player, medal, day DESC, id;
-- name: each_expression
SELECT DISTINCT ON (id % 4) id % 4 AS rest, id, game FROM scores ORDER BY id % 4 DESC, game, id;
-- name: each_equal_number
SELECT DISTINCT ON (points) id FROM scores ORDER BY points, id DESC;
-- name: each_page
SELECT DISTINCT ON (page) page, player FROM visits ORDER BY page, player DESC;
-- name: best_of_the_best
SELECT DISTINCT ON (player) player, day, id FROM scores ORDER BY player DESC, day, id DESC LIMIT 3 OFFSET 1;
-- name: limited_below_a_join
SELECT p.name, s.id FROM players p JOIN (SELECT id, player FROM scores ORDER BY day, id LIMIT 10) s ON s.player = p.player;
-- name: limited_below_an_aggregate
SELECT medal, count(*) AS n, max(points) AS most FROM (SELECT * FROM scores ORDER BY id DESC LIMIT 20) s GROUP BY medal;
-- name: limited_with
WITH top AS (SELECT id, player FROM scores ORDER BY points DESC, id LIMIT 8), low AS (SELECT id, player FROM scores ORDER BY points, id LIMIT 8) SELECT t.id, l.id AS other FROM top t JOIN low l ON l.player = t.player;
-- name: limited_branches
(SELECT id FROM scores ORDER BY day, id LIMIT 4) UNION ALL (SELECT player FROM players ORDER BY name DESC, player LIMIT 2 OFFSET 1);
-- name: limited_union
SELECT id FROM scores WHERE player = 1 UNION SELECT player FROM players ORDER BY 1 DESC LIMIT 6;
-- name: limited_union_all
SELECT id, medal::text AS word FROM scores UNION ALL SELECT player, name FROM players ORDER BY word, id LIMIT 9;
-- name: limited_members
SELECT id FROM scores WHERE player IN (SELECT player FROM players ORDER BY name, player LIMIT 3);
-- name: limited_scalar
SELECT id, (SELECT name FROM players ORDER BY player DESC LIMIT 1) AS last FROM scores;
-- name: limited_twice
SELECT id FROM (SELECT id, day FROM scores ORDER BY id DESC LIMIT 20) s ORDER BY day, id LIMIT 5;
-- name: limited_values
SELECT v.n, p.name FROM (VALUES (3), (1), (2), (5) ORDER BY 1 LIMIT 3) v (n) JOIN players p ON p.player = v.n;
-- name: first_of_one_row
SELECT max(id) AS id FROM scores LIMIT 1;
-- name: numbered_first
SELECT player, id FROM (SELECT *, row_number() OVER (PARTITION BY player ORDER BY points DESC NULLS LAST, id) AS n FROM scores) s WHERE n <= 2;
-- name: numbered_and_shown
SELECT player, id, n FROM (SELECT *, row_number() OVER (PARTITION BY player ORDER BY day, id DESC) AS n FROM scores) s WHERE n < 4 AND medal > 'none';
-- name: numbered_page
SELECT id, n FROM (SELECT id, row_number() OVER (ORDER BY day NULLS FIRST, id) AS n FROM scores) s WHERE n BETWEEN 4 AND 9;
-- name: ranked_with_ties
SELECT player, points, r FROM (SELECT player, points, rank() OVER (PARTITION BY player ORDER BY points DESC) AS r FROM scores) s WHERE r <= 2;
-- name: ranked_of_equal_numbers
SELECT id FROM (SELECT id, rank() OVER (PARTITION BY points ORDER BY speed, medal) AS r FROM scores) s WHERE r = 1;
-- name: numbered_none
SELECT id FROM (SELECT id, row_number() OVER (ORDER BY id) AS n FROM scores) s WHERE n <= 0;
-- name: filtered_partition
SELECT id FROM (SELECT DISTINCT ON (points) id, points FROM scores ORDER BY points, id) s WHERE points > 1.5;
-- name: limited_by_a_window
SELECT id, player FROM scores ORDER BY rank() OVER (PARTITION BY player ORDER BY points DESC NULLS LAST, id), id LIMIT 6;
-- name: limited_windows
SELECT id, row_number() OVER (ORDER BY day, id) AS n FROM scores ORDER BY n DESC LIMIT 4 OFFSET 2;
-- name: limited_functions_of_sets
SELECT p.player, g FROM players p, generate_series(1, p.team) g ORDER BY g DESC, p.player LIMIT 5;
-- name: limited_set_in_the_select_list
SELECT player, unnest(ARRAY[player, team]) AS u FROM players ORDER BY u, player DESC LIMIT 5;
-- name: limited_intersection
SELECT player FROM scores INTERSECT SELECT player FROM players ORDER BY 1 DESC LIMIT 3;
-- name: limited_grouping_sets
SELECT player, medal, count(*) AS n FROM scores GROUP BY ROLLUP (player, medal) ORDER BY count(*) DESC, player, medal LIMIT 7;
-- name: lateral_first
SELECT p.name, s.id, s.points FROM players p, LATERAL (SELECT id, points FROM scores WHERE scores.player = p.player ORDER BY points DESC NULLS LAST, id LIMIT 2) s;
-- name: lateral_or_nothing
SELECT p.player, s.id FROM players p LEFT JOIN LATERAL (SELECT id FROM scores WHERE scores.player = p.player ORDER BY day, id LIMIT 1 OFFSET 1) s ON true;
-- name: lateral_with_ties
SELECT p.player, s.medal, s.id FROM players p, LATERAL (SELECT id, medal FROM scores WHERE scores.player = p.player ORDER BY medal DESC FETCH FIRST 1 ROW WITH TIES) s;
-- name: lateral_distinct_on
SELECT p.player, s.medal, s.id FROM players p, LATERAL (SELECT DISTINCT ON (medal) medal, id FROM scores WHERE scores.player = p.player ORDER BY medal, id) s;
-- name: lateral_limit_without_correlation
SELECT p.player, s.id FROM players p, LATERAL (SELECT id FROM scores ORDER BY id LIMIT 2) s;
-- name: correlated_scalar_first
SELECT p.player, (SELECT s.id FROM scores s WHERE s.player = p.player ORDER BY s.day DESC NULLS LAST, s.id LIMIT 1) AS newest FROM players p;
-- name: correlated_exists_limit
SELECT p.player FROM players p WHERE EXISTS (SELECT 1 FROM scores s WHERE s.player = p.player ORDER BY s.id OFFSET 3 LIMIT 1);
-- name: correlated_in_limit
SELECT p.player FROM players p WHERE 'gold' IN (SELECT s.medal::text FROM scores s WHERE s.player = p.player ORDER BY s.id DESC LIMIT 3);
-- name: lateral_by_inequality
SELECT p.player, s.id FROM players p, LATERAL (SELECT id FROM scores WHERE scores.player < p.player ORDER BY id LIMIT 2) s;
