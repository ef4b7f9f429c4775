"""Connections to the API, each with a limit on how long it may take nothing further.

uvicorn closes a connection that is idle after an answer; one that never sends a whole request, or
takes no answer, stays for ever. Here each phase of a connection has its time: until the headers are
whole, until the body is, until what was written is taken. Where there are too many, the one that
has waited longest for a request makes room. Invariant: a request that is whole is never cut short
by any of this; how long its answer may take is its own affair.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.api.problems import PROBLEM_TYPE
from service.runtime.settings import Settings

_HEADERS, _BODY, _ANSWER = "headers", "body", "answer"


@dataclass(frozen=True)
class ConnectionLimits:
    """Seconds of each phase, and how many connections there may be."""

    headers_s: float
    body_s: float
    taking_s: float
    most: int

    @classmethod
    def of(cls, settings: Settings) -> ConnectionLimits:
        """Those of a service. Streams give up a reader before its connection is given up."""
        taking_s = max(settings.body_timeout_s, 2.0 * settings.changes_patience_s)
        return cls(
            settings.header_timeout_s, settings.body_timeout_s, taking_s, settings.connections
        )


class Connection(H11Protocol):
    """One connection, until a WebSocket takes it over. limits: of its class, see `limited`."""

    limits: ConnectionLimits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase = ""
        # When that began, by the loop's clock.
        self.since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # --- asyncio's protocol ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request, if there is room."""
        super().connection_made(transport)
        if len(self.connections) > self.limits.most and not self._make_space():
            self._end(503, code="request.too_many", title="there are too many connections")
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take what has come."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing any more."""
        self._cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """The other side takes nothing just now."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.taking_s, self.transport.abort)

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    # --- phases ----------------------------------------------------------------------------------

    @property
    def is_idle(self) -> bool:
        """Whether it has no request in hand, or none that is whole."""
        return self._phase != _ANSWER

    def _watch(self) -> None:
        """Give the phase that it is in now its time, once."""
        phase = self._phase_now()
        if phase == self._phase or self.transport.is_closing():
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._phase, self.since = phase, self.loop.time()
        if phase == _HEADERS:
            self._timer = self.loop.call_later(self.limits.headers_s, self._headers_late)
        elif phase == _BODY:
            self._timer = self.loop.call_later(self.limits.body_s, self._body_late)

    def _phase_now(self) -> str:
        if self.transport.get_protocol() is not self:
            # A WebSocket has a protocol and time-outs of its own.
            return _ANSWER
        if self.conn.their_state is h11.SEND_BODY:
            return _BODY
        is_answering = self.cycle is not None and not self.cycle.response_complete
        return _ANSWER if is_answering else _HEADERS

    def _headers_late(self) -> None:
        if self.conn.trailing_data[0]:
            self._end(408, code="request.timeout", title="the request did not come in time")
        else:
            self._end()

    def _body_late(self) -> None:
        self._end(408, code="request.timeout", title="the request's body did not come in time")

    def _make_space(self) -> bool:
        """End the connection that has waited longest for a request."""
        others = [c for c in self.connections if isinstance(c, Connection) and c is not self]
        waiting = [c for c in others if c.is_idle and not c.transport.is_closing()]
        if not waiting:
            return False
        min(waiting, key=lambda c: c.since)._end()
        return True

    def _end(self, status: int = 0, *, code: str = "", title: str = "") -> None:
        """Close, with a problem where there is none of an answer yet."""
        if self.transport.is_closing():
            return
        cycle = self.cycle
        is_answering = cycle is not None and not cycle.response_complete
        if is_answering:
            # Its application sees that the client has gone.
            cycle.disconnected = True
            cycle.message_event.set()
        has_begun = is_answering and cycle.response_started
        if status and not has_begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._say(status, code, title)
        self.transport.close()
        self._cancel()

    def _say(self, status: int, code: str, title: str) -> None:
        problem = {"type": "about:blank", "title": title, "status": status, "code": code}
        body = json.dumps(problem).encode()
        headers = [
            (b"content-type", PROBLEM_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=status, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")

    def _cancel(self) -> None:
        for timer in (self._timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._write_timer = None


def limited(settings: Settings) -> type[Connection]:
    """The class of a service's connections."""
    return type("Connection", (Connection,), {"limits": ConnectionLimits.of(settings)})
