"""The pictures of docs/images/console: every screen, light and dark, wide and on a phone.

`python -m tests.console.pictures` starts a shop under traffic and a service over it, and writes
them anew; with names of screens, these alone. They are WebP, a few tens of kilobytes each.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg2
from playwright.sync_api import Browser, Page, sync_playwright

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.console.conftest import chromium
from tests.harness.postgres import SERVER_SETTINGS, Database, new_database
from tests.harness.service import RunningService

FOLDER = Path(__file__).parent.parent.parent / "docs" / "images" / "console"
SIZES = {1440: 900, 390: 844}
SCHEMES = ("light", "dark")
# Of a picture: what lies further down is cut off.
TALLEST = 1500
SUFFIX = ".webp"
QUALITY = 72
SETTLE_MS = 900
SHOP = """
CREATE TABLE regions (id int PRIMARY KEY, name text NOT NULL);
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, email text,
    region_id int NOT NULL REFERENCES regions);
CREATE TABLE products (id int PRIMARY KEY, name text NOT NULL, category text NOT NULL,
    price numeric(10,2) NOT NULL);
CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id int NOT NULL REFERENCES customers, status text NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT now());
CREATE TABLE order_lines (order_id bigint NOT NULL REFERENCES orders, line int NOT NULL,
    product_id int NOT NULL REFERENCES products, quantity int NOT NULL,
    amount numeric(12,2) NOT NULL, PRIMARY KEY (order_id, line));
CREATE TABLE audit_log (at timestamptz DEFAULT now(), entry jsonb);
INSERT INTO regions SELECT n, (ARRAY['north', 'east', 'south', 'west'])[n]
    FROM generate_series(1, 4) n;
INSERT INTO customers SELECT n, 'customer ' || n, n || '@example.com', n % 4 + 1
    FROM generate_series(1, 500) n;
INSERT INTO products SELECT n, 'product ' || n,
    (ARRAY['books', 'garden', 'music', 'toys'])[n % 4 + 1], (n % 90 + 10) * 1.25
    FROM generate_series(1, 80) n;
INSERT INTO orders (customer_id, status)
    SELECT n % 500 + 1, (ARRAY['open', 'paid', 'sent'])[n % 3 + 1] FROM generate_series(1, 6000) n;
INSERT INTO order_lines SELECT o.id, l, (o.id * 7 + l) % 80 + 1, l, l * p.price
    FROM orders o, generate_series(1, 2) l, products p WHERE p.id = (o.id * 7 + l) % 80 + 1;
ANALYZE;
"""
BUY = """
WITH made AS (
    INSERT INTO orders (customer_id, status) VALUES (%(n)s %% 500 + 1, 'open') RETURNING id
)
INSERT INTO order_lines SELECT id, 1, %(n)s %% 80 + 1, 1, %(n)s %% 90 * 1.25 FROM made;
UPDATE orders SET status = 'paid' WHERE id = %(n)s
"""
LINES = "FROM order_lines l JOIN products p ON p.id = l.product_id"
VIEWS = {
    "revenue_by_region": "SELECT r.name AS region, count(*) AS lines, sum(l.amount) AS revenue"
    " FROM order_lines l JOIN orders o ON o.id = l.order_id JOIN customers c ON"
    " c.id = o.customer_id JOIN regions r ON r.id = c.region_id GROUP BY r.name",
    "sales_by_category": "SELECT p.category, sum(l.quantity) AS pieces, sum(l.amount) AS amount"
    f" {LINES} GROUP BY p.category",
    "best_products": f"SELECT p.name, sum(l.amount) AS amount {LINES} GROUP BY p.name"
    " ORDER BY sum(l.amount) DESC LIMIT 10",
    "open_orders": "SELECT id, customer_id, placed_at FROM orders WHERE status = 'open'",
    "pieces_a_euro": "SELECT order_id, line, quantity / (quantity - 1) AS ratio FROM order_lines"
    " WHERE order_id < 4",
}
QUERY = f"SELECT p.category,\n       sum(l.amount) AS amount\n{LINES}\nGROUP BY p.category"
WRONG = QUERY.replace("amount)", "amuont)")
ONE = "#/views/revenue_by_region"
# By name: the address, and a text that is there once the screen is complete.
FIRST = {"welcome": ("#/", "answered in")}
SCREENS = {
    "views": ("#/", "best_products"),
    **{f"view-{tab}": (f"{ONE}/{tab}", "") for tab in ("rows", "changes", "sinks", "dataflow")},
    **{f"view-{tab}": (f"{ONE}/{tab}", "") for tab in ("sql", "use", "manage")},
    "view-problems": ("#/views/pieces_a_euro/problems", "division"),
    "new-view": ("#/new?name=sales&query=", "Source rows"),
    "new-view-error": ("#/new?name=sales&query=", "line 2"),
    "tables": ("#/tables", "order_lines"),
    "table": ("#/tables/public/order_lines", "Replica identity"),
    "query": ("#/query?query=", "At most"),
    "new-source": ("#/new-source", "Create source"),
    "source": ("#/sources/depot", "depot.prices"),
    "health": ("#/health", "Memory"),
    "tokens": ("#/tokens", "grafana"),
}
LAST = {"token": ("#/", "requires a token")}


def main() -> None:
    """Write the pictures that the arguments name, by default all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    chosen = set(parser.parse_args().names)
    FOLDER.mkdir(parents=True, exist_ok=True)
    with shop() as (database, service), open_browser() as browser:
        take(browser, service.url, FIRST, chosen)
        furnish(service)
        with traffic(database):
            time.sleep(20)
            token = service.call("POST", "/tokens", {"name": "ann", "role": "admin"}).json()[
                "token"
            ]
            service.client.headers["Authorization"] = f"Bearer {token}"
            made = {"name": "grafana", "role": "reader", "expires_days": 90}
            service.call("POST", "/tokens", made)
            take(browser, service.url, SCREENS, chosen, token)
            take(browser, service.url, LAST, chosen)


@contextmanager
def shop() -> Iterator[tuple[Database, RunningService]]:
    """A shop's database, and a service over it without views."""
    with EmbeddedPostgres(None, SERVER_SETTINGS) as server, new_database(server) as database:
        database.execute(SHOP)
        folder = Path(tempfile.mkdtemp())
        with RunningService(database.dsn, folder, allow_folders=folder) as service:
            yield database, service


def furnish(service: RunningService) -> None:
    """Declare a source and create the views."""
    folder = service.state.parent / "depot"
    folder.mkdir()
    (folder / "prices.csv").write_text("id,price\n1,2.50\n2,much\n")
    columns = [{"name": "id", "type": "int4"}, {"name": "price", "type": "numeric(10,2)"}]
    relation = {"path": f"{folder}/*.csv", "columns": columns, "on_error": "dead_letter"}
    options = {"relations": {"prices": relation}, "poll_interval_ms": 100, "settle_ms": 1}
    service.call("POST", "/sources", {"name": "depot", "type": "files", "options": options})
    for name, query in {**VIEWS, "depot_prices": "SELECT id, price FROM depot.prices"}.items():
        service.create(name, query, wait_s=0)
    for name in (*VIEWS, "depot_prices"):
        service.await_status(name, timeout_s=300)


@contextmanager
def traffic(database: Database) -> Iterator[None]:
    """Some orders a second."""
    ended = threading.Event()

    def buy() -> None:
        connection = psycopg2.connect(database.dsn)
        connection.autocommit = True
        for n in itertools.count(1):
            if ended.wait(0.15):
                break
            with connection.cursor() as cursor:
                cursor.execute(BUY, {"n": n})
        connection.close()

    buyer = threading.Thread(target=buy)
    buyer.start()
    try:
        yield
    finally:
        ended.set()
        buyer.join()


@contextmanager
def open_browser() -> Iterator[Browser]:
    """A headless Chromium."""
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        found = playwright.chromium.launch(executable_path=chromium(), args=arguments)
        yield found
        found.close()


def take(
    browser: Browser,
    url: str,
    screens: dict[str, tuple[str, str]],
    chosen: set[str],
    token: str = "",
) -> None:
    """Write the pictures of some screens, in each size and scheme."""
    for (width, height), scheme in itertools.product(SIZES.items(), SCHEMES):
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            reduced_motion="reduce",
            locale="en",
        )
        context.set_default_timeout(60_000)
        if token:
            context.add_init_script(f"sessionStorage.setItem('tidemark.token', '{token}')")
        page = context.new_page()
        for name, (address, text) in screens.items():
            if chosen and name not in chosen:
                continue
            show(page, url, name, address, text)
            _write(page, width, FOLDER / f"{name}-{width}-{scheme}{SUFFIX}")
        context.close()


def show(page: Page, url: str, name: str, address: str, text: str) -> None:
    """Open a screen and wait until it is complete."""
    query = WRONG if name == "new-view-error" else QUERY
    encoded = page.evaluate("encodeURIComponent", query) if address.endswith("=") else ""
    page.goto("about:blank")
    page.goto(f"{url}/{address}{encoded}")
    if name == "query":
        page.locator(".cm-content").click()
        page.keyboard.press("Control+Enter")
        page.locator("table.rows tbody tr").first.wait_for()
    if name == "view-changes":
        page.locator("tr.plus").nth(2).wait_for()
    if name == "view-dataflow":
        page.locator(".node").first.wait_for()
        page.wait_for_timeout(2000)
    if text:
        page.get_by_text(text).first.wait_for()
    page.wait_for_timeout(SETTLE_MS)


def _write(page: Page, width: int, path: Path) -> None:
    height = min(TALLEST, page.evaluate("document.documentElement.scrollHeight"))
    session = page.context.new_cdp_session(page)
    found = session.send(
        "Page.captureScreenshot",
        {
            "format": path.suffix[1:],
            "quality": QUALITY,
            "captureBeyondViewport": True,
            "clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1},
        },
    )
    session.detach()
    path.write_bytes(base64.b64decode(found["data"]))
    print(f"{path.name}: {path.stat().st_size // 1024} kB", flush=True)


if __name__ == "__main__":
    main()
