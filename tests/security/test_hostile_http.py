"""Oracle: docs/SECURITY.md, what comes from outside. Servers that answer anything: each answer is
rows, or an error with a code that docs/ERRORS.md has."""

from __future__ import annotations

import gzip
import re
import threading
import time
import tracemalloc
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors import netguard
from connectors.netguard import Guard
from connectors.outside import texts
from connectors.outside.address import parse_url
from connectors.outside.http import HttpClient, UnreachableError, sendable
from dataflow.errors import SinkError, SourceError, TidemarkError
from service.ingest.declared_sources import connector
from tests.connectors.feed_mirror import make_source
from tests.harness.hostile_server import Asked, HostileServer, Reply, answer, slowly
from tests.harness.http_ways import IN_PYTHON, IN_RUST, WAYS

ERRORS = Path(__file__).parents[2] / "docs" / "ERRORS.md"
STOLEN = b"STOLEN"
BOMB = gzip.compress(bytes(200 << 20), 9)


@cache
def documented() -> set[str]:
    return set(re.findall(r"^\| `([a-z_.]+)`", ERRORS.read_text(), re.MULTILINE))


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SECRET_HOOK", "whsec_c2VjcmV0c2VjcmV0")
    monkeypatch.setattr("connectors.clickhouse.session.WAIT_S", 0.2)
    monkeypatch.setattr("connectors.objects.bucket_options._RETRIES", {"max_retries": 0})
    before = netguard._guard
    yield
    netguard.install(before)


def outcome(way: str, server: HostileServer, reply: Reply) -> TidemarkError | None:
    """Ask once; any other exception than ours fails the test."""
    server.reply = lambda _: reply
    try:
        WAYS[way].ask(server.url)
    except TidemarkError as error:
        assert error.code in documented(), error.code
        assert texts.is_storable(error.described)
        assert len(error.described) < 2000
        return error
    return None


@pytest.fixture(scope="module")
def server() -> Iterator[HostileServer]:
    with HostileServer().running() as found:
        yield found


@pytest.mark.parametrize("way", [name for name in WAYS if name != "delta sink"])
def test_a_right_answer_is_taken(way: str, server: HostileServer) -> None:
    """What the other tests refuse would be accepted."""
    server.reply = WAYS[way].good
    before = len(server.asked)
    try:
        WAYS[way].ask(server.url)
    except TidemarkError as error:
        # A bucket without files has nothing to propose columns from, and one that takes whatever
        # is put keeps no conditions.
        assert error.code in ("source.bad_sample", "sink.unsafe_storage", "source.no_file"), error
    assert len(server.asked) > before


# --- anything ---------------------------------------------------------------------------------

HEADERS: list[tuple[str, str | bytes]] = [
    ("Retry-After", "²"),
    ("Retry-After", "٣"),
    ("Retry-After", "9" * 400),
    ("Retry-After", "Thu, 32 Foo 99999 99:99:99 GMT"),
    ("Retry-After", "Fri, 31 Dec 99999 23:59:59 GMT"),
    ("Retry-After", "Mon, 01 Jan 0001 00:00:00 +9999"),
    ("Link", "<<<>>>; rel=next"),
    ("Link", '<http://[::1>; rel="next"'),
    ("Link", r'<http://a\@b/>; rel="next"'),
    ("Link", '<\x00>; rel="next"'),
    ("Link", '<javascript:x>; rel="next"'),
    ("Link", "<" * 5000),
    ("Content-Type", "text/event-stream; charset=no-such-charset"),
    ("Content-Type", "application/json; charset=rot13"),
    ("Content-Type", b"\xff\xfe"),
    ("Content-Encoding", "gzip"),
    ("Content-Encoding", "deflate, gzip, br"),
    ("Content-Encoding", "zstd"),
    ("Content-Length", "-1"),
    ("Content-Length", "99999999999999999999"),
    ("Transfer-Encoding", "chunked"),
    ("Transfer-Encoding", "gzip, chunked"),
    ("Location", "http://127.0.0.1:1/"),
    ("Location", "\x00"),
    ("ETag", b"\xff\x00\xff"),
    ("Last-Modified", "é" * 3000),
    ("Set-Cookie", "a=b; domain=.com"),
    ("X-ClickHouse-Exception-Code", "²"),
    ("Sec-WebSocket-Extensions", "permessage-deflate; server_max_window_bits=99"),
    ("Upgrade", "websocket"),
    ("Connection", "Upgrade"),
    ("Y" * 300, "x" * 60_000),
    ("", ""),
]
BODIES = [
    b"",
    b"\x00",
    b"\xff\xfe\x00",
    b"null",
    b"[]",
    b"{}",
    b"[1]",
    b'[{"id": 1}]',
    b'[{"id": "\\u0000"}]',
    b'[{"id": "\\ud800"}]',
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"[" + b"[]," * 100_000 + b"[]]",
    b"1" * 10_000,
    b"1e999999999",
    b'{"schema": 7}',
    b'{"schema": "x", "references": [{}]}',
    b'{"schema": "x", "references": [{"name": "a", "subject": "b", "version": 1}],'
    b' "id": 1, "version": 1}',
    b'{"schema": "x", "references": 5}',
    b'{"message": "\\u0000\\ud800"}',
    b'{"meta": 5}',
    b'{"meta": [{"name": 1}]}',
    b'{"meta": [{"name": "id", "type": "' + b"Nullable(" * 2_000 + b'"}]}',
    b'{"r": 5, "n": {"a": []}}',
    b'{"r": [{"id": 1}], "n": "\\u0000"}',
    b'{"version": []}\n',
    b"[]\n{}\n",
    b"id: \x00\nid: 1\nretry: \xc2\xb2\nretry: " + b"9" * 4_000 + b"\nevent: \xff\ndata\n\n",
    b"\xef\xbb\xbf\r\r\r\n\ndata: \xff\x00\n\n",
    b"data: " + b"x" * 2_000_000,
    b"5\r\nabc\r\n",
    b"ffffffffffffffffffffff\r\n",
    b"-1\r\n\r\n",
    b"\x88\xff\xff\xff\xff",
    b"<ListBucketResult><Contents><Key>\x00</Key></Contents>",
    gzip.compress(b"[]")[:12],
]
STATUS = [200, 200, 200, 200, 101, 100, 204, 206, 304, 301, 307, 400, 401, 404, 410, 429, 500, 503]


@st.composite
def replies(draw: st.DrawFn) -> bytes:
    """An answer of HTTP, more or less."""
    status = draw(st.sampled_from(STATUS) | st.integers(0, 1200))
    body = draw(st.sampled_from(BODIES) | st.binary(max_size=200))
    more = draw(st.lists(st.sampled_from(HEADERS), max_size=3))
    framed = {name for name, _ in more} & {"Transfer-Encoding", "Content-Length"}
    if not framed:
        return answer(status, body, draw(st.sampled_from(["text/event-stream", "x/y"])), more)
    head = f"HTTP/1.1 {status} X\r\n".encode()
    lines = [n.encode() + b": " + (v if isinstance(v, bytes) else v.encode()) for n, v in more]
    return head + b"\r\n".join([*lines, b"", body])


ANY = replies() | st.binary(max_size=300)
LIMITS: Any = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
}


@pytest.mark.parametrize("way", IN_PYTHON)
@settings(max_examples=30, **LIMITS)
@given(reply=ANY)
def test_any_answer_is_rows_or_a_coded_error(way: str, server: HostileServer, reply: bytes) -> None:
    outcome(way, server, reply)


@pytest.mark.whole
@pytest.mark.parametrize("way", IN_RUST)
@settings(max_examples=30, **LIMITS)
@given(reply=ANY)
def test_any_answer_of_a_bucket(way: str, server: HostileServer, reply: bytes) -> None:
    outcome(way, server, reply)


@pytest.mark.parametrize("way", IN_PYTHON)
def test_each_hostile_header_and_body(way: str, server: HostileServer) -> None:
    kind = "text/event-stream" if way == "events" else "application/json"
    for number, header in enumerate(HEADERS):
        status = 503 if header[0] == "Retry-After" else (200, 429)[number % 2]
        outcome(way, server, answer(status, b'[{"id": 1}]', kind, [header]))
    for number, body in enumerate(BODIES):
        outcome(way, server, answer((200, 200, 400)[number % 3], body, kind))


# --- where it leads ---------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_no_redirect_is_followed(way: str) -> None:
    """Not to a forbidden address, and not to one that was not declared."""
    trap = HostileServer("127.0.0.3", lambda _: answer(200, STOLEN))
    with trap.running(), HostileServer("127.0.0.2").running() as server:
        for hosts in (("127.0.0.2",), ("127.0.0.0/8",)):
            netguard.install(Guard(is_local=False, hosts=hosts))
            for status in (301, 302, 303, 307, 308):
                leading = [("Location", f"{trap.url}/x"), ("Refresh", f"0; url={trap.url}")]
                error = outcome(way, server, answer(status, b"", more=leading))
                assert error is not None
                assert STOLEN.decode() not in error.described
        assert server.asked and not trap.asked
        # The trap is reached by who declares it.
        outcome(way, trap, answer(200, STOLEN))
        assert trap.asked


@pytest.mark.parametrize("way", WAYS)
def test_no_other_host_is_read_from_a_url(way: str) -> None:
    """`netguard` and the client read one host in it, or it is refused."""
    trap = HostileServer("127.0.0.3", lambda _: answer(200, STOLEN))
    with trap.running():
        netguard.install(Guard(is_local=False, hosts=("127.0.0.2", "allowed.example")))
        for text in (
            rf"http://127.0.0.2:{trap.port}\@127.0.0.3:{trap.port}",
            f"http://127.0.0.2:{trap.port}@127.0.0.3:{trap.port}",
            f"http://127.0.0.2#@127.0.0.3:{trap.port}",
            f"http://127.0.0.2;@127.0.0.3:{trap.port}",
            f"http://127.3:{trap.port}",
            f"http://2130706435:{trap.port}",
            f"http://0x7f.3:{trap.port}",
            f"http://0177.0.0.3:{trap.port}",
            f"http://127.0.0.3.:{trap.port}",
            f"http://[::ffff:127.0.0.3]:{trap.port}",
            f"http://127.0.0.3%00.allowed.example:{trap.port}",
            f"http://127.0.0.3:{trap.port}",
        ):
            with pytest.raises(TidemarkError) as refused:
                WAYS[way].ask(text)
            forbidden = ("host.forbidden", "source.bad_option", "sink.bad_option", "format.option")
            assert refused.value.code in forbidden, (text, refused.value)
        assert not trap.asked


@pytest.mark.parametrize("way", WAYS)
def test_a_name_is_resolved_once(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address that was checked is opened, whatever the name server answers the next time."""
    trap = HostileServer("127.0.0.3", lambda _: answer(200, STOLEN))
    with trap.running(), HostileServer("127.0.0.2", lambda _: b"").running() as server:
        netguard.install(Guard(is_local=False, hosts=("127.0.0.2",)))
        resolved: list[str] = []

        def resolve(host: str, port: int) -> list[str]:
            # Allowed when it is checked first, forbidden from then on.
            resolved.append(host)
            return ["127.0.0.2"] if len(resolved) == 1 else ["127.0.0.3"]

        monkeypatch.setattr(netguard, "_resolved", resolve)
        with pytest.raises(TidemarkError):
            WAYS[way].ask(f"http://rebound.example:{trap.port}")
        assert resolved and not trap.asked
        assert server.port != trap.port


# --- how much, and how slowly -----------------------------------------------------------------


def _streamed(head: bytes, body: bytes) -> Iterator[bytes]:
    yield head
    for start in range(0, len(body), 4096):
        yield body[start : start + 4096]


@pytest.mark.parametrize("way", [name for name in IN_PYTHON if name != "websocket"])
@pytest.mark.parametrize("status", [200, 404, 500])
def test_a_bomb_is_never_in_memory(way: str, status: int, server: HostileServer) -> None:
    kind = "text/event-stream" if way == "events" else "application/json"
    head = answer(status, b"", kind, [("Content-Encoding", "gzip")]).replace(
        b"Content-Length: 0\r\n", b""
    )
    outcome(way, server, answer(status, b"", kind))
    tracemalloc.start()
    try:
        error = outcome(way, server, _streamed(head, BOMB))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # A status alone says that a message was taken, and that a schema does not exist.
    assert error is not None or (way, status) in (("webhook", 200), ("registry", 404))
    assert peak < 40 << 20, f"{peak >> 20} MB"


@pytest.mark.parametrize("way", ["http discover", "http poll"])
@pytest.mark.parametrize("part", [b"[],", b'{"id":[1,2,3]},'])
def test_many_small_values_are_not_many_objects(
    way: str, part: bytes, server: HostileServer
) -> None:
    """Of a list of values of a few bytes, of which each would be an object of a hundred."""
    body = b"[" + part * ((256 << 10) // len(part)) + part[:-1] + b"]"
    outcome(way, server, answer(body=body[:100]))
    tracemalloc.start()
    try:
        outcome(way, server, answer(body=body))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 30 << 20, f"{peak >> 20} MB"


def test_a_relation_has_a_limit_of_rows(server: HostileServer) -> None:
    own = {"key": ["id"], "columns": [{"name": "id", "type": "bigint"}]}
    for most, code in ((3, ""), (2, "http.too_many_rows")):
        options = {"url": server.url, "max_rows": most, "relations": {"t": own}}
        server.reply = lambda _: answer(body=b'[{"id": 1}, {"id": 2}, {"id": 3}]')
        try:
            make_source(connector("http"), options).check()
            found = ""
        except TidemarkError as error:
            found = error.code
        assert found == code


@pytest.mark.parametrize("way", IN_PYTHON)
@pytest.mark.parametrize("part", ["head", "body"])
def test_a_byte_at_a_time_is_too_slow(way: str, part: str, server: HostileServer) -> None:
    begun = time.monotonic()
    kind = "text/event-stream" if way == "events" else "application/json"
    head = f"HTTP/1.1 200 X\r\nContent-Type: {kind}\r\n".encode()
    whole = head + b"\r\n" if part == "body" else head
    done = threading.Event()
    found: list[TidemarkError | None] = []

    def run() -> None:
        found.append(outcome(way, server, slowly(whole, 0.005)))
        done.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    if (way, part) == ("events", "body"):
        # A stream may come slowly; it ends with its source.
        assert not done.wait(1)
        return
    assert done.wait(50), time.monotonic() - begun
    if (way, part) != ("webhook", "body"):
        assert found[0] is not None


def test_an_exchange_is_aborted_from_another_thread(server: HostileServer) -> None:
    server.reply = lambda _: slowly(b"HTTP/1.1 200 X\r\n\r\n", 0.05)
    client = HttpClient(timeout_s=300)
    threading.Timer(0.3, client.abort).start()
    begun = time.monotonic()
    with pytest.raises(UnreachableError), client.ask("GET", parse_url(server.url)) as found:
        found.content()
    assert time.monotonic() - begun < 60
    with pytest.raises(UnreachableError), client.ask("GET", parse_url(server.url)):
        raise AssertionError("an aborted client asks nothing")


def test_answers_without_end_of_their_head(server: HostileServer) -> None:
    def endless(first: bytes, part: bytes) -> Iterator[bytes]:
        until = time.monotonic() + 30
        yield first
        while time.monotonic() < until:
            yield part

    for first, part in (
        (b"HTTP/1.1 200 X\r\n", b"A: " + b"b" * 1000 + b"\r\n"),
        (b"", b"HTTP/1.1 100 X\r\n\r\n"),
        (b"HTTP/1.1 200 X\r\nTransfer-Encoding: chunked\r\n\r\n", b"1;" + b"x" * 5000),
        (b"HTTP/1.1 200 X\r\nA: ", b"b" * 5000),
    ):
        assert outcome("http poll", server, endless(first, part)) is not None


# --- secrets in headers -----------------------------------------------------------------------


@pytest.mark.parametrize("secret", ["two\nlines-secret", "nul\x00-secret", "half\ud800-secret"])
def test_a_secret_that_cannot_be_sent_is_in_no_error(secret: str) -> None:
    for side, kind in (("source", SourceError), ("sink", SinkError)):
        with pytest.raises(kind) as refused:
            sendable("Authorization", f"Bearer {secret}", side)  # type: ignore[arg-type]
        assert "secret" not in refused.value.described.replace("a secret", "")
        assert refused.value.code == f"{side}.bad_option"


def test_a_secret_beyond_ascii_is_sent(
    server: HostileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "schlüssel-€")

    def good(asked: Asked) -> bytes:
        right = "Bearer schlüssel-€".encode().decode("latin-1")
        return answer(200 if asked.headers["authorization"] == right else 401, b'[{"id": 1}]')

    server.reply = good
    options = {
        "url": server.url,
        "token": "${env:SECRET_TOKEN}",
        "relations": {"t": {"key": ["id"]}},
    }
    assert connector("http").discover(options)["relations"]["t"]["columns"]
