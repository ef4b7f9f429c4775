-- Functions that return sets, in FROM and in select lists.

-- name: unnest_lateral
SELECT n.id, u.tag FROM notes n, unnest(n.tags) AS u(tag);
-- name: unnest_bag
SELECT u.tag FROM notes n, unnest(n.tags) AS u(tag);
-- name: unnest_ordinality
SELECT n.id, u.tag, u.position FROM notes n, unnest(n.tags) WITH ORDINALITY AS u(tag, position);
-- name: unnest_left
SELECT n.id, u.tag, u.position FROM notes n LEFT JOIN LATERAL unnest(n.tags) WITH ORDINALITY AS u(tag, position) ON true;
-- name: unnest_left_on
SELECT n.id, u.tag FROM notes n LEFT JOIN LATERAL unnest(n.tags) AS u(tag) ON u.tag <> 'a' AND n.id > 5;
-- name: unnest_inner_on
SELECT n.id, s FROM notes n JOIN unnest(n.scores) AS s ON s > 0 WHERE n.n IS NOT NULL;
-- name: unnest_several
SELECT n.id, u.a, u.b, u.o FROM notes n, unnest(n.tags, n.scores, n.grid) WITH ORDINALITY AS u(a, b, c, o);
-- name: unnest_pruned
SELECT n.id, u.b FROM notes n, unnest(n.tags, n.scores) AS u(a, b);
-- name: unnest_nothing_read
SELECT n.id FROM notes n, unnest(n.tags);
-- name: unnest_composites
SELECT n.id, p.street, p.city FROM notes n, unnest(n.many) AS p;
-- name: unnest_composites_beside
SELECT n.id, p.* FROM notes n, unnest(n.many, n.scores) WITH ORDINALITY AS p(street, city, score, o);
-- name: unnest_counted
SELECT tag, count(*) AS n, count(DISTINCT n.id) AS notes FROM notes n, unnest(n.tags) AS tag GROUP BY tag;
-- name: unnest_joined
SELECT n.id, l.target, u.tag FROM notes n CROSS JOIN unnest(n.tags) AS u(tag) JOIN links l ON l.label = u.tag WHERE l.note = n.id;
-- name: unnest_before_join
SELECT n.id, l.weight, u.tag FROM notes n, links l, unnest(n.tags) AS u(tag) WHERE l.label = u.tag;
-- name: unnest_of_join
SELECT n.id, l.weight, s FROM notes n LEFT JOIN links l ON l.note = n.id, unnest(n.scores || l.target) AS s;
-- name: unnest_twice
SELECT n.id, a, b FROM notes n, unnest(n.tags) AS a, unnest(n.scores) AS b;
-- name: unnest_constant
SELECT tag FROM unnest(ARRAY['a', NULL, 'a']) AS tag;
-- name: unnest_membership
SELECT DISTINCT n.id FROM notes n, unnest(n.tags) AS t WHERE t IN (SELECT label FROM links);
-- name: rows_from
SELECT n.id, r.a, r.b, r.c, r.o FROM notes n, ROWS FROM (unnest(n.tags), generate_series(1, n.n), digits(n.id)) WITH ORDINALITY AS r(a, b, c, o);
-- name: rows_from_scalar
SELECT n.id, r.* FROM notes n, ROWS FROM (upper(n.title), unnest(n.scores)) AS r(a, b);
-- name: rows_from_record
SELECT n.id, r.* FROM notes n, ROWS FROM (jsonb_to_recordset(n.parts) AS (a numeric, b text), unnest(n.tags)) AS r;
-- name: rows_from_record_pruned
SELECT n.id, r.b, r.o FROM notes n, ROWS FROM (jsonb_to_recordset(n.parts) AS (a numeric, b text), unnest(n.tags)) WITH ORDINALITY AS r(a, b, t, o);
-- name: series
SELECT g FROM generate_series(1, 10, 3) AS g;
-- name: series_empty
SELECT g FROM generate_series(5, 1) AS g;
-- name: series_of_column
SELECT n.id, g FROM notes n, generate_series(0, n.n) AS g;
-- name: series_numeric
SELECT l.note, g FROM links l, generate_series(l.weight, l.weight + 1, 0.50) AS g;
-- name: series_dates
SELECT n.id, day::date AS day FROM notes n, generate_series(n.since::timestamp, n.since::timestamp + interval '2 days', '1 day') AS day;
-- name: series_zoned
SELECT n.id, day FROM notes n, generate_series(n.since::timestamptz, n.since + interval '2 days', interval '24 hours') AS day;
-- name: calendar
SELECT day::date AS day, count(n.id) AS n FROM generate_series('2023-01-01'::timestamp, '2024-12-01', '1 month') AS day LEFT JOIN notes n ON date_trunc('month', n.since) = day GROUP BY day;
-- name: series_crossed
SELECT n.id, g FROM generate_series(1, 2) AS g, notes n;
-- name: series_right_join
SELECT n.id, g FROM notes n RIGHT JOIN generate_series(1, 12) AS g ON g = n.id;
-- name: series_full_join
SELECT n.id, g.g FROM notes n FULL JOIN generate_series(1, 50) AS g ON g = n.id;
-- name: series_using
SELECT id, title FROM notes JOIN generate_series(1, 12) AS g(id) USING (id);
-- name: subscripts
SELECT n.id, s, n.grid[s][1] AS first FROM notes n, generate_subscripts(n.grid, 1) AS s;
-- name: each
SELECT n.id, e.key, e.value FROM notes n, jsonb_each(n.body) AS e;
-- name: each_text
SELECT n.id, e.key FROM notes n, jsonb_each_text(n.body) AS e WHERE e.value = '1';
-- name: each_grouped
SELECT e.key, count(*) AS n, max(e.value) AS most FROM notes n, jsonb_each_text(n.body) AS e(key, value) GROUP BY e.key;
-- name: object_keys
SELECT n.id, k FROM notes n, jsonb_object_keys(n.body) AS k;
-- name: elements
SELECT n.id, p.part -> 'a' AS a, p.o FROM notes n, jsonb_array_elements(n.parts) WITH ORDINALITY AS p(part, o);
-- name: elements_nested
SELECT n.id, c FROM notes n, jsonb_array_elements(n.parts) AS p, jsonb_array_elements_text(p -> 'c') AS c;
-- name: elements_json
SELECT n.id, p::text AS p FROM notes n, json_array_elements(n.parts::json) AS p;
-- name: elements_left
SELECT n.id, p ->> 'b' AS b FROM notes n LEFT JOIN LATERAL jsonb_array_elements(n.parts) AS p ON p ->> 'b' IS NOT NULL;
-- name: recordset
SELECT n.id, r.* FROM notes n, jsonb_to_recordset(n.parts) AS r(a numeric, b text, c jsonb);
-- name: record
SELECT n.id, r.a, r.c FROM notes n, jsonb_to_record(n.body) AS r(a numeric(5,1), b text, c integer[]) WHERE r.a IS NOT NULL;
-- name: populate
SELECT n.id, p.city, p.street FROM notes n, jsonb_populate_record(n.home, n.body) AS p;
-- name: path_query
SELECT n.id, q FROM notes n, jsonb_path_query(n.parts, '$[*].c[*] ? (@ > 1)') AS q;
-- name: matches
SELECT n.id, m[1] AS m FROM notes n, regexp_matches(n.title, '([a-z])(\d*)', 'g') AS m;
-- name: split
SELECT n.id, s.word, s.o FROM notes n, regexp_split_to_table(n.title, ',') WITH ORDINALITY AS s(word, o);
-- name: text_split
SELECT n.id, s FROM notes n, string_to_table(n.title, ',', '') AS s;
-- name: own_set
SELECT n.id, d FROM notes n, digits(n.id * 7) AS d;
-- name: own_table
SELECT n.id, p.* FROM notes n, split_pairs(n.title) AS p;
-- name: own_table_renamed
SELECT n.id, p.place FROM notes n, split_pairs(n.title) AS p(place) WHERE p."Letter" = 'a';
-- name: own_composite
SELECT n.id, p.street, p.city FROM notes n, places(n.n) AS p;
-- name: own_record
SELECT n.id, r.x + 1 AS x, r.y FROM notes n, loose_rows(n.n) AS r(x integer, y text);
-- name: own_out
SELECT n.id, h.low, h.high FROM notes n, halves(n.id) AS h;
-- name: plain_function
SELECT n.id, u FROM notes n, upper(n.title) AS u WHERE u IS NOT NULL;
-- name: cast_in_from
SELECT n.id, x FROM notes n, CAST(n.n AS integer) AS x;
-- name: select_unnest
SELECT id, unnest(tags) AS tag FROM notes;
-- name: select_lockstep
SELECT id, unnest(tags) AS a, generate_series(1, 2) AS b, unnest(scores) * 10 AS c FROM notes;
-- name: select_inside
SELECT id, upper(unnest(tags)) || title AS t, since FROM notes WHERE n > 0;
-- name: select_nested
SELECT id, generate_series(1, generate_series(1, n)) AS g FROM notes;
-- name: select_nested_beside
SELECT id, generate_series(1, generate_series(1, n)) AS g, generate_series(1, 2) AS h FROM notes;
-- name: select_fields
SELECT id, (jsonb_each(body)).* FROM notes;
-- name: select_field_beside
SELECT id, (jsonb_each_text(body)).key, unnest(tags) AS tag FROM notes;
-- name: select_composite
SELECT id, places(n) AS p, (places(n)).city FROM notes;
-- name: select_constant
SELECT generate_series(1, 3) AS a, unnest(ARRAY['x', 'y']) AS b;
-- name: select_distinct
SELECT DISTINCT unnest(scores) AS s FROM notes;
-- name: select_ordered
SELECT id, unnest(tags) AS t FROM notes ORDER BY 2;
-- name: select_ordered_aside
SELECT id FROM notes ORDER BY unnest(scores);
-- name: select_over_groups
SELECT title, count(*) AS n, generate_series(1, count(*)) AS g FROM notes GROUP BY title;
-- name: select_over_groups_keys
SELECT tags, unnest(tags) AS tag, count(*) AS n FROM notes GROUP BY tags;
-- name: grouped_by_set
SELECT unnest(tags) AS tag, count(*) AS n, sum(n) AS total FROM notes GROUP BY 1;
-- name: grouped_by_set_inside
SELECT unnest(tags) || '!' AS tag, count(*) AS n FROM notes GROUP BY unnest(tags) HAVING count(*) > 1;
-- name: grouped_by_two_sets
SELECT unnest(tags) AS tag, unnest(scores) AS score, count(*) AS n FROM notes GROUP BY 1, 2;
-- name: grouped_set_over_set
SELECT unnest(scores) AS s, generate_series(1, count(*)) AS g FROM notes GROUP BY 1;
-- name: select_in_subquery
SELECT s.tag, l.weight FROM (SELECT id, unnest(tags) AS tag FROM notes) s JOIN links l ON l.note = s.id AND l.label = s.tag;
-- name: select_in_membership
SELECT note, label FROM links WHERE label IN (SELECT unnest(tags) FROM notes);
-- name: select_in_union
SELECT unnest(scores) AS s FROM notes UNION SELECT target FROM links;
-- name: select_in_union_all
SELECT id, unnest(scores) AS s FROM notes UNION ALL SELECT note, generate_series(1, 2) FROM links;
-- name: cte_of_sets
WITH tags AS (SELECT n.id, t FROM notes n, unnest(n.tags) AS t) SELECT a.id, b.id AS other, a.t FROM tags a JOIN tags b ON a.t = b.t AND a.id < b.id;
-- name: filter_below
SELECT n.id, u FROM notes n, unnest(n.scores) AS u WHERE n.id % 2 = 0 AND u > 1;
-- name: failing_set
SELECT n.id, g FROM notes n, generate_series(1, 4, n.n + 2) AS g;

-- name: row_of_table
SELECT t.id, t AS note FROM notes t;
-- name: row_as_json
SELECT t.id, to_jsonb(t) - 'body' AS j, row_to_json(t)::text AS r FROM notes t WHERE t.n > 0;
-- name: row_field
SELECT t.id, (t).title, (t.home).city, ((t.trip).start).street, (t.trip).days + 1 AS d FROM notes t;
-- name: row_of_subquery
SELECT to_jsonb(s) AS j FROM (SELECT id, title AS "Weird ""title", tags[1] AS whole FROM notes) s;
-- name: row_of_cte
WITH s AS (SELECT id, home FROM notes) SELECT row_to_json(s)::text AS j FROM s;
-- name: row_of_values
SELECT l.label, to_jsonb(v) AS v FROM links l LEFT JOIN (VALUES ('a', 1), ('b', NULL)) AS v(x, y) ON v.x = l.label;
-- name: row_padded
SELECT n.id, l AS link, to_jsonb(l) AS j FROM notes n LEFT JOIN links l ON l.note = n.id;
-- name: row_padded_right
SELECT l.label, t.id, to_jsonb(t.home) AS h, t IS NULL AS none FROM notes t RIGHT JOIN links l ON l.note = t.id;
-- name: row_padded_full
SELECT to_jsonb(l) AS l, to_jsonb(s) AS s FROM links l FULL JOIN (SELECT id, NULLIF(n, 1) AS n FROM notes) s ON s.id = l.target;
-- name: row_padded_nullable
SELECT n.id, to_jsonb(s) AS s FROM notes n LEFT JOIN (SELECT NULLIF(target, 3) AS t FROM links) s ON s.t = n.id;
-- name: row_tested
SELECT n.id FROM notes n LEFT JOIN links l ON l.note = n.id WHERE l IS NULL;
-- name: row_counted
SELECT n.id, count(l) AS links, count(DISTINCT l) AS different FROM notes n LEFT JOIN links l ON l.note = n.id GROUP BY n.id;
-- name: row_aggregated
SELECT n.n, jsonb_agg(l ORDER BY l.weight, l.label, l.note, l.target) FILTER (WHERE l IS NOT NULL) AS links FROM notes n LEFT JOIN links l ON l.note = n.id GROUP BY n.n;
-- name: row_aggregated_record
SELECT json_agg(s ORDER BY s.id)::text AS j, count(s) AS n FROM (SELECT id, home FROM notes) s;
-- name: row_grouped
SELECT l, count(*) AS n FROM links l GROUP BY l;
-- name: row_distinct
SELECT DISTINCT l FROM links l;
-- name: row_union
SELECT l FROM links l WHERE l.label = 'a' UNION SELECT l FROM links l WHERE l.note > 20;
-- name: row_joined
SELECT a.note, b.label FROM links a JOIN links b ON a = b;
-- name: row_of_function
SELECT n.id, p, to_jsonb(p) AS j FROM notes n LEFT JOIN LATERAL places(n.n) AS p ON true;
-- name: row_of_function_record
SELECT n.id, to_jsonb(p) AS j FROM notes n, split_pairs(n.title) AS p;
-- name: row_of_functions
SELECT n.id, to_jsonb(p) AS j FROM notes n, unnest(n.tags, n.scores) WITH ORDINALITY AS p(x, y, o);
-- name: row_nested
SELECT to_jsonb(x) AS j FROM (SELECT n.id, l AS link FROM notes n JOIN links l ON l.note = n.id) x;
-- name: row_through_subquery
SELECT (x.l).label, (x.l).weight * 2 AS w FROM (SELECT l FROM links l) x;
-- name: row_values_compared
SELECT id, (id, n) < (20, 2) AS less, ROW(n, title) IS NULL AS none, ROW(n, title) IS DISTINCT FROM ROW(1, 'abab') AS other, (n, title) = (1, 'abab') AS same FROM notes;
-- name: row_in_rows
SELECT id FROM notes WHERE (id, n) IN ((1, 1), (2, 2), (3, NULL));
-- name: row_made
SELECT id, ROW(title, 'x')::place AS p, (ROW(title, n::text)::place).city AS c, to_jsonb(ROW(id, n)) AS r FROM notes;
-- name: composite_compared
SELECT id, home = ROW('main', 'Oslo')::place AS same, home < ROW('z', '')::place AS less, home IS NULL AS none, home IS NOT NULL AS whole FROM notes;
-- name: composite_grouped
SELECT home, (home).city, count(*) AS n FROM notes GROUP BY home;
-- name: composite_field_grouped
SELECT (home).city, count(*) AS n, max((trip).days) AS d FROM notes GROUP BY (home).city;
-- name: composite_joined
SELECT a.id, b.id AS other FROM notes a JOIN notes b ON a.home = b.home AND a.id < b.id;
-- name: subscripts_and_slices
SELECT id, tags[1] AS a, tags[2:3] AS b, tags[:1] AS c, grid[1][2] AS d, grid[1:1][2:2] AS e, (tags || title)[array_length(tags, 1) + 1] AS f, body['a'] AS g FROM notes;
-- name: arrays_made
SELECT id, ARRAY[n, id] AS a, ARRAY[]::integer[] AS b, ARRAY[ARRAY[id, 1], ARRAY[2, n]] AS c, ARRAY[title] || tags AS d, ARRAY[home] AS e FROM notes;
-- name: arrays_compared
SELECT id, 'a' = ANY (tags) AS a, n > ALL (scores) AS b, title LIKE ANY (tags) AS c, tags @> ARRAY['a'] AS d, n = ANY (ARRAY[1, id, NULL]) AS e FROM notes;
-- name: choices
SELECT id, CASE tags WHEN '{}' THEN 'none' WHEN NULL THEN 'null' ELSE title END AS a, GREATEST(tags, ARRAY['b']) AS b, NULLIF(home, ROW('main', NULL)::place) AS c, COALESCE(trip, ROW(home, n)::trip) AS d FROM notes;
-- name: written_with_words
SELECT id, OVERLAY(title PLACING 'zz' FROM 2) AS a, SUBSTRING(title SIMILAR 'a#"b#"%' ESCAPE '#') AS b, title SIMILAR TO '(a|b)%' AS c, NORMALIZE(title, NFD) AS d, title IS NORMALIZED AS e, (since, since + 3) OVERLAPS (DATE '2024-01-01', DATE '2024-06-01') AS f, COLLATION FOR (title) AS g FROM notes;
-- name: operators_named
SELECT id, n OPERATOR(pg_catalog.+) 1 AS a, OPERATOR(pg_catalog.-) n AS b, title OPERATOR(pg_catalog.~) '^a' AS c FROM notes;
-- name: functions_sunk
SELECT n.id, l.weight, m.id AS other, t FROM links l, notes n, notes m, unnest(n.tags) AS t WHERE t = l.label AND m.id = l.note;
-- name: functions_sunk_outer
SELECT n.id, l.weight, t FROM links l CROSS JOIN notes n LEFT JOIN LATERAL unnest(n.tags) AS t ON t <> 'b' WHERE t = l.label OR (t IS NULL AND l.label = 'a');
-- name: functions_of_both_sides
SELECT n.id, g FROM links l, notes n, generate_series(n.n, l.target) AS g WHERE n.id = l.note AND g < 5;
-- name: nested_lateral
SELECT n.id, u.x, g FROM notes n, (unnest(n.scores) AS u(x) JOIN generate_series(1, n.n) AS g ON g = u.x);
-- name: subquery_of_function
SELECT id, (SELECT string_agg(x, ',' ORDER BY o) FROM unnest(n.tags) WITH ORDINALITY AS u(x, o)) AS t, EXISTS (SELECT 1 FROM unnest(n.tags) x WHERE x = 'a') AS a, ARRAY(SELECT s * 2 FROM unnest(n.scores) s WHERE s > 1) AS d FROM notes n;
-- name: subquery_of_function_and_table
SELECT n.id, (SELECT count(*) FROM unnest(n.tags) x JOIN links l ON l.label = x) AS c FROM notes n;
-- name: lateral_over_function
SELECT n.id, s.c, s.m FROM notes n LEFT JOIN LATERAL (SELECT count(*) AS c, max(x) AS m FROM unnest(n.scores) x WHERE x < n.id) s ON s.c > 0;
-- name: member_of_set
SELECT id FROM notes n WHERE 'a' IN (SELECT unnest(n.tags)) OR 2 IN (SELECT x FROM unnest(n.scores) x);
-- name: sets_and_windows
SELECT id, row_number() OVER (ORDER BY id) AS r, unnest(tags) AS t FROM notes;
-- name: windows_over_sets
SELECT n.id, t, rank() OVER (PARTITION BY t ORDER BY n.id) AS r FROM notes n, unnest(n.tags) AS t;
-- name: sets_limited
SELECT id, unnest(scores) AS s FROM notes ORDER BY id, s LIMIT 5;
-- name: first_of_each
SELECT DISTINCT ON (n.id) n.id, t FROM notes n, unnest(n.tags) WITH ORDINALITY AS u(t, o) ORDER BY n.id, o DESC;
