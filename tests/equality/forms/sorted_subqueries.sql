-- Aggregates, arrays and limits over a subquery with ORDER BY.
-- schema
CREATE TABLE t (id int PRIMARY KEY, name text, x int, g text);
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t VALUES
    (1,'Ann',1,'a'),(2,NULL,NULL,NULL),(3,'Cy',9,'a'),(4,'Bo',-3,'b'),(5,'Di',5,'a'),(6,'Ed',0,'b');
CREATE TABLE u (id int PRIMARY KEY, t_id int, v text, k numeric);
INSERT INTO u VALUES
    (10,1,'a',3),(11,1,'b',1),(12,2,NULL,9),(13,NULL,'z',2),(14,1,'0',2),(15,3,'x',1),(16,3,'c',0.5);
CREATE VIEW sorted AS SELECT id, name FROM t ORDER BY x DESC NULLS LAST;
CREATE FUNCTION app(s text, v text) RETURNS text IMMUTABLE LANGUAGE sql AS
    'SELECT coalesce(s, '''') || coalesce(v, ''-'')';
CREATE AGGREGATE glue(text) (sfunc = app, stype = text);
CREATE SCHEMA sch; CREATE AGGREGATE sch."Glue it"(text) (sfunc = app, stype = text);
-- changes
INSERT INTO t VALUES (7,'Al',4,'a');
UPDATE t SET x = 100 WHERE id = 4;
DELETE FROM u WHERE id = 11;
INSERT INTO u VALUES (21,1,'q',2.5), (22, 7, 'w', 1);
DELETE FROM t WHERE id = 2;
UPDATE t SET x = NULL WHERE id = 3;
UPDATE u SET k = -k;
DELETE FROM t;
INSERT INTO t VALUES (1,'A',2,'g'),(2,'B',1,'g');
-- queries
SELECT json_agg(s) FROM (SELECT id, name FROM t ORDER BY x) s;
SELECT json_agg(s) FROM (SELECT id, name, x FROM t ORDER BY x DESC NULLS LAST LIMIT 3) s;
SELECT string_agg(name, ',') FROM (SELECT name FROM t ORDER BY x DESC, id) s;
SELECT array_agg(name) FROM (SELECT * FROM t ORDER BY x) s;
SELECT g, array_agg(name), string_agg(name, '/') FROM (SELECT * FROM t ORDER BY x DESC) s GROUP BY g;
SELECT jsonb_object_agg(id, name)::text, json_object_agg(id, name) FROM (SELECT * FROM t ORDER BY x
    DESC) s;
SELECT glue(name), sch."Glue it"(name) FROM (SELECT * FROM t ORDER BY x DESC) s;
SELECT any_value(name) FROM (SELECT * FROM t ORDER BY x DESC NULLS LAST) s;
SELECT (array_agg(name))[1] FROM (SELECT * FROM t ORDER BY x DESC) s;
SELECT t.id, (SELECT json_agg(q) FROM (SELECT u.v, u.k FROM u WHERE u.t_id = t.id ORDER BY u.k) q)
    FROM t;
SELECT t.id, l.j FROM t LEFT JOIN LATERAL (SELECT coalesce(json_agg(q), '[]') AS j FROM (SELECT *
    FROM u WHERE u.t_id = t.id ORDER BY u.k DESC LIMIT 2) q) l ON true;
WITH s AS (SELECT * FROM t ORDER BY x DESC) SELECT json_agg(s) FROM s;
WITH s(a, b) AS (SELECT name, id FROM t ORDER BY x DESC) SELECT string_agg(a, ','), max(b) FROM s;
SELECT string_agg(name, ',') FROM sorted;
SELECT count(*) FROM sorted;
SELECT json_agg(y) FROM (SELECT name, id + 1 AS k FROM (SELECT * FROM t ORDER BY x) a WHERE id > 1)
    y;
SELECT json_agg(y) FROM (SELECT name, row_number() OVER () FROM (SELECT * FROM t WHERE id = 1 ORDER
    BY x) a) y;
SELECT json_agg(y) FROM (SELECT g, count(*), sum(x) AS s FROM t GROUP BY g ORDER BY max(x) DESC) y;
SELECT json_agg(y) FROM (SELECT DISTINCT g FROM t ORDER BY g DESC) y;
SELECT json_agg(y) FROM (SELECT DISTINCT ON (g) g, name FROM t ORDER BY g DESC, x) y;
SELECT json_agg(y) FROM (SELECT id, v FROM u UNION ALL SELECT id, name FROM t ORDER BY 2 DESC, 1) y;
SELECT json_agg(y) FROM ((SELECT id, v FROM u) UNION (SELECT id, name FROM t) ORDER BY id DESC LIMIT
    4) y;
SELECT string_agg(v, ',' ORDER BY v) FROM (SELECT v, k FROM u ORDER BY k) s;
SELECT string_agg(v, ',' ORDER BY t_id) FROM (SELECT v, k, t_id FROM u ORDER BY k) s WHERE t_id = 1;
SELECT string_agg(DISTINCT v, ',') FROM (SELECT v, k FROM u ORDER BY k) s;
SELECT ARRAY(SELECT name FROM (SELECT * FROM t ORDER BY x DESC) s);
SELECT ARRAY(SELECT name FROM t ORDER BY x DESC);
SELECT ARRAY(SELECT name FROM t ORDER BY x DESC LIMIT 2), ARRAY(SELECT DISTINCT g FROM t ORDER BY g
    DESC) AS b, ARRAY(SELECT name FROM t UNION SELECT v FROM u ORDER BY 1 DESC) AS c;
SELECT t.id, ARRAY(SELECT v FROM (SELECT * FROM u WHERE u.t_id = t.id ORDER BY k DESC) s WHERE v <>
    'x') AS a FROM t;
SELECT * FROM (SELECT * FROM t ORDER BY x DESC NULLS LAST) s LIMIT 2;
SELECT * FROM (SELECT id, name FROM t ORDER BY x DESC NULLS LAST) s OFFSET 1 LIMIT 2;
SELECT string_agg(name, ',') FILTER (WHERE x > 0) FROM (SELECT * FROM t ORDER BY x DESC) s;
SELECT string_agg(name, ',') FROM (SELECT name FROM t ORDER BY x * -1, upper(name)) s;
SELECT string_agg(name, ',') FROM (SELECT name FROM t ORDER BY name COLLATE "C" USING >) s;
SELECT g, json_agg(json_build_object('n', name)) FROM (SELECT * FROM t ORDER BY x DESC) s GROUP BY
    ROLLUP (g);
SELECT t.id, json_agg(json_build_object('v', q.v)) FROM t, LATERAL (SELECT * FROM u WHERE u.t_id =
    t.id ORDER BY k DESC) q GROUP BY t.id;
SELECT json_agg(json_build_object('n', p.name, 'c', c.j)) FROM (SELECT * FROM t ORDER BY x DESC
    LIMIT 4) p LEFT JOIN LATERAL (SELECT json_agg(q.v) AS j FROM (SELECT * FROM u WHERE u.t_id =
    p.id ORDER BY k) q) c ON true;
SELECT json_agg(q.v) FROM (SELECT * FROM t ORDER BY x DESC) p, LATERAL (SELECT * FROM u WHERE u.t_id
    = p.id ORDER BY k DESC) q;
SELECT json_agg(json_build_object('n', p.name, 'c', c)) FROM (SELECT * FROM t ORDER BY x DESC) p,
    unnest(ARRAY[p.id]) c;
SELECT string_agg(name, ',') FROM (SELECT * FROM t ORDER BY x DESC) s HAVING string_agg(name, ',')
    <> 'q';
SELECT x FROM (SELECT 1 AS x) z WHERE EXISTS (SELECT json_agg(v) FROM (SELECT v FROM u ORDER BY k)
    s);
SELECT string_agg(name, ',') FROM (SELECT name FROM (SELECT name, x FROM t ORDER BY x) a ORDER BY
    name DESC) s;
SELECT string_agg(name, ',') FROM ((SELECT name FROM t ORDER BY x)) s;
SELECT string_agg(name, ',') FROM (TABLE sorted) s;
SELECT string_agg(column1, ',') FROM (VALUES ('b'), ('a'), ('c') ORDER BY 1 DESC) s;
SELECT string_agg(name || e, ',') FROM (SELECT name, generate_series(1, 1) AS e FROM t ORDER BY x) s;
SELECT coalesce(json_agg(root), '[]') AS root FROM (SELECT row_to_json((SELECT e FROM (SELECT b.id,
    b.name) e)) AS root FROM (SELECT * FROM t WHERE id > 0 ORDER BY name ASC) b ORDER BY b.name ASC)
    r;
SELECT JSON_ARRAYAGG(name) FROM (SELECT * FROM t ORDER BY x DESC) s;
SELECT JSON_OBJECTAGG(id : name) FROM (SELECT * FROM t ORDER BY x DESC) s;
SELECT (SELECT string_agg(s.name || t.id, ',') FROM (SELECT * FROM t t2 ORDER BY x DESC) s) FROM t;
SELECT g, (SELECT string_agg(s2.name, ',') FROM (SELECT * FROM t WHERE t.g = s.g ORDER BY x DESC)
    s2) FROM (SELECT DISTINCT g FROM t) s;
SELECT string_agg(name, ',') FROM (SELECT * FROM t ORDER BY x DESC) s WHERE EXISTS (SELECT FROM u
    WHERE u.t_id = s.id);
SELECT string_agg(name, ',') FROM (SELECT * FROM t ORDER BY x DESC FETCH FIRST 2 ROWS WITH TIES) s;
SELECT DISTINCT ON (g) g, name FROM (SELECT * FROM t ORDER BY g, x DESC, id) s;
WITH s AS (SELECT * FROM t ORDER BY g, x DESC, id) SELECT DISTINCT ON (g) g, name FROM s WHERE id > 0;
SELECT json_agg(q) FROM (SELECT DISTINCT ON (g) g, id FROM (SELECT * FROM t ORDER BY g, x, id) s) q;
