"""Oracle: what the server has, as the test has set it."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from connectors import netguard
from connectors.http import source as connector
from connectors.netguard import Guard
from connectors.polled import feed, schedule
from dataflow.errors import SourceError, TemporaryError
from tests.connectors.feed_mirror import make_source
from tests.connectors.http.server import Asked, Reply, Server
from tests.connectors.polled_mirror import PolledMirror
from tests.harness.waiting import wait_until

COLUMNS = [
    {"name": "id", "type": "bigint"},
    {"name": "price", "type": "numeric(12,2)"},
    {"name": "note", "type": "text"},
]


@pytest.fixture
def server() -> Iterator[Server]:
    with Server().running() as found:
        yield found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "FIRST_S", 0.05)


def options(server: Server, relation: Mapping[str, Any] | None = None, **more: Any) -> dict:
    own = {"columns": COLUMNS, "key": ["id"], **(relation or {})}
    return {"url": server.url, "poll_interval_ms": 20, "relations": {"t": own}, **more}


def begun(server: Server, relation: Mapping[str, Any] | None = None, **more: Any) -> PolledMirror:
    mirror = PolledMirror(make_source(connector, options(server, relation, **more)))
    mirror.begin()
    return mirror


def row(number: int, price: str = "1.50", note: str = "a") -> dict[str, Any]:
    return {"id": number, "price": price, "note": note}


def held(mirror: PolledMirror) -> list[tuple]:
    return sorted((int(r[0]), *r[1:]) for r in mirror.rows["t"].values())


def test_rows_come_change_and_go(server: Server) -> None:
    pick = random.Random(1)
    rows = {n: row(n) for n in range(200)}
    server.answer = lambda _: Reply(list(rows.values()))
    mirror = begun(server)
    mirror.open()
    for _ in range(8):
        after = dict(rows)
        for n in pick.sample(range(260), 20):
            if n in after and pick.random() < 0.5:
                del after[n]
            else:
                after[n] = row(n, f"{pick.randrange(99)}.25", pick.choice("xyz"))
        changed, before = mirror.changed, rows
        rows = after
        wanted = sorted((n, r["price"], r["note"]) for n, r in after.items())
        mirror.follow(lambda m, w=wanted: held(m) == w)
        # What stays as it was is not told again.
        different = {n for n in before.keys() | after.keys() if before.get(n) != after.get(n)}
        assert mirror.changed - changed == len(different)
    # Nothing is lost or told twice by another feed, or another process.
    changed = mirror.changed
    rows = {n: r for n, r in rows.items() if n % 2}
    gone = len(held(mirror)) - len(rows)
    mirror.source = make_source(connector, options(server))
    mirror.open()
    mirror.follow(lambda m: len(m.rows["t"]) == len(rows))
    assert mirror.changed - changed == gone
    mirror.close()


def test_a_poll_on_its_way_ends_with_its_feed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own time limit is far beyond what the feed waits for when it is closed."""
    monkeypatch.setattr(feed, "CLOSE_S", 30.0)
    is_over = threading.Event()

    def answer(_: Asked) -> Reply:
        is_over.wait(120)
        return Reply([row(1)])

    server.answer = lambda _: Reply([row(1)])
    mirror = begun(server, timeout_ms=120_000)
    before = len(server.asked)
    server.answer = answer
    mirror.open()
    try:
        wait_until(lambda: len(server.asked) > before)
        mirror.close()
        assert not [t for t in threading.enumerate() if t.name == "poll"]
    finally:
        is_over.set()


def test_digits_and_texts_are_those_of_the_answer(server: Server) -> None:
    text = (
        b'{"data": {"items": [{"id": 9007199254740993, "price": 12345678.10, "note": "\\u00e9"}]}}'
    )
    server.answer = lambda _: Reply(text)
    mirror = begun(server, {"rows": "$.data.items"})
    assert held(mirror) == [(9007199254740993, "12345678.10", "é")]


def test_an_answer_that_has_not_changed_is_not_sent(server: Server) -> None:
    def answer(asked: Asked) -> Reply:
        is_known = asked.headers.get("If-None-Match") == '"v1"'
        return Reply(b"" if is_known else [row(1)], 304 if is_known else 200, {"ETag": '"v1"'})

    server.answer = answer
    mirror = begun(server)
    mirror.open()
    mirror.follow(lambda _: sum(a.headers.get("If-None-Match") == '"v1"' for a in server.asked) > 2)
    assert mirror.changed == 0
    server.answer = lambda _: Reply([row(2)], headers={"ETag": '"v2"'})
    mirror.follow(lambda m: held(m) == [(2, "1.50", "a")])
    mirror.close()


def paged(kind: str) -> Any:
    """250 rows, at most 100 an answer, in each way there is; and the relation's options."""
    rows = [row(n) for n in range(250)]

    def answer(asked: Asked) -> Reply:
        query = asked.query
        if kind == "link":
            at = int(query.get("at", 0))
            more = at + 100 < len(rows)
            link = {"Link": f'</things?at={at + 100}>; rel="next"'} if more else {}
            return Reply(rows[at : at + 100], headers=link)
        if kind == "cursor":
            at = int(query.get("after", "c0")[1:])
            more = f"c{at + 100}" if at + 100 < len(rows) else None
            return Reply({"rows": rows[at : at + 100], "page": {"next": more}})
        if kind == "graphql":
            assert asked.method == "POST" and asked.body["query"].startswith("query")
            at = asked.body["variables"].get("after") or 0
            page = {"endCursor": at + 100, "hasNextPage": at + 100 < len(rows)}
            return Reply({"data": {"t": {"nodes": rows[at : at + 100], "pageInfo": page}}})
        size = int(query["limit"])
        at = (int(query["page"]) - 1) * size if kind == "page" else int(query["offset"])
        return Reply(rows[at : at + size])

    of_size = {"size": 100, "size_parameter": "limit"}
    cursor = {"type": "cursor", "parameter": "after", "from": "$.page.next"}
    info = "$.data.t.pageInfo"
    variable = {"from": f"{info}.endCursor", "more": f"{info}.hasNextPage", "variable": "after"}
    relation = {
        "link": {"path": "/things", "pagination": {"type": "link"}},
        "cursor": {"rows": "$.rows", "pagination": cursor},
        "graphql": {
            "rows": "$.data.t.nodes",
            "body": {"query": "query($after: Int) { t }", "variables": {"first": 100}},
            "pagination": {"type": "cursor", **variable},
        },
        "page": {"pagination": {"type": "page", **of_size}},
        "offset": {"pagination": {"type": "offset", **of_size}},
    }
    return answer, relation[kind]


@pytest.mark.parametrize("kind", ["link", "cursor", "graphql", "page", "offset"])
def test_all_pages_are_read(server: Server, kind: str) -> None:
    server.answer, relation = paged(kind)
    mirror = begun(server, relation)
    assert [r[0] for r in held(mirror)] == list(range(250))
    assert len(server.asked) == 3


def test_pages_that_do_not_end_are_an_error(server: Server) -> None:
    server.answer = lambda _: Reply({"rows": [row(1)], "next": "again"})
    cursor = {"type": "cursor", "parameter": "after", "from": "$.next"}
    with pytest.raises(SourceError, match=r"http\.endless"):
        begun(server, {"rows": "$.rows", "pagination": cursor})
    numbers = {"type": "page", "size": 1}
    server.answer = lambda _: Reply([row(1)])
    with pytest.raises(SourceError, match=r"http\.endless"):
        begun(server, {"pagination": numbers}, max_pages=5)


def test_secrets_go_to_the_declared_server_alone(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", "hunter2-hunter2")
    with Server().running() as other:
        for leak in (
            Reply([], 302, {"Location": f"{other.url}/login"}),
            Reply([row(1)], headers={"Link": f'<{other.url}/?at=1>; rel="next"'}),
        ):
            server.answer = lambda _, r=leak: r
            with pytest.raises(SourceError, match=r"http\.(redirected|other_host)") as refused:
                begun(
                    server,
                    {"pagination": {"type": "link"}},
                    headers={"Authorization": "Bearer ${env:API_TOKEN}"},
                )
            assert "hunter2" not in str(refused.value) + refused.value.detail
        assert server.asked[-1].headers["Authorization"] == "Bearer hunter2-hunter2"
        assert other.asked == []
    server.answer = lambda _: Reply({"error": "no hunter2-hunter2 here"}, 400)
    with pytest.raises(SourceError, match=r"http\.refused") as refused:
        begun(server, token="${env:API_TOKEN}")
    assert "hunter2" not in refused.value.detail


def test_the_guard_refuses_servers(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netguard, "_guard", Guard(is_local=False))
    with pytest.raises(SourceError, match=r"host\.forbidden"):
        begun(server)
    assert server.asked == []


def test_a_name_is_looked_up_once_for_a_request(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address that was checked is opened, whatever the name means a moment later."""
    server.answer = lambda _: Reply([row(1)])
    looked: list[str] = []

    def check(host: str, port: int = 0) -> list[str]:
        looked.append(host)
        # The server does not listen at the first of them.
        return ["::1", "127.0.0.1"]

    monkeypatch.setattr(netguard, "check_host", check)
    mirror = begun(server, url=f"http://shop.invalid:{server.port}")
    assert len(held(mirror)) == 1 and looked == ["shop.invalid"]
    assert server.asked[0].headers["Host"] == f"shop.invalid:{server.port}"


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (Reply(b"<html>", 200), "http.bad_answer"),
        (Reply({"rows": 5}), "http.bad_answer"),
        (Reply(b"[" * 4000 + b"]" * 4000), "http.bad_answer"),
        (Reply(b'[{"id": 1' + b"0" * 5000 + b"}]"), "source.bad_record"),
        (Reply([row(1), 7]), "source.bad_record"),
        (Reply([], 401), "http.login"),
        (Reply([], 404), "http.refused"),
        (Reply([], 503), "http.unavailable"),
        (Reply([row(n) for n in range(2000)]), "http.too_large"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(server: Server, reply: Reply, code: str) -> None:
    server.answer = lambda _: reply
    with pytest.raises((SourceError, TemporaryError)) as refused:
        begun(server, max_bytes=10_000)
    assert refused.value.code == code


def test_errors_of_graphql_are_no_answer(server: Server) -> None:
    server.answer = lambda _: Reply({"data": {"t": []}, "errors": [{"message": "too deep"}]})
    with pytest.raises(SourceError, match=r"http\.errors") as refused:
        begun(server, {"rows": "$.data.t", "body": {"query": "{ t }"}})
    assert "too deep" in refused.value.detail


@pytest.mark.whole
def test_retries_of_a_server_that_is_away_become_rare(server: Server) -> None:
    server.answer = lambda _: Reply([row(1)])
    mirror = begun(server)
    server.answer = lambda _: Reply([], 429, {"Retry-After": "4"})
    mirror.open()
    with pytest.raises(TemporaryError, match=r"http\.unavailable"):
        mirror.follow(lambda _: False)
    count, began = len(server.asked), time.monotonic()
    # Feeds come and go; the server has said when.
    while time.monotonic() - began < 0.5:
        mirror.open()
        with pytest.raises(TemporaryError, match=r"http\.unavailable"):
            mirror.follow(lambda _: False)
    assert len(server.asked) == count
    server.answer = lambda _: Reply([row(2)])
    while held(mirror) != [(2, "1.50", "a")]:
        assert time.monotonic() - began < 60
        mirror.open()
        try:
            mirror.follow(lambda m: held(m) == [(2, "1.50", "a")])
        except TemporaryError:
            time.sleep(0.05)
    mirror.close()
    assert held(mirror) == [(2, "1.50", "a")]


def test_malformed_rows_are_letters_until_they_are_right(server: Server) -> None:
    rows: list[Any] = [row(1), {"id": 2, "price": "dear"}, {"id": None}]
    server.answer = lambda _: Reply(rows)
    mirror = begun(server, on_error="dead_letter")
    assert [r[0] for r in held(mirror)] == [1] and len(mirror.rejected) == 2
    mirror.open()
    rows = [row(1), row(2, "2.00"), {"id": None}]
    mirror.follow(lambda m: len(m.rows["t"]) == 2)
    assert len(mirror.rejected) == 1
    mirror.close()
    skipping = begun(server, on_error="skip")
    assert [r[0] for r in held(skipping)] == [1, 2] and not skipping.rejected


def test_of_rows_with_one_key_the_last_counts(server: Server) -> None:
    """A row that moves to a later page while pages are read comes twice."""
    server.answer = lambda _: Reply([row(1, note="old"), row(2), row(1, note="new")])
    assert held(begun(server)) == [(1, "1.50", "new"), (2, "1.50", "a")]


def test_columns_are_proposed_from_an_answer(server: Server) -> None:
    server.answer = lambda _: Reply({"items": [row(1), row(2)]})
    given = options(server, {"rows": "$.items"})
    del given["relations"]["t"]["columns"]
    found = connector.discover(given)["relations"]["t"]["columns"]
    assert next((c["name"], c["type"]) for c in found) == ("id", "int8")
    assert {c["name"] for c in found} == {"id", "price", "note"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"url": "ftp://x"}, "url"),
        ({"url": "http://me:pw@host"}, "url"),
        ({"speed": 1}, "speed"),
        ({"headers": {"X-Api-Key": "plain"}}, "headers"),
        ({"headers": {"Host": "x"}}, "headers"),
        ({"headers": {"A": "b\r\nc"}}, "headers"),
        ({"token": "plain"}, "token"),
        ({"user": "me"}, "user"),
        ({"relations": {}}, "relations"),
        ({"relations": {"t": {"columns": COLUMNS, "key": []}}}, "relations.t.key"),
        ({"relations": {"t": {"key": ["id"]}}}, "relations.t.columns"),
        (
            {
                "relations": {
                    "t": {"columns": COLUMNS, "key": ["id"], "pagination": {"type": "magic"}}
                }
            },
            "relations.t.pagination.type",
        ),
        ({"max_pages": 0}, "max_pages"),
    ],
)
def test_options_that_are_wrong_are_named(
    server: Server, change: dict[str, Any], named: str
) -> None:
    with pytest.raises(SourceError) as refused:
        connector.declare({**options(server), **change})
    assert refused.value.code == "source.bad_option" and f'"{named}"' in refused.value.what
    assert "plain" not in str(refused.value)
