"""Oracle: the database and the service themselves: the console shows what they say, does what its
controls say, is served as HTTP wants it, and shows hostile names and values as texts."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from service.api.console_files import DIST
from tests.console.conftest import HOSTILE_NAME, HOSTILE_TEXTS, Open, Shop


def row_of(page: Page, view: str):
    """The line of a view in the list."""
    return page.locator("tbody tr").filter(has=page.get_by_role("link", name=view, exact=True))


def test_the_list_shows_searches_and_sorts(open_page: Open) -> None:
    page = open_page().page
    expect(row_of(page, "revenue")).to_contain_text("live")
    expect(row_of(page, "revenue").locator("td").nth(2)).to_have_text("3")
    expect(row_of(page, "large_orders").locator("td").nth(2)).to_have_text("200")
    expect(row_of(page, "ratios_of")).to_contain_text("2 error rows")
    page.get_by_role("button", name="Rows").click()
    names = page.locator("section[aria-label=Views] tbody td.name a")
    expect(names.first).to_have_text("large_orders")
    page.get_by_label("Search views").fill("rev live")
    expect(names).to_have_text(["revenue"])
    page.get_by_label("Search views").fill("nothing like it")
    expect(page.get_by_text("No view matches")).to_be_visible()


def test_everything_is_there_by_keyboard(open_page: Open) -> None:
    page = open_page().page
    expect(row_of(page, "revenue")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("r")
    expect(page.get_by_label("Search views")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    focused = page.evaluate("document.activeElement.textContent")
    page.keyboard.press("k")
    assert page.evaluate("document.activeElement.textContent") != focused
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(focused)
    tabs = page.locator(".tabs a")
    expect(tabs.nth(0)).to_have_attribute("aria-current", "page")
    page.keyboard.press("]")
    expect(tabs.nth(1)).to_have_attribute("aria-current", "page")
    page.keyboard.press("[")
    expect(tabs.nth(0)).to_have_attribute("aria-current", "page")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next and previous row")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("h")
    expect(page.get_by_role("heading", level=1)).to_have_text("Health")
    page.keyboard.press("n")
    expect(page.get_by_role("heading", level=1)).to_have_text("New view")


def test_an_error_is_shown_at_its_position(open_page: Open) -> None:
    watched = open_page("#/new")
    watched.expected = ("400",)
    page = watched.page
    editor = page.locator(".cm-content")
    editor.click()
    page.keyboard.insert_text("SELECT id,\n  nosuch FROM orders")
    expect(page.locator(".cm-wrong")).to_have_text("nosuch")
    expect(page.locator(".answer .problem")).to_contain_text("line 2, column 3")
    expect(page.locator(".answer .problem")).to_contain_text("nosuch")
    page.keyboard.press("Control+a")
    page.keyboard.insert_text("SELECT id, amount FROM orders")
    expect(page.locator(".cm-wrong")).to_have_count(0)
    expect(page.locator(".answer table")).to_contain_text("numeric(10,2)")
    expect(page.locator(".answer")).to_contain_text("Plan")
    expect(page.locator(".estimate")).to_contain_text("Source rows")
    expect(page.locator(".estimate")).to_contain_text("State")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_from_the_editor_to_live_and_dropped_again(open_page: Open, shop: Shop) -> None:
    watched = open_page("#/new")
    page = watched.page
    page.get_by_label("Name").fill("by_console")
    page.locator(".cm-content").click()
    page.keyboard.insert_text("SELECT region, count(*) AS n FROM customers GROUP BY region")
    expect(page.locator(".check")).to_contain_text("PostgreSQL accepts it")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_text("It is live")).to_be_visible()
    page.get_by_role("link", name="Open the view").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("by_console")
    page.get_by_role("link", name="Manage").click()
    page.get_by_role("button", name="Drop view").click()
    drop = page.get_by_role("button", name="Drop it")
    expect(drop).to_be_disabled()
    page.get_by_role("dialog").get_by_role("textbox").fill("by_consol")
    expect(drop).to_be_disabled()
    page.get_by_role("dialog").get_by_role("textbox").fill("by_console")
    # The page may look at the view once more while it is going.
    watched.expected = ("404",)
    drop.click()
    expect(row_of(page, "revenue")).to_be_visible()
    expect(row_of(page, "by_console")).to_have_count(0)
    assert shop.service.call("GET", "/views/by_console").status_code == 404


@pytest.mark.whole
def test_a_view_is_verified_and_shown_wrong_when_it_is(open_page: Open, shop: Shop) -> None:
    page = open_page("#/views/ratios_of/manage").page
    page.get_by_role("button", name="Verify now").click()
    expect(page.locator(".verdict")).to_contain_text("rows compared")
    shop.database.forge("UPDATE revenue SET orders = orders + 1 WHERE region = 'east'")
    page.goto(page.url.split("#")[0] + "#/views/revenue/manage")
    page.get_by_role("button", name="Verify now").click()
    expect(page.locator(".verdict.bad")).to_contain_text("Different")
    expect(page.locator(".verdict pre")).to_contain_text("east")
    shop.database.forge("UPDATE revenue SET orders = orders - 1 WHERE region = 'east'")
    page.get_by_role("button", name="Verify now").click()
    expect(page.locator(".verdict.good")).to_contain_text("Equal")


@pytest.mark.whole
def test_a_view_is_paused_resumed_renamed_and_replaced(open_page: Open, shop: Shop) -> None:
    shop.service.create("standing", "SELECT id, region FROM customers WHERE id < 5")
    watched = open_page("#/views/standing/manage")
    page, watched.expected = watched.page, ("404",)  # Its status is asked for while it is renamed.
    status = page.locator(".title .status")
    manage = page.locator(".operations")
    manage.get_by_role("button", name="Pause").click()
    expect(status).to_have_text("paused", timeout=60_000)
    manage.get_by_role("button", name="Resume").click()
    expect(status).to_have_text("live", timeout=60_000)
    page.get_by_label("New name").fill("going")
    page.get_by_role("button", name="Rename").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("going", timeout=60_000)
    page.get_by_role("link", name="Edit the query").click()
    page.locator(".cm-content").click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text("SELECT id, region FROM customers WHERE id < 8")
    expect(page.locator(".check")).to_contain_text("PostgreSQL accepts it")
    page.get_by_role("button", name="Replace").click()
    expect(page.get_by_text("The new query is live")).to_be_visible(timeout=60_000)
    assert shop.database.rows("SELECT count(*) FROM going") == [(7,)]


@pytest.mark.whole
def test_what_a_view_knows_of_time_is_shown(open_page: Open, shop: Shop) -> None:
    shop.database.execute(
        "CREATE TABLE visits (id int PRIMARY KEY, at timestamptz NOT NULL);"
        "INSERT INTO visits SELECT n, timestamptz '2026-01-01' + n * interval '1 minute'"
        " FROM generate_series(1, 100) n"
    )
    options: dict[str, Any] = {"time_zone": "Asia/Kolkata", "history": "7 days"}
    options |= {"late": "dead-letter", "lateness": {"visits.at": "10 minutes"}}
    query = "SELECT id, at FROM visits WHERE at < now() - interval '1 day'"
    shop.service.create("recent", query, **options)
    shop.service.create("fixed", query, now="pinned")
    shop.database.execute("INSERT INTO visits VALUES (101, '2026-01-01 00:00+00')")

    def recent() -> dict[str, Any]:
        return shop.service.call("GET", "/views/recent").json()

    def clock() -> datetime:
        us = json.loads(recent()["positions"]["clock"])["now"]["us"]
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=us)

    shop.service.await_so(lambda: recent()["late_rows"] == 1)
    before = clock()
    page = open_page("#/views/recent/sql").page
    expect(page.get_by_role("heading", name="Time", exact=True)).to_be_visible()
    facts, seen = facts_in(page), recent()
    expected = {"time_zone": "Asia/Kolkata", "now": "moving", "history": "7 days"}
    expected |= {"lateness": "visits.at: 10 minutes", "late": "dead-letter", "Late rows": "1"}
    expected |= {"Watermark of visits.at": seen["watermarks"]["visits.at"]}
    expected |= {"History": seen["history"]["table"]}
    assert facts.items() >= expected.items()
    assert facts["Oldest point"].startswith(f"epoch {seen['history']['oldest_epoch']}, ")
    assert before <= datetime.fromisoformat(facts["now() is"]) <= clock()
    page.goto(page.url.replace("recent", "fixed"))
    expect(page.get_by_text("pinned", exact=True)).to_be_visible()
    facts = facts_in(page)
    assert (facts["now"], facts["time_zone"]) == ("pinned", "UTC")
    assert facts.keys().isdisjoint({"now() is", "History", "lateness", "Late rows"})


def facts_in(page: Page) -> dict[str, str]:
    """What the lists of facts of a page say, by name."""
    names, values = (page.locator(f"dl.facts {tag}").all_text_contents() for tag in ("dt", "dd"))
    return dict(zip(names, values, strict=True))


def test_problems_are_reported_with_their_rows(open_page: Open) -> None:
    page = open_page("#/views/ratios_of/problems").page
    expect(page.locator("table.rows tbody tr")).to_have_count(2)
    expect(page.locator("table.rows")).to_contain_text("division by zero")
    expect(page.locator("table.rows")).to_contain_text("22012")


@pytest.mark.whole
def test_dead_letters_are_shown_whole_and_dropped(open_page: Open, shop: Shop) -> None:
    page = open_page().page
    page.get_by_role("link", name="depot").click()
    letters = page.locator("table.rows tbody tr")
    expect(letters).to_have_count(2)
    expect(letters.filter(has_text="much")).to_contain_text("prices.csv:3")
    page.get_by_label("choose prices.csv:3").check()
    page.get_by_role("button", name="Drop 1 chosen").click()
    page.get_by_role("button", name="Drop them").click()
    expect(letters).to_have_count(1)
    told = shop.service.call("GET", "/dead-letters?source=depot").json()["dead_letters"]
    assert [letter["position"] for letter in told] == ["prices.csv:4"]
    page.goto(page.url.split("#")[0] + "#/views/prices_of/problems")
    expect(page.get_by_role("heading", name="Dead letters of depot.prices")).to_be_visible()


def test_a_source_is_granted_and_revoked(open_page: Open, shop: Shop) -> None:
    """The catalog says who may read it; a role that does not exist is refused in words."""
    granted = "SELECT relation, granted_by FROM tidemark.source_grants WHERE role = 'pg_monitor'"
    watched = open_page("#/sources/depot")
    page, watched.expected = watched.page, ("422",)
    readers = page.locator("section", has=page.get_by_role("heading", name="Who may read it"))
    expect(readers).to_contain_text("declared by the service")
    role = readers.get_by_label("Role to grant to")
    readers.get_by_label("Relation to grant").select_option("prices")
    role.fill("nosuch")
    readers.get_by_role("button", name="Grant", exact=True).click()
    expect(readers.get_by_role("alert")).to_contain_text('role "nosuch" does not exist')
    role.fill("pg_monitor")
    readers.get_by_role("button", name="Grant", exact=True).click()
    expect(readers.locator("tbody tr")).to_contain_text("pg_monitor")
    assert shop.database.rows(granted) == [("prices", "local")]
    readers.get_by_role("button", name="Revoke depot.prices from pg_monitor").click()
    expect(readers.locator("tbody tr")).to_have_count(0)
    assert shop.database.rows(granted) == []


def test_the_query_and_snippets_are_shown(open_page: Open) -> None:
    page = open_page("#/views/revenue/sql").page
    expect(page.locator(".sql pre")).to_contain_text("sum(o.amount) AS revenue")
    expect(page.locator("table.fields")).to_contain_text("numeric")
    page.get_by_role("link", name="Use").click()
    expect(page.locator("pre", has_text="SELECT * FROM public.revenue").first).to_be_visible()
    expect(page.locator("dl.facts")).to_contain_text(re.compile("[0-9A-F]+/[0-9A-F]+"))


SCREENS = (
    *("#/", "#/health", "#/new", "#/views/revenue/rows", "#/views/revenue/changes"),
    *("#/views/revenue/dataflow", "#/views/revenue/sql", "#/views/ratios_of/problems"),
    *("#/views/revenue/use", "#/views/revenue/manage"),
    *("#/views/revenue/sinks", "#/new-source", "#/sources/depot"),
    *("#/tables", "#/tables/public/orders", "#/query", "#/tokens"),
)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_screen_is_accessible_and_narrow(open_page: Open, scheme: str) -> None:
    """axe-core on each; nothing sticks out of a screen of 400 pixels."""
    page = open_page(color_scheme=scheme, reduced_motion="reduce").page
    faults = []
    for screen in SCREENS:
        page.goto(page.url.split("#")[0] + screen)
        expect(page.get_by_role("heading", level=1)).to_be_attached()
        expect(page.locator(".skeleton")).to_have_count(0)
        found = Axe().run(page).response["violations"]
        for violation in found:
            nodes = [node["html"][:160] for node in violation["nodes"][:3]]
            faults.append(f"{screen} {scheme}: {violation['id']}: {violation['help']}: {nodes}")
        page.set_viewport_size({"width": 400, "height": 800})
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            faults.append(f"{screen}: wider than 400 pixels")
        page.set_viewport_size({"width": 1280, "height": 860})
    assert not faults, "\n".join(faults)


@pytest.mark.whole
def test_light_and_dark_follow_the_system_until_chosen(open_page: Open) -> None:
    page = open_page(color_scheme="dark").page
    expect(row_of(page, "revenue")).to_be_visible()

    def brightness() -> int:
        colour = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
        return sum(int(part) for part in re.findall(r"\d+", colour)[:3])

    assert brightness() < 120
    page.keyboard.press("t")
    assert brightness() > 600
    page.reload()
    expect(row_of(page, "revenue")).to_be_visible()
    assert brightness() > 600
    page.keyboard.press("t")
    assert brightness() < 120


def test_files_are_served_with_caching(shop: Shop) -> None:
    with httpx.Client(base_url=shop.service.url) as client:
        page = client.get("/", headers={"accept-encoding": "gzip"})
        assert page.status_code == 200
        assert page.headers["cache-control"] == "no-cache"
        policy = page.headers["content-security-policy"].split("; ")
        assert {"default-src 'none'", "script-src 'self'", "style-src 'self'"} <= {*policy}
        assert [p for p in policy if "unsafe" in p] == ["style-src-attr 'unsafe-inline'"]
        again = client.get("/", headers={"if-none-match": page.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        script = re.search(r'src="(/assets/[^"]+\.js)"', page.text)
        assert script is not None
        answer = client.get(script[1], headers={"accept-encoding": "gzip"})
        assert answer.headers["content-encoding"] == "gzip"
        assert "immutable" in answer.headers["cache-control"]
        plain = client.get(script[1], headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        assert plain.content == answer.content == (DIST / script[1].lstrip("/")).read_bytes()
        assert client.head("/").status_code == 200
        for path in ("/assets/nothing.js", "/assets/..%2Findex.html", "/assets/SOURCES"):
            missing = client.get(path)
            assert missing.status_code == 404, path


def test_an_overview_reports_all_views_and_pages_of_errors(shop: Shop) -> None:
    told = shop.service.call("GET", "/overview").json()
    views = {view["name"]: view for view in told["views"]}
    assert views["revenue"]["status"] == "live"
    assert views["ratios_of"]["errors"] == 2
    assert told["pipelines"][0]["is_up"] is True
    first = shop.service.call("GET", "/views/ratios_of/errors?limit=1").json()
    rest = shop.service.call("GET", f"/views/ratios_of/errors?after={first['next']}").json()
    found = [*first["errors"], *rest["errors"]]
    assert rest["next"] is None
    assert sorted(error["sqlstate"] for error in found) == ["22012", "22012"]
    assert len({error["id"] for error in found}) == 2
    bad = shop.service.call("GET", "/views/ratios_of/errors?after=nonsense")
    assert (bad.status_code, bad.json()["code"]) == (422, "request.invalid")
    assert shop.service.call("GET", "/views/nosuch/errors").status_code == 404


def test_the_dataflow_is_a_picture(open_page: Open) -> None:
    page = open_page("#/views/revenue/dataflow").page
    nodes = page.locator(".node")
    expect(nodes.first).to_be_visible()
    assert nodes.count() >= 4
    assert page.locator(".flow path").count() >= nodes.count() - 1
    boxes = [nodes.nth(i).bounding_box() for i in range(nodes.count())]
    for i, left in enumerate(boxes):
        for right in boxes[i + 1 :]:
            assert left and right
            apart_x = (
                left["x"] + left["width"] <= right["x"] + 1
                or right["x"] + right["width"] <= left["x"] + 1
            )
            apart_y = (
                left["y"] + left["height"] <= right["y"] + 1
                or right["y"] + right["height"] <= left["y"] + 1
            )
            assert apart_x or apart_y, "two nodes lie on each other"
    nodes.filter(has_text="join").first.click()
    expect(page.locator(".details").first).to_contain_text("Rows in")


def test_a_change_appears_and_the_stream_pauses(open_page: Open, shop: Shop) -> None:
    page = open_page("#/views/large_orders/changes").page
    expect(page.locator(".filter .status")).to_have_text("live")
    shop.database.execute("INSERT INTO orders VALUES (2000, 1, 777.25)")
    added = page.locator("tr.plus", has_text="777.25")
    expect(added).to_be_visible()
    shop.database.execute("UPDATE orders SET amount = 778.50 WHERE id = 2000")
    expect(page.locator("tr.minus", has_text="777.25")).to_be_visible()
    expect(page.locator("tr.plus td.differs")).to_have_text("778.50")
    page.keyboard.press("p")
    expect(page.locator(".filter .status")).to_have_text("paused")
    shop.database.execute("UPDATE orders SET amount = 779.75 WHERE id = 2000")
    expect(page.get_by_text("1 epochs went by")).to_be_visible()
    expect(page.locator("tr", has_text="779.75")).to_have_count(0)


def test_rows_are_live_sorted_and_filtered(open_page: Open, shop: Shop) -> None:
    page = open_page("#/views/revenue/rows").page
    rows = page.locator("table.rows tbody tr")
    expect(rows).to_have_count(3)
    shop.database.execute("INSERT INTO customers VALUES (1000, 'west')")
    shop.database.execute("INSERT INTO orders VALUES (1000, 1000, 12.50)")
    expect(rows).to_have_count(4)
    west = rows.filter(has_text="west")
    expect(west).to_contain_text("12.50")
    page.locator("table.rows th").get_by_role("button", name="orders").click()
    expect(rows.first).to_contain_text("west")
    page.get_by_label("Column").select_option("region")
    page.get_by_label("Value").fill("east")
    expect(rows).to_have_count(1)


def test_pages_of_rows(open_page: Open) -> None:
    page = open_page("#/views/large_orders/rows").page
    rows = page.locator("table.rows tbody tr")
    expect(rows).to_have_count(50)
    first = rows.first.inner_text()
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_text("51–100")).to_be_visible()
    expect(rows.first).not_to_have_text(first)
    page.get_by_role("button", name="Previous").click()
    expect(page.get_by_text("1–50")).to_be_visible()


def test_hostile_names_and_values_are_texts(open_page: Open) -> None:
    page = open_page().page
    name = '"' + HOSTILE_NAME.replace('"', '""') + '"'
    link = page.get_by_role("link", name=name)
    expect(link).to_have_text(name)
    link.click()
    expect(page.get_by_role("heading", level=1)).to_have_text(name)
    rows = page.locator("table.rows tbody tr")
    expect(rows).to_have_count(len(HOSTILE_TEXTS))
    expect(page.locator("table.rows th").nth(1)).to_have_text("<b>words</b>")
    for text in HOSTILE_TEXTS[:3]:
        expect(rows.filter(has_text=text)).to_have_count(1)
    assert page.locator("main img, main script, main b").count() == 0
    # No double holds this number.
    expect(rows.filter(has_text="<script>")).to_contain_text("9007199254740993")
    long = rows.filter(has_text="xxxx")
    assert len(long.inner_text()) < 400
    long.get_by_role("button").click()
    expect(page.get_by_role("dialog").locator("pre")).to_have_text(HOSTILE_TEXTS[3])
    page.keyboard.press("Escape")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_chart_keeps_to_its_frame_and_has_an_axis(open_page: Open, shop: Shop) -> None:
    """Also where the service remembers more than the window shows."""
    shop.database.execute("UPDATE orders SET amount = amount + 1 WHERE id < 5")
    watched = open_page("#/health")
    page = watched.page
    past = """() => {
        const told = window.fetch;
        window.fetch = async (path, options) => {
            const answer = await told(path, options);
            if (!String(path).startsWith("/overview")) return answer;
            const body = await answer.json();
            const at = Array.from({length: 60}, (_, i) => body.at - 600 + i * 10);
            const memory = at.map((_, i) => (i < 30 ? 9e12 : 1e8));
            body.history = [{group: "default", at, totals: {}, gauges: {"memory default": memory}}];
            const headers = {"Content-Type": "application/json"};
            return new Response(JSON.stringify(body), {headers});
        };
    }"""
    page.add_init_script(f"({past})()")
    page.reload()
    chart = page.locator("figure.chart", has_text="Memory")
    expect(chart.locator(".axis span")).to_have_count(3)
    expect(chart.locator("polyline")).to_have_attribute("points", re.compile(r"^\d"))
    points = chart.locator("polyline").get_attribute("points") or ""
    assert all(float(point.split(",")[0]) >= 0 for point in points.split()), points
    # What lies outside of the window has no say in the scale either.
    assert "TiB" not in chart.locator(".axis").inner_text()
    expect(chart.locator(".scale")).to_contain_text("3 min ago")
    assert chart.locator("svg").evaluate("e => getComputedStyle(e).overflow") == "hidden"


@pytest.mark.whole
def test_failed_views_come_first_and_are_rebuilt_where_they_stand(
    open_page: Open, shop: Shop
) -> None:
    shop.database.execute("CREATE TABLE fleeting (id int PRIMARY KEY, note text)")
    shop.service.create("zz_fleeting", "SELECT id, note FROM fleeting", backfill="local")
    shop.database.execute("ALTER TABLE fleeting DROP COLUMN note")
    shop.service.await_status("zz_fleeting", "failed")
    page = open_page().page
    names = page.locator("section[aria-label=Views] tbody td.name a")
    expect(names.first).to_have_text("zz_fleeting")
    expect(page.get_by_role("alert", name="What is wrong")).to_contain_text("zz_fleeting")
    shop.database.execute("ALTER TABLE fleeting ADD COLUMN note text")
    page.get_by_role("button", name="Rebuild zz_fleeting").click()
    page.get_by_role("dialog").get_by_role("button", name="Rebuild").click()
    shop.service.await_status("zz_fleeting")
    expect(page.get_by_role("alert", name="What is wrong")).to_have_count(0)
    shop.service.drop("zz_fleeting")


@pytest.mark.whole
def test_a_stopped_source_is_reported_on_top_and_tried_again(open_page: Open, shop: Shop) -> None:
    folder = shop.folder / "halting"
    folder.mkdir()
    (folder / "a.csv").write_text("id\n1\n")
    relation = {"path": f"{folder}/*.csv", "columns": [{"name": "id", "type": "int4"}]}
    options = {"relations": {"ids": relation}, "poll_interval_ms": 50, "settle_ms": 1}
    body = {"name": "halting", "type": "files", "options": options}
    assert shop.service.call("POST", "/sources", body).status_code == 201
    shop.service.create("ids_of", "SELECT id FROM halting.ids", backfill="local")
    (folder / "b.csv").write_text("id\nmany\n")
    shop.service.await_status("ids_of", "degraded")
    page = open_page().page
    alert = page.get_by_role("alert", name="What is wrong")
    expect(alert).to_contain_text('source "halting" is stopped')
    expect(page.locator("section[aria-label=Views] tbody td.name a").first).to_have_text("ids_of")
    page.goto(page.url.split("#")[0] + "#/views/ids_of/problems")
    expect(page.get_by_text("All is well")).to_have_count(0)
    expect(page.get_by_text("This view is not being updated").first).to_be_visible()
    (folder / "b.csv").write_text("id\n2\n")
    page.get_by_role("button", name="Retry halting now").click()
    shop.service.await_status("ids_of")
    expect(page.get_by_text("All is well")).to_be_visible()
    shop.service.drop("ids_of")
    assert shop.service.call("DELETE", "/sources/halting").status_code == 204


def test_tables_and_columns_complete(open_page: Open) -> None:
    watched = open_page("#/new")
    # The editor validates whenever typing pauses: half a query is answered by 400.
    watched.expected = ("400",)
    page = watched.page
    editor = page.get_by_label("Query")
    editor.click()
    page.keyboard.type("SELECT  FROM ord")
    offered = page.locator(".cm-tooltip-autocomplete li")
    page.keyboard.press("Control+Space")
    expect(offered.filter(has_text=re.compile("^orders$"))).to_be_visible()
    page.keyboard.press("Escape")
    page.keyboard.type("ers o WHERE o.cust")
    page.keyboard.press("Control+Space")
    expect(offered.filter(has_text="customer_id")).to_be_visible()
