"""A database of movies in the shape of the Join Order Benchmark: 21 tables around `title`, and
queries that join up to 17 of them. Schema and queries are our own.
"""

from __future__ import annotations

_KINDS = ("company_type", "info_type", "kind_type", "link_type", "role_type", "comp_cast_type")
_TEXTS = {"company_type": "kind", "info_type": "info", "kind_type": "kind", "link_type": "link"}
_TEXTS |= {"role_type": "role", "comp_cast_type": "kind"}

DDL = "\n".join(
    [
        *(f"CREATE TABLE {t} (id integer PRIMARY KEY, {_TEXTS[t]} varchar(64));" for t in _KINDS),
        "CREATE TABLE title (id integer PRIMARY KEY, title text NOT NULL, imdb_index varchar(12),"
        " kind_id integer NOT NULL, production_year integer, episode_of_id integer,"
        " season_nr integer, episode_nr integer, series_years varchar(49));",
        "CREATE TABLE name (id integer PRIMARY KEY, name text NOT NULL, gender varchar(1),"
        " name_pcode_cf varchar(5), surname_pcode varchar(5));",
        "CREATE TABLE aka_name (id integer PRIMARY KEY, person_id integer NOT NULL, name text);",
        "CREATE TABLE aka_title (id integer PRIMARY KEY, movie_id integer NOT NULL, title text,"
        " kind_id integer NOT NULL, production_year integer);",
        "CREATE TABLE char_name (id integer PRIMARY KEY, name text NOT NULL);",
        "CREATE TABLE cast_info (id integer PRIMARY KEY, person_id integer NOT NULL,"
        " movie_id integer NOT NULL, person_role_id integer, note text, nr_order integer,"
        " role_id integer NOT NULL);",
        "CREATE TABLE company_name (id integer PRIMARY KEY, name text NOT NULL,"
        " country_code varchar(6));",
        "CREATE TABLE keyword (id integer PRIMARY KEY, keyword text NOT NULL);",
        "CREATE TABLE movie_keyword (id integer PRIMARY KEY, movie_id integer NOT NULL,"
        " keyword_id integer NOT NULL);",
        "CREATE TABLE movie_companies (id integer PRIMARY KEY, movie_id integer NOT NULL,"
        " company_id integer NOT NULL, company_type_id integer NOT NULL, note text);",
        "CREATE TABLE movie_info (id integer PRIMARY KEY, movie_id integer NOT NULL,"
        " info_type_id integer NOT NULL, info text NOT NULL, note text);",
        "CREATE TABLE movie_info_idx (id integer PRIMARY KEY, movie_id integer NOT NULL,"
        " info_type_id integer NOT NULL, info text NOT NULL, note text);",
        "CREATE TABLE movie_link (id integer PRIMARY KEY, movie_id integer NOT NULL,"
        " linked_movie_id integer NOT NULL, link_type_id integer NOT NULL);",
        "CREATE TABLE person_info (id integer PRIMARY KEY, person_id integer NOT NULL,"
        " info_type_id integer NOT NULL, info text NOT NULL, note text);",
        "CREATE TABLE complete_cast (id integer PRIMARY KEY, movie_id integer,"
        " subject_id integer NOT NULL, status_id integer NOT NULL);",
    ]
)

QUERIES = {
    "companies of sequels": """
        SELECT min(cn.name) AS company, min(t.title) AS sequel
        FROM company_name cn, company_type ct, keyword k, link_type lt, movie_companies mc,
            movie_keyword mk, movie_link ml, title t
        WHERE cn.country_code <> '[pl]' AND (cn.name LIKE '%Film%' OR cn.name LIKE '%Warner%')
            AND ct.kind = 'production companies' AND k.keyword = 'sequel'
            AND lt.link LIKE '%follow%' AND mc.note IS NULL
            AND t.production_year BETWEEN 1950 AND 2000
            AND lt.id = ml.link_type_id AND ml.movie_id = t.id AND t.id = mk.movie_id
            AND mk.keyword_id = k.id AND t.id = mc.movie_id AND mc.company_type_id = ct.id
            AND mc.company_id = cn.id AND ml.movie_id = mk.movie_id
            AND ml.movie_id = mc.movie_id AND mk.movie_id = mc.movie_id""",
    "ratings of horror": """
        SELECT min(mi.info) AS budget, min(mi_idx.info) AS votes, min(t.title) AS film
        FROM cast_info ci, info_type it1, info_type it2, movie_info mi, movie_info_idx mi_idx,
            name n, title t, keyword k, movie_keyword mk
        WHERE ci.note IN ('(writer)', '(head writer)', '(story)', '(story editor)')
            AND it1.info = 'genres' AND it2.info = 'votes'
            AND mi.info IN ('Horror', 'Thriller', 'Sci-Fi') AND n.gender = 'm'
            AND k.keyword IN ('murder', 'blood', 'gore', 'death')
            AND t.id = mi.movie_id AND t.id = mi_idx.movie_id AND t.id = ci.movie_id
            AND t.id = mk.movie_id AND ci.movie_id = mi.movie_id
            AND ci.movie_id = mi_idx.movie_id AND mi.movie_id = mi_idx.movie_id
            AND n.id = ci.person_id AND it1.id = mi.info_type_id AND it2.id = mi_idx.info_type_id
            AND k.id = mk.keyword_id""",
    "voices": """
        SELECT min(an.name) AS alias, min(chn.name) AS role, min(n.name) AS voice,
            min(t.title) AS film
        FROM aka_name an, char_name chn, cast_info ci, company_name cn, info_type it,
            movie_companies mc, movie_info mi, name n, role_type rt, title t
        WHERE ci.note IN ('(voice)', '(voice) (uncredited)', '(voice: English version)')
            AND cn.country_code = '[us]' AND it.info = 'release dates'
            AND mc.note IS NOT NULL AND (mc.note LIKE '%(USA)%' OR mc.note LIKE '%(worldwide)%')
            AND mi.info IS NOT NULL AND (mi.info LIKE 'Japan:%200%' OR mi.info LIKE 'USA:%200%')
            AND n.gender = 'f' AND n.name LIKE '%Ang%' AND rt.role = 'actress'
            AND t.production_year BETWEEN 2005 AND 2009
            AND t.id = mi.movie_id AND t.id = mc.movie_id AND t.id = ci.movie_id
            AND mc.movie_id = ci.movie_id AND mc.movie_id = mi.movie_id
            AND mi.movie_id = ci.movie_id AND cn.id = mc.company_id AND it.id = mi.info_type_id
            AND n.id = ci.person_id AND rt.id = ci.role_id AND n.id = an.person_id
            AND ci.person_id = an.person_id AND chn.id = ci.person_role_id""",
    "twelve relations": """
        SELECT cn.name AS company, mi_idx.info AS rating, t.title AS film, count(*) AS n
        FROM company_name cn, company_type ct, info_type it1, info_type it2, kind_type kt,
            keyword k, movie_companies mc, movie_info mi, movie_info_idx mi_idx, movie_keyword mk,
            title t, aka_title at
        WHERE cn.country_code <> '[us]' AND it1.info = 'countries' AND it2.info = 'rating'
            AND k.keyword IN ('murder', 'murder-in-title', 'blood', 'violence')
            AND kt.kind IN ('movie', 'episode') AND mc.note NOT LIKE '%(USA)%'
            AND mi.info IN ('Sweden', 'Norway', 'Germany', 'Denmark', 'English')
            AND mi_idx.info < '8.5' AND t.production_year > 2005
            AND kt.id = t.kind_id AND t.id = mi.movie_id AND t.id = mk.movie_id
            AND t.id = mi_idx.movie_id AND t.id = mc.movie_id AND mk.movie_id = mi.movie_id
            AND mk.movie_id = mi_idx.movie_id AND mk.movie_id = mc.movie_id
            AND mi.movie_id = mi_idx.movie_id AND mi.movie_id = mc.movie_id
            AND mc.movie_id = mi_idx.movie_id AND k.id = mk.keyword_id
            AND it1.id = mi.info_type_id AND it2.id = mi_idx.info_type_id
            AND ct.id = mc.company_type_id AND cn.id = mc.company_id AND at.movie_id = t.id
        GROUP BY cn.name, mi_idx.info, t.title""",
    "two linked films": """
        SELECT min(cn1.name) AS first_company, min(cn2.name) AS second_company,
            min(mi_idx1.info) AS first_rating, min(mi_idx2.info) AS second_rating,
            min(t1.title) AS first_film, min(t2.title) AS second_film
        FROM company_name cn1, company_name cn2, info_type it1, info_type it2, kind_type kt1,
            kind_type kt2, link_type lt, movie_companies mc1, movie_companies mc2,
            movie_info_idx mi_idx1, movie_info_idx mi_idx2, movie_link ml, title t1, title t2
        WHERE cn1.country_code = '[us]' AND it1.info = 'rating' AND it2.info = 'rating'
            AND kt1.kind IN ('tv series') AND kt2.kind IN ('tv series')
            AND lt.link IN ('sequel', 'follows', 'followed by') AND mi_idx2.info < '3.0'
            AND t2.production_year BETWEEN 2005 AND 2008
            AND lt.id = ml.link_type_id AND t1.id = ml.movie_id AND t2.id = ml.linked_movie_id
            AND it1.id = mi_idx1.info_type_id AND t1.id = mi_idx1.movie_id AND kt1.id = t1.kind_id
            AND cn1.id = mc1.company_id AND t1.id = mc1.movie_id AND ml.movie_id = mi_idx1.movie_id
            AND ml.movie_id = mc1.movie_id AND mi_idx1.movie_id = mc1.movie_id
            AND it2.id = mi_idx2.info_type_id AND t2.id = mi_idx2.movie_id AND kt2.id = t2.kind_id
            AND cn2.id = mc2.company_id AND t2.id = mc2.movie_id
            AND ml.linked_movie_id = mi_idx2.movie_id AND ml.linked_movie_id = mc2.movie_id
            AND mi_idx2.movie_id = mc2.movie_id""",
    "seventeen relations": """
        SELECT min(an.name) AS alias, min(t.title) AS film, min(chn.name) AS role,
            min(pi.info) AS trivia, count(*) AS n
        FROM complete_cast cc, comp_cast_type cct1, comp_cast_type cct2, char_name chn,
            cast_info ci, company_name cn, info_type it, info_type it3, keyword k,
            movie_companies mc, movie_info mi, movie_keyword mk, name n, aka_name an,
            person_info pi, role_type rt, title t
        WHERE cct1.kind = 'cast' AND cct2.kind = 'complete+verified' AND chn.name = 'Queen'
            AND ci.note IN ('(voice)', '(voice) (uncredited)') AND cn.country_code = '[us]'
            AND it.info = 'release dates' AND it3.info = 'trivia'
            AND k.keyword = 'computer-animation'
            AND mi.info LIKE 'USA:%200%' AND n.gender = 'f' AND n.name LIKE '%An%'
            AND rt.role = 'actress' AND t.title = 'Shrek 2'
            AND t.production_year BETWEEN 2000 AND 2010
            AND t.id = mi.movie_id AND t.id = mc.movie_id AND t.id = ci.movie_id
            AND t.id = mk.movie_id AND t.id = cc.movie_id AND mc.movie_id = ci.movie_id
            AND mc.movie_id = mi.movie_id AND mc.movie_id = mk.movie_id
            AND mc.movie_id = cc.movie_id AND mi.movie_id = ci.movie_id
            AND mi.movie_id = mk.movie_id AND mi.movie_id = cc.movie_id
            AND ci.movie_id = mk.movie_id AND ci.movie_id = cc.movie_id
            AND mk.movie_id = cc.movie_id AND cn.id = mc.company_id AND it.id = mi.info_type_id
            AND n.id = ci.person_id AND rt.id = ci.role_id AND n.id = an.person_id
            AND ci.person_id = an.person_id AND chn.id = ci.person_role_id
            AND n.id = pi.person_id AND ci.person_id = pi.person_id AND it3.id = pi.info_type_id
            AND k.id = mk.keyword_id AND cct1.id = cc.subject_id AND cct2.id = cc.status_id""",
    "outer joins": """
        SELECT t.id, t.title, kt.kind, count(mk.id) AS keywords, count(DISTINCT mc.company_id) AS c
        FROM title t LEFT JOIN kind_type kt ON kt.id = t.kind_id
            LEFT JOIN movie_keyword mk ON mk.movie_id = t.id
            LEFT JOIN keyword k ON k.id = mk.keyword_id AND k.keyword LIKE 'a%'
            LEFT JOIN movie_companies mc ON mc.movie_id = t.id AND mc.note IS NULL
            LEFT JOIN company_name cn ON cn.id = mc.company_id
            LEFT JOIN movie_info mi ON mi.movie_id = t.id
            LEFT JOIN info_type it ON it.id = mi.info_type_id
        GROUP BY t.id, t.title, kt.kind""",
    "no condition in order": """
        SELECT n.name, t.title, k.keyword FROM name n, keyword k, title t, role_type rt,
            movie_keyword mk, cast_info ci, kind_type kt, movie_info mi, info_type it
        WHERE ci.person_id = n.id AND mk.keyword_id = k.id AND kt.id = t.kind_id
            AND mi.movie_id = t.id AND it.id = mi.info_type_id AND rt.id = ci.role_id
            AND ci.movie_id = t.id AND mk.movie_id = t.id AND t.production_year > 1990""",
    "alternatives": """
        SELECT t.title, count(*) AS n FROM title t, movie_info mi, movie_info_idx mi_idx,
            info_type it1, info_type it2, kind_type kt, complete_cast cc, comp_cast_type cct
        WHERE t.id = mi.movie_id AND t.id = mi_idx.movie_id AND it1.id = mi.info_type_id
            AND it2.id = mi_idx.info_type_id AND kt.id = t.kind_id AND cc.movie_id = t.id
            AND cct.id = cc.subject_id
            AND (t.title LIKE '%Freddy%' OR t.title LIKE '%Jason%' OR t.title LIKE 'Saw%')
            AND (t.production_year > 2000 OR mi.info = 'USA' OR mi_idx.info > '7.0')
        GROUP BY t.title HAVING count(*) > 1""",
    "nested": """
        WITH rated AS (SELECT mi.movie_id, max(mi.info) AS rating
            FROM movie_info_idx mi, info_type it
            WHERE it.id = mi.info_type_id AND it.info = 'rating' GROUP BY mi.movie_id),
        cast_of AS (SELECT ci.movie_id, n.name FROM cast_info ci, name n WHERE n.id = ci.person_id)
        SELECT t.title, r.rating, a.name AS a, b.name AS b
        FROM title t, rated r, cast_of a, cast_of b, kind_type kt
        WHERE r.movie_id = t.id AND a.movie_id = t.id AND b.movie_id = t.id AND a.name < b.name
            AND kt.id = t.kind_id AND EXISTS (SELECT 1 FROM movie_keyword mk, keyword k
                WHERE mk.movie_id = t.id AND k.id = mk.keyword_id AND k.keyword = 'love')""",
}
