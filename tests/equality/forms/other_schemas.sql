-- Functions, aggregates and operators of schemas beside the search_path, over windows too.
-- schema
CREATE TABLE t (id int PRIMARY KEY, name text, x int, g text);
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t VALUES (1,'Ann',1,'a'),(2,NULL,NULL,NULL),(3,'Cy',9,'a'),(4,'Bo',-3,'b');
CREATE SCHEMA sch; CREATE SCHEMA "My Sch"; CREATE SCHEMA "select";
CREATE FUNCTION sch.app(s text, v text) RETURNS text IMMUTABLE LANGUAGE sql AS
    'SELECT coalesce(s, '''') || coalesce(v, ''-'')';
CREATE AGGREGATE sch.glue(text) (sfunc = sch.app, stype = text);
CREATE AGGREGATE "My Sch"."Glue ""it(x)"(text) (sfunc = sch.app, stype = text);
CREATE AGGREGATE "select"."from"(text) (sfunc = sch.app, stype = text);
CREATE AGGREGATE sch.sum(int) (sfunc = int4larger, stype = int);
CREATE AGGREGATE sch.count(*) (sfunc = int8inc, stype = int8, initcond = '100');
CREATE FUNCTION sch.appv(s text, v text[]) RETURNS text IMMUTABLE LANGUAGE sql AS
    'SELECT coalesce(s, '''') || coalesce(array_to_string(v, ''+''), ''-'')';
CREATE AGGREGATE sch.glues(VARIADIC text[]) (sfunc = sch.appv, stype = text);
CREATE AGGREGATE sch.hyp(VARIADIC "any" ORDER BY VARIADIC "any") (sfunc =
    ordered_set_transition_multi, stype = internal, finalfunc = rank_final, finalfunc_extra,
    hypothetical);
CREATE FUNCTION sch.pairs(n int) RETURNS SETOF int LANGUAGE sql IMMUTABLE AS
    'SELECT generate_series(1, n)';
CREATE FUNCTION "My Sch"."Up"(s text) RETURNS text LANGUAGE sql IMMUTABLE AS
    'SELECT upper(s) || ''!''';
CREATE TYPE sch.mood AS ENUM ('sad', 'ok');
CREATE OPERATOR sch.<+> (leftarg = text, rightarg = text, function = sch.app);
CREATE FUNCTION sch.rn() RETURNS bigint LANGUAGE internal WINDOW IMMUTABLE AS 'window_row_number';
-- changes
INSERT INTO t VALUES (7,'Al',4,'a');
UPDATE t SET x = 100 WHERE id = 4;
DELETE FROM t WHERE id = 2;
-- queries
SELECT id, sch.glue(name) OVER (ORDER BY id) FROM t;
SELECT id, "My Sch"."Glue ""it(x)"(name) OVER (PARTITION BY g ORDER BY id) FROM t;
SELECT id, "select"."from"(name) OVER (ORDER BY id) FROM t;
SELECT id, sch.sum(x) OVER (ORDER BY id), sch.count(*) OVER (ORDER BY id) FROM t;
SELECT id, sch.glue(name) FILTER (WHERE x > 0) OVER (ORDER BY id) FROM t;
SELECT id, sch.glue(name) OVER w FROM t WINDOW w AS (ORDER BY id DESC);
SELECT id, sch.glue(name) FILTER (WHERE x > 0) OVER w || 'q' FROM t WINDOW w AS (ORDER BY id DESC);
SELECT id, (sch.glue(name) OVER (ORDER BY id))::varchar(2) FROM t;
SELECT g, sch.glue(name ORDER BY id), sch.sum(x), sch.count(*), sch.glue(DISTINCT name) AS d FROM t
    GROUP BY g;
SELECT g, sch.sum(sch.sum(x)) OVER (ORDER BY g) FROM t GROUP BY g;
SELECT id, sch.rn() OVER (ORDER BY id) FROM t;
SELECT id, CASE WHEN sch.glue(name) OVER (ORDER BY id) = 'Ann' THEN 1 END AS c FROM t;
SELECT id, sch.pairs(2) FROM t;
SELECT id, p FROM t, sch.pairs(x) p;
SELECT id, "My Sch"."Up"(name) OPERATOR(sch.<+>) 'z' FROM t;
SELECT sch.hyp(3) WITHIN GROUP (ORDER BY x) FROM t;
SELECT "My Sch"."Glue ""it(x)"(name ORDER BY id) FILTER (WHERE x > 0) FROM t;
SELECT id, max("My Sch"."Up"(name)) OVER (PARTITION BY "My Sch"."Up"(g) ORDER BY id) AS w FROM t;
SELECT id, sum(f.x) OVER (ORDER BY t.id) AS w FROM t, LATERAL generate_series(1, length("My Sch"."Up"(t.g))) AS f(x);
SELECT t.id, f.x FROM t LEFT JOIN LATERAL generate_series(1, length("My Sch"."Up"(t.g))) AS f(x) ON f.x > t.x;
