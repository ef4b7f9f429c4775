"""Connections to the API with a timeout for each phase.

uvicorn closes a connection that is idle after a response. It never closes one that does not
complete its request or does not read the response. Here each phase has a timeout: until the headers
are complete, until the body is, until written data is read. Only so many connections may wait for
a request, of one address and of all together; beyond it, the one that has waited longest is closed:
of that address, or of the one that has most.
Invariant: a complete request is never cut short by this; its handler limits its own time.
Runs in the event loop.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.api.problems import PROBLEM_TYPE
from service.runtime.addresses import network_of
from service.runtime.settings import Settings

_HEADERS, _BODY, _ANSWER = "headers", "body", "answer"


@dataclass(frozen=True)
class ConnectionLimits:
    """Seconds per phase, and the maximum number of connections.

    most_waiting: for a request, of one address.
    """

    headers_s: float
    body_s: float
    taking_s: float
    most: int
    most_waiting: int

    @classmethod
    def of(cls, settings: Settings) -> ConnectionLimits:
        """Return the limits of a service. A stream drops a slow reader before this closes it."""
        taking_s = max(settings.body_timeout_s, 2.0 * settings.changes_timeout_s)
        return cls(
            settings.header_timeout_s,
            settings.body_timeout_s,
            taking_s,
            settings.connections,
            settings.connections_per_address,
        )


@dataclass
class Waiting:
    """The connections of a server that wait for a request, by address, the longest waiting first.

    Entering, leaving and finding the oldest of an address cost the same however many there are.
    """

    _by_address: dict[str, dict[Connection, None]] = field(default_factory=dict)

    def enter(self, connection: Connection) -> int:
        """Add a connection as the newest; return how many of its address wait."""
        waiting = self._by_address.setdefault(connection.address, {})
        waiting.pop(connection, None)
        waiting[connection] = None
        return len(waiting)

    def leave(self, connection: Connection) -> None:
        """Remove a connection that waits no more."""
        waiting = self._by_address.get(connection.address)
        if waiting is not None:
            waiting.pop(connection, None)
            if not waiting:
                del self._by_address[connection.address]

    def oldest(self, address: str | None = None) -> Connection | None:
        """Return the longest waiting one of an address; by default of the one that has most."""
        waiting = (
            max(self._by_address.values(), key=len, default={})
            if address is None
            else self._by_address.get(address, {})
        )
        return next(iter(waiting), None)


class Connection(H11Protocol):
    """One connection, until a WebSocket takes over. limits, waiting: class attributes, see
    `limited`.
    """

    limits: ConnectionLimits
    waiting: Waiting

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._phase = ""
        self.address = ""
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    # --- asyncio's protocol ----------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for a request, or close the connection at the limit."""
        super().connection_made(transport)
        self.address = network_of(self.client[0]) if self.client else ""
        if len(self.connections) > self.limits.most and not self._make_space():
            self._end(503, code="request.too_many", title="too many connections")
            return
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Process received bytes and update the phase."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timers."""
        self.waiting.leave(self)
        self._cancel()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Start the write timeout: the client is not reading."""
        super().pause_writing()
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.limits.taking_s, self.transport.abort)

    def resume_writing(self) -> None:
        """Cancel the write timeout: the client reads again."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    # --- phases ----------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Start the timeout of the current phase when the phase changes."""
        phase = self._phase_now()
        if phase == self._phase or self.transport.is_closing():
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._phase = phase
        if phase == _ANSWER:
            self.waiting.leave(self)
        elif self.waiting.enter(self) > self.limits.most_waiting:
            self._make_space(self.address)
        if phase == _HEADERS:
            self._timer = self.loop.call_later(self.limits.headers_s, self._headers_late)
        elif phase == _BODY:
            self._timer = self.loop.call_later(self.limits.body_s, self._body_late)

    def _phase_now(self) -> str:
        if self.transport.get_protocol() is not self:
            # A WebSocket has its own protocol and timeouts.
            return _ANSWER
        if self.conn.their_state is h11.SEND_BODY:
            return _BODY
        is_answering = self.cycle is not None and not self.cycle.response_complete
        return _ANSWER if is_answering else _HEADERS

    def _headers_late(self) -> None:
        if self.conn.trailing_data[0]:
            self._end(408, code="request.timeout", title="the request did not arrive in time")
        else:
            self._end()

    def _body_late(self) -> None:
        self._end(408, code="request.timeout", title="the request's body did not arrive in time")

    def _make_space(self, address: str | None = None) -> bool:
        """Close the connection that has waited longest for a request."""
        oldest = self.waiting.oldest(address)
        if oldest is None:
            return False
        oldest._end()
        return True

    def _end(self, status: int = 0, *, code: str = "", title: str = "") -> None:
        """Close; send a problem first if no response has begun."""
        self.waiting.leave(self)
        if self.transport.is_closing():
            return
        cycle = self.cycle
        is_answering = cycle is not None and not cycle.response_complete
        if is_answering:
            # Tell the application that the client has disconnected.
            cycle.disconnected = True
            cycle.message_event.set()
        has_begun = is_answering and cycle.response_started
        if status and not has_begun and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._respond(status, code, title)
        self.transport.close()
        self._cancel()

    def _respond(self, status: int, code: str, title: str) -> None:
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
    """Return the connection class with the limits of a service."""
    return type(
        "Connection", (Connection,), {"limits": ConnectionLimits.of(settings), "waiting": Waiting()}
    )
