-- Queries of aggregates. What depends on an order is ordered to the last row.

-- name: variances_of_integers
SELECT g, stddev(small) AS a, var_pop(small) AS b, variance(whole) AS c, stddev_pop(whole) AS d, var_samp(big) AS e, stddev_samp(big) AS f FROM facts GROUP BY g;
-- name: variances_of_numerics
SELECT g, stddev(fixed) AS a, var_pop(fixed) AS b, variance(free) AS c, stddev_pop(free) AS d, var_pop(free) AS e, stddev(DISTINCT free) AS f FROM facts GROUP BY g;
-- name: variances_of_floats
SELECT g, stddev(double) AS a, var_pop(double) AS b, variance(single) AS c, stddev_pop(single) AS d, var_samp(DISTINCT double) AS e FROM facts GROUP BY g;
-- name: variances_of_everything
SELECT stddev(small) AS a, stddev(fixed) AS b, stddev(free) AS c, stddev(double) AS d, var_pop(big) FILTER (WHERE flag) AS e, count(*) AS n FROM facts;
-- name: regressions
SELECT k, corr(double, single) AS a, covar_pop(double, small) AS b, covar_samp(double, single) AS c, regr_slope(double, whole) AS d, regr_intercept(double, small) AS e, regr_r2(double, small) AS f FROM facts GROUP BY k;
-- name: regression_sums
SELECT regr_count(double, single) AS a, regr_avgx(double, single) AS b, regr_avgy(double, single) AS c, regr_sxx(double, single) AS d, regr_syy(double, single) AS e, regr_sxy(double, single) AS f FROM facts;
-- name: regressions_filtered
SELECT g, regr_count(double, single) FILTER (WHERE flag) AS a, corr(DISTINCT double, small) AS b, covar_pop(fixed, double) FILTER (WHERE small > 2) AS c FROM facts GROUP BY g;
-- name: bits
SELECT g, bit_and(small) AS a, bit_or(small) AS b, bit_and(whole) AS c, bit_or(big) AS d, bit_and(big) AS e, bit_or(bits) AS f, bit_and(bits) AS h FROM facts GROUP BY g;
-- name: bits_xor
SELECT k, bit_xor(small) AS a, bit_xor(DISTINCT whole) AS b, bit_xor(big) FILTER (WHERE flag) AS c, bit_xor(bits) AS d FROM facts GROUP BY k;
-- name: texts
SELECT g, string_agg(word, ', ' ORDER BY id) AS a, string_agg(word, '' ORDER BY word DESC NULLS FIRST, id) AS b, string_agg(loud, g ORDER BY loud, id) AS c FROM facts GROUP BY g;
-- name: texts_distinct
SELECT g, string_agg(DISTINCT word, ',') AS a, string_agg(DISTINCT loud, ',' ORDER BY loud DESC) AS b, string_agg(DISTINCT code::text, ',' ORDER BY code::text) AS c FROM facts GROUP BY g;
-- name: texts_of_bytes
SELECT k, string_agg(body, '\x2c'::bytea ORDER BY id) AS a, string_agg(DISTINCT body, '\x'::bytea) AS b FROM facts GROUP BY k;
-- name: texts_of_all
SELECT string_agg(word, '|' ORDER BY id) AS a, string_agg(word, '|' ORDER BY id) FILTER (WHERE flag) AS b, string_agg(upper(word) || id, '-' ORDER BY id DESC) FILTER (WHERE id % 2 = 0 AND flag) AS c FROM facts;
-- name: arrays
SELECT g, array_agg(whole ORDER BY id) AS a, array_agg(free ORDER BY id DESC) AS b, array_agg(word ORDER BY id) FILTER (WHERE word IS NOT NULL) AS c, array_agg(grade ORDER BY id) AS d FROM facts GROUP BY g;
-- name: arrays_of_arrays
SELECT k, array_agg(ARRAY[small::integer, id] ORDER BY id) AS a, array_agg(numbers ORDER BY id) FILTER (WHERE cardinality(numbers) = 2) AS b FROM facts GROUP BY k;
-- name: arrays_distinct
SELECT g, array_agg(DISTINCT small) AS a, array_agg(DISTINCT day ORDER BY day DESC) AS b, array_agg(DISTINCT address) AS c, array_agg(DISTINCT range) AS d, array_length(array_agg(DISTINCT cash), 1) AS e FROM facts GROUP BY g;
-- name: arrays_of_rows
SELECT k, array_agg(ROW(small, word)::text ORDER BY id) AS a, count(DISTINCT ROW(small, word)) AS b, count(DISTINCT (g, flag)) AS c FROM facts GROUP BY k;
-- name: json
SELECT g, json_agg(word ORDER BY id) AS a, jsonb_agg(small ORDER BY id) AS b, json_object_agg(id, word ORDER BY id) AS c, jsonb_object_agg(id, document) AS d, jsonb_agg(plain ORDER BY id) AS e, json_agg(at ORDER BY id) AS f FROM facts GROUP BY g;
-- name: json_of_rows
SELECT k, json_agg(json_build_object('id', id, 'day', day) ORDER BY id) AS a, jsonb_agg(ROW(id, free) ORDER BY id) AS b, jsonb_agg(DISTINCT word) AS c FROM facts GROUP BY k;
-- name: modes
SELECT g, mode() WITHIN GROUP (ORDER BY small) AS a, mode() WITHIN GROUP (ORDER BY word DESC) AS b, mode() WITHIN GROUP (ORDER BY free) AS c, mode() WITHIN GROUP (ORDER BY loud) FILTER (WHERE flag) AS d FROM facts GROUP BY g;
-- name: percentiles
SELECT g, percentile_cont(0.5) WITHIN GROUP (ORDER BY double) AS a, percentile_disc(0.5) WITHIN GROUP (ORDER BY free DESC) AS b, percentile_cont(0.25) WITHIN GROUP (ORDER BY span) AS c, percentile_disc(0.9) WITHIN GROUP (ORDER BY loud) AS d FROM facts GROUP BY g;
-- name: percentiles_in_arrays
SELECT k, percentile_cont(ARRAY[0.1, 0.5, NULL, 1]) WITHIN GROUP (ORDER BY double) AS a, percentile_disc(ARRAY[0, 0.5, 1]) WITHIN GROUP (ORDER BY day) AS b, (percentile_cont(ARRAY[0.5, 0.9]) WITHIN GROUP (ORDER BY fixed DESC))[2] AS c FROM facts GROUP BY k;
-- name: percentiles_by_group
SELECT k, percentile_cont(k / 4.0) WITHIN GROUP (ORDER BY double) AS a, percentile_disc(k / 4.0) WITHIN GROUP (ORDER BY whole) FILTER (WHERE flag) AS b FROM facts GROUP BY k;
-- name: percentiles_of_all
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY fixed) AS a, percentile_disc(0.99) WITHIN GROUP (ORDER BY at) AS b FROM facts WHERE flag;
-- name: ranks
SELECT g, rank(5) WITHIN GROUP (ORDER BY small) AS a, dense_rank(5, 'x') WITHIN GROUP (ORDER BY whole DESC NULLS LAST, word) AS b, percent_rank(2) WITHIN GROUP (ORDER BY free) AS c, cume_dist(2) WITHIN GROUP (ORDER BY free DESC) AS d FROM facts GROUP BY g;
-- name: ranks_of_all
SELECT rank(5) WITHIN GROUP (ORDER BY small) AS a, percent_rank(5) WITHIN GROUP (ORDER BY small) AS b, cume_dist(5) WITHIN GROUP (ORDER BY small) AS c, dense_rank('x') WITHIN GROUP (ORDER BY loud) AS d FROM facts WHERE g = 'a';
-- name: ranges
SELECT k, range_agg(range) AS a, range_intersect_agg(range) AS b, range_agg(DISTINCT range) FILTER (WHERE flag) AS c FROM facts GROUP BY k;
-- name: money
SELECT g, sum(cash) AS a, min(cash) AS b, max(cash) AS c, count(DISTINCT cash) AS d FROM facts GROUP BY g;
-- name: extremes
SELECT g, min(address) AS a, max(address) AS b, min(numbers) AS c, max(numbers) AS d, min(grade) AS e, max(grade) AS f, min(loud) AS h, max(at) AS i FROM facts GROUP BY g;
-- name: sums_of_spans
SELECT k, sum(span) AS a, avg(span) AS b, sum(DISTINCT span) AS c, count(DISTINCT document) AS d, count(DISTINCT range) AS e FROM facts GROUP BY k;
-- name: own_product
SELECT g, product(small) AS a, product(k) FILTER (WHERE flag) AS b, product(DISTINCT small) AS c, product(small + 1) AS d FROM facts GROUP BY g;
-- name: own_product_of_all
SELECT product(small) AS a, product(k) FILTER (WHERE k > 9) AS b FROM facts WHERE g = 'b';
-- name: own_path
SELECT g, path(word, id ORDER BY id) AS a, path(word, whole ORDER BY whole DESC, id) FILTER (WHERE flag) AS b FROM facts GROUP BY g;
-- name: own_first
SELECT g, "First"(word ORDER BY id) AS a, "First"(day ORDER BY id DESC) AS b, "First"(numbers ORDER BY id) FILTER (WHERE flag) AS c FROM facts GROUP BY g;
-- name: own_variadic
SELECT k, sum_all(small, whole / 2, k) AS a, sum_all(VARIADIC numbers) AS b, sum_all(VARIADIC ARRAY[small, k]) FILTER (WHERE flag) AS c FROM facts GROUP BY k;
-- name: booleans
SELECT g, every(flag) AS a, bool_or(small > 5) AS b, bool_and(DISTINCT flag) AS c, bool_or(flag) FILTER (WHERE small IS NULL) AS d FROM facts GROUP BY g;
-- name: over_duplicates
SELECT g, array_agg(v ORDER BY v) AS a, string_agg(t, ',' ORDER BY t) AS b, string_agg(DISTINCT t, ',') AS c, mode() WITHIN GROUP (ORDER BY t) AS d, stddev(v) AS e, count(DISTINCT (v, t)) AS f FROM marks GROUP BY g;
-- name: over_duplicates_of_all
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY v) AS a, jsonb_agg(v ORDER BY v, t) AS b, bit_xor(v) AS c, var_pop(v) AS d, rank(2) WITHIN GROUP (ORDER BY v) AS e FROM marks;
-- name: over_nothing
SELECT string_agg(word, ',' ORDER BY id) AS a, array_agg(id ORDER BY id) AS b, product(k) AS c, rank(1) WITHIN GROUP (ORDER BY k) AS d, stddev(k) AS e, regr_count(double, single) AS f, bit_or(k) AS h, count(DISTINCT (k, id)) AS i FROM facts WHERE false;
-- name: having
SELECT g, string_agg(word, ',' ORDER BY id) AS words FROM facts GROUP BY g HAVING count(DISTINCT (word, small)) > 3 AND array_length(array_agg(id), 1) < 8;
-- name: inside_expressions
SELECT g, (array_agg(word ORDER BY id))[1] || '!' AS a, round(stddev(fixed), 3) AS b, coalesce(string_agg(word, ',' ORDER BY id), '?') AS c, cardinality(array_agg(small)) + count(*) AS d FROM facts GROUP BY g;
-- name: above_aggregates
SELECT k, array_agg(total ORDER BY g, total) AS totals, percentile_disc(0.5) WITHIN GROUP (ORDER BY total) AS middle, stddev(total) AS spread FROM (SELECT k, g, sum(whole) AS total FROM facts GROUP BY k, g) s GROUP BY k;
-- name: above_a_join
SELECT m.g, string_agg(f.word || m.t, ',' ORDER BY f.id, m.t, m.v) AS a, stddev(f.small + m.v) AS b FROM marks m JOIN facts f ON f.k = m.g AND f.small = m.v GROUP BY m.g;
-- name: grouped_by_an_expression
SELECT date_trunc('month', day) AS month, array_agg(id ORDER BY id) AS ids, mode() WITHIN GROUP (ORDER BY extract(dow FROM day)) AS dow FROM facts GROUP BY 1;
-- name: grouped_by_numeric
SELECT free, array_agg(id ORDER BY id) AS ids, percentile_disc(least(abs(free) / 1e20, 1)) WITHIN GROUP (ORDER BY id) AS first FROM facts GROUP BY free;
-- name: same_call_twice
SELECT g, string_agg(word, ',' ORDER BY id) AS a, length(string_agg(word, ',' ORDER BY id)) AS b, string_agg(word, ';' ORDER BY id) AS c FROM facts GROUP BY g;
-- name: in_a_subquery
SELECT f.id, s.words, s.spread FROM facts f JOIN (SELECT g, string_agg(word, ',' ORDER BY id) AS words, stddev_pop(double) AS spread FROM facts GROUP BY g) s ON s.g = f.g WHERE f.k = 1;
