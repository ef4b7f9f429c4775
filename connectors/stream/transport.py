"""The contract of a connection that a stream's messages come from, and what both kinds share.

Invariant: no error contains a secret, and none names more of a URL than its host and path.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from connectors import secrets
from connectors.outside import texts
from connectors.outside.address import parse_url
from connectors.outside.http import UnreachableError, basic, bearer
from connectors.outside.http_headers import retry_after_s
from connectors.polled.schedule import RetryLaterError
from connectors.stream.options import SCHEMES, Connecting
from dataflow.errors import SourceError, TemporaryError, TidemarkError
from storage import clock

SHOWN = 200
MAX_PAUSE_S = 86_400.0
_LOGIN = (401, 403, 407)
_BUSY = (408, 425, 429)


@dataclass(frozen=True, slots=True)
class Received:
    """A message. text: None if the server has only named an id. has_id: it has one of its own."""

    text: bytes | None
    id: str = ""
    has_id: bool = False
    event: str = ""


class Link(Protocol):
    """An open connection, read by one thread."""

    @property
    def retry_s(self) -> float:
        """The pause that the server has asked for before the next connection."""
        ...

    def messages(self) -> Iterator[Received]:
        """Yield messages until the server ends the connection. TemporaryError stream.closed;
        SourceError stream.too_large."""
        ...

    def abort(self) -> None:
        """End the connection; called from any thread."""
        ...


class Transport(Protocol):
    """Opens connections of one relation."""

    def open(self, last_id: str) -> AbstractContextManager[Link]:
        """Connect, and subscribe. last_id: of the last message that was received, "" for none.

        SourceError stream.login, stream.refused, host.forbidden, secret.*; TemporaryError
        stream.unreachable, stream.unavailable, host.unknown.
        """
        ...


def headers_of(connecting: Connecting) -> dict[str, str]:
    """Return the headers of the request, with secrets."""
    found = {name: secrets.resolve(text) for name, text in connecting.headers.items()}
    login = connecting.login
    if login.token:
        found |= bearer(secrets.resolve(login.token))
    elif login.user:
        found |= basic(secrets.resolve(login.user), secrets.resolve(login.password))
    return found


def refusal_of(connecting: Connecting, status: int, text: str, retry_s: float) -> TidemarkError:
    """Return the error for an answer that opens no stream."""
    name, detail = shown(connecting), f"HTTP {status}"
    if status in _BUSY or status >= 500:
        error = RetryLaterError("stream.unavailable", f"{name} cannot answer now", detail=detail)
        error.retry_after_s = retry_s
        return error
    if status in _LOGIN:
        what, hint = f"{name} rejects the login", "check user, password, token and headers"
        return SourceError("stream.login", what, detail=detail, hint=hint)
    if 300 <= status < 400:
        hint = "declare the address where it leads, if it is right"
        return SourceError("stream.refused", f"{name} redirects", detail=detail, hint=hint)
    detail = f"{detail}: {texts.shown(text, SHOWN)}"
    what, hint = f"{name} opens no stream", "check url, path, query and headers"
    return SourceError("stream.refused", what, detail=detail, hint=hint)


def unreachable(connecting: Connecting, error: BaseException) -> TidemarkError:
    """Return the error for a server that does not answer."""
    is_said = isinstance(error, UnreachableError)
    detail = texts.shown(error, SHOWN) if is_said else texts.described(error, SHOWN)
    hint = "check that the server runs and is reachable from the service"
    return TemporaryError(
        "stream.unreachable", f"{shown(connecting)} cannot be reached", detail=detail, hint=hint
    )


def closed(connecting: Connecting, detail: str) -> TidemarkError:
    """Return the error for a connection that has ended."""
    what = f"the connection to {shown(connecting)} has ended"
    return TemporaryError("stream.closed", what, detail=texts.shown(detail, SHOWN))


def too_large(connecting: Connecting) -> TidemarkError:
    """Return the error for a message above the limit."""
    return SourceError(
        "stream.too_large",
        f"a message of {shown(connecting)} has more than {connecting.max_bytes:,} bytes",
        hint="raise max_message_bytes, or subscribe to less",
    )


def shown(connecting: Connecting) -> str:
    """Return the server without parameters, which may hold secrets."""
    return parse_url(connecting.url, SCHEMES).shown


def pause_s(header: str) -> float:
    """Return how long a server wants to be left alone, by its header Retry-After."""
    return retry_after_s(header, MAX_PAUSE_S, clock.wall_ns() / 1e9)
