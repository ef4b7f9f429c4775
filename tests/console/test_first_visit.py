"""Oracle: the database and REST: what the console shows of tables, answers and tokens is what they
say, and an example of a view is one that PostgreSQL answers with the rows of the preview."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.console.conftest import Open, Shop
from tests.harness import http
from tests.harness.postgres import SERVER_SETTINGS, Database, new_database
from tests.harness.service import RunningService

LARGE = """
CREATE TABLE lands (id int PRIMARY KEY, "order" text NOT NULL);
CREATE TABLE people (id int PRIMARY KEY, land int NOT NULL REFERENCES lands, mail text);
CREATE TABLE bills (id int PRIMARY KEY, person int NOT NULL REFERENCES people, "user" int
    REFERENCES lands, amount numeric(10,2) NOT NULL);
CREATE TABLE notes (at int, note text);
INSERT INTO lands SELECT n, 'land ' || n FROM generate_series(1, 3) n;
INSERT INTO people SELECT n, n % 3 + 1, n || '@there' FROM generate_series(1, 9) n;
INSERT INTO bills SELECT n, n % 9 + 1, n % 3 + 1, n FROM generate_series(1, 90) n;
INSERT INTO notes SELECT n, 'note' FROM generate_series(1, 900) n;
ANALYZE;
"""


@pytest.fixture(scope="module")
def empty(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Database, RunningService]]:
    """A service over tables, without a view."""
    with new_database(postgres) as database:
        database.execute(LARGE)
        with RunningService(database.dsn, tmp_path_factory.mktemp("empty")) as service:
            yield database, service


def query_shown(page: Page) -> str:
    """The query of the example."""
    return page.locator(".snippet.sql code").inner_text()


def cells(page: Page, selector: str) -> list[list[str]]:
    """The texts of a table's body."""
    rows = page.locator(f"{selector} tbody tr").all()
    return [row.locator("td").all_inner_texts() for row in rows]


def rows_of(database: Database, query: str) -> list[list[str]]:
    """PostgreSQL's answer as texts, in order."""
    return sorted([str(value) for value in row] for row in database.rows(query))


def test_the_first_view_is_shown_before_it_is_created(
    open_page: Open, empty: tuple[Database, RunningService]
) -> None:
    """The biggest table that a view can read and that names another: not `notes`, without a key."""
    database, service = empty
    watched = open_page(url=service.url)
    # The page may look at the view once more while it is going.
    page, watched.expected = watched.page, ("404", "409")
    expect(page.get_by_role("heading", level=1)).to_contain_text("Keep the answer")
    expect(page.get_by_role("heading", level=2)).to_contain_text("bills by")
    query = query_shown(page)
    assert "FROM bills AS" in query and "JOIN" in query and "sum(b.amount)" in query
    preview = page.get_by_role("region", name="Preview").locator("tbody tr")
    expect(preview.first).to_be_visible()
    shown = cells(page, "table.rows")
    answer = rows_of(database, query)
    assert sorted(shown) == answer if len(answer) <= 5 else all(row in answer for row in shown)
    expect(page.locator("dl.estimate")).to_contain_text("Source rows")
    assert service.call("GET", "/views").json()["views"] == []
    assert not Axe().run(page).response["violations"]
    page.get_by_label("Name").fill("first")
    page.get_by_role("button", name="Create this view").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("first")
    service.await_status("first")
    assert rows_of(database, "SELECT * FROM first") == answer
    service.drop("first")
    page.goto(page.url.split("#")[0] + "#/tables/public/lands")
    page.get_by_role("link", name="Make a view of it").click()
    # A word that SQL reserves is quoted.
    expect(page.locator(".check")).to_contain_text("PostgreSQL accepts it")
    expect(page.locator(".cm-content")).to_contain_text('"order"')


def test_the_tables_are_what_the_catalogs_say(open_page: Open, shop: Shop) -> None:
    shop.database.execute("ANALYZE customers, orders, texts, ratios")
    page = open_page("#/tables").page
    lines = page.locator("tbody tr")
    expect(lines.filter(has=page.get_by_role("link", name="orders", exact=True))).to_be_visible()
    served = shop.service.call("GET", "/tables").json()["tables"]
    expect(lines).to_have_count(len(served))
    expect(lines.filter(has_text="depot.prices")).to_contain_text("source")
    page.get_by_label("Search tables").fill("customer_id")
    expect(lines.first).to_contain_text("orders")
    page.get_by_role("link", name="orders", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_have_text("orders")
    fields = page.locator("table.fields tbody tr")
    expect(fields).to_have_count(3)
    expect(fields.filter(has_text="amount")).to_contain_text("numeric(10,2)")
    expect(fields.first).to_contain_text("key")
    expect(page.locator("dl.figures")).to_contain_text("default")
    expect(page.get_by_role("link", name="revenue", exact=True)).to_be_visible()
    page.get_by_role("link", name="Query it").click()
    page.locator(".cm-content").click()
    page.keyboard.press("Control+Enter")
    expect(page.locator("table.rows tbody tr")).to_have_count(100)


def test_a_table_says_what_it_lacks(
    open_page: Open, empty: tuple[Database, RunningService]
) -> None:
    page = open_page("#/tables/public/notes", url=empty[1].url).page
    problem = page.get_by_role("alert")
    expect(problem).to_contain_text("source.no_replica_identity")
    expect(problem).to_contain_text("add a PRIMARY KEY")
    expect(page.get_by_role("link", name="Make a view of it")).to_have_count(0)


def test_a_query_is_answered_once_and_becomes_a_view(open_page: Open, shop: Shop) -> None:
    watched = open_page("#/query")
    watched.expected = ("400",)
    page = watched.page
    editor = page.locator(".cm-content")
    editor.click()
    page.keyboard.insert_text("SELECT region,\n  nosuch FROM customers")
    page.keyboard.press("Control+Enter")
    expect(page.locator(".cm-wrong")).to_have_text("nosuch")
    expect(page.locator(".problem")).to_contain_text("line 2, column 3")
    page.keyboard.press("Control+a")
    query = "SELECT region, count(*) AS n FROM customers GROUP BY region"
    page.keyboard.insert_text(query)
    page.keyboard.press("Control+Enter")
    expect(page.locator("table.rows tbody tr").first).to_be_visible()
    assert sorted(cells(page, "table.rows")) == rows_of(shop.database, query)
    expect(page.locator(".cm-wrong")).to_have_count(0)
    page.keyboard.press("Control+a")
    page.keyboard.insert_text("SELECT id FROM orders")
    page.get_by_label("At most").select_option("100")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".check")).to_contain_text("The first 100 rows; there are more")
    expect(page.locator("table.rows tbody tr")).to_have_count(100)
    page.get_by_role("link", name="Make this a view").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("New view")
    expect(page.locator(".cm-content")).to_have_text("SELECT id FROM orders")
    assert shop.service.call("GET", "/views/orders_by").status_code == 404


def test_all_options_of_a_view_are_in_the_form(open_page: Open, shop: Shop) -> None:
    """They are those of POST /views, and what is filled in is what the view has."""
    watched = open_page("#/new")
    watched.expected = ("400", "422")
    page = watched.page
    page.locator(".cm-content").click()
    page.keyboard.insert_text("SELECT id, region FROM customers WHERE id < 9")
    page.get_by_label("Name").fill("with_options")
    page.get_by_text("Options", exact=True).click()
    page.get_by_text("More options").click()
    described = shop.service.call("GET", "/openapi.json").json()["components"]["schemas"]
    for option in described["ViewOptions"]["properties"]:
        expect(page.locator(f'[id="option-{option}"]')).to_have_count(1)
    page.get_by_label("History", exact=True).fill("seven")
    expect(page.locator('[id="option-history-error"]')).to_contain_text("request.invalid")
    page.get_by_label("History", exact=True).fill("7 days")
    page.get_by_label("Time zone").fill("Asia/Kolkata")
    page.get_by_label("Changes retained (s)").fill("600")
    expect(page.locator(".check")).to_contain_text("PostgreSQL accepts it")
    page.get_by_role("button", name="Create view").click()
    expect(page.get_by_text("It is live")).to_be_visible(timeout=60_000)
    made = shop.service.call("GET", "/views/with_options").json()["options"]
    assert (made["history"], made["time_zone"]) == ("7 days", "Asia/Kolkata")
    assert made["changes_retention_s"] == 600 and made["backfill"] == "auto"
    page.goto(page.url.split("#")[0] + "#/new?replace=with_options")
    page.get_by_text(re.compile("^Options")).click()
    expect(page.get_by_label("History", exact=True)).to_have_value("7 days")
    expect(page.locator('[id="option-group"]')).to_have_count(0)
    shop.service.drop("with_options")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_everything_is_there_on_a_phone(open_page: Open, scheme: str) -> None:
    """All screens and all eight tabs of a view can be touched, and the dataflow fits."""
    phone = {"width": 390, "height": 844}
    page = open_page("#/views/revenue/rows", viewport=phone, color_scheme=scheme).page
    tabs = page.locator(".tabs a")
    expect(tabs).to_have_count(8)
    for link in (*tabs.all(), *page.locator("nav[aria-label=Screens] a").all()):
        box = link.bounding_box()
        assert box and box["x"] >= 0 and box["x"] + box["width"] <= 390, link.inner_text()
    page.get_by_role("link", name="Dataflow").click()
    expect(page.locator(".node").first).to_be_visible()
    flow = page.locator(".flow")
    assert flow.evaluate("e => e.scrollWidth <= e.clientWidth")
    fitted = page.locator(".canvas").bounding_box()
    page.get_by_role("button", name="Zoom in").click()
    zoomed = page.locator(".canvas").bounding_box()
    assert fitted and zoomed and zoomed["width"] > 1.3 * fitted["width"]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("button", name="Fit").click()
    folded = page.locator(".node").count()
    # What reads a table, and what chooses its columns, is drawn with the table.
    assert page.locator(".node .what", has_text=re.compile("^scan")).count() == 0
    page.get_by_label("every step").check()
    expect(page.locator(".node .what", has_text=re.compile("^scan"))).to_have_count(2)
    assert page.locator(".node").count() > folded
    assert not Axe().run(page).response["violations"]


def test_nothing_waits_for_ever_where_the_service_is_gone(
    open_page: Open, empty: tuple[Database, RunningService]
) -> None:
    """Each screen says so in a sentence; parts of the page that are not loaded yet do too."""
    _, service = empty
    watched = open_page("#/health", url=service.url)
    watched.expected = ("ERR_CONNECTION_REFUSED", "Failed to load", "Failed to fetch", "503")
    page = watched.page
    expect(page.get_by_role("heading", level=1)).to_have_text("Health")
    service.stop()
    try:
        expect(page.get_by_text("does not answer").first).to_be_visible()
        for screen in ("#/tables", "#/query", "#/tokens", "#/views/some/rows", "#/sources/some"):
            page.evaluate("screen => { location.hash = screen }", screen)
            page.wait_for_timeout(300)
            expect(page.locator(".skeleton")).to_have_count(0)
            expect(page.locator("main")).to_contain_text(re.compile("answer|loaded"))
    finally:
        service.start()


@pytest.mark.whole
def test_a_database_without_tables_says_so(
    open_page: Open, postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    """Then one that no view can read; then one alone, which is grouped by a word of its own."""
    with new_database(postgres) as database, RunningService(database.dsn, tmp_path) as service:
        page = open_page(url=service.url).page
        expect(page.get_by_role("heading", level=2)).to_contain_text("has no table")
        database.execute(
            "CREATE TABLE visits (id int, country text, seconds int);"
            "INSERT INTO visits SELECT n, 'country ' || n % 3, n FROM generate_series(1, 9) n"
        )
        page.reload()
        expect(page.get_by_role("heading", level=2)).to_contain_text("No table can be read")
        page.locator("main").get_by_role("link", name="Tables", exact=True).click()
        expect(page.locator("tbody tr")).to_contain_text("no replica identity")
        database.execute("ALTER TABLE visits ADD PRIMARY KEY (id)")
        page.goto(f"{service.url}/#/")
        page.reload()
        expect(page.get_by_role("region", name="Preview").locator("tbody tr")).to_have_count(3)
        query = query_shown(page)
        assert "GROUP BY country" in query and "sum(seconds)" in query
        assert sorted(cells(page, "table.rows")) == rows_of(database, query)
        # The page would see the service end.
        page.goto("about:blank")


@pytest.mark.whole
def test_nothing_waits_for_ever_where_the_database_is_gone(open_page: Open, tmp_path: Path) -> None:
    """The service answers still: each screen says what it lacks, and has it again afterwards."""
    with EmbeddedPostgres(settings=SERVER_SETTINGS) as server, new_database(server) as database:
        database.execute(LARGE)
        with RunningService(database.dsn, tmp_path) as service:
            service.create("kept", "SELECT id, amount FROM bills", backfill="local")
            watched = open_page("#/health", url=service.url)
            watched.expected = ("Failed to load", "50", "40")
            page = watched.page
            expect(page.get_by_role("heading", level=1)).to_have_text("Health")
            server.stop(immediate=True)
            for screen in (
                "#/",
                "#/views/kept/rows",
                "#/views/kept/dataflow",
                "#/tables",
                "#/tokens",
            ):
                page.goto("about:blank")
                page.goto(f"{service.url}/{screen}")
                expect(page.locator(".skeleton")).to_have_count(0)
                expect(page.locator("#app")).to_contain_text(re.compile("answer|reach|connect"))
            server.start()
            page.goto(f"{service.url}/#/views/kept/rows")
            expect(page.locator("table.rows tbody tr")).to_have_count(50, timeout=120_000)


def test_tokens_are_made_shown_once_and_revoked(
    open_page: Open, empty: tuple[Database, RunningService]
) -> None:
    """One of the last of this service: from the first token on every request needs one."""
    _, service = empty
    watched = open_page("#/tokens", url=service.url)
    watched.expected = ("401", "422", "409")
    page = watched.page
    expect(page.get_by_text("No token yet")).to_be_visible()
    page.get_by_role("button", name="New token").click()
    page.get_by_label("Name").fill("me")
    page.get_by_role("button", name="Create token").click()
    dialog = page.get_by_role("dialog")
    admin = dialog.locator("pre").inner_text()
    assert admin.startswith("tdm_")
    dialog.get_by_role("button", name="Done").click()
    expect(page.locator("tbody tr")).to_contain_text("admin")
    # This tab has it; the page shows it no more.
    assert admin not in page.content()
    page.get_by_role("button", name="New token").click()
    page.get_by_label("Name").fill("grafana")
    page.locator('[id="option-role"]').select_option("reader")
    page.get_by_label("Expires after").fill("90")
    page.get_by_role("button", name="Create token").click()
    reader = page.get_by_role("dialog").locator("pre").inner_text()
    page.get_by_role("button", name="Done").click()

    def asked(token: str, path: str = "/views") -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return http.get(f"{service.url}{path}", headers=headers).status_code

    assert (asked(admin, "/tokens"), asked(reader), asked(reader, "/tokens")) == (200, 200, 403)
    assert not Axe().run(page).response["violations"]
    page.get_by_role("button", name="Revoke grafana").click()
    page.get_by_role("button", name="Revoke it").click()
    expect(page.locator("tbody tr", has_text="grafana")).to_contain_text("revoked")
    service.await_so(lambda: asked(reader) == 401)
    service.client.headers["Authorization"] = f"Bearer {admin}"


def test_a_token_is_requested_and_readers_get_no_controls(
    open_page: Open, empty: tuple[Database, RunningService]
) -> None:
    """Likewise."""
    _, service = empty
    made = service.call("POST", "/tokens", {"name": "another", "role": "admin"})
    service.client.headers["Authorization"] = f"Bearer {made.json()['token']}"
    made = service.call("POST", "/tokens", {"name": "r", "role": "reader"})
    reader = made.json()["token"]
    service.create("seen", "SELECT id, amount FROM bills", backfill="local")
    watched = open_page("#/views/seen/changes", url=service.url)
    watched.expected = ("401",)
    page = watched.page
    page.on("request", lambda r: watched.faults.append(r.url) if reader in r.url else None)
    page.get_by_label("Token").fill("nobody's")
    page.get_by_role("button", name="Enter").click()
    expect(page.get_by_role("alert")).to_contain_text("not known")
    page.get_by_label("Token").fill(reader)
    page.get_by_role("button", name="Enter").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("seen")
    expect(page.locator(".filter .status")).to_have_text("live")
    assert page.get_by_role("link", name="New view").count() == 0
    assert page.get_by_role("link", name="Manage").count() == 0
    assert page.get_by_role("link", name="Tokens").count() == 0
    assert page.evaluate("JSON.stringify({...localStorage})") == "{}"
    page.reload()
    expect(page.locator(".filter .status")).to_have_text("live")
    page.evaluate("sessionStorage.clear()")
    page.reload()
    expect(page.get_by_label("Token")).to_be_visible()
