"""Messages of a WebSocket (RFC 6455), by the library websockets.

Invariant: the very address that the guard has checked is opened, and redirects are not followed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

import orjson
from websockets.exceptions import (
    ConnectionClosed,
    InvalidHandshake,
    InvalidStatus,
)
from websockets.sync.client import ClientConnection, connect

from connectors import secrets
from connectors.outside import texts
from connectors.outside.address import parse_url
from connectors.outside.deadline import Deadline
from connectors.outside.http import AGENT, Trust, sendable, with_parameters
from connectors.outside.sockets import open_socket, shut
from connectors.stream.options import WEBSOCKET_SCHEMES, Connecting
from connectors.stream.transport import (
    Received,
    closed,
    headers_of,
    pause_s,
    refusal_of,
    too_large,
    unreachable,
)
from dataflow.errors import SourceError

CLOSE_S = 1.0
_TOO_BIG = 1009


@dataclass(frozen=True)
class WebSocket:
    """See Transport."""

    connecting: Connecting

    @contextlib.contextmanager
    def open(self, last_id: str) -> Iterator[WebSocketLink]:
        """See Transport; WebSockets have no event ids."""
        own = self.connecting
        with self._connection() as connection:
            try:
                for message in own.subscribe:
                    connection.send(orjson.dumps(secrets.resolve_all(message)).decode())
            except ConnectionClosed as error:
                raise closed(own, str(error)) from None
            yield WebSocketLink(own, connection)

    def _connection(self) -> ClientConnection:
        own = self.connecting
        query = {name: secrets.resolve(text) for name, text in own.query.items()}
        url = with_parameters(parse_url(own.url, WEBSOCKET_SCHEMES), query)
        headers = {name: sendable(name, text) for name, text in headers_of(own).items()}
        context = Trust(own.login.ca).context() if url.scheme == "wss" else None
        deadline = Deadline(own.timeout_s)
        try:
            opened = open_socket(url.host, url.port, deadline)
            opened.settimeout(None)
            return connect(
                str(url),
                sock=opened,
                ssl=context,
                additional_headers=headers,
                subprotocols=list(own.subprotocols) or None,  # type: ignore[arg-type]
                user_agent_header=AGENT,
                proxy=None,
                open_timeout=own.timeout_s,
                ping_interval=own.ping_s,
                ping_timeout=own.ping_s,
                close_timeout=CLOSE_S,
                max_size=own.max_bytes,
            )
        except InvalidStatus as error:
            body = (error.response.body or b"").decode(errors="replace")
            wait_s = pause_s(_header(error, "retry-after"))
            raise refusal_of(own, error.response.status_code, body, wait_s) from None
        except InvalidHandshake as error:
            what, hint = "the server does not speak WebSocket", "check url and path"
            detail = texts.described(error)
            raise SourceError("stream.refused", what, detail=detail, hint=hint) from None
        except (OSError, EOFError, TimeoutError) as error:
            raise unreachable(own, error) from None


class WebSocketLink:
    """See Link."""

    retry_s = 0.0

    def __init__(self, connecting: Connecting, connection: ClientConnection) -> None:
        self._connecting = connecting
        self._connection = connection
        self._keepalive: str | None = None
        if connecting.keepalive is not None:
            message = secrets.resolve_all(connecting.keepalive)
            self._keepalive = orjson.dumps(message).decode()

    def messages(self) -> Iterator[Received]:
        """See Link."""
        own = self._connecting
        heard_at = sent_at = time.monotonic()
        try:
            while True:
                text = self._receive(min(heard_at + (own.idle_s or 1e9), self._due(sent_at)))
                now = time.monotonic()
                if text is not None:
                    heard_at = now
                    yield Received(text)
                elif own.idle_s and now - heard_at >= own.idle_s:
                    raise closed(own, f"nothing has come for {own.idle_s:g} s")
                if self._keepalive is not None and now >= self._due(sent_at):
                    self._connection.send(self._keepalive)
                    sent_at = now
        except ConnectionClosed as error:
            if error.sent is not None and error.sent.code == _TOO_BIG:
                raise too_large(own) from None
            raise closed(own, str(error)) from None
        except OSError as error:
            raise closed(own, str(error)) from None

    def abort(self) -> None:
        """See Link."""
        shut(self._connection.socket)

    def _due(self, sent_at: float) -> float:
        return sent_at + (self._connecting.keepalive_s if self._keepalive is not None else 1e9)

    def _receive(self, until: float) -> bytes | None:
        """Return a message; None if none has come by then."""
        wait_s = until - time.monotonic()
        try:
            return self._connection.recv(None if wait_s > 1e8 else max(0.0, wait_s), decode=False)
        except TimeoutError:
            return None


def _header(error: InvalidStatus, name: str) -> str:
    """Return a header of an answer, which may have it several times."""
    return ", ".join(error.response.headers.get_all(name))
