"""Requests of HTTP sources, within the guard and the limits.

Invariants: every address is checked at the moment it is opened, and that address is opened. Secrets
go to the declared server alone: redirects and links to others are refused. No error contains a
secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

import httpx

from connectors import secrets
from connectors.guarded_http import AGENT, GuardedTransport, tls_context
from connectors.http.options import HttpOptions, Limits, Request
from connectors.polled.schedule import RetryLaterError
from dataflow.errors import SourceError, TemporaryError
from storage import clock

_LOGIN = (401, 403, 407)
_BUSY = (408, 425, 429)
NOT_MODIFIED = 304
MAX_RETRY_S = 86_400.0
_SHOWN = 200


@dataclass(frozen=True)
class Page:
    """An answer. content: whole. next_url: of its Link header, "" without one."""

    status: int
    content: bytes
    validators: Mapping[str, str]
    next_url: str = ""


class Client:
    """Requests of one poll. Used by one thread, with `with`."""

    def __init__(self, options: HttpOptions) -> None:
        self._limits: Limits = options.limits
        self._left = options.limits.max_bytes
        inner = httpx.HTTPTransport(verify=tls_context(options.ca), trust_env=False)
        headers = {"User-Agent": AGENT, "Accept": "application/json"}
        auth = None
        if options.token:
            headers["Authorization"] = f"Bearer {secrets.resolve(options.token)}"
        elif options.user:
            auth = httpx.BasicAuth(secrets.resolve(options.user), secrets.resolve(options.password))
        self._client = httpx.Client(
            transport=GuardedTransport(inner),
            headers=headers,
            auth=auth,
            timeout=options.limits.timeout_s,
            follow_redirects=False,
            trust_env=False,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def ask(self, request: Request, validators: Mapping[str, str]) -> Page:
        """Return the answer. validators: headers, as an earlier answer gave them.

        SourceError http.login, http.redirected, http.refused, http.too_large, host.forbidden,
        secret.*; TemporaryError http.unreachable, http.unavailable, host.unknown.
        """
        headers = {name: secrets.resolve(text) for name, text in request.headers.items()}
        query = {name: secrets.resolve(text) for name, text in request.query.items()}
        body = secrets.resolve_all(request.body)
        url = httpx.URL(request.url).copy_merge_params(query)
        try:
            with self._client.stream(
                request.method,
                url,
                headers={**headers, **validators},
                json=body,
            ) as answer:
                _check_status(answer, request)
                content = self._content(answer, request)
                return Page(answer.status_code, content, _validators(answer), _next(answer))
        except httpx.TransportError as error:
            what = f"{_shown(request)} cannot be reached"
            detail = secrets.hide(f"{type(error).__name__}: {error}")
            hint = "check that the server runs and is reachable from the service"
            raise TemporaryError("http.unreachable", what, detail=detail, hint=hint) from None

    def _content(self, answer: httpx.Response, request: Request) -> bytes:
        parts = []
        for part in answer.iter_bytes():
            self._left -= len(part)
            if self._left < 0:
                raise SourceError(
                    "http.too_large",
                    f"the answers of {_shown(request)} have more than "
                    f"{self._limits.max_bytes:,} bytes",
                    hint="ask for fewer rows or fields, or raise max_bytes",
                )
            parts.append(part)
        return b"".join(parts)


def next_request(request: Request, page_url: str) -> Request:
    """Return the request for a URL that an answer names. SourceError http.other_host."""
    url = httpx.URL(request.url).join(page_url)
    before = httpx.URL(request.url)
    if (url.scheme, url.host, url.port) != (before.scheme, before.host, before.port):
        raise SourceError(
            "http.other_host",
            f"{_shown(request)} names a next page on another server",
            detail=secrets.hide(_server(url)),
            hint="declare the server that has all pages",
        )
    # The URL has all parameters that the server wants.
    return Request(str(url), request.method, request.headers, {}, request.body)


def _check_status(answer: httpx.Response, request: Request) -> None:
    status = answer.status_code
    if 200 <= status < 300 or status == NOT_MODIFIED:
        return
    shown, detail = _shown(request), f"HTTP {status}"
    if status in _BUSY or status >= 500:
        error = RetryLaterError("http.unavailable", f"{shown} cannot answer now", detail=detail)
        error.retry_after_s = retry_after_s(answer.headers.get("retry-after", ""))
        raise error
    if status in _LOGIN:
        what, hint = f"{shown} rejects the login", "check user, password, token and headers"
        raise SourceError("http.login", what, detail=detail, hint=hint)
    if 300 <= status < 400:
        target = secrets.hide(answer.headers.get("location", "nowhere"))[:_SHOWN]
        what, hint = f"{shown} redirects", "declare the address where it leads, if it is right"
        raise SourceError("http.redirected", what, detail=f"{detail} to {target}", hint=hint)
    answer.read()
    text = secrets.hide(answer.text)[:_SHOWN]
    what, hint = f"{shown} refuses the request", "check path, query and body"
    raise SourceError("http.refused", what, detail=f"{detail}: {text}", hint=hint)


def retry_after_s(text: str) -> float:
    """Return the seconds of a Retry-After header: a number, or a date; 0 if it has none.

    >>> retry_after_s("120"), retry_after_s("soon")
    (120.0, 0.0)
    """
    if text.strip().isdigit():
        return min(float(text), MAX_RETRY_S)
    try:
        until_s = parsedate_to_datetime(text).timestamp()
    except ValueError:
        return 0.0
    return min(max(0.0, until_s - clock.wall_ns() / 1e9), MAX_RETRY_S)


def _validators(answer: httpx.Response) -> dict[str, str]:
    """Return the headers of a request that asks whether this answer is still true."""
    found = {}
    if tag := answer.headers.get("etag"):
        found["If-None-Match"] = tag
    if changed := answer.headers.get("last-modified"):
        found["If-Modified-Since"] = changed
    return found


def _next(answer: httpx.Response) -> str:
    return answer.links.get("next", {}).get("url", "")


def _shown(request: Request) -> str:
    """Return the request without its parameters, which may hold secrets."""
    url = httpx.URL(request.url)
    return f"{request.method} {_server(url)}{url.path}"


def _server(url: httpx.URL) -> str:
    """Return the scheme, host and port of a URL, without a user.

    >>> _server(httpx.URL("http://me:secret@[::1]:8080/v1?key=secret"))
    'http://[::1]:8080'
    """
    return f"{url.scheme}://{url.netloc.decode()}"
