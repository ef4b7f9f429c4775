"""The one HTTP client of all connectors.

It asks one server and does nothing else by itself: it follows no redirect, keeps no cookie, obeys
no proxy of the environment, and answers no challenge. Invariants: the addresses that are opened are
those that the guard has checked. An exchange ends by its deadline, however slowly the server sends.
What is held of an answer is bounded, also of one that reports an error. No error has a secret.
"""

from __future__ import annotations

import base64
import ssl
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import unquote_plus, urlencode

import httpcore

from connectors import netguard
from connectors.outside import texts
from connectors.outside.address import Url
from connectors.outside.bounded import ENCODINGS, ERROR_BODY, Bounds, Meter, begin_of, unpacked
from connectors.outside.deadline import Deadline
from connectors.outside.ending import register
from connectors.outside.sockets import CONNECT_S, Connections
from dataflow.errors import SinkError, SourceError, TidemarkError

AGENT = "tidemark"
# Of an answer whose reader says nothing else.
ANSWER = Bounds(out_bytes=64 << 20)
Side = Literal["source", "sink"]


class UnreachableError(Exception):
    """No answer, or not all of it: the text says why, without secrets."""


class BadAnswerError(Exception):
    """The answer has come, but its content cannot be unpacked or parsed."""


@dataclass(frozen=True)
class Trust:
    """How a server is known, and knows us: paths of PEM files, "" for the system's and for none."""

    ca: str = ""
    certificate: str = ""
    key: str = ""

    def context(self, side: Side = "source") -> ssl.SSLContext:
        """Return what verifies servers. SourceError source.bad_option, path.forbidden; SinkError
        sink.bad_option.
        """
        for path in (self.ca, self.certificate, self.key):
            netguard.check_certificate(path)
        try:
            found = ssl.create_default_context(cafile=self.ca or None)
            if self.certificate:
                # Never asks for the key's password at a terminal.
                found.load_cert_chain(self.certificate, self.key or None, password="")
        except OSError as error:
            what = "the certificates of the options cannot be read"
            hint = "they are paths of PEM files; a key has no password"
            raise _refused(side, what, texts.described(error), hint) from None
        return found


@dataclass
class Answer:
    """What a server answers. headers: in lower case; the first of each name."""

    status: int
    headers: Mapping[str, str]
    _parts: Iterable[bytes] = field(repr=False)
    _meter: Meter = field(repr=False)
    _connections: Connections = field(repr=False)

    @property
    def is_success(self) -> bool:
        """Whether the status is of the class 2xx."""
        return 200 <= self.status < 300

    def blocks(self) -> Iterator[bytes]:
        """Yield the content, unpacked, in small blocks. OverLimitError, UnreachableError,
        BadAnswerError."""
        return self._unpacked(self._meter)

    def content(self) -> bytes:
        """Return the whole content. It raises as `blocks` does."""
        return b"".join(self.blocks())

    def quoted(self, most: int = 200) -> str:
        """Return how the content begins, as part of an error: clean and without secrets."""
        try:
            begin = begin_of(self._unpacked(Meter(ERROR_BODY)), 4 * most)
        except Exception as error:
            return texts.described(error, most)
        return texts.shown(begin, most)

    def wait_at_most(self, idle_s: float | None) -> None:
        """Let the rest of the answer come as slowly as it may: a stream, whose end is not awaited.

        idle_s: between two pieces; None for as long as it takes.
        """
        self._connections.deadline = Deadline(None)
        self._connections.idle_s = idle_s

    def _unpacked(self, meter: Meter) -> Iterator[bytes]:
        encoding = self.headers.get("content-encoding", "")
        try:
            yield from unpacked(self._parts, encoding, meter, self._connections.deadline)
        except _FAILURES as error:
            raise UnreachableError(texts.described(error)) from None
        except (ValueError, zlib.error) as error:
            raise BadAnswerError(texts.described(error)) from None


class HttpClient:
    """Exchanges with servers, one after the other, by one thread; `abort` is of any thread.

    headers: of each request, with secrets. timeout_s: until the head of an answer is there, and of
    each wait after it. total_s: of the exchange as a whole; 0 for timeout_s. side: whose options
    are wrong, if they are. has_keepalive: whether connections are used again.
    """

    def __init__(
        self,
        *,
        timeout_s: float,
        total_s: float = 0.0,
        trust: Trust | None = None,
        headers: Mapping[str, str] | None = None,
        side: Side = "source",
        has_keepalive: bool = True,
    ) -> None:
        self._timeout_s = timeout_s
        self._total_s = total_s or timeout_s
        self._side: Side = side
        self._headers = {"User-Agent": AGENT, "Accept-Encoding": ENCODINGS, **(headers or {})}
        self._connections = Connections()
        self._pool = httpcore.ConnectionPool(
            ssl_context=(trust or Trust()).context(side),
            max_connections=2,
            max_keepalive_connections=1 if has_keepalive else 0,
            keepalive_expiry=30.0,
            http1=True,
            http2=False,
            network_backend=self._connections,
        )
        register(self.abort)

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._pool.close()

    def abort(self) -> None:
        """End what is on its way, at once, and every later exchange; called from any thread."""
        self._connections.abort()

    @contextmanager
    def ask(
        self,
        method: str,
        url: Url,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
        meter: Meter | None = None,
    ) -> Iterator[Answer]:
        """Yield the answer, whose content is read within.

        meter: of the content; of a whole poll, for example. UnreachableError; SourceError
        source.bad_option, host.forbidden; SinkError sink.bad_option: a header cannot be sent;
        TemporaryError host.unknown.
        """
        total = Deadline(self._total_s)
        self._connections.deadline = Deadline(self._timeout_s)
        self._connections.idle_s = self._timeout_s
        length = len(content) if content or method != "GET" else None
        sent = self._sent_headers({**self._headers, **(headers or {})}, url, length)
        target = httpcore.URL(scheme=url.scheme, host=url.host, port=url.port, target=_target(url))
        request = httpcore.Request(
            method, target, headers=sent, content=content, extensions=_TIMEOUTS
        )
        try:
            answer = self._pool.handle_request(request)
        except _FAILURES as error:
            raise UnreachableError(texts.described(error)) from None
        self._connections.deadline = total
        try:
            yield Answer(
                answer.status,
                _received_headers(answer.headers),
                answer.iter_stream(),
                meter or Meter(ANSWER),
                self._connections,
            )
        finally:
            answer.close()

    def _sent_headers(
        self, headers: Mapping[str, str], url: Url, length: int | None
    ) -> list[tuple[bytes, bytes]]:
        named = {"Host": url.authority, **headers}
        if length is not None:
            named["Content-Length"] = str(length)
        return [
            (name.encode("ascii"), sendable(name, text, self._side).encode())
            for name, text in named.items()
        ]


# What the exchange itself raises: OSErrors are those of our own sockets.
_FAILURES = (
    httpcore.NetworkError,
    httpcore.ProtocolError,
    httpcore.TimeoutException,
    httpcore.ConnectionNotAvailable,
    OSError,
)
# The sockets wait by the deadline of the exchange, not by these.
_TIMEOUTS = {"timeout": {"connect": CONNECT_S, "pool": CONNECT_S}}


def sendable(name: str, text: str, side: Side = "source") -> str:
    """Return the value of a header, which is sent in UTF-8.

    SourceError source.bad_option; SinkError sink.bad_option: it cannot be sent. The error has no
    part of it, since it may be a secret.
    """
    found = text.strip(" \t")
    has_control = any(ord(letter) < 32 or ord(letter) == 127 for letter in found)
    if has_control or not texts.is_storable(found):
        what = f'the value of header "{name}" has a character that cannot be sent'
        hint = "look for a line end or another control character in the secret or option"
        raise _refused(side, what, "", hint)
    return found


def basic(user: str, password: str) -> dict[str, str]:
    """Return the header of a basic login."""
    pair = base64.b64encode(f"{user}:{password}".encode()).decode()
    return {"Authorization": f"Basic {pair}"}


def bearer(token: str) -> dict[str, str]:
    """Return the header of a login by token."""
    return {"Authorization": f"Bearer {token}"}


def with_parameters(url: Url, parameters: Mapping[str, str]) -> Url:
    """Return the URL with more parameters, in the place of those of the same names.

    >>> from connectors.outside.address import parse_url
    >>> str(with_parameters(parse_url("http://a/x?b=1&d=2"), {"c": "ü&", "d": "3"}))
    'http://a/x?b=1&c=%C3%BC%26&d=3'
    """
    pairs = filter(None, url.query.split("&"))
    kept = [one for one in pairs if unquote_plus(one.partition("=")[0]) not in parameters]
    added = urlencode(dict(parameters), errors="replace")
    return replace(url, query="&".join([*kept, *filter(None, [added])]))


def _target(url: Url) -> str:
    return (url.path or "/") + (f"?{url.query}" if url.query else "")


def _received_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return headers by name; values of a repeated one are joined, as HTTP understands them."""
    found: dict[str, str] = {}
    for raw_name, raw in headers:
        name, value = raw_name.decode("latin-1").lower(), raw.decode(errors="replace")
        found[name] = f"{found[name]}, {value}" if name in found else value
    return found


def _refused(side: Side, what: str, detail: str, hint: str) -> TidemarkError:
    kind = SourceError if side == "source" else SinkError
    code = "source.bad_option" if side == "source" else "sink.bad_option"
    return kind(code, what, detail=detail, hint=hint)
