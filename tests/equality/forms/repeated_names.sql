-- Rows whose columns have one name, which PostgreSQL numbers in the text of a view.
-- schema
CREATE TABLE t (id int PRIMARY KEY, name text, x int, "Odd ""N (x)" text);
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t VALUES (1,'Ann',1,'o'),(2,NULL,NULL,NULL);
CREATE TABLE u (id int PRIMARY KEY, t_id int, name text);
INSERT INTO u VALUES (10,1,'a'),(11,1,'b'),(12,2,NULL),(13,NULL,'z');
-- changes
INSERT INTO t VALUES (3,'Cy',3,'p');
UPDATE t SET name = 'Zed' WHERE id = 1;
DELETE FROM u WHERE id = 10;
INSERT INTO u VALUES (14,3,'q');
DELETE FROM t WHERE id = 2;
-- queries
SELECT id, (SELECT row_to_json(z) FROM (SELECT t.id, t.id, t.name AS id) z) FROM t;
SELECT row_to_json(z) FROM (SELECT t.*, u.* FROM t JOIN u ON u.t_id = t.id) z;
SELECT json_agg(z ORDER BY z.t_id, z.x) FROM (SELECT t.*, u.* FROM t LEFT JOIN u ON u.t_id = t.id) z;
SELECT to_jsonb(z) FROM (SELECT t.*, u.* FROM t JOIN u ON u.t_id = t.id) z;
WITH w AS (SELECT t.*, u.* FROM t JOIN u ON u.t_id = t.id) SELECT row_to_json(w) FROM w;
SELECT row_to_json(a) FROM t LEFT JOIN (SELECT u.t_id, u.name, u.name FROM u) a ON a.t_id = t.id;
SELECT t.id, json_agg((SELECT z FROM (SELECT t.id, t.id, t."Odd ""N (x)", t."Odd ""N (x)") z)) FROM
    t GROUP BY t.id;
SELECT t.id, (SELECT row_to_json(a) FROM (SELECT 1 AS k) o LEFT JOIN (SELECT t.id, t.id, 2 AS k) a
    ON a.k = o.k) FROM t;
SELECT t.id, (SELECT json_agg(z) FROM (SELECT t.id, t.id UNION ALL SELECT 7, t.x) z) IS NULL FROM t;
SELECT t.id, (SELECT json_agg(z ORDER BY z.y) FROM (SELECT t.id, t.id, t.x AS y) z) FROM t;
SELECT row_to_json(z) FROM (SELECT t.id, t.id, t.id AS id_1 FROM t) z;
SELECT row_to_json(z) FROM (SELECT t.id, t.id FROM t) z(id, id_1);
SELECT t.id, l.* FROM t, LATERAL (SELECT row_to_json(z) FROM (SELECT t.id, t.id) z) l;
SELECT z FROM (SELECT t.id, t.id FROM t) q, LATERAL row_to_json(q) z;
SELECT to_jsonb(z) - 'name' FROM (SELECT t.*, u.* FROM t JOIN u ON u.t_id = t.id) z;
SELECT z.x, row_to_json(z) FROM (SELECT t.*, u.* FROM t JOIN u ON u.t_id = t.id) z WHERE z.x > 0;
SELECT z.x, json_agg(z ORDER BY z.t_id, z."Odd ""N (x)") FROM (SELECT t.*, u.t_id, u.t_id AS x2 FROM
    t JOIN u ON u.t_id = t.id) z GROUP BY z.x;
SELECT z.x, json_agg(row_to_json(z)::text ORDER BY row_to_json(z)::text) FROM (SELECT t.*, u.* FROM
    t JOIN u ON u.t_id = t.id) z GROUP BY z.x;
SELECT row_to_json(z) FROM (VALUES (1, 2)) z(a, a), t;
SELECT row_to_json(j) FROM (SELECT * FROM t JOIN u USING (id)) j;
SELECT row_to_json(j) FROM (SELECT * FROM t JOIN u USING (name)) j;
SELECT row_to_json(j) FROM (SELECT * FROM t NATURAL FULL JOIN u) j;
SELECT (SELECT json_agg(q ORDER BY q.t_id) FROM (SELECT u.*, t.* FROM u WHERE u.t_id = t.id) q) FROM
    t;
SELECT row_to_json(z) FROM (SELECT t.id AS
    aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa, t.x AS
    aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa FROM t) z;
SELECT row_to_json(z) FROM (SELECT count(*), count(*), 1, 2, coalesce(max(id), 0), coalesce(min(id),
    0) FROM t) z;
SELECT row_to_json((SELECT z FROM (SELECT count(*), count(*), max(t.id), coalesce(max(t.id)),
    max(t.id)::text) z)) FROM t;
SELECT CASE WHEN z.t_id IS NOT NULL THEN row_to_json(z) END FROM t LEFT JOIN (SELECT u.t_id, u.id,
    u.id FROM u) z ON z.t_id = t.id;
