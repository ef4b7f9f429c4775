"""Server-sent events: the line protocol of WHATWG's HTML standard, section 9.2, over HTTP.

Invariant: the very address that the guard has checked is opened, and redirects are not followed.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass

import httpx

from connectors import secrets
from connectors.guarded_http import AGENT, GuardedTransport, tls_context
from connectors.stream.options import Connecting
from connectors.stream.transport import (
    Received,
    closed,
    headers_of,
    refusal_of,
    shown,
    too_large,
    unreachable,
)
from dataflow.errors import SourceError

_TYPE = "text/event-stream"
_BOM = b"\xef\xbb\xbf"
_NO_CONTENT = 204
MAX_RETRY_S = 3600.0
# A peer that is gone without a word is found by the system's own probes.
_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
]


@dataclass(frozen=True)
class ServerEvents:
    """See Transport."""

    connecting: Connecting

    @contextlib.contextmanager
    def open(self, last_id: str) -> Iterator[ServerEventsLink]:
        """See Transport."""
        own = self.connecting
        query = {name: secrets.resolve(text) for name, text in own.query.items()}
        headers = {"User-Agent": AGENT, "Accept": _TYPE, "Cache-Control": "no-store"}
        headers |= headers_of(own)
        if last_id:
            headers["Last-Event-ID"] = last_id
        inner = httpx.HTTPTransport(
            verify=tls_context(own.login.ca), trust_env=False, socket_options=_ALIVE
        )
        timeout = httpx.Timeout(own.timeout_s, read=own.idle_s or None)
        with (
            httpx.Client(
                transport=GuardedTransport(inner),
                timeout=timeout,
                follow_redirects=False,
                trust_env=False,
            ) as client,
            self._answer(client, headers, query, last_id) as link,
        ):
            yield link

    @contextlib.contextmanager
    def _answer(
        self, client: httpx.Client, headers: dict[str, str], query: dict[str, str], last_id: str
    ) -> Iterator[ServerEventsLink]:
        own = self.connecting
        request = client.build_request(
            "GET", httpx.URL(own.url).copy_merge_params(query), headers=_encoded(headers)
        )
        # The answer's head comes in time; only then may the server be silent.
        request.extensions["timeout"] = {**request.extensions["timeout"], "read": own.timeout_s}
        try:
            answer = client.send(request, stream=True)
        except httpx.TransportError as error:
            raise unreachable(own, error) from None
        try:
            _check(own, answer)
            # Read from here on by the stream's own limit, which the pool looks up in the request.
            request.extensions["timeout"]["read"] = own.idle_s or None
            yield ServerEventsLink(own, answer, last_id)
        finally:
            answer.close()


def _encoded(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    """Return headers in UTF-8, in which Last-Event-ID is sent."""
    return [(name.encode(), text.encode()) for name, text in headers.items()]


def _check(connecting: Connecting, answer: httpx.Response) -> None:
    status = answer.status_code
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if status == _NO_CONTENT:
        what = f"{shown(connecting)} says that its stream has ended (HTTP 204)"
        raise SourceError("stream.refused", what, hint="check url and path")
    if status == 200 and kind == _TYPE:
        return
    if status == 200:
        what = f"{shown(connecting)} sends no events"
        hint = "check url and path: an event stream is of type text/event-stream"
        raise SourceError("stream.refused", what, detail=f"content type {kind}", hint=hint)
    wait = answer.headers.get("retry-after", "")
    with contextlib.suppress(httpx.TransportError):
        answer.read()
    text = answer.text if answer.is_stream_consumed else ""
    raise refusal_of(connecting, status, text, float(wait) if wait.isdigit() else 0.0)


class ServerEventsLink:
    """See Link."""

    def __init__(self, connecting: Connecting, answer: httpx.Response, last_id: str) -> None:
        self._connecting = connecting
        self._answer = answer
        self._events = EventReader(last_id, connecting.max_bytes)

    @property
    def retry_s(self) -> float:
        """See Link."""
        return self._events.retry_s

    def messages(self) -> Iterator[Received]:
        """See Link."""
        own = self._connecting
        try:
            for chunk in self._answer.iter_bytes():
                for found in self._events.feed(chunk):
                    if found.text is None or not own.events or found.event in own.events:
                        yield found
                    else:
                        yield Received(None, found.id, found.has_id)
        except OverflowError:
            raise too_large(own) from None
        except (httpx.TransportError, httpx.StreamError, OSError) as error:
            raise closed(own, f"{type(error).__name__}: {error}") from None
        raise closed(own, "the server has ended it")

    def abort(self) -> None:
        """See Link."""
        stream = self._answer.extensions.get("network_stream")
        found = None if stream is None else stream.get_extra_info("socket")
        if found is not None:
            with contextlib.suppress(OSError):
                found.shutdown(socket.SHUT_RDWR)


class EventReader:
    """Reads events from pieces of a stream. last_id: as of the last event. retry_s: as the server
    has asked for, 0 if it has not.

    >>> [m.text for m in EventReader("").feed(b": hi\\nid: 7\\ndata: a\\ndata: b\\n\\ndata: c\\n")]
    [b'a\\nb']
    """

    def __init__(self, last_id: str, max_bytes: int = 1 << 20) -> None:
        self.retry_s = 0.0
        self._max_bytes = max_bytes
        self._last_id = last_id
        self._rest = b""
        self._is_first = True
        self._is_after_return = False
        self._data: list[bytes] = []
        self._nbytes = 0
        self._event = ""
        self._has_id = False

    def feed(self, chunk: bytes) -> Iterator[Received]:
        """Yield the events that a piece completes. OverflowError: one is too large."""
        text = self._rest + chunk
        if not chunk or (self._is_first and len(text) < len(_BOM) and _BOM.startswith(text)):
            self._rest = text
            return
        if self._is_first:
            self._is_first, text = False, text.removeprefix(_BOM)
        if self._is_after_return:
            # The carriage return was half of a line end.
            text = text.removeprefix(b"\n")
        lines = text.splitlines(keepends=True)
        self._is_after_return = bool(lines) and lines[-1].endswith(b"\r")
        self._rest = lines.pop() if lines and not lines[-1].endswith((b"\r", b"\n")) else b""
        if len(self._rest) > self._max_bytes + 64:
            raise OverflowError
        for line in lines:
            found = self._line(line.rstrip(b"\r\n"))
            if found is not None:
                yield found

    def _line(self, line: bytes) -> Received | None:
        if not line:
            return self._end()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._nbytes += len(value) + 1
            if self._nbytes > self._max_bytes + 1:
                raise OverflowError
        elif name == b"event":
            self._event = value.decode(errors="replace")
        elif name == b"id" and b"\0" not in value:
            self._last_id, self._has_id = value.decode(errors="replace"), True
        elif name == b"retry" and value.isdigit():
            self.retry_s = min(int(value) / 1000, MAX_RETRY_S)
        return None

    def _end(self) -> Received | None:
        text = b"\n".join(self._data) if self._data else None
        event, has_id = self._event or "message", self._has_id
        self._data, self._nbytes, self._event, self._has_id = [], 0, "", False
        if text is None and not has_id:
            return None
        return Received(text, self._last_id, has_id, event)
