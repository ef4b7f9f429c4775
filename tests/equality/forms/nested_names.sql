-- The names in rows inside of rows: those that a column implies, odd ones, repeated ones.
-- schema
CREATE TABLE t (id int PRIMARY KEY, name text, x int, y int, "Odd Name" text, "SELECT" int, "q""u"
    text, "ünï" text, count int, "coalesce" text, "?column?" int, c1 int, a1 int, "case" text, arr
    int[], j jsonb);
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t VALUES
    (1,'Ann',1,2,'o',3,'q','u',4,'c',5,6,7,'k','{1,2}','{"a":1}'),
    (2,NULL,NULL,5,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE u (id int PRIMARY KEY, t_id int, v text);
INSERT INTO u VALUES (10,1,'a'),(11,1,'b'),(12,2,NULL),(13,NULL,'z');
-- changes
INSERT INTO t VALUES (3,'Cy',3,1,'x',1,'','é',0,'n',1,2,9,'z','{}','[]');
UPDATE t SET name = 'Zed', "Odd Name" = 'new', "ünï" = NULL, c1 = 99 WHERE id = 1;
DELETE FROM u WHERE id = 10;
INSERT INTO u VALUES (14,3,'q');
DELETE FROM t WHERE id = 2;
-- queries
SELECT t.id, row_to_json((SELECT e FROM (SELECT t.id, t.name) e)) FROM t;
SELECT t.id, to_jsonb((SELECT e FROM (SELECT t.id, t.name) e)) FROM t;
SELECT json_agg((SELECT e FROM (SELECT t.id, t.name) e) ORDER BY t.id) FROM t;
SELECT (SELECT max(z.x) FROM (SELECT t.x UNION ALL SELECT t.y) z) FROM t;
SELECT id, (SELECT row_to_json(z) FROM (SELECT t."Odd Name", t."SELECT", t."q""u", t."ünï", t.count,
    t."coalesce", t."?column?", t.c1, t.a1, t."case") z) FROM t;
SELECT id, (SELECT row_to_json(z) FROM (SELECT t.id, t.id, t.name AS id) z) FROM t;
SELECT id, row_to_json((SELECT e FROM (SELECT t.*) e)) FROM t;
SELECT id, row_to_json((SELECT e FROM (SELECT t AS tt, t.id) e)) FROM t;
SELECT id, (SELECT max(c1) FROM (VALUES (1), (t.x)) v(c1)) FROM t;
SELECT id, (SELECT max(v.c1 + t.x + v.c2) FROM (VALUES ('1'::bigint, 2.5), (t.y, 3)) v(c1, c2)) FROM
    t;
SELECT id, (SELECT array_agg(c1 ORDER BY c1) FROM unnest(t.arr) c1) FROM t;
SELECT id, (SELECT row_to_json(b) FROM (SELECT t.id, t.x) a NATURAL FULL JOIN (SELECT t.id, t.y) b)
    FROM t;
SELECT id, (WITH w AS (SELECT t.id, t.x) SELECT row_to_json(w) FROM w) FROM t;
SELECT id, (WITH w AS (SELECT t.id, t.x) SELECT json_agg(w) FROM w) FROM t;
SELECT id, (SELECT json_agg(z ORDER BY z.name) FROM (SELECT t.name UNION SELECT t."Odd Name") z)
    FROM t;
SELECT id, (SELECT json_agg(z) FROM (SELECT t.name, t.x ORDER BY t.name LIMIT 1) z) FROM t;
SELECT id, (SELECT json_agg(z) FROM (SELECT DISTINCT t.name, t.x) z) FROM t;
SELECT id, ARRAY(SELECT row_to_json(z) FROM (SELECT t.name, t.x) z)::text FROM t;
SELECT id, EXISTS (SELECT t.name INTERSECT SELECT t."Odd Name") FROM t;
SELECT id, t.name IN (SELECT z.name FROM (SELECT t.name, t.x) z) FROM t;
SELECT id, l.* FROM t, LATERAL (SELECT t.name, t.x) l;
SELECT id, row_to_json(l) FROM t, LATERAL (SELECT t.name, t.x) l;
SELECT t.id, k.* FROM t, jsonb_each((SELECT to_jsonb(e) FROM (SELECT t.id, t.name) e)) k;
SELECT t.id, jsonb_object_keys((SELECT to_jsonb(e) FROM (SELECT t.id, t.name) e)) FROM t;
SELECT t.id, max((SELECT to_jsonb(e) FROM (SELECT t.id, t.name) e)::text) OVER (ORDER BY t.id) FROM
    t;
SELECT t.x, json_agg((SELECT e FROM (SELECT u.id, u.v) e) ORDER BY u.id) FROM t LEFT JOIN u ON
    u.t_id = t.id GROUP BY t.x;
SELECT t.id, row_to_json((SELECT e FROM (SELECT t.id, (SELECT count(*) FROM u WHERE u.t_id = t.id)
    AS n) e)) FROM t;
SELECT t.id, row_to_json((SELECT e FROM (SELECT t.id, u.v) e)) FROM t LEFT JOIN u ON u.t_id = t.id;
SELECT row_to_json((SELECT e FROM (SELECT max(t.id), min(t.name) AS m) e)) FROM t;
SELECT row_to_json((SELECT e FROM (SELECT t.x, count(*)) e)) FROM t GROUP BY t.x;
SELECT row_to_json((SELECT e FROM (SELECT id, v) e)) FROM t FULL JOIN u USING (id);
SELECT coalesce(json_agg("root" ORDER BY "root.pg.id" ASC NULLS LAST), '[]') AS "root" FROM (SELECT
    row_to_json((SELECT "_4_e" FROM (SELECT "_0_root.base"."id" AS "id", "_3_root.ar.root.us"."us"
    AS "us") AS "_4_e")) AS "root", "_0_root.base"."id" AS "root.pg.id" FROM (SELECT * FROM
    "public"."t" WHERE ('true')) AS "_0_root.base" LEFT OUTER JOIN LATERAL (SELECT
    coalesce(json_agg("us"), '[]') AS "us" FROM (SELECT row_to_json((SELECT "_2_e" FROM (SELECT
    "_1_root.ar.us.base"."v" AS "v") AS "_2_e")) AS "us" FROM (SELECT * FROM "public"."u" WHERE
    (("_0_root.base"."id") = ("t_id"))) AS "_1_root.ar.us.base") AS "_3_root.us") AS
    "_3_root.ar.root.us" ON ('true')) AS "_5_root";
SELECT t.id FROM t WHERE (SELECT to_jsonb(e) FROM (SELECT t.id, t.name) e) ? 'name';
SELECT t.id FROM t LEFT JOIN u ON (SELECT to_jsonb(e) FROM (SELECT t.id, u.t_id) e) @>
    jsonb_build_object('id', u.t_id, 't_id', t.id);
SELECT (SELECT to_jsonb(e) FROM (SELECT t.id, t.name) e) AS k, count(*) FROM t GROUP BY 1;
SELECT (SELECT to_jsonb(e) FROM (SELECT t.x, t.y) e) AS k FROM t ORDER BY (SELECT to_jsonb(e) FROM
    (SELECT t.x, t.y) e) LIMIT 2;
SELECT id, (SELECT tidemark_row.a1 FROM (SELECT t.y AS a1) tidemark_row) FROM t;
SELECT id, (SELECT s.c1 + t.x FROM (SELECT t.y AS c1) s) FROM t;
SELECT id, (SELECT q.c0 + t.x + q.value FROM (SELECT t.y AS c0, t.x AS value) q) FROM t;
SELECT id, json_build_object('a', (SELECT row_to_json(r) FROM (SELECT t.x AS "X", t."Odd Name") r))
    FROM t;
SELECT id, (SELECT count(*) FROM (SELECT t.x AS id) a FULL JOIN (SELECT t.y AS id) b USING (id) WHERE
    id > 2) AS n FROM t;
SELECT id, (SELECT json_agg(q ORDER BY q.id) FROM (SELECT id, z FROM (SELECT t.x AS id, 1 AS z) a FULL
    JOIN (SELECT t.y AS id) b USING (id)) q) AS z FROM t;
SELECT id, (SELECT max(s.id) FROM (SELECT id FROM (SELECT t.x AS id) a FULL JOIN (SELECT t.y AS id) b
    USING (id) UNION ALL SELECT u.t_id) s) AS m FROM t FULL JOIN u USING (id);
SELECT id, (SELECT max(s.m) FROM (SELECT id AS m UNION ALL SELECT t.x) s) AS m FROM t FULL JOIN u
    USING (id);
