-- A subquery sorted by values of each type, and by what is computed, under an aggregate.
-- schema
CREATE TYPE mood AS ENUM ('sad', 'ok', 'glad'); CREATE TYPE pair AS (a int, b text);
CREATE DOMAIN pos AS int CHECK (VALUE > -100);
CREATE TABLE t (id int PRIMARY KEY, n numeric, f float8, s text, m mood, p pair, d pos, ts
    timestamptz, iv interval, b bytea, u uuid, j jsonb, a int[], bp char(4), c text COLLATE "C", bo
    bool, r int4range, i inet, by "char");
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t VALUES
    (1,1.50,'NaN','b','glad','(2,x)',3,'2024-01-01','1 day','\x01','00000000-0000-0000-0000-000000000001','{"a":1}','{3}','ab','B',true,'[1,3)','10.0.0.1','a'),
(2,1.5,1,'B','sad','(1,y)',1,'2023-01-01','24:00:00','\x00','00000000-0000-0000-0000-000000000003','1','{1,2}','ab  ','b',false,'[0,3)','9.0.0.1','B'),
(3,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL),
(4,-2,'-Infinity','ä','ok','(2,a)',9,'2025-01-01','-1 day','\xff','00000000-0000-0000-0000-000000000002','"x"','{}','a','A',NULL,'empty','10.0.0.0/8','z');
CREATE VIEW v1 AS SELECT * FROM t ORDER BY s DESC; CREATE VIEW v2 AS SELECT id, s FROM v1 WHERE id >
    1;
-- changes
INSERT INTO t (id, n, s, m, p) VALUES (5, 7, 'zz', 'ok', '(0,)');
UPDATE t SET n = -n, f = -f, id = id + 10;
DELETE FROM t WHERE s = 'b';
-- queries
SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY n DESC, id) s;
SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY f NULLS FIRST, id) s;
SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY m DESC NULLS LAST, id) s;
SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY p, id) s;
SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY (p).b DESC, id) s;
SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY d, id DESC) s;
SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY ts DESC, id) s;
SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY iv DESC, id) s;
SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY b, id) s;
SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY j, id) s;
SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY a DESC, id) s;
SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY bp, id) s;
SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY c, s COLLATE "C", id) s;
SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY r, id) s;
SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY by, id) s;
SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY t.id % 2, 1 DESC) s;
SELECT array_agg(s.id) FROM (SELECT id, s AS x FROM t ORDER BY x DESC, id) s;
SELECT array_agg(id) FROM (SELECT id FROM t ORDER BY length(s), s || 'x' DESC, id) s;
SELECT string_agg(s, ',') FROM v1;
SELECT string_agg(s, ',') FROM v2;
SELECT string_agg(s, ',') FROM (SELECT * FROM v2) q;
SELECT (SELECT string_agg(s, ',') FROM v1 WHERE v1.id <> t.id) FROM t;
SELECT json_agg(v1) IS NOT NULL FROM v1;
SELECT m, (SELECT string_agg(q.s, ',') FROM (SELECT * FROM t t2 WHERE t2.m = t.m ORDER BY t2.id
    DESC) q) AS l FROM t;
SELECT array_agg(id), (array_agg(s))[2] AS x FROM (SELECT id, s, row_number() OVER (ORDER BY id
    DESC) AS rn FROM t ORDER BY rn) q WHERE rn <= 3;
SELECT array_agg(q.id) FROM (SELECT id FROM t ORDER BY ROW(id)) q HAVING count(*) > 100;
SELECT count(*), sum(id), bit_and(id), bool_or(bo), max(s) FROM (SELECT * FROM t ORDER BY s) q;
SELECT q.id FROM (SELECT id FROM t ORDER BY id) q WHERE q.id IN (SELECT unnest(array_agg(w.id)) FROM
    (SELECT id FROM t ORDER BY id DESC LIMIT 2) w);
SELECT array_agg(id) FILTER (WHERE id > 1) AS a, array_agg(s) FILTER (WHERE m = 'ok') AS b FROM
    (SELECT * FROM t ORDER BY n, id) q;
SELECT jsonb_agg(q.x || q.y) FROM (SELECT s AS x, coalesce(s, '') AS y FROM t ORDER BY 2, 1) q;
SELECT array_agg(e) FROM (SELECT unnest(a) AS e FROM t ORDER BY e DESC) q;
SELECT array_agg(e) FROM (SELECT e FROM t, unnest(t.a) WITH ORDINALITY x(e, o) ORDER BY t.id, o) q;
SELECT string_agg(s, ',') || (SELECT string_agg(s, ';') FROM (SELECT s FROM t ORDER BY s COLLATE "C"
    DESC) z) AS k FROM (SELECT s FROM t ORDER BY s COLLATE "C") q;
SELECT id FROM (SELECT id, s FROM t ORDER BY s COLLATE "C" DESC NULLS LAST) q FETCH FIRST 2 ROWS
    ONLY;
SELECT id FROM (SELECT id, s FROM t ORDER BY s COLLATE "C" DESC NULLS LAST) q WHERE id > 1 OFFSET 1;
