"""Oracle: the rules of docs/SECURITY.md for what comes from outside, one part at a time: addresses
by RFC 3986 and by what other readers make of them, bodies by their bytes, texts by PostgreSQL."""

from __future__ import annotations

import gzip
import os
import pickle
import time
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.outside import boundary as boundaries
from connectors.outside import texts
from connectors.outside.address import (
    AddressError,
    Url,
    join_url,
    parse_folder,
    parse_host,
    parse_object_url,
    parse_port,
    parse_server,
    parse_url,
)
from connectors.outside.boundary import boundary, each
from connectors.outside.bounded import (
    BLOCK_BYTES,
    Bounds,
    Meter,
    OverLimitError,
    begin_of,
    lines,
    unpacked,
)
from connectors.outside.deadline import Deadline, LateError
from connectors.outside.guarded import guarded
from dataflow.errors import SourceError, TemporaryError, TidemarkError

# --- addresses --------------------------------------------------------------------------------

URLS = {
    "http://shop.example": "http://shop.example",
    "HTTPS://Shop.Example:443/a/b?c=d&e=%20": "https://shop.example/a/b?c=d&e=%20",
    "http://127.0.0.1:8080/": "http://127.0.0.1:8080/",
    "http://[2001:DB8::1]:80/x": "http://[2001:db8::1]/x",
    "http://my_db-1:9000/ä?q=ü": "http://my_db-1:9000/%C3%A4?q=%C3%BC",
    "http://xn--bcher-kva.example/@user:x": "http://xn--bcher-kva.example/@user:x",
}
FOREIGN_URLS = [
    r"http://127.0.0.2:9301\@127.0.0.1:9301",
    r"http://a.example\.b.example/",
    "http://a@b@c/",
    "http://user@a.example/",
    "http://user:pass@a.example/",
    "http://a.example:80:81/",
    "http://a.example#@b.example/",
    "http://a.example/#x",
    "http:/a.example/",
    "http:a.example",
    "http:///a.example",
    "//a.example/",
    "ftp://a.example/",
    "file:///etc/passwd",
    "javascript:alert(1)",
    " http://a.example/",
    "http://a.example/\n",
    "http://a.ex\tample/",
    "http://a.example/a b",
    "http://a.example/\x00",
    "http://a.example/\u2028",
    "http://a.example/\ud800",
    "http://a%2eexample/",
    "http://%31%32%37.0.0.1/",
    "http://a.example./",
    "http://.a.example/",
    "http://a..example/",
    "http://-a.example/",
    "http://0x7f.1/",
    "http://0x7f000001/",
    "http://2130706433/",
    "http://127.1/",
    "http://127.0.0.01/",
    "http://0177.0.0.1/",
    "http://1.2.3.4.5/",
    "http://256.0.0.1/",
    "http://a.0x1/",
    "http://１２７.0.0.1/",
    "http://ⓛocalhost/",
    "http://bücher.example/",
    "http://a。example/",
    "http://so\u00adft.example/",
    "http://[::1/",
    "http://::1/",
    "http://[fe80::1%25eth0]/",
    "http://[fe80::1%eth0]/",
    "http://[127.0.0.1]/",
    "http://[::1]x/",
    "http://[v1.x]/",
    "http://a.example:0/",
    "http://a.example:080/",
    "http://a.example:65536/",
    "http://a.example:+80/",
    "http://a.example:８０/",
    "http://a.example:/",
    "http://a.example:8 0/",
    "http://a.example/%",
    "http://a.example/%zz",
    "http://a.example/?q=%1",
    "http://" + "a" * 64 + ".example/",
    "http://" + "a." * 127 + "example/",
    "http://a.example/" + "a" * 9000,
    "http://",
    "",
]


def test_urls_have_one_spelling() -> None:
    for text, rebuilt in URLS.items():
        assert str(parse_url(text)) == rebuilt
        assert parse_url(rebuilt) == parse_url(text)
    for text in FOREIGN_URLS:
        with pytest.raises(AddressError):
            print(parse_url(text))


def test_a_login_counts_only_where_it_is_allowed() -> None:
    found = parse_url("http://me%40x:p%3Aw@db.example/a", may_have_login=True)
    assert (found.user, found.password, found.host) == ("me@x", "p:w", "db.example")
    assert str(found) == "http://me%40x:p%3Aw@db.example/a"
    assert found.shown == "http://db.example/a"
    for text in ("http://a@b@c/", "http://@c/", "http://a%00@c/", "http://%ff@c/", "http://a%@c/"):
        with pytest.raises(AddressError):
            print(parse_url(text, may_have_login=True))


@given(st.text(max_size=80))
def test_whatever_is_read_is_read_the_same_again(text: str) -> None:
    for start in ("", "http://", "http://a.example", "http://a.example/", "http://127.0.0.1:8"):
        try:
            found = parse_url(start + text)
        except AddressError:
            continue
        again = parse_url(str(found))
        assert again == found
        assert str(found).isascii() and "\\" not in str(found).partition("?")[0]
        if start.endswith("/") and len(start) > 8:
            assert found.host == "a.example"


def test_references_of_answers_lead_where_they_say() -> None:
    base = parse_url("https://a.example:8443/v1/items?page=1")
    for text, leads in {
        "/v2?x=1": "https://a.example:8443/v2?x=1",
        "?page=2": "https://a.example:8443/v1/items?page=2",
        "http://b.example/": "http://b.example/",
        "//b.example/x": "https://b.example/x",
    }.items():
        assert str(join_url(base, text)) == leads
    for text in (r"\\b.example", "file:///etc/passwd", "data:x", r"/\b.example", "//a@b/", "/\x00"):
        with pytest.raises(AddressError):
            print(join_url(base, text))


def test_hosts_ports_and_folders() -> None:
    assert parse_host("DB_1.shop") == "db_1.shop"
    assert parse_server("[::1]:5432") == ("::1", 5432)
    assert parse_folder("/a/./b//c/") == "/a/b/c"
    assert parse_object_url("s3://bucket/a/b/") == ("bucket", "a/b")
    for read, text in [
        (parse_host, "a/b"),
        (parse_host, "a:1"),
        (parse_host, "a@b"),
        (parse_host, "/var/run/postgresql"),
        (parse_host, "a,b"),
        (parse_port, "0"),
        (parse_port, "70000"),
        (parse_port, "²"),
        (parse_server, "a"),
        (parse_server, "a:b"),
        (parse_folder, "a/b"),
        (parse_folder, "/a/../b"),
        (parse_folder, "/a/%2e%2e/b"),
        (parse_folder, "/a/%2E./b"),
        (parse_folder, "/a\\b"),
        (parse_folder, "/a\x00b"),
        (parse_folder, "/a\nb"),
        (parse_object_url, "s3://b/../x"),
        (parse_object_url, "s3://b.evil.example/#/x"),
        (parse_object_url, "s3://a@b/x"),
        (parse_object_url, "s3:///x"),
    ]:
        with pytest.raises(AddressError):
            print(read(text))


# --- bounded reading --------------------------------------------------------------------------


def _zeros(megabytes: int, wbits: int) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    block = bytes(1 << 20)
    return b"".join(packer.compress(block) for _ in range(megabytes)) + packer.flush()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "raw deflate"])
def test_a_bomb_never_is_in_memory(encoding: str) -> None:
    wbits = {"gzip": 31, "deflate": 15, "raw deflate": -15}[encoding]
    bomb = _zeros(64, wbits)
    tracemalloc.start()
    with pytest.raises(OverLimitError) as refused:
        for _ in unpacked([bomb], encoding.split()[-1], Meter(Bounds(out_bytes=1 << 40))):
            continue
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "compressed more than" in str(refused.value)
    assert peak < 1 << 20
    # Within its bounds the same content is whole.
    found = unpacked([bomb], encoding.split()[-1], Meter(Bounds(64 << 20, ratio=2000)))
    assert sum(map(len, found)) == 64 << 20


@given(st.binary(max_size=2000), st.integers(1, 300), st.sampled_from(["gzip", "deflate", ""]))
def test_content_is_whole_however_it_is_cut(body: bytes, size: int, encoding: str) -> None:
    packed = {"gzip": gzip.compress, "deflate": zlib.compress, "": bytes}[encoding](body)
    parts = [packed[at : at + size] for at in range(0, len(packed), size)]
    blocks = list(unpacked(parts, encoding, Meter(Bounds(out_bytes=len(body)))))
    assert b"".join(blocks) == body
    assert all(len(block) <= BLOCK_BYTES for block in blocks)


def test_members_of_gzip_follow_each_other() -> None:
    packed = gzip.compress(b"one ") + gzip.compress(b"two") + bytes(10)
    assert b"".join(unpacked([packed], "gzip", Meter(Bounds(out_bytes=7)))) == b"one two"
    with pytest.raises(ValueError, match="not whole"):
        list(unpacked([gzip.compress(os.urandom(100))[:60]], "gzip", Meter(Bounds(out_bytes=7000))))
    with pytest.raises(ValueError, match="not understood"):
        list(unpacked([b"x"], "br", Meter(Bounds(out_bytes=7))))


def test_each_limit_counts() -> None:
    bounds = Bounds(out_bytes=10, in_bytes=5, line_bytes=3, count=2)
    for more in ({"in_bytes": 6}, {"out_bytes": 11}, {"count": 3}):
        with pytest.raises(OverLimitError):
            Meter(bounds).add(**more)
    Meter(bounds).add(in_bytes=5, out_bytes=10, count=2)
    assert list(lines([b"abc\nd", b"ef\n", b"g"], Meter(bounds))) == [b"abc", b"def", b"g"]
    for parts in ([b"abcd\n"], [b"ab", b"cd"]):
        with pytest.raises(OverLimitError):
            list(lines(parts, Meter(bounds)))
    assert begin_of([b"abc", b"def"], 4) == b"abcd"


def test_a_deadline_is_of_the_whole_exchange() -> None:
    late = Deadline(0.01)
    time.sleep(0.02)
    with pytest.raises(LateError):
        list(unpacked([b"x"], "", Meter(Bounds(out_bytes=7)), late))
    assert isinstance(LateError(), OSError)
    assert list(unpacked([b"x"], "", Meter(Bounds(out_bytes=7)), Deadline(60))) == [b"x"]
    assert Deadline(None).remaining_s() is None


# --- texts ------------------------------------------------------------------------------------


@given(st.text(st.characters(), max_size=400) | st.binary(max_size=400))
def test_a_text_of_others_can_be_stored_and_printed(text: str | bytes) -> None:
    found = texts.shown(text, most=100)
    assert texts.is_storable(found) and len(found) <= 103
    assert found.isprintable()
    found.encode()


# --- the boundary -----------------------------------------------------------------------------


class PanicException(BaseException):
    """As libraries in Rust raise them."""


class _Connector:
    """A source type that fails as it is told."""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    def make(self, name: str, options: Any, relations: Any) -> _Source:
        return _Source(name, self._error)

    def declare(self, options: Any) -> list[Any]:
        raise self._error


class _Source:
    is_replayable = True

    def __init__(self, name: str, error: BaseException) -> None:
        self.name = name
        self.error = error

    def open_feed(self, *_: Any) -> _Feed:
        return _Feed(self.error)

    def open_snapshot(self, *_: Any) -> _Feed:
        return _Feed(self.error)


class _Feed:
    gaps = 3

    def __init__(self, error: BaseException) -> None:
        self._error = error

    @property
    def lag(self) -> int:
        raise self._error

    def poll(self, max_rows: int) -> None:
        raise self._error

    def parts(self, *_: Any) -> list[_Feed]:
        return [self]

    def read(self) -> Iterator[int]:
        yield 1
        raise self._error


FAULTS = [
    ValueError("x\x00y\n"),
    KeyError("id"),
    RecursionError("deep"),
    StopIteration("early"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    PanicException("called `Option::unwrap()` on a `None` value"),
    OverLimitError("it has more than 5 bytes"),
    AttributeError("no such thing"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
def test_every_way_out_of_a_connector_has_a_code(fault: BaseException) -> None:
    found: list[TidemarkError] = []
    module = guarded("source", "http", _Connector(fault))
    source: Any = module.make("shop", {}, [])
    feed = source.open_feed()
    (part,) = source.open_snapshot().parts()
    part = pickle.loads(pickle.dumps(part)) if not isinstance(fault, UnicodeError) else part
    calls = [
        lambda: module.declare({}),
        lambda: feed.poll(1),
        lambda: feed.lag,
        lambda: list(part.read()),
    ]
    for call in calls:
        with pytest.raises(TemporaryError) as refused:
            call()
        found.append(refused.value)
    assert {error.code for error in found} == {"source.bad_answer"}
    assert all(texts.is_storable(error.described) for error in found)
    assert 'source "shop"' in found[1].what
    assert not hasattr(source, "read_as") and source.name == "shop" and feed.gaps == 3
    with pytest.raises(TemporaryError) as refused, boundary("sink", "s"):
        raise fault
    assert refused.value.code == "sink.bad_answer"


@pytest.mark.parametrize(
    "own", [SourceError("http.login", "no"), MemoryError(), KeyboardInterrupt()]
)
def test_what_is_ours_and_what_stops_the_process_passes(own: BaseException) -> None:
    module: Any = guarded("source", "http", _Connector(own))
    feed = module.make("shop", {}, []).open_feed()
    for call in (lambda: feed.poll(1), lambda: feed.lag, lambda: list(feed.read())):
        with pytest.raises(type(own)) as raised:
            call()
        assert raised.value is own


def test_a_fault_is_reported_once_with_its_place() -> None:
    reports: list[tuple[str, ...]] = []
    before = boundaries._report
    boundaries.install(lambda *report: reports.append(report))
    try:
        for _ in range(3):
            with pytest.raises(TemporaryError):
                list(each("sink", "reported", map(int, ["1", "x"])))
    finally:
        boundaries.install(before)
    assert [report[:2] for report in reports] == [("sink", "reported")]
    assert "invalid literal" in reports[0][2] and "boundary.py:" in reports[0][3]


def test_what_follows_an_iterator_is_not_its_fault() -> None:
    """The consumer's own exception is not the connector's."""
    with pytest.raises(ZeroDivisionError):
        for number in each("source", "s", [0]):
            print(1 // number)


def test_a_url_keeps_no_secret_where_it_is_shown() -> None:
    url = Url("https", "a.example", 443, "/v1", "key=secret", "me", "secret")
    assert url.shown == "https://a.example/v1" and url.origin == ("https", "a.example", 443)
