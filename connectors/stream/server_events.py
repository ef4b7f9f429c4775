"""Server-sent events: the line protocol of WHATWG's HTML standard, section 9.2, over HTTP.

Invariant: the server's fields are texts that can be stored, and whatever they say, at most an event
is lost of them. Redirects are not followed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from connectors import secrets
from connectors.outside import texts
from connectors.outside.address import parse_url
from connectors.outside.bounded import Bounds, Meter, OverLimitError
from connectors.outside.http import (
    Answer,
    BadAnswerError,
    HttpClient,
    Trust,
    UnreachableError,
    with_parameters,
)
from connectors.outside.http_headers import content_type
from connectors.stream.options import Connecting
from connectors.stream.transport import (
    Received,
    closed,
    headers_of,
    pause_s,
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
# A stream has no end; one message has (`EventReader`).
_ENDLESS = Bounds(out_bytes=1 << 62, in_bytes=1 << 62, ratio=1000)
# Of an id or the name of an event: ids are stored with the state and sent back.
MAX_FIELD_BYTES = 4096
MAX_RETRY_DIGITS = 15
# What a line has beside its value.
_LONGEST_NAME = 64


@dataclass(frozen=True)
class ServerEvents:
    """See Transport."""

    connecting: Connecting

    @contextlib.contextmanager
    def open(self, last_id: str) -> Iterator[ServerEventsLink]:
        """See Transport."""
        own = self.connecting
        query = {name: secrets.resolve(text) for name, text in own.query.items()}
        headers = {"Accept": _TYPE, "Cache-Control": "no-store", **headers_of(own)}
        if last_id:
            headers["Last-Event-ID"] = last_id
        url = with_parameters(parse_url(own.url), query)
        trust = Trust(own.login.ca)
        with (
            HttpClient(timeout_s=own.timeout_s, trust=trust, headers=headers) as client,
            contextlib.ExitStack() as stack,
        ):
            try:
                answer = stack.enter_context(client.ask("GET", url, meter=Meter(_ENDLESS)))
            except UnreachableError as error:
                raise unreachable(own, error) from None
            _check(own, answer)
            # The head has come in time; from here on the server may be silent.
            answer.wait_at_most(own.idle_s or None)
            yield ServerEventsLink(own, client, answer, last_id)


def _check(connecting: Connecting, answer: Answer) -> None:
    status, kind = answer.status, content_type(answer.headers.get("content-type", ""))
    if status == _NO_CONTENT:
        what = f"{shown(connecting)} says that its stream has ended (HTTP 204)"
        raise SourceError("stream.refused", what, hint="check url and path")
    if status == 200 and kind == _TYPE:
        return
    if status == 200:
        what = f"{shown(connecting)} sends no events"
        hint = "check url and path: an event stream is of type text/event-stream"
        detail = f"content type {texts.shown(kind)}"
        raise SourceError("stream.refused", what, detail=detail, hint=hint)
    wait_s = pause_s(answer.headers.get("retry-after", ""))
    raise refusal_of(connecting, status, answer.quoted(), wait_s)


class ServerEventsLink:
    """See Link."""

    def __init__(
        self, connecting: Connecting, client: HttpClient, answer: Answer, last_id: str
    ) -> None:
        self._connecting = connecting
        self._client = client
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
            for chunk in self._answer.blocks():
                for found in self._events.feed(chunk):
                    if found.text is None or not own.events or found.event in own.events:
                        yield found
                    else:
                        yield Received(None, found.id, found.has_id)
        except OverLimitError:
            raise too_large(own) from None
        except (UnreachableError, BadAnswerError) as error:
            raise closed(own, str(error)) from None
        raise closed(own, "the server has ended it")

    def abort(self) -> None:
        """See Link."""
        self._client.abort()


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
        self._rest = bytearray()
        self._is_first = True
        self._is_after_return = False
        self._data: list[bytes] = []
        self._nbytes = 0
        self._event = ""
        self._has_id = False

    def feed(self, chunk: bytes) -> Iterator[Received]:
        """Yield the events that a piece completes. OverLimitError: one is too large."""
        if len(self._rest) > len(_BOM) and b"\n" not in chunk and b"\r" not in chunk:
            # More of a long line: not joined and searched again with each piece.
            self._rest += chunk
            self._check_rest()
            return
        text = bytes(self._rest) + chunk
        if not chunk or (self._is_first and len(text) < len(_BOM) and _BOM.startswith(text)):
            self._rest = bytearray(text)
            return
        if self._is_first:
            self._is_first, text = False, text.removeprefix(_BOM)
        if self._is_after_return:
            # The carriage return was half of a line end.
            text = text.removeprefix(b"\n")
        lines = text.splitlines(keepends=True)
        self._is_after_return = bool(lines) and lines[-1].endswith(b"\r")
        is_whole = not lines or lines[-1].endswith((b"\r", b"\n"))
        self._rest = bytearray() if is_whole else bytearray(lines.pop())
        self._check_rest()
        for line in lines:
            found = self._line(line.rstrip(b"\r\n"))
            if found is not None:
                yield found

    def _check_rest(self) -> None:
        if len(self._rest) > self._max_bytes + _LONGEST_NAME:
            raise OverLimitError("a line is too long")

    def _line(self, line: bytes) -> Received | None:
        if not line:
            return self._end()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
            self._nbytes += len(value) + 1
            if self._nbytes > self._max_bytes + 1:
                raise OverLimitError("an event is too large")
        elif name == b"event":
            self._event = texts.storable(_field(value))
        elif name == b"id" and b"\0" not in value:
            self._last_id, self._has_id = _field(value), True
        elif name == b"retry" and value.isdigit() and len(value) <= MAX_RETRY_DIGITS:
            self.retry_s = min(int(value) / 1000, MAX_RETRY_S)
        return None

    def _end(self) -> Received | None:
        text = b"\n".join(self._data) if self._data else None
        event, has_id = self._event or "message", self._has_id
        self._data, self._nbytes, self._event, self._has_id = [], 0, "", False
        if text is None and not has_id:
            return None
        return Received(text, self._last_id, has_id, event)


def _field(value: bytes) -> str:
    """Return an id or the name of an event. OverLimitError: it is too long to be stored."""
    if len(value) > MAX_FIELD_BYTES:
        raise OverLimitError("a field is too long")
    return value.decode(errors="replace")
