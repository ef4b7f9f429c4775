-- Windows without ORDER BY over a subquery with one.
-- schema
CREATE TABLE t (id int PRIMARY KEY, name text, x int, g text, d int);
ALTER TABLE t REPLICA IDENTITY FULL;
INSERT INTO t VALUES
    (1,'Ann',1,'a',1),(2,NULL,NULL,NULL,0),
    (3,'Cy',9,'a',0),(4,'Bo',-3,'b',3),(5,'Di',5,'a',0),(6,'Ed',0,'b',1);
-- changes
INSERT INTO t VALUES (7,'Al',4,'a');
UPDATE t SET x = 100 WHERE id = 4;
DELETE FROM t WHERE id = 2;
UPDATE t SET x = NULL WHERE id = 3;
DELETE FROM t;
INSERT INTO t VALUES (1,'A',2,'g'),(2,'B',1,'g');
-- queries
SELECT row_number() OVER (), s.* FROM (SELECT * FROM t ORDER BY x DESC) s;
SELECT row_number() OVER () AS r, name, lag(name) OVER () AS l, lead(x) OVER () AS m FROM (SELECT
    name, x FROM t ORDER BY x) s;
SELECT array_agg(name) OVER () AS r, id FROM (SELECT name, id FROM t ORDER BY x) s;
SELECT first_value(name) OVER () AS r, last_value(name) OVER () AS q, nth_value(name, 2) OVER () AS
    n, id FROM (SELECT name, id FROM t ORDER BY x) s;
SELECT sum(x) OVER (ROWS UNBOUNDED PRECEDING) AS r, id FROM (SELECT * FROM t ORDER BY x DESC) s;
SELECT array_agg(name) OVER (ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE CURRENT ROW) AS r, id
    FROM (SELECT * FROM t ORDER BY x DESC) s;
SELECT array_agg(name) OVER (ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING EXCLUDE TIES) AS r, id FROM
    (SELECT * FROM t ORDER BY x DESC) s;
SELECT rank() OVER () AS r, dense_rank() OVER () AS q, ntile(2) OVER () AS n, id FROM (SELECT * FROM
    t ORDER BY x DESC) s;
SELECT json_agg(q) FROM (SELECT row_number() OVER () AS r, name FROM (SELECT * FROM t ORDER BY x
    DESC) s) q;
SELECT json_agg(q) FROM (SELECT row_number() OVER w AS r, name FROM (SELECT * FROM t ORDER BY x
    DESC) s WINDOW w AS ()) q;
SELECT json_agg(q) FROM (SELECT row_number() OVER (ORDER BY id) AS r, name FROM t ORDER BY x DESC) q;
SELECT json_agg(q) FROM (SELECT row_number() OVER (ORDER BY x DESC, id) AS r, name FROM t ORDER BY r
    DESC) q;
SELECT row_number() OVER () AS r, g, n FROM (SELECT g, count(*) AS n FROM t GROUP BY g ORDER BY
    count(*) DESC, g) s;
SELECT sum(x) OVER (PARTITION BY g) AS r, id FROM (SELECT * FROM t ORDER BY x DESC) s;
SELECT r, name FROM (SELECT row_number() OVER () AS r, name FROM (SELECT * FROM t ORDER BY x DESC,
    id) s) q WHERE r <= 2;
SELECT string_agg(name || x, ',') OVER () AS r FROM (SELECT * FROM t ORDER BY d, x) s;
SELECT id, row_number() OVER (ORDER BY name COLLATE "C" USING ~>~, id) AS n FROM t;
SELECT id, array_agg(id) OVER (ORDER BY name COLLATE "C" USING ~>~, id) AS a FROM t;
