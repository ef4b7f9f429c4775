"""Oracle: /openapi.json. The page /docs shows each of its calls and carries one out, from our own
files alone; what is asked of another host, or against the policy, fails the test. It comes before
test_console.py, whose last test makes a token, after which nobody is let in without."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from service.api.console_files import POLICY
from tests.console.conftest import Open, Shop
from tests.harness import http


@pytest.mark.whole
def test_every_call_is_shown_and_one_is_tried(open_page: Open, shop: Shop) -> None:
    described = shop.service.call("GET", "/openapi.json").json()
    calls = sum(len(methods) for methods in described["paths"].values())
    page = open_page("docs", color_scheme="dark").page
    expect(page.locator(".opblock")).to_have_count(calls)
    call = page.locator("[id$=_views__name__get]")
    call.locator(".opblock-summary").click()
    call.get_by_role("button", name="Try it out").click()
    call.locator("tr[data-param-name=name] input").fill("revenue")
    call.get_by_role("button", name="Execute").click()
    expect(call.locator(".live-responses-table tr.response td").first).to_contain_text("200")
    expect(call.locator(".live-responses-table")).to_contain_text("GROUP BY c.region")


@pytest.mark.whole
def test_it_asks_with_the_token_of_the_tab(open_page: Open) -> None:
    watched = open_page("docs")
    watched.expected = ("401",)
    page = watched.page
    expect(page.locator(".opblock").first).to_be_visible()
    page.evaluate("sessionStorage.setItem('tidemark.token', 'none')")
    with page.expect_request("**/openapi.json") as asked:
        page.reload()
    assert asked.value.headers["authorization"] == "Bearer none"
    expect(page.get_by_text("This service asks for a token")).to_be_visible()


@pytest.mark.whole
def test_its_policy_names_no_other_host(shop: Shop) -> None:
    for path in ("/docs", "/", "/openapi.json", "/views"):
        answer = http.get(f"{shop.service.url}{path}")
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert "//" not in policy and "http" not in policy, path
        assert policy == POLICY or path not in ("/docs", "/")
    assert http.get(f"{shop.service.url}/redoc").status_code == 404
