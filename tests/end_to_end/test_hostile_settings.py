"""Oracle: PostgreSQL's own answer in a session of the documented settings, while every setting that
has a say in values or names is another one for the service's role, and for the database."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import psycopg2
import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.session.session_settings import PINNED
from tests.end_to_end.test_views import flush_position
from tests.harness.hostile_settings import OF_TEXTS, make_hostile
from tests.harness.postgres import Database, new_database
from tests.harness.psql import roles
from tests.harness.service import RunningService

TABLES = """
CREATE TABLE "T a" (id int PRIMARY KEY, a text[], "B""b" text, i interval, z timestamptz, d date,
    y bytea, f float8, g float4, n numeric, x text, m money, j jsonb, s int4range);
"""
ROWS = """
INSERT INTO "T a" SELECT i, ARRAY[NULL, 'NULL', 'a\\b', i::text], 'q''\\' || i,
    '1 mon -3 days 04:00'::interval * i, '2024-03-31 01:30+00'::timestamptz + i * interval '1 hour',
    DATE '2024-02-03' + i,
    '\\x00ff5c27'::bytea, 1e-7::float8 / 3 + i, 1.1::float4 * i, i / 7.0, 'plain <b/> text',
    (i * 1234.5)::numeric::money, '{"k": [null, "\\u00e9"]}', int4range(i, NULL)
FROM generate_series(%s, %s) AS i
"""
VIEWS = {
    "whole": 'SELECT * FROM "T a"',
    "texts": 'SELECT id, a::text || "B""b" AS t, i::text AS i, z::text AS z, d::text AS d,'
    " y::text AS y, f::text AS f, to_char(z, 'TMDay D') AS c, to_char(n, '9D99G9') AS n,"
    ' upper(x::text) AS x, m::text AS m FROM "T a"',
    "bag": 'SELECT m, y, f, i, d, z FROM "T a"',
    "of_texts": 'SELECT m::text || y::text AS t, count(*) AS n FROM "T a" GROUP BY 1',
    "means": "SELECT id, \"B\"\"b\" LIKE 'q''\\\\%' AS l, a = '{NULL,x}' AS e,"
    " '03-02-2024'::text AS w FROM \"T a\"",
    "groups": "SELECT a[2] AS k, count(*) AS n, array_agg(i ORDER BY id) AS a"
    ' FROM "T a" GROUP BY 1',
}


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_snapshot_and_stream_read_what_is_there(
    every_postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    with new_database(every_postgres) as place, roles(place, "hostile"):
        place.execute("ALTER ROLE hostile SUPERUSER")
        place.execute(TABLES)
        place.execute(ROWS, (1, 20))
        make_hostile(place, "ROLE hostile")
        make_hostile(place, f"ROLE hostile IN DATABASE {place.name}")
        dsn = place.dsn.replace("user=postgres", "user=hostile")
        with RunningService(dsn, tmp_path) as service:
            for name, query in VIEWS.items():
                service.create(name, query, backfill="local")
            _check(service, place)
            place.execute(ROWS, (21, 40))
            place.execute('UPDATE "T a" SET f = f * 3, i = -i; DELETE FROM "T a" WHERE id % 3 = 0')
            _check(service, place)
            # They become others while sessions live, and for those that are opened later.
            place.execute(
                f"ALTER ROLE hostile RESET ALL; ALTER ROLE hostile IN DATABASE {place.name}"
                " RESET ALL"
            )
            make_hostile(place, f"DATABASE {place.name}", OF_TEXTS)
            place.execute(ROWS, (41, 50))
            assert service.kill_child("pipeline")
            place.execute('DELETE FROM "T a" WHERE id % 5 = 0')
            _check(service, place)
            for view in ("bag", "of_texts"):
                answer = service.call("POST", f"/views/{view}/verify").json()
                assert answer.get("result") == "equal", answer
                # A new version is compared with the rows that were written under other settings.
                found = service.call("POST", f"/views/{view}/rebuild?wait_s=60").json()
                assert found["status"] == "live", found
            _check(service, place)
        place.execute("REASSIGN OWNED BY hostile TO postgres")


def _check(service: RunningService, place: Database) -> None:
    position = flush_position(place)
    session = psycopg2.connect(place.dsn, client_encoding="UTF8")
    with closing(session), session.cursor() as cursor:
        cursor.execute("; ".join(f"SET {name} TO '{value}'" for name, value in PINNED.items()))
        for name, query in VIEWS.items():
            service.wait(name, position)
            cursor.execute(f"SELECT v::text FROM ({query}) AS v ORDER BY 1")
            wanted = cursor.fetchall()
            cursor.execute(f"SELECT v::text FROM {name} AS v ORDER BY 1")
            assert cursor.fetchall() == wanted, name
            once = {"query": f"SELECT v::text AS t FROM ({query}) v"}
            answer = service.call("POST", "/query", once).json()
            assert sorted(r["t"] for r in answer["rows"]) == sorted(t for (t,) in wanted), name
