"""Oracle: PostgreSQL's own answer over the view's table: filters, orders and pages of rows give
just its rows; one-shot queries give just its answer; and docs/ERRORS.md for what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from urllib.parse import quote, urlencode

import pytest

from connectors.postgres.catalog.catalog import Control, ViewRow
from dataflow.errors import TidemarkError
from service.api import reading
from service.api.reading import Reading
from service.api.row_pages import RowOptions
from service.factory.service_factory import ServiceFactory
from service.runtime.settings import Settings
from tests.harness.postgres import Database
from tests.harness.service import RunningService

TABLES = """
CREATE TABLE goods (id int PRIMARY KEY, "a.b" text, price numeric(10,2), weight float8, tags jsonb,
    "order" text, seen timestamptz);
INSERT INTO goods SELECT i, CASE WHEN i % 5 > 0 THEN 'n' || i % 4 END, i % 10, i / 3.0::float8,
    jsonb_build_object('k', i % 3), 'o"' || i % 6, '2024-01-01'::timestamptz + i * interval '1h'
    FROM generate_series(1, 60) i;
INSERT INTO goods VALUES (61, 'x, "y"', NULL, 'NaN', NULL, NULL, NULL);
CREATE TABLE other (id int PRIMARY KEY);
INSERT INTO other VALUES (1), (2);
CREATE FUNCTION noisy() RETURNS int LANGUAGE sql VOLATILE AS 'SELECT 1';
"""


@pytest.fixture(scope="module")
def service(place: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(place.dsn, tmp_path_factory.mktemp("rows")) as running:
        running.create("goods_view", "SELECT * FROM goods", backfill="local")
        running.create("bag", 'SELECT "a.b", price FROM goods', backfill="local")
        yield running


def rows(service: RunningService, view: str, *parameters: tuple[str, str]) -> dict[str, Any]:
    answer = service.call("GET", f"/views/{view}/rows?{urlencode(parameters)}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def expected(place: Database, sql: str) -> list[tuple[Any, ...]]:
    return [tuple(str(v) if v is not None else None for v in row) for row in place.rows(sql)]


CONDITIONS = [
    ((("id", "gte.10"), ("id", "lt.20")), "id >= 10 AND id < 20"),
    ((('"a.b"', "eq.n1"),), "\"a.b\" = 'n1'"),
    ((("a.b", "is.null"),), '"a.b" IS NULL'),
    ((("a.b", 'in.("x, ""y""",n2)'),), "\"a.b\" IN ('n2')"),
    ((("a.b", 'in.("x, \\"y\\"",n2)'),), "\"a.b\" IN ('x, \"y\"', 'n2')"),
    ((("a.b", "not.like.n%"), ("price", "is.not_null")), "\"a.b\" NOT LIKE 'n%%' AND price > -1"),
    ((("price", "in.(1,2.00,3.5)"),), "price IN (1, 2)"),
    ((('"order"', 'ilike.O"1'),), '"order" = \'o"1\''),
    ((("tags", 'eq.{"k": 1}'),), "tags = '{\"k\":1}'"),
    ((("seen", "lt.2024-01-01 05:00+00"),), "seen < '2024-01-01 05:00+00'"),
    ((("weight", "eq.NaN"),), "weight = 'NaN'"),
    ((("id", "eq.'; DROP TABLE goods; --"),), ""),
]


@pytest.mark.parametrize(("parameters", "where"), CONDITIONS)
def test_conditions(
    service: RunningService,
    place: Database,
    parameters: tuple[tuple[str, str], ...],
    where: str,
) -> None:
    path = f"/views/goods_view/rows?{urlencode([*parameters, ('columns', 'id')])}"
    answer = service.call("GET", path)
    if not where or '""y""' in path.replace("%22", '"'):
        assert answer.status_code == 400, answer.text
        assert answer.json()["code"] in ("rows.bad_value", "rows.bad_filter")
        return
    assert answer.status_code == 200, answer.text
    found = [(str(row["id"]),) for row in answer.json()["rows"]]
    assert found == expected(place, f"SELECT id FROM goods WHERE {where} ORDER BY id")
    assert [f["name"] for f in answer.json()["fields"]] == ["id"]


@pytest.mark.parametrize(
    ("view", "order", "sql"),
    [
        ("goods_view", "", "id"),
        ("goods_view", "price.desc,id", "price DESC, id"),
        (
            "goods_view",
            '"a.b".asc.nullsfirst,weight.desc',
            '"a.b" ASC NULLS FIRST, weight DESC, id',
        ),
        ("goods_view", '"order".desc.nullslast', '"order" DESC NULLS LAST, id'),
        ("bag", 'price.desc.nullslast,"a.b"', None),
    ],
)
def test_pages_together_are_all_rows_in_order(
    service: RunningService, place: Database, view: str, order: str, sql: str | None
) -> None:
    found: list[dict[str, Any]] = []
    after = ""
    for _ in range(30):
        page = rows(service, view, ("order", order), ("limit", "7"), ("after", after))
        assert len(page["rows"]) == 7 or page["next"] is None
        found += page["rows"]
        after = page["next"] or ""
        if not after:
            break
    if sql is not None:
        wanted = place.rows(f"SELECT id FROM goods ORDER BY {sql}")
        assert [(row["id"],) for row in found] == wanted
    else:
        sql = 'SELECT price, "a.b" FROM goods ORDER BY price DESC NULLS LAST, "a.b"'
        shown = [(row["price"], row["a.b"]) for row in found]
        assert shown == expected(place, sql)


def test_values_are_those_of_the_topics(service: RunningService) -> None:
    (row,) = rows(service, "goods_view", ("id", "eq.3"))["rows"]
    assert row["price"] == "3.00" and row["weight"] == 1.0 and row["tags"] == {"k": 0}
    assert row["seen"] == "2024-01-01 03:00:00+00" and row["order"] == 'o"3'
    (row,) = rows(service, "goods_view", ("id", "eq.61"))["rows"]
    assert row["weight"] == "NaN" and row["price"] is None and row["a.b"] == 'x, "y"'


REFUSED = [
    ("goods_view", (("nosuch", "eq.1"),), 400, "rows.unknown_column"),
    ("goods_view", (("columns", "id,nosuch"),), 400, "rows.unknown_column"),
    ("goods_view", (("id", "1"),), 400, "rows.bad_filter"),
    ("goods_view", (("id", "near.1"),), 400, "rows.bad_filter"),
    ("goods_view", (("id", "is.maybe"),), 400, "rows.bad_filter"),
    ("goods_view", (("id", "in.1,2"),), 400, "rows.bad_filter"),
    ("goods_view", (("id", "eq.x"),), 400, "rows.bad_value"),
    ("goods_view", (("order", "id.up"),), 400, "rows.bad_order"),
    ("goods_view", (("order", "id,id"),), 400, "rows.bad_order"),
    ("goods_view", (("after", "AAAA"),), 400, "rows.bad_page"),
    ("goods_view", (("limit", "0"),), 422, "request.invalid"),
    ("goods_view", (("min_position", "x"),), 400, "position.bad"),
    ("goods_view", (("min_position", "FF/0"), ("wait_s", "0.1")), 504, "view.wait_timeout"),
    ("nosuch", (), 404, "view.not_found"),
]


@pytest.mark.parametrize(("view", "parameters", "status", "code"), REFUSED)
def test_refused(
    service: RunningService,
    view: str,
    parameters: tuple[tuple[str, str], ...],
    status: int,
    code: str,
) -> None:
    answer = service.call("GET", f"/views/{view}/rows?{urlencode(parameters)}")
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text


def test_a_view_that_changes_while_it_is_read(
    service: RunningService, place: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was looked up first has another name by now, is replaced, or is gone; and where someone
    has dropped its table by hand, that is said."""
    service.create("moved", "SELECT id, price FROM goods WHERE id < 3", backfill="local")
    for name, value in service.environment.items():
        monkeypatch.setenv(name, value)
    read = Reading(ServiceFactory(Settings.load()))
    stale = Control(place.dsn).get_view("public", "moved")
    assert stale is not None and stale.fields is not None
    looked: list[ViewRow] = []
    find = reading.find_view
    monkeypatch.setattr(
        reading, "find_view", lambda *given: looked.pop() if looked else find(*given)
    )
    first, second = stale.fields
    other_columns = [first, {**second, "name": "gone"}]
    for before in (stale, replace(stale, fields=other_columns), replace(stale, name="before")):
        looked.append(before)
        assert len(json.loads(read.page("moved", RowOptions())[0])["rows"]) == 2
    place.execute("DROP TABLE moved")
    assert service.call("GET", "/views/moved/rows").json()["code"] == "sink.table_missing"
    looked.append(stale)
    place.execute("UPDATE tidemark.views SET desired = 'dropped' WHERE name = 'moved'")
    with pytest.raises(TidemarkError, match=r"view\.not_found"):
        read.page("moved", RowOptions())
    service.await_so(lambda: service.call("GET", "/views/moved").status_code == 404)


def test_own_writes_are_read_and_unchanged_rows_are_not_sent(
    service: RunningService, place: Database
) -> None:
    place.execute("INSERT INTO goods VALUES (100, 'mine')")
    position = place.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    path = f"/views/goods_view/rows?id=eq.100&min_position={quote(position)}"
    answer = service.call("GET", path)
    assert [row["a.b"] for row in answer.json()["rows"]] == ["mine"]
    tag = {"If-None-Match": answer.headers["etag"]}
    again = service._client.get(path, headers=tag)
    assert (again.status_code, again.content) == (304, b"")
    place.execute("DELETE FROM goods WHERE id = 100")
    position = place.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    service.wait("goods_view", position)
    assert service._client.get(path, headers=tag).json()["rows"] == []


def query(service: RunningService, sql: str, **options: Any) -> tuple[int, dict[str, Any]]:
    answer = service.call("POST", "/query", {"query": sql, **options})
    return answer.status_code, answer.json()


def test_query_over_tables_and_views(service: RunningService, place: Database) -> None:
    place.execute("INSERT INTO goods (id, price) VALUES (200, 77)")
    sql = (
        "SELECT o.id, count(*) AS n, sum(v.price) AS total, max(g.id) AS newest, "
        "jsonb_agg(v.id ORDER BY v.id) FILTER (WHERE v.id < 3) AS ids "
        "FROM other o JOIN goods_view v ON v.id % 2 = o.id % 2 JOIN goods g ON g.id = v.id "
        "GROUP BY o.id ORDER BY o.id"
    )
    status, found = query(service, sql)
    assert status == 200, found
    wanted = place.rows(sql.replace("goods_view", "goods"))
    shown = [(r["id"], r["n"], r["total"], r["newest"], r["ids"]) for r in found["rows"]]
    assert shown == [(i, n, str(t), m, ids) for i, n, t, m, ids in wanted]
    assert found["views"]["default"]["positions"]["source"] and found["position"]
    assert not found["has_more"]
    place.execute("DELETE FROM goods WHERE id = 200")
    status, found = query(service, "SELECT id FROM goods_view", limit=5)
    assert (len(found["rows"]), found["has_more"]) == (5, True)


NOT_ANSWERED = [
    ("SELECT 1; SELECT 2", {}, 400, "sql.many_statements"),
    ("DELETE FROM goods", {}, 400, "sql.not_a_select"),
    ("WITH d AS (DELETE FROM goods RETURNING id) SELECT * FROM d", {}, 400, None),
    ("SELECT nosuch FROM goods", {}, 400, "sql.undefined_column"),
    ("SELECT * FROM nosuch", {}, 400, "sql.undefined_table"),
    ("SELECT 1 / (id - id) AS x FROM goods", {}, 400, "sql.division_by_zero"),
    ("SELECT id FROM goods FOR UPDATE", {}, 400, None),
    ("SELECT pg_sleep(1)::text", {}, 403, "query.not_allowed"),
    ("SELECT pg_read_file('/etc/passwd')", {}, 403, "query.not_allowed"),
    ("SELECT noisy()", {}, 403, "query.not_allowed"),
    ("SELECT rolpassword FROM pg_authid", {}, 403, "query.not_allowed"),
    ("SELECT * FROM tidemark.sources", {}, 403, "query.not_allowed"),
    ("SELECT current_setting('data_directory')", {}, 403, "query.not_allowed"),
    (
        "SELECT count(*) FROM generate_series(1, 100000000) a",
        {"timeout_s": 0.2},
        503,
        "query.timeout",
    ),
]


@pytest.mark.parametrize(("sql", "options", "status", "code"), NOT_ANSWERED)
def test_not_answered(
    service: RunningService,
    place: Database,
    sql: str,
    options: dict[str, Any],
    status: int,
    code: str | None,
) -> None:
    before = place.rows("SELECT count(*) FROM goods")
    found_status, problem = query(service, sql, **options)
    assert found_status == status, problem
    assert problem["code"] == (code or problem["code"]), json.dumps(problem)
    assert place.rows("SELECT count(*) FROM goods") == before
