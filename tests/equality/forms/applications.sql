-- What GraphQL servers and mappers of objects send: nested rows and arrays in order.
-- schema
CREATE TABLE author (id int PRIMARY KEY, name text, "createdAt" timestamptz, meta jsonb);
CREATE TABLE post (id int PRIMARY KEY, author_id int, title text, score int, tags text[]);
CREATE TABLE comment (id int PRIMARY KEY, post_id int, body text);
ALTER TABLE author REPLICA IDENTITY FULL; ALTER TABLE post REPLICA IDENTITY FULL;
INSERT INTO author VALUES
    (1,'Ann','2024-01-01','{"a":1}'),(2,'Bo',NULL,NULL),(3,NULL,'2023-01-01','[]');
INSERT INTO post VALUES
    (10,1,'x',3,'{a,b}'),(11,1,'y',7,NULL),(12,2,NULL,1,'{}'),(13,NULL,'z',NULL,'{c}'),(14,1,'w',5,'{q}');
INSERT INTO comment VALUES (100,10,'c1'),(101,10,'c0'),(102,12,NULL),(103,11,'k');
-- changes
INSERT INTO post VALUES (15,3,'new',9,'{n}'),(16,1,'aa',4,NULL);
UPDATE author SET name = 'Zed', "createdAt" = NULL WHERE id = 1;
UPDATE post SET score = 100, author_id = 2 WHERE id = 10;
DELETE FROM comment WHERE id = 101;
DELETE FROM author WHERE id = 2;
DELETE FROM post;
-- queries
SELECT "t1"."id", "t1"."name", "author_posts"."__data__" AS "posts" FROM "public"."author" AS
    "t1" LEFT JOIN LATERAL (SELECT COALESCE(JSONB_AGG("__data__"), '[]') AS "__data__"
    FROM (SELECT "t4"."__data__" FROM (SELECT JSONB_BUILD_OBJECT('id', "t3"."id", 'title',
    "t3"."title") AS "__data__", "t3"."id", "t3"."score" FROM (SELECT "t2".* FROM
    "public"."post" AS "t2" WHERE "t1"."id" = "t2"."author_id") AS "t3" ORDER BY "t3"."score" DESC,
    "t3"."id" LIMIT 2) AS "t4") AS "t5") AS "author_posts" ON TRUE;
SELECT "t1"."id", (SELECT COALESCE(JSONB_AGG("t3"."d" ORDER BY "t3"."id"), '[]') FROM (SELECT
    JSONB_BUILD_OBJECT('id', p.id) AS d, p.id FROM post p WHERE p.author_id = t1.id) t3) AS q FROM
    author t1;
select "authors"."id", "authors_posts"."data" as "posts" from (select * from "author" "authors"
    order by "authors"."name" limit 2) "authors" left join lateral (select
    coalesce(json_agg(json_build_array("authors_posts"."id", "authors_posts"."title",
    "authors_posts_comments"."data")), '[]'::json) as "data" from (select * from "post"
    "authors_posts" where "authors_posts"."author_id" = "authors"."id" order by
    "authors_posts"."score" desc nulls last, "authors_posts"."id") "authors_posts" left join lateral
    (select coalesce(json_agg(json_build_array("c"."id", "c"."body")), '[]'::json) as "data" from
    (select * from "comment" "c" where "c"."post_id" = "authors_posts"."id" order by "c"."body",
    "c"."id") "c") "authors_posts_comments" on true) "authors_posts" on true;
WITH source_rows AS (SELECT "public"."author"."id", "public"."author"."name",
    COALESCE("author_posts"."author_posts", '[]') AS "post" FROM "public"."author" LEFT JOIN
    LATERAL (SELECT json_agg("author_posts")::jsonb AS "author_posts" FROM (SELECT "post_1"."id",
    "post_1"."title" FROM "public"."post" AS "post_1" WHERE "post_1"."author_id" =
    "public"."author"."id" ORDER BY "post_1"."score") AS "author_posts") AS "author_posts" ON TRUE
    ORDER BY "public"."author"."id") SELECT null::bigint AS total_result_set,
    pg_catalog.count(_row) AS page_total, coalesce(json_agg(_row), '[]') AS body
    FROM (SELECT * FROM source_rows) _row;
WITH source_rows AS (SELECT "public"."post".*, row_to_json("post_authors".*)::jsonb AS "author"
    FROM "public"."post" LEFT JOIN LATERAL (SELECT "author_1"."name", "author_1"."id" FROM
    "public"."author" AS "author_1" WHERE "author_1"."id" = "public"."post"."author_id") AS
    "post_authors" ON TRUE) SELECT coalesce(json_agg(_row ORDER BY _row.id), '[]')
    AS body FROM source_rows _row;
with __part_0__ as (select to_json((json_build_object('__identifiers'::text,
    json_build_array(__part_1__."id"), 'id'::text, (__part_1__."id"), '@posts'::text, (with
    __part_2__ as (select to_json((json_build_object('title'::text, (__part_3__."title")))) as
    "@nodes" from (select __part_3__.* from "public"."post" as __part_3__ where
    (__part_3__."author_id" = __part_1__."id") and (TRUE) and (TRUE) order by __part_3__."id"
    ASC) __part_3__), __part_4__ as (select json_agg(to_json(__part_2__)) as data from
    __part_2__) select json_build_object('data'::text, coalesce((select __part_4__.data from
    __part_4__), '[]'::json)))))) as "@nodes" from (select __part_1__.* from "public"."author" as
    __part_1__ where (TRUE) order by __part_1__."id" DESC) __part_1__), __part_5__ as (select
    json_agg(to_json(__part_0__)) as data from __part_0__) select coalesce((select
    __part_5__.data from __part_5__), '[]'::json) as "data";
SELECT a.id, (SELECT row_to_json(x) FROM (SELECT p.id, p.title FROM post p WHERE p.author_id = a.id
    ORDER BY p.score DESC, p.id LIMIT 1) x) AS top FROM author a;
SELECT a.id, CASE WHEN x IS NULL THEN NULL ELSE row_to_json(x) END AS j FROM author a LEFT JOIN
    LATERAL (SELECT p.id, p.title FROM post p WHERE p.author_id = a.id ORDER BY p.score DESC, p.id
    LIMIT 1) x ON true;
SELECT a.id, to_jsonb(a) || jsonb_build_object('posts', (SELECT coalesce(jsonb_agg(to_jsonb(p) -
    'author_id' ORDER BY p.id), '[]') FROM post p WHERE p.author_id = a.id)) AS doc FROM author a;
SELECT jsonb_build_object('type', 'FeatureCollection', 'features', jsonb_agg(f)) FROM (SELECT
    jsonb_build_object('id', id, 'p', to_jsonb(row) - 'id') AS f FROM (SELECT id, title FROM post
    ORDER BY id) row) features;
SELECT array_to_json(array_agg(row_to_json(d))) FROM (SELECT id, name, (SELECT
    array_to_json(array_agg(row_to_json(d2))) FROM (SELECT id, title FROM post WHERE author_id =
    author.id ORDER BY score DESC) d2) AS posts FROM author ORDER BY name) d;
SELECT a.id, json_agg(p) FILTER (WHERE p.id IS NOT NULL) AS posts FROM author a LEFT JOIN (SELECT
    id, author_id, title FROM post) p ON p.author_id = a.id AND p.id < 11 GROUP BY a.id;
SELECT a.id, (SELECT json_object_agg(s.title, s) FROM (SELECT p.title, p.score FROM post p WHERE
    p.author_id = a.id AND p.title IS NOT NULL ORDER BY p.title) s) AS m FROM author a;
SELECT a.id, (SELECT string_agg(t.tag, ',') FROM (SELECT unnest(p.tags) AS tag FROM post p WHERE
    p.author_id = a.id ORDER BY 1 DESC) t) AS tags FROM author a;
SELECT a.id, array(SELECT row_to_json(r) FROM (SELECT p.id, p.score FROM post p WHERE p.author_id =
    a.id ORDER BY p.score) r)::text AS x FROM author a;
SELECT (SELECT json_agg(row_to_json((SELECT c FROM (SELECT p.id, p.title, a.name) c))) FROM (SELECT
    * FROM post WHERE author_id = a.id ORDER BY id) p) AS z FROM author a;
SELECT row_to_json((SELECT e FROM (SELECT a.id AS "authorId", a."createdAt", (SELECT max(p.score)
    FROM post p WHERE p.author_id = a.id) AS "maxScore") e)) AS j FROM author a;
SELECT json_agg(json_build_object('a', x.id, 'r', x.r)) FROM (SELECT id, rank() OVER (ORDER BY score
    DESC NULLS LAST) AS r FROM post ORDER BY rank() OVER (ORDER BY score DESC NULLS LAST), id) x;
SELECT x.k, json_agg(x) FROM (SELECT author_id AS k, id FROM post ORDER BY author_id, id DESC) x
    GROUP BY x.k;
SELECT json_agg(x) FROM (SELECT author_id, count(*) AS n, json_agg(title) AS t FROM (SELECT * FROM
    post ORDER BY title DESC) p GROUP BY author_id ORDER BY 1) x;
SELECT xmlagg(x) IS NULL FROM (SELECT NULL::xml AS x FROM post ORDER BY score) t;
SELECT jsonb_agg(t.*) FROM (SELECT id FROM author ORDER BY id DESC) t;
SELECT array_agg(DISTINCT author_id) FROM (SELECT * FROM post ORDER BY score) t;
SELECT percentile_disc(0.5) WITHIN GROUP (ORDER BY score), mode() WITHIN GROUP (ORDER BY author_id)
    AS m FROM (SELECT * FROM post ORDER BY title) t;
SELECT array_agg(t.id) FROM (SELECT id FROM author UNION ALL SELECT id FROM post ORDER BY id DESC
    LIMIT 5) t;
SELECT array_agg(id) FROM (SELECT id, row_number() OVER (PARTITION BY author_id ORDER BY id) AS n
    FROM post ORDER BY id DESC) t WHERE n = 1;
SELECT bool_and(id > 0), array_agg(id), sum(id), count(*) AS c FROM (SELECT id FROM post ORDER BY
    -id) t;
SELECT array_agg(a || b) FROM (SELECT id::text AS a, coalesce(title, '?') AS b FROM post ORDER BY b,
    a) t;
SELECT string_agg(t.name, ',') FROM (SELECT lower(name) AS name FROM author ORDER BY author.name
    DESC NULLS LAST) t;
SELECT array_agg(array[id, score]) FROM (SELECT * FROM post ORDER BY score DESC) t;
SELECT range_agg(int4range(id, id + 1)) FROM (SELECT * FROM post ORDER BY score DESC) t;
WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 3) SELECT array_agg(n)
    FROM (SELECT n FROM r ORDER BY n DESC) s;
SELECT array_agg(x) FROM (SELECT DISTINCT author_id AS x FROM post ORDER BY author_id DESC) s;
SELECT array_agg(x) FROM (SELECT DISTINCT author_id + 1 AS x FROM post ORDER BY author_id + 1 DESC)
    s;
SELECT array_agg(x) FROM (SELECT DISTINCT ON (author_id) id AS x FROM post ORDER BY author_id DESC,
    score) s;
SELECT t.author_id, u.a FROM (SELECT DISTINCT author_id FROM post) t LEFT JOIN LATERAL (SELECT
    array_agg(id) AS a FROM (SELECT id FROM post WHERE post.author_id IS NOT DISTINCT FROM
    t.author_id ORDER BY score DESC) s) u ON true;
SELECT array_agg(id) FROM (SELECT id FROM post ORDER BY score OFFSET 1) s;
SELECT array_agg(id) FROM (SELECT id FROM post ORDER BY score OFFSET 0) s;
SELECT array_agg(id ORDER BY score DESC) FROM (SELECT * FROM post ORDER BY id) s;
SELECT array_agg(id ORDER BY author_id) FROM (SELECT * FROM post ORDER BY id DESC) s WHERE author_id
    = 1;
SELECT array_agg(id) FROM (SELECT id FROM (SELECT id, score FROM post ORDER BY score) s OFFSET 0) q;
SELECT array_agg(id) FROM (SELECT id FROM (SELECT id, score FROM post ORDER BY score DESC) s LIMIT
    2) q;
SELECT array_agg(s) FROM (SELECT id, (SELECT count(*) FROM comment c WHERE c.post_id = p.id) AS s
    FROM post p ORDER BY (SELECT count(*) FROM comment c WHERE c.post_id = p.id) DESC, p.id) q;
SELECT array_agg(id) FROM (SELECT id FROM post ORDER BY title COLLATE "C" DESC NULLS FIRST, id) q;
SELECT array_agg(id) FROM (SELECT id FROM author ORDER BY meta, id) q;
SELECT array_agg(id) FROM (SELECT p.id FROM post p JOIN author a ON a.id = p.author_id ORDER BY
    a.name, p.score) q;
SELECT array_agg(id) FROM (SELECT p.id FROM post p FULL JOIN author a ON a.id = p.author_id ORDER BY
    a.id, p.score) q;
SELECT EXISTS (SELECT array_agg(id) FROM (SELECT id FROM post ORDER BY id) q) AS e;
SELECT id FROM author WHERE id = ANY ((SELECT array_agg(author_id) FROM (SELECT author_id FROM post
    ORDER BY score LIMIT 2) q)::int[]);
