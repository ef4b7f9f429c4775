-- Rows of subqueries over relations, as values of an expression.
-- schema
CREATE TABLE t (id int PRIMARY KEY, name text, x int);
CREATE TABLE u (id int PRIMARY KEY, t_id int, v text);
ALTER TABLE t REPLICA IDENTITY FULL; ALTER TABLE u REPLICA IDENTITY FULL;
INSERT INTO t VALUES (1,'Ann',1),(2,NULL,NULL),(3,'Cy',9);
INSERT INTO u VALUES (10,1,'a'),(11,1,'b'),(12,2,NULL),(13,NULL,'z');
-- changes
INSERT INTO u VALUES (14,3,'n'),(15,3,NULL);
UPDATE t SET name = 'Zed' WHERE id = 1;
DELETE FROM u WHERE id = 10;
DELETE FROM u WHERE t_id = 1;
UPDATE u SET t_id = 2;
DELETE FROM t WHERE id = 2;
-- queries
SELECT t.id, row_to_json((SELECT e FROM (SELECT t.id, t.name, (SELECT count(*) FROM u WHERE u.t_id =
    t.id) AS n) e)) AS j FROM t;
SELECT t.id, to_jsonb((SELECT e FROM (SELECT t.id, (SELECT max(v) FROM u WHERE u.t_id = t.id)) e))
    AS j FROM t;
SELECT t.id, row_to_json((SELECT e FROM (SELECT u.id, u.v, t.name FROM u WHERE u.t_id = t.id ORDER
    BY u.id DESC LIMIT 1) e)) AS j FROM t;
SELECT t.id, row_to_json((SELECT e FROM (SELECT u.id, u.v AS id FROM u WHERE u.t_id = t.id ORDER BY
    u.id DESC LIMIT 1) e)) AS j FROM t;
SELECT t.id, row_to_json((WITH w AS (SELECT max(u.id), min(v) AS "mi n" FROM u WHERE u.t_id = t.id)
    SELECT w FROM w)) AS j FROM t;
SELECT t.id, json_agg((SELECT e FROM (SELECT t.id, (SELECT count(*) FROM u WHERE u.t_id = t.id) AS
    n) e)) AS j FROM t GROUP BY t.id;
SELECT t.id, (SELECT e FROM (SELECT u.id, u.v FROM u WHERE u.t_id = t.id ORDER BY u.id DESC LIMIT 1)
    e) IS NULL AS j FROM t;
SELECT t.id, (SELECT row_to_json(e) FROM (SELECT u.id, u.v FROM u WHERE u.t_id = t.id ORDER BY u.id
    DESC LIMIT 1) e) AS j FROM t;
SELECT t.id, row_to_json((SELECT e FROM (SELECT u.id, u.v FROM u WHERE u.t_id = t.id UNION SELECT
    t.id, t.name ORDER BY 1 LIMIT 1) e)) AS j FROM t;
SELECT t.id, row_to_json((SELECT e FROM (SELECT u.id, u.v FROM u WHERE u.t_id = t.id ORDER BY u.id
    LIMIT 1) e(a))) AS j FROM t;
SELECT t.id, row_to_json((SELECT u FROM u WHERE u.t_id = t.id ORDER BY u.id LIMIT 1)) AS j FROM t;
SELECT t.id, row_to_json((SELECT e FROM (SELECT u.id, u.v FROM u WHERE u.t_id = t.id) e ORDER BY
    e.id DESC LIMIT 1)) AS j FROM t;
SELECT t.id, row_to_json((SELECT e FROM (SELECT u.id, u.v FROM u WHERE u.t_id = t.id) e WHERE e.v =
    'n')) AS j FROM t;
SELECT t.id FROM t WHERE to_jsonb((SELECT e FROM (SELECT t.id, (SELECT count(*) FROM u WHERE u.t_id
    = t.id) AS n) e)) @> '{"n": 2}';
SELECT row_to_json((SELECT e FROM (SELECT count(*) FROM u) e)) AS j;
SELECT t.id, row_to_json((SELECT e FROM (SELECT u.id FROM u WHERE u.t_id = t.id) e)) AS j FROM t;
SELECT t.id, json_agg((SELECT e FROM (SELECT t.id, t.name) e)) OVER (ORDER BY t.id) AS j FROM t;
SELECT t.id, json_agg((SELECT e FROM (SELECT t.id, t.id) e)) FILTER (WHERE t.x > 0) OVER
    (ORDER BY t.id) AS j FROM t;
SELECT s.id, json_object_agg(s.id, s) OVER (PARTITION BY s.x > 0 ORDER BY s.id) AS j FROM
    (SELECT id, x, name AS "n m" FROM t) s;
SELECT t.id, json_object_agg(coalesce(name, '') || id, ROW(t.id, t.name)) OVER (ORDER BY t.id) AS j
    FROM t;
SELECT s.x, json_agg(json_agg(s)) OVER (ORDER BY s.x) AS j FROM (SELECT x, name FROM t) s GROUP BY s.x;
