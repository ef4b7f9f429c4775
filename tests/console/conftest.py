"""A service with some views, and a headless Chromium that looks at its console.

Both are shared by all tests of this folder. Where there is no Chromium the tests are skipped, with
what to install. Every page fails its test when it logged an error, broke its policy, or asked
anything of another host.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Request, expect, sync_playwright

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService

PROGRAMS = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
# Also of each expectation: a page waits for the service, and other tests use the same cores.
TIMEOUT_MS = 20_000
expect.set_options(timeout=TIMEOUT_MS)

HOSTILE_NAME = '"><img src=x onerror=alert(1)>'
HOSTILE_TEXTS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\u202eright to left \u05e9\u05dc\u05d5\u05dd",
    "x" * 10_000,
    "",
)
TABLES = """
CREATE TABLE customers (id int PRIMARY KEY, region text NOT NULL);
CREATE TABLE orders (id int PRIMARY KEY, customer_id int NOT NULL, amount numeric(10,2) NOT NULL);
CREATE TABLE texts (id int PRIMARY KEY, "<b>words</b>" text);
CREATE TABLE ratios (id int PRIMARY KEY, over int NOT NULL);
INSERT INTO customers SELECT n, (ARRAY['north', 'south', 'east'])[n % 3 + 1]
    FROM generate_series(1, 30) AS n;
INSERT INTO orders SELECT n, n % 30 + 1, n FROM generate_series(1, 300) AS n;
INSERT INTO ratios VALUES (1, 2), (2, 0), (3, 0);
"""
REVENUE = """SELECT c.region, count(*) AS orders, sum(o.amount) AS revenue
FROM orders o JOIN customers c ON c.id = o.customer_id GROUP BY c.region"""
TEXTS = "SELECT *, 9007199254740993 + id AS big FROM texts"
VIEWS = {
    "revenue": REVENUE,
    "large_orders": "SELECT id, amount FROM orders WHERE amount > 100",
    '"' + HOSTILE_NAME.replace('"', '""') + '"': TEXTS,
    "ratios_of": "SELECT id, 100 / over AS ratio FROM ratios",
    "prices_of": "SELECT id, price FROM depot.prices",
}


PRICES = "id,price\n1,2.50\n2,much\n3,more\n"


@dataclass
class Shop:
    """The database and the service over it."""

    database: Database
    service: RunningService
    folder: Path


@dataclass
class Watched:
    """A page, and what it should not have done."""

    page: Page
    faults: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()

    def watch(self, origin: str) -> None:
        """Note errors, broken policies and requests to elsewhere from now on."""
        self.page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        self.page.on("console", lambda m: self._on_console(m.type, m.text))
        self.page.on("dialog", lambda dialog: self.faults.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self._on_request(request, origin))

    def unexpected(self) -> list[str]:
        """What went wrong that the test has not announced."""
        return [f for f in self.faults if not any(word in f for word in self.expected)]

    def _on_console(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.faults.append(f"{kind}: {text}")

    def _on_request(self, request: Request, origin: str) -> None:
        if not request.url.startswith((origin, "data:")):
            self.faults.append(f"asked {request.url}")


@pytest.fixture(scope="package")
def shop(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A service with the views of VIEWS, live."""
    with new_database(postgres) as database:
        database.execute(TABLES)
        for number, text in enumerate(HOSTILE_TEXTS):
            database.execute("INSERT INTO texts VALUES (%s, %s)", (number, text))
        folder = tmp_path_factory.mktemp("console")
        service = RunningService(database.dsn, folder, allow_folders=folder, sink_folders=folder)
        with service:
            answer = service.call("POST", "/sources", source_of(folder))
            assert answer.status_code == 201, answer.text
            for name, query in VIEWS.items():
                service.create(name, query, wait_s=0)
            for name in VIEWS:
                service.await_status(name, timeout_s=180)
            yield Shop(database, service, folder)


def source_of(folder: Path) -> dict[str, object]:
    """A folder with a file two of whose records are not rows."""
    (folder / "prices.csv").write_text(PRICES)
    columns = [{"name": "id", "type": "int4"}, {"name": "price", "type": "numeric(10,2)"}]
    relation = {"path": f"{folder}/*.csv", "columns": columns, "on_error": "dead_letter"}
    options = {"relations": {"prices": relation}, "poll_interval_ms": 100, "settle_ms": 1}
    return {"name": "depot", "type": "files", "options": options}


def chromium() -> str | None:
    """The path of a Chromium: TIDEMARK_TEST_CHROMIUM, or what lies in the path."""
    named = os.environ.get("TIDEMARK_TEST_CHROMIUM")
    return named or next((found for name in PROGRAMS if (found := shutil.which(name))), None)


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """A headless Chromium."""
    program = chromium()
    if program is None:
        pytest.skip("no Chromium here: apt-get install chromium, or set TIDEMARK_TEST_CHROMIUM")
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        found = playwright.chromium.launch(executable_path=program, args=arguments)
        yield found
        found.close()


Open = Callable[..., Watched]


@pytest.fixture
def open_page(browser: Browser, shop: Shop) -> Iterator[Open]:
    """open_page("#/views/revenue", color_scheme="dark") -> a watched page of the console."""
    opened: list[Watched] = []

    def show(address: str = "#/", *, url: str = "", **options: object) -> Watched:
        options.setdefault("viewport", {"width": 1280, "height": 860})
        context = browser.new_context(**options)  # type: ignore[arg-type]
        context.set_default_timeout(TIMEOUT_MS)
        watched = Watched(context.new_page())
        watched.watch(url or shop.service.url)
        opened.append(watched)
        watched.page.goto(f"{url or shop.service.url}/{address}")
        return watched

    yield show
    for watched in opened:
        watched.page.context.close()
    faults = [fault for watched in opened for fault in watched.unexpected()]
    assert not faults, "\n".join(faults)
