"""Oracle: what the server has sent, as the test has told it to."""

from __future__ import annotations

import base64
import datetime
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from connectors import netguard
from connectors.loopback import free_port
from connectors.netguard import Guard
from connectors.outside.bounded import OverLimitError
from connectors.stream import inbox, row_log
from connectors.stream import source as connector
from connectors.stream.inbox import INBOXES
from connectors.stream.server_events import EventReader
from dataflow.errors import SourceError, TemporaryError
from tests.connectors.feed_mirror import make_source
from tests.connectors.stream.mirror import StreamMirror, numbers
from tests.connectors.stream.servers import EventServer, WebSocketServer
from tests.harness.proxy import CUT, HALF_OPEN, Fault, Proxy

COLUMNS = [{"name": "id", "type": "bigint"}, {"name": "price", "type": "numeric"}]
METADATA = [
    {"name": "_received_at", "type": "timestamptz"},
    {"name": "_connection", "type": "bigint"},
    {"name": "_sequence", "type": "bigint"},
    {"name": "_id", "type": "text"},
    {"name": "_event", "type": "text"},
]


@pytest.fixture
def socket_server() -> Iterator[WebSocketServer]:
    with WebSocketServer().running() as found:
        yield found


@pytest.fixture
def event_server() -> Iterator[EventServer]:
    with EventServer().running() as found:
        yield found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(inbox, "FIRST_S", 0.05)
    yield
    INBOXES.close()


def options(url: str, relation: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"url": url, "relations": {"t": {"columns": COLUMNS, **(relation or {})}}, **more}


def row(number: int, price: Any = "1.50") -> dict[str, Any]:
    return {"id": number, "price": price}


def test_messages_of_a_websocket_are_rows(
    socket_server: WebSocketServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each message once, with every digit; what follows a feed that was closed, too."""
    monkeypatch.setenv("SECRET_TOKEN", "hunter22")
    subscribe = [{"op": "login", "token": "${env:SECRET_TOKEN}"}, {"op": "subscribe"}]
    relation = {"path": "/v1", "subscribe": subscribe, "columns": COLUMNS + METADATA}
    more = {
        "headers": {"X-Api-Key": "${env:SECRET_TOKEN}"},
        "query": {"token": "${env:SECRET_TOKEN}"},
    }
    mirror = StreamMirror(options(socket_server.url, relation, **more))
    socket_server.await_received(2)
    assert socket_server.received == [{"op": "login", "token": "hunter22"}, {"op": "subscribe"}]
    assert socket_server.paths == ["/v1?token=hunter22"]
    assert socket_server.headers[0]["X-Api-Key"] == "hunter22"
    socket_server.send('{"id": 9007199254740993, "price": 12345678.10}')
    for number in range(2, 200):
        socket_server.send(row(number))
    mirror.follow(lambda m: len(m.rows) == 199)
    assert mirror.rows[0][:2] == ("9007199254740993", "12345678.10")
    assert [r[3:] for r in mirror.rows] == [("1", str(n), None, None) for n in range(1, 200)]
    received = datetime.datetime.fromisoformat(str(mirror.rows[0][2]))
    assert abs(time.time() - received.timestamp()) < 600
    # The connection outlives the feed: what comes meanwhile is not lost.
    mirror.close()
    socket_server.send_bytes(b'{"id": 200, "price": 1}')
    mirror.open()
    mirror.follow(lambda m: len(m.rows) == 200)
    assert socket_server.connected == 1 and mirror.gaps == 0
    assert mirror.snapshot() == mirror.rows
    # A batch that failed is read again.
    before = dict(mirror.positions), dict(mirror.notes), list(mirror.rows)
    socket_server.send(row(201))
    mirror.follow(lambda m: len(m.rows) == 201)
    mirror.positions, mirror.notes, mirror.rows = before
    mirror.open()
    mirror.follow(lambda m: len(m.rows) == 201)
    assert numbers(mirror)[-1] == 201 and mirror.gaps == 0


def test_a_websocket_that_was_cut_is_opened_again_and_says_so(
    socket_server: WebSocketServer,
) -> None:
    with Proxy(socket_server.port) as proxy:
        relation = {"subscribe": {"op": "subscribe"}}
        mirror = StreamMirror(options(f"ws://127.0.0.1:{proxy.port}", relation))
        for number in range(5):
            socket_server.await_received(number + 1)
            socket_server.send(row(number))
            mirror.follow(lambda m, n=number: numbers(m) == list(range(n + 1)))
            proxy.begin(Fault(CUT))
            proxy.heal()
        socket_server.await_received(6)
        mirror.follow(lambda m: m.position["gaps"] == 5)
    mirror.close()
    assert mirror.gaps == 5 and mirror.position["connection"] == 6
    assert mirror.snapshot() == mirror.rows


def test_a_peer_that_is_gone_without_a_word_is_noticed(socket_server: WebSocketServer) -> None:
    """By pings that nothing answers, and by a limit on silence."""
    for given in ({"ping_ms": 200}, {"idle_ms": 500}):
        with Proxy(socket_server.port) as proxy:
            url = f"ws://127.0.0.1:{proxy.port}"
            mirror = StreamMirror(options(url, {"subscribe": {"op": "x"}}, **given))
            mirror.follow(lambda m: m.position["connection"] == 1)
            proxy.begin(Fault(HALF_OPEN, is_one=True))
            mirror.follow(lambda m: m.position["gaps"] >= 1)
            mirror.close()
            INBOXES.close()


def test_a_crash_loses_nothing_that_was_stored(socket_server: WebSocketServer) -> None:
    mirror = StreamMirror(options(socket_server.url))
    socket_server.await_connected()
    for number in range(50):
        socket_server.send(row(number))
    mirror.follow(lambda m: len(m.rows) == 50)
    before = len(socket_server.opened)
    mirror.crash()
    # The server knows of a connection a moment later than its client.
    socket_server.await_opened(before + 1)
    mirror.follow(lambda m: m.position["gaps"] == 1)
    socket_server.send(row(50))
    mirror.follow(lambda m: len(m.rows) == 51)
    assert numbers(mirror) == list(range(51)) and mirror.snapshot() == mirror.rows


def test_a_gap_may_stop_the_source(socket_server: WebSocketServer) -> None:
    mirror = StreamMirror(options(socket_server.url, on_gap="fail"))
    socket_server.await_connected()
    socket_server.send(row(1))
    mirror.follow(lambda m: len(m.rows) == 1)
    socket_server.cut()
    with pytest.raises(SourceError, match=r"stream\.gap") as found:
        mirror.follow(lambda m: len(m.rows) == 2)
    assert found.value.relation is not None and found.value.relation.name == "t"
    mirror.open()
    with pytest.raises(SourceError, match=r"stream\.gap"):
        mirror.follow(lambda m: len(m.rows) == 2)


def test_rows_of_messages_by_key(socket_server: WebSocketServer, monkeypatch: Any) -> None:
    """A message has a list of rows; some are of another kind, and some remove a row."""
    monkeypatch.setattr(row_log, "COMPACTED_ROWS", 64)
    monkeypatch.setattr(row_log, "PAGE_ROWS", 16)
    columns = [*COLUMNS[:1], {"name": "price", "type": "numeric", "nullable": False}]
    relation = {
        "rows": "$.data",
        "where": {"$.type": ["book", "trade"]},
        "key": ["id"],
        "delete_when": {"$.op": "delete"},
        "columns": columns,
    }
    mirror = StreamMirror(options(socket_server.url, relation))
    socket_server.await_connected()
    pick, expected = random.Random(4), dict[str, str]()
    for _ in range(100):
        rows = []
        for number in pick.choices(range(30), k=pick.randrange(8)):
            if pick.random() < 0.3:
                rows.append({"id": number, "op": "delete"})
                expected.pop(str(number), None)
            else:
                price = f"{pick.randrange(99)}.25"
                rows.append({"id": number, "price": price})
                expected[str(number)] = price
        socket_server.send({"type": pick.choice(["book", "trade"]), "data": rows})
        socket_server.send({"type": "info", "data": [row(99)]})
    socket_server.send({"type": "book", "data": {"id": 77, "price": "1"}})
    expected["77"] = "1"
    mirror.follow(lambda m: any(r[0] == "77" for r in m.rows))
    assert {r[0]: r[1] for r in mirror.rows} == expected
    assert sorted(mirror.snapshot()) == sorted(mirror.rows)
    # What is stored is about what there is, and not all that ever was.
    stored = sum(len(row_log.decode_delta(note)) for note in mirror.notes.values())
    assert stored <= 3 * len(expected) + 64
    before = len(socket_server.opened)
    mirror.crash()
    socket_server.await_opened(before + 1)
    mirror.follow(lambda m: m.position["gaps"] == 1)
    socket_server.send({"type": "book", "data": [{"id": 77, "op": "delete"}]})
    mirror.follow(lambda m: all(r[0] != "77" for r in m.rows))
    assert sorted(mirror.snapshot()) == sorted(mirror.rows)


def test_the_oldest_rows_are_not_stored_forever(socket_server: WebSocketServer) -> None:
    mirror = StreamMirror(options(socket_server.url, {"retain_rows": 10}))
    socket_server.await_connected()
    for number in range(3000):
        socket_server.send(row(number))
    mirror.follow(lambda m: len(m.rows) == 3000)
    found = mirror.snapshot()
    assert found == mirror.rows[-len(found) :] and 10 <= len(found) <= 2 * row_log.PAGE_ROWS


@pytest.mark.parametrize("policy", ["fail", "skip", "dead_letter"])
def test_messages_that_do_not_fit(socket_server: WebSocketServer, policy: str) -> None:
    relation = {"rows": "$.rows", "on_error": policy}
    given = options(socket_server.url, relation)
    mirror = StreamMirror(given)
    socket_server.await_connected()
    bad = [{"rows": [row(1), {"id": "x"}]}, "no JSON {", {"other": 1}]
    socket_server.send({"rows": [row(0)]})
    for message in bad:
        socket_server.send(message)
    socket_server.send({"rows": [row(2)]})
    if policy == "fail":
        for _ in range(2):
            with pytest.raises(SourceError, match=r"source\.bad_record"):
                mirror.follow(lambda m: len(m.rows) == 3)
            mirror.open()
        assert numbers(mirror) == [0]
        # Other options go on with the message that has stopped the source.
        mirror.declared_again(options(socket_server.url, {**relation, "on_error": "skip"}))
    mirror.follow(lambda m: numbers(m) == [0, 1, 2])
    assert mirror.snapshot() == mirror.rows
    if policy != "dead_letter":
        assert mirror.feed is not None and mirror.feed.skipped == 3 and not mirror.rejected
        return
    assert sorted(value for _, value in mirror.rejected) == [
        b"no JSON {",
        b'{"id": "x"}',
        b'{"other": 1}',
    ]
    columns = [{"name": "id", "type": "text"}, COLUMNS[1]]
    assert len(mirror.letters) == 3
    mirror.declared_again(options(socket_server.url, {**relation, "columns": columns}))
    rows = mirror.rows
    mirror.rows = []
    mirror.retry()
    assert mirror.rows == [("x", None)] and len(mirror.letters) == 2
    mirror.rows = [*rows, *mirror.rows]


def test_a_message_that_is_too_large_stops_the_source(socket_server: WebSocketServer) -> None:
    mirror = StreamMirror(options(socket_server.url, max_message_bytes=1000))
    socket_server.await_connected()
    socket_server.send(row(1))
    socket_server.send(row(2, "1" * 2000))
    with pytest.raises(SourceError, match=r"stream\.too_large"):
        mirror.follow(lambda m: len(m.rows) == 2)
    assert numbers(mirror) == [1]


def test_keepalive_messages_are_sent(socket_server: WebSocketServer) -> None:
    relation = {"keepalive": {"op": "ping"}, "keepalive_ms": 50}
    mirror = StreamMirror(options(socket_server.url, relation))
    socket_server.await_received(3)
    assert socket_server.received[:3] == [{"op": "ping"}] * 3
    mirror.close()


# --- server-sent events ------------------------------------------------------------------------


def test_events_are_rows_and_go_on_after_cuts(event_server: EventServer) -> None:
    """Last-Event-ID is sent, also by another process: nothing is lost or comes twice."""
    pick = random.Random(2)
    with Proxy(event_server.port) as proxy:
        relation = {"columns": COLUMNS + METADATA, "replays": True}
        mirror = StreamMirror(options(f"http://127.0.0.1:{proxy.port}", relation))
        for number in range(60):
            event_server.send(row(number), event=pick.choice(["", "trade"]))
            if number % 10 == 3:
                proxy.begin(Fault(CUT, after_bytes=pick.randrange(40)))
                event_server.send(row(1000 + number))
                time.sleep(0.1)
                proxy.heal()
            if number % 20 == 7:
                mirror.follow(lambda m, n=number: n in numbers(m))
                mirror.crash()
        mirror.follow(lambda m: 59 in numbers(m))
    sent = [n for k in range(60) for n in ([k, 1000 + k] if k % 10 == 3 else [k])]
    assert numbers(mirror) == sent
    assert [r[5] for r in mirror.rows] == [str(n) for n in range(1, len(sent) + 1)]
    assert {r[6] for r in mirror.rows} == {"message", "trade"}
    assert mirror.snapshot() == mirror.rows
    mirror.close()
    assert mirror.position["gaps"] == 0 and mirror.position["connection"] >= 4
    assert event_server.last_ids[0] is None and event_server.last_ids[-1] is not None


@pytest.mark.parametrize("is_known", [True, False])
def test_a_server_that_does_not_replay_makes_gaps(is_known: bool) -> None:
    """So do events without an id of their own, whatever the server does."""
    with EventServer(is_replaying=is_known).running() as server:
        mirror = StreamMirror(options(server.url, {"replays": is_known}))
        server.await_connected(1)
        server.send(row(1), has_id=not is_known)
        mirror.follow(lambda m: numbers(m) == [1])
        server.cut()
        server.await_connected(2)
        mirror.follow(lambda m: m.position["gaps"] == 1)
        mirror.close()


def test_events_by_name_and_the_pause_that_the_server_asks_for(event_server: EventServer) -> None:
    event_server.head = "retry: 700\n\n"
    relation = {"events": ["trade"], "replays": True}
    mirror = StreamMirror(options(event_server.url, relation))
    event_server.send(row(1), event="trade")
    event_server.send("no JSON", event="noise")
    event_server.send(row(2), event="trade")
    event_server.send("last", event="noise")
    mirror.follow(lambda m: numbers(m) == [1, 2])
    event_server.cut()
    started = time.monotonic()
    event_server.await_connected(2)
    # The id of an event that is left out counts too.
    assert time.monotonic() - started > 0.6 and event_server.last_ids[1] in ("3", "4")
    event_server.send(row(5), event="trade")
    mirror.follow(lambda m: numbers(m) == [1, 2, 5])
    assert mirror.position["gaps"] == 0


def test_answers_that_open_no_stream(event_server: EventServer, monkeypatch: Any) -> None:
    monkeypatch.setenv("SECRET_PW", "hunter22")
    login = {"user": "me", "password": "${env:SECRET_PW}"}
    given = options(event_server.url, **login)
    for status, code in ((401, "login"), (404, "refused"), (302, "refused"), (204, "refused")):
        event_server.status = status
        with pytest.raises(SourceError, match=rf"stream\.{code}"):
            make_source(connector, given).check()
    expected = "Basic " + base64.b64encode(b"me:hunter22").decode()
    assert event_server.asked[0]["authorization"] == expected
    event_server.status = 503
    with pytest.raises(TemporaryError, match=r"stream\.unavailable"):
        make_source(connector, given).check()
    event_server.status, event_server.headers = 200, {"Content-Type": "text/html"}
    with pytest.raises(SourceError, match=r"stream\.refused"):
        make_source(connector, given).check()


def test_a_websocket_that_is_refused(socket_server: WebSocketServer) -> None:
    for status, code in ((401, "login"), (404, "refused"), (503, "unavailable")):
        socket_server.refuse = status
        with pytest.raises((SourceError, TemporaryError), match=rf"stream\.{code}"):
            make_source(connector, options(socket_server.url)).check()
    socket_server.refuse = 0
    make_source(connector, options(socket_server.url)).check()


@pytest.mark.parametrize("scheme", ["ws", "http"])
def test_the_guard_and_servers_that_are_away(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = options(f"{scheme}://127.0.0.1:{free_port()}", timeout_ms=500)
    with pytest.raises(TemporaryError, match=r"stream\.unreachable"):
        make_source(connector, given).check()
    monkeypatch.setattr(netguard, "_guard", Guard(is_local=False))
    with pytest.raises(SourceError, match=r"host\.forbidden"):
        make_source(connector, given).check()


def test_columns_are_proposed_from_messages(event_server: EventServer, monkeypatch: Any) -> None:
    monkeypatch.setattr(connector, "SAMPLING_S", 1.0)
    given = options(event_server.url, {"rows": "$.d", "where": {"$.k": 1}})
    del given["relations"]["t"]["columns"]
    with pytest.raises(SourceError, match=r"source\.bad_sample"):
        connector.discover(given)
    event_server.send({"k": 1, "d": [row(1)]})
    event_server.send({"k": 2, "d": [{"other": 1}]})
    found = connector.discover(given)["relations"]["t"]["columns"]
    assert {column["name"] for column in found} == {"id", "price"}


def test_the_line_protocol() -> None:
    """The examples of the standard, cut anywhere."""
    text = (
        b"\xef\xbb\xbf: comment\n\ndata: YHOO\ndata: +2\r\ndata:10\n\n"
        b"data: first\rid: 1\r\rdata:second\nid\n\ndata:  third\n\n"
        b"data\n\ndata\ndata\n\nevent: x\nid: 5\n\nid: a\0b\nretry: 1500\nretry: 1x\n"
        b"event: add\ndata: 7\n\ndata: without an end"
    )
    expected = [
        (b"YHOO\n+2\n10", "", False, "message"),
        (b"first", "1", True, "message"),
        (b"second", "", True, "message"),
        (b" third", "", False, "message"),
        (b"", "", False, "message"),
        (b"\n", "", False, "message"),
        (None, "5", True, "x"),
        (b"7", "5", False, "add"),
    ]
    for size in (1, 2, 3, 7, len(text)):
        reader = EventReader("")
        pieces = [text[at : at + size] for at in range(0, len(text), size)]
        found = [one for piece in pieces for one in reader.feed(piece)]
        assert [(m.text, m.id, m.has_id, m.event) for m in found] == expected
        assert reader.retry_s == 1.5
    with pytest.raises(OverLimitError):
        list(EventReader("", 10).feed(b"data: 1234567\ndata: 1234567\n\n"))
    with pytest.raises(OverLimitError):
        list(EventReader("", 10).feed(b"data: " + b"1" * 200))


@pytest.mark.parametrize(
    ("url", "relation", "named"),
    [
        ("ftp://x", {}, "url"),
        ("ws://me:pw@x", {}, "url"),
        ("ws://x", {"replays": True}, "replays"),
        ("ws://x", {"events": ["a"]}, "events"),
        ("http://x", {"subscribe": {}}, "subscribe"),
        ("ws://x", {"subscribe": {"a": [{"token": "plain"}]}}, "subscribe"),
        ("ws://x", {"headers": {"Upgrade": "x"}}, "headers"),
        ("ws://x", {"delete_when": {"$.a": "b"}}, "delete_when"),
        ("ws://x", {"where": {"$.a": 1.5}}, "where"),
        ("ws://x", {"format": "text", "rows": "$.a"}, "rows"),
        ("ws://x", {"on_gap": "panic"}, "on_gap"),
        ("ws://x", {"columns": [{"name": "_id", "type": "bigint"}, *COLUMNS]}, "columns"),
        ("ws://x", {"key": ["_id"], "columns": COLUMNS + METADATA}, "key"),
        ("ws://x", {"colour": 1}, "colour"),
        ("ws://x", {"columns": []}, "columns"),
    ],
)
def test_options_that_are_wrong_are_named(url: str, relation: dict[str, Any], named: str) -> None:
    with pytest.raises(SourceError) as refused:
        connector.declare(options(url, relation))
    assert refused.value.code == "source.bad_option"
    assert f'{named}"' in refused.value.what, refused.value
    assert "plain" not in str(refused.value)
