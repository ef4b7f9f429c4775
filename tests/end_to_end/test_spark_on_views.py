"""Oracle: PostgreSQL's answer to the query over the other views' queries, for views on Spark whose
queries name views that are maintained elsewhere."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.end_to_end.test_on_spark import (
    LARGE,
    SETTINGS,
    SPENT,
    change,
    pipelines,
    pytestmark,
    require_equal,
    shop,
)
from tests.harness.postgres import Database
from tests.harness.service import RunningService

__all__ = ["pytestmark", "shop"]

# Over SPENT's table, called {v}, and a base table.
BEST = """SELECT v.name, v.spent, count(*) AS customers FROM {v} v JOIN customers c USING (name)
WHERE v.spent > 100 GROUP BY v.name, v.spent"""
TOP = "SELECT max(spent) AS top, count(*) AS n FROM {v} v"
# The same columns as SPENT, of fewer orders.
SPENT_ABOVE = SPENT.replace("GROUP BY", "WHERE o.amount > 40 GROUP BY")


def over(query: str, name: str, below: str) -> str:
    """The query over another query instead of over the view `name`."""
    return f"(WITH {name}_rows AS ({below}) {query.format(v=name + '_rows')})"


def code_of(service: RunningService, method: str, path: str, body: object = None) -> str:
    answer = service.call(method, path, body)
    assert answer.status_code >= 400, answer.text
    return answer.json()["code"]


def await_equal(service: RunningService, shop: Database, name: str, query: str) -> None:
    """Wait until the view has the query's rows: a rebuild may be on its way."""
    deadline = time.monotonic() + 180
    while shop.rows(f"SELECT * FROM {name} EXCEPT ALL ({query})") or shop.rows(
        f"({query}) EXCEPT ALL SELECT * FROM {name}"
    ):
        assert time.monotonic() < deadline, service.call("GET", f"/views/{name}").json()
        time.sleep(0.2)


def test_views_on_views_on_spark(shop: Database, tmp_path: Path) -> None:
    """They follow their sources; what would be wrong is refused by name."""
    draw = random.Random(7)
    with RunningService(shop.dsn, tmp_path, **SETTINGS) as service:
        service.create("spent", SPENT, backfill="local")
        query = BEST.format(v="spent")
        made = service.create("best", query, wait_s=180, runtime="spark", backfill="local")
        assert made["group"].startswith("spark") and made["query"] == query
        for _ in range(3):
            change(shop, draw)
        require_equal(service, shop, "best", over(BEST, "spent", SPENT))
        # What it names stays as long as it does, under its name.
        assert code_of(service, "DELETE", "/views/spent") == "view.has_children"
        assert code_of(service, "POST", "/views/spent/pause") == "view.has_children"
        rename = service.call("POST", "/views/spent/rename", {"name": "other"})
        assert rename.json()["code"] == "view.children_refuse", rename.text
        less = "SELECT c.name, count(*) AS n FROM customers c GROUP BY c.name"
        assert code_of(service, "POST", "/views/spent/replace", {"query": less}) == (
            "view.children_refuse"
        )
        moment = SPENT.replace("GROUP BY", "WHERE o.amount < extract(year FROM now()) GROUP BY")
        pinned = {"query": moment, "options": {"now": "pinned"}}
        assert code_of(service, "POST", "/views/spent/replace", pinned) == "view.children_refuse"
        assert service.call("DELETE", "/views/best?wait_s=60").status_code in (200, 202, 204)
        service.await_so(lambda: service.call("GET", "/views/best").status_code == 404, 60)
        assert service.call("DELETE", "/views/spent?wait_s=60").status_code in (200, 202, 204)


@pytest.mark.whole
def test_views_on_views_on_views(shop: Database, tmp_path: Path) -> None:
    """The view above follows a replacement two levels below, although processes are killed; and it
    goes to the local runtime and back with what it computes."""
    draw = random.Random(8)
    with RunningService(shop.dsn, tmp_path, **SETTINGS) as service:
        service.create("spent", SPENT, wait_s=180, runtime="spark", backfill="local")
        best = BEST.format(v="spent")
        service.create("best", best, wait_s=180, runtime="spark", backfill="local")
        top = TOP.format(v="best")
        service.create("top", top, wait_s=180, runtime="spark", backfill="local")

        def whole(below: str) -> str:
            return f"(WITH spent AS ({below}), best AS ({best}) {top})"

        for _ in range(3):
            change(shop, draw)
        require_equal(service, shop, "top", whole(SPENT))
        fewer = SPENT.replace("GROUP BY", "WHERE o.amount > 20 GROUP BY")
        answer = service.call("POST", "/views/spent/replace?wait_s=60", {"query": fewer})
        assert answer.status_code in (200, 202), answer.text
        for victim in list(pipelines(service)):
            victim.kill()
        change(shop, draw)
        await_equal(service, shop, "top", whole(fewer))
        require_equal(service, shop, "top", whole(fewer))
        moved = service.call("POST", "/views/top/runtime?wait_s=60", {"runtime": "local"})
        assert moved.status_code in (200, 202), moved.text
        service.await_so(
            lambda: service.call("GET", "/views/top").json()["group"].startswith("local"), 120
        )
        change(shop, draw)
        require_equal(service, shop, "top", whole(fewer))
        answer = service.call("POST", "/views/spent/replace?wait_s=60", {"query": SPENT_ABOVE})
        assert answer.status_code in (200, 202), answer.text
        change(shop, draw)
        await_equal(service, shop, "top", whole(SPENT_ABOVE))
        require_equal(service, shop, "top", whole(SPENT_ABOVE))
        # A view with another query is planned over the same views, in its own group too.
        least = TOP.format(v="best").replace("max(spent)", "min(spent)")
        answer = service.call("POST", "/views/top/replace?wait_s=60", {"query": least})
        assert answer.status_code in (200, 202), answer.text
        await_equal(
            service, shop, "top", f"(WITH spent AS ({SPENT_ABOVE}), best AS ({best}) {least})"
        )
        moved = service.call("POST", "/views/top/runtime?wait_s=60", {"runtime": "spark"})
        assert moved.status_code in (200, 202), moved.text
        service.await_so(
            lambda: service.call("GET", "/views/top").json()["group"].startswith("spark"), 120
        )
        change(shop, draw)
        require_equal(
            service, shop, "top", f"(WITH spent AS ({SPENT_ABOVE}), best AS ({best}) {least})"
        )


def test_views_that_cannot_be_computed_elsewhere(shop: Database, tmp_path: Path) -> None:
    """Each by name and reason, before anything begins."""
    moment = "SELECT name, extract(year FROM now())::int AS y FROM customers"
    zone = "SELECT c.name, (now() AT TIME ZONE 'UTC' < '2000-01-01') AS b FROM customers c"
    with RunningService(shop.dsn, tmp_path, **SETTINGS) as service:
        service.create("pinned", moment, backfill="local", now="pinned")
        service.create("elsewhere", LARGE.format(""), backfill="local", time_zone="Europe/Berlin")
        service.create("ticking", zone, backfill="local")
        for name, why in (
            ("pinned", "once"),
            ("elsewhere", "time zone"),
        ):
            body = {"name": "x", "query": f"SELECT name FROM {name}"}
            answer = service.call("POST", "/views", body | {"options": {"runtime": "spark"}})
            assert answer.json()["code"] == "spark.reads_views", answer.text
            assert why in answer.json()["detail"], answer.text
        body = {"query": "SELECT name FROM ticking", "options": {"runtime": "spark"}}
        answer = service.call("POST", "/views/validate", body)
        assert answer.json()["runtime"] == "spark", answer.text
        assert not (service.state / "groups").exists()
