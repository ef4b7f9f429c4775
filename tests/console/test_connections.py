"""Oracle: REST: what a form of the console has made is what was filled in, and the service's own
error stands beside the option that it names."""

from __future__ import annotations

import os
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Locator, Page, expect

from connectors.option_schema import Schema
from service.api.option_schemas import sink_schema, source_schema
from service.factory.sink_types import MODULES
from service.ingest.declared_sources import TYPES
from tests.console.conftest import Open, Shop


def option(page: Page, path: str) -> Locator:
    """The control of an option, by its path."""
    return page.locator(f'[id="option-{path}"]')


def error_of(page: Page, path: str) -> Locator:
    """What stands beside an option that was refused."""
    return page.locator(f'[id="option-{path}-error"]')


def begin_source(page: Page, type_name: str, name: str) -> None:
    """Choose the type and the name of a new source."""
    page.get_by_label("Type", exact=True).select_option(type_name)
    page.locator("#new-name").fill(name)


def test_a_source_is_made_shown_and_dropped(open_page: Open, shop: Shop) -> None:
    folder = shop.folder / "stock"
    folder.mkdir()
    (folder / "a.csv").write_text("id,amount\n1,2.50\n2,3.75\n")
    # Settled long ago.
    os.utime(folder / "a.csv", (1e9, 1e9))
    watched = open_page("#/new-source")
    page, watched.expected = watched.page, ("422", "404")
    begin_source(page, "files", "stock")
    page.get_by_label("Name of the relation").fill("items")
    option(page, "relations.items.path").fill("somewhere/*.csv")
    page.get_by_role("button", name="Create source").click()
    refused = error_of(page, "relations.items.path")
    expect(refused).to_contain_text("neither absolute nor in a bucket")
    expect(refused).to_contain_text("source.bad_option")
    expect(option(page, "relations.items.path")).to_be_focused()
    expect(option(page, "relations.items.path")).to_have_attribute("aria-invalid", "true")
    option(page, "relations.items.path").fill(f"{folder}/*.csv")
    page.get_by_role("button", name="Propose columns").click()
    expect(page.get_by_label("Name of column 2")).to_have_value("amount")
    page.get_by_label("Type of column 2").fill("numeric(10,2)")
    page.get_by_role("button", name="Create source").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("stock")
    expect(page.get_by_role("region", name="relation items")).to_contain_text("numeric(10,2)")
    made = shop.service.call("GET", "/sources/stock").json()
    assert made["type"] == "files"
    relation = made["options"]["relations"]["items"]
    assert relation["path"] == f"{folder}/*.csv"
    assert [column["name"] for column in relation["columns"]] == ["id", "amount"]
    page.get_by_role("button", name="Drop source").click()
    page.get_by_role("button", name="Drop it").click()
    expect(page.get_by_role("link", name="revenue", exact=True)).to_be_visible()
    assert shop.service.call("GET", "/sources/stock").status_code == 404


@pytest.mark.whole
def test_a_sink_is_added_shown_and_dropped(open_page: Open, shop: Shop) -> None:
    lake = shop.folder / "lake"
    watched = open_page("#/views/revenue/sinks")
    page, watched.expected = watched.page, ("403", "422")
    page.get_by_role("button", name="Add a sink").click()
    page.get_by_label("Type", exact=True).select_option("parquet")
    page.locator("#new-name").fill("archive")
    option(page, "path").fill("lake")
    page.get_by_role("button", name="Add sink").click()
    expect(error_of(page, "path")).to_contain_text("sink.bad_option")
    option(page, "path").fill(str(lake))
    page.get_by_role("button", name="Add sink").click()
    sink = page.get_by_role("region", name="sink archive")
    expect(sink.locator(".status")).to_have_text("live")
    expect(sink).to_contain_text("Exactly once, for readers of the manifests.")
    expect(sink).to_contain_text("epoch")
    expect(sink).to_contain_text("nothing waits")
    assert list(lake.rglob("*.parquet"))
    found = shop.service.call("GET", "/views/revenue/sinks/archive").json()
    assert (found["type"], found["options"]["path"]) == ("parquet", str(lake))
    sink.get_by_role("button", name="Drop archive").click()
    page.get_by_label("Also delete what it has written").check()
    page.get_by_role("button", name="Drop it").click()
    expect(page.get_by_text("No additional sinks")).to_be_visible()
    assert not list(lake.rglob("*.parquet"))
    assert shop.service.call("GET", "/views/revenue/sinks").json()["sinks"] == []


@pytest.mark.whole
def test_options_of_a_source_are_changed(open_page: Open, shop: Shop) -> None:
    watched = open_page("#/sources/depot")
    page = watched.page
    page.get_by_role("link", name="Change options").click()
    expect(page.get_by_label("Name of the relation")).to_have_value("prices")
    expect(option(page, "relations.prices.path")).to_have_value(f"{shop.folder}/*.csv")
    before = shop.service.call("GET", "/sources/depot").json()["options"]
    interval = option(page, "poll_interval_ms")
    expect(interval).to_have_value("100")
    interval.fill("250")
    page.get_by_role("button", name="Change options").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("depot")
    after = shop.service.call("GET", "/sources/depot").json()["options"]
    assert after == {**before, "poll_interval_ms": 250}


@pytest.mark.whole
def test_a_secret_is_a_reference(open_page: Open) -> None:
    watched = open_page("#/new-source")
    page, watched.expected = watched.page, ("422",)
    begin_source(page, "postgres", "erp")
    for name in ("host", "database", "user"):
        option(page, name).fill("127.0.0.1")
    option(page, "password").fill("hunter22")
    page.get_by_role("button", name="Create source").click()
    expect(error_of(page, "password")).to_contain_text("secret.plain")
    expect(error_of(page, "password")).to_contain_text("${env:NAME}")


def shown_first(schema: Schema) -> list[str]:
    """The labels of the options of a new form that are not behind a control."""
    options = schema["properties"].values()
    return [o["title"] for o in options if not o.get("x-advanced") and not o.get("deprecated")]


def check_form(page: Page, schema: Schema, button: str) -> list[str]:
    """What is wrong with a form: labels that are missing, what axe-core finds, no error shown."""
    form, faults = page.locator("form.options-form"), []
    for control in form.locator("summary", has_text="More options").all():
        control.click()
    titles = form.inner_text()
    faults += [f"no {title}" for title in shown_first(schema) if title not in titles]
    for violation in Axe().run(page).response["violations"]:
        nodes = [node["html"][:160] for node in violation["nodes"][:3]]
        faults.append(f"{violation['id']}: {violation['help']}: {nodes}")
    page.set_viewport_size({"width": 400, "height": 800})
    if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
        faults.append("wider than 400 pixels")
    page.set_viewport_size({"width": 1280, "height": 860})
    page.get_by_role("button", name=button).click()
    expect(page.get_by_role("alert").first).to_be_visible()
    return faults


@pytest.mark.whole
def test_every_type_has_a_form(open_page: Open, shop: Shop) -> None:
    """Accessible and narrow, also with all options open; sent as it is, it is refused."""
    watched = open_page("#/new-source")
    page, watched.expected = watched.page, ("422", "400", "403")
    faults: dict[str, Any] = {}
    for name in TYPES:
        # A clock has no required option.
        begin_source(page, name, "Wrong Name" if name == "clock" else "a_form")
        faults[f"source {name}"] = check_form(page, source_schema(name), "Create source")
    page.goto(page.url.split("#")[0] + "#/views/revenue/sinks")
    page.get_by_role("button", name="Add a sink").click()
    for name in MODULES:
        page.get_by_label("Type", exact=True).select_option(name)
        faults[f"sink {name}"] = check_form(page, sink_schema(name), "Add sink")
    assert not {name: found for name, found in faults.items() if found}
    assert shop.service.call("GET", "/views/revenue/sinks").json()["sinks"] == []
