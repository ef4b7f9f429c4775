"""Requests of HTTP sources, within the limits of a poll.

Invariants: secrets go to the declared server alone: redirects and links to others are refused. No
error contains a secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from connectors import secrets
from connectors.http.options import HttpOptions, Limits, Request
from connectors.outside import texts
from connectors.outside.address import AddressError, join_url, parse_url
from connectors.outside.bounded import Bounds, Meter, OverLimitError
from connectors.outside.http import (
    Answer,
    HttpClient,
    Trust,
    UnreachableError,
    basic,
    bearer,
    with_parameters,
)
from connectors.outside.http_headers import next_link, retry_after_s
from connectors.polled.schedule import RetryLaterError
from dataflow.errors import SourceError, TemporaryError
from storage import clock

_LOGIN = (401, 403, 407)
_BUSY = (408, 425, 429)
NOT_MODIFIED = 304
_SHOWN = 200
_VALIDATOR_CHARACTERS = 1_000
MAX_RETRY_S = 86_400.0
# An answer may take so many timeouts as a whole: each is of one wait.
TOTAL_TIMEOUTS = 10


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
        self._meter = Meter(Bounds(options.limits.max_bytes))
        headers = {"Accept": "application/json"}
        if options.token:
            headers |= bearer(secrets.resolve(options.token))
        elif options.user:
            headers |= basic(secrets.resolve(options.user), secrets.resolve(options.password))
        self._client = HttpClient(
            timeout_s=options.limits.timeout_s,
            total_s=options.limits.timeout_s * TOTAL_TIMEOUTS,
            trust=Trust(options.ca),
            headers=headers,
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def abort(self) -> None:
        """End what is on its way; called from any thread."""
        self._client.abort()

    def ask(self, request: Request, validators: Mapping[str, str]) -> Page:
        """Return the answer. validators: headers, as an earlier answer gave them.

        SourceError http.login, http.redirected, http.refused, http.too_large, host.forbidden,
        secret.*; TemporaryError http.unreachable, http.unavailable, host.unknown.
        """
        headers = {name: secrets.resolve(text) for name, text in request.headers.items()}
        query = {name: secrets.resolve(text) for name, text in request.query.items()}
        body = b"" if request.body is None else orjson.dumps(secrets.resolve_all(request.body))
        named = {**headers, **validators}
        if body:
            named = {"Content-Type": "application/json", **named}
        url = with_parameters(parse_url(request.url), query)
        try:
            with self._client.ask(
                request.method, url, headers=named, content=body, meter=self._meter
            ) as answer:
                _check_status(answer, request)
                content = answer.content()
                link = next_link(answer.headers.get("link", ""))
                return Page(answer.status, content, _validators(answer), link)
        except UnreachableError as error:
            what = f"{_shown(request)} cannot be reached"
            hint = "check that the server runs and is reachable from the service"
            raise TemporaryError("http.unreachable", what, detail=str(error), hint=hint) from None
        except OverLimitError as error:
            most = self._limits.max_bytes
            raise SourceError(
                "http.too_large",
                f"the answers of {_shown(request)} are larger than max_bytes allows, {most:,}",
                detail=str(error),
                hint="ask for fewer rows or fields, or raise max_bytes",
            ) from None


def next_request(request: Request, page_url: str) -> Request:
    """Return the request for a URL that an answer names. SourceError http.other_host,
    http.bad_answer."""
    before = parse_url(request.url)
    try:
        url = join_url(before, page_url)
    except AddressError as error:
        what = f"{_shown(request)} names a next page whose address {error}"
        raise SourceError("http.bad_answer", what, hint="check the server") from None
    if url.origin != before.origin:
        raise SourceError(
            "http.other_host",
            f"{_shown(request)} names a next page on another server",
            detail=texts.shown(f"{url.scheme}://{url.authority}"),
            hint="declare the server that has all pages",
        )
    # The URL has all parameters that the server wants.
    return Request(str(url), request.method, request.headers, {}, request.body)


def _check_status(answer: Answer, request: Request) -> None:
    status = answer.status
    if answer.is_success or status == NOT_MODIFIED:
        return
    shown, detail = _shown(request), f"HTTP {status}"
    if status in _BUSY or status >= 500:
        error = RetryLaterError("http.unavailable", f"{shown} cannot answer now", detail=detail)
        error.retry_after_s = retry_after_s(
            answer.headers.get("retry-after", ""), MAX_RETRY_S, clock.wall_ns() / 1e9
        )
        raise error
    if status in _LOGIN:
        what, hint = f"{shown} rejects the login", "check user, password, token and headers"
        raise SourceError("http.login", what, detail=detail, hint=hint)
    if 300 <= status < 400:
        target = texts.shown(answer.headers.get("location", "nowhere"), _SHOWN)
        what, hint = f"{shown} redirects", "declare the address where it leads, if it is right"
        raise SourceError("http.redirected", what, detail=f"{detail} to {target}", hint=hint)
    what, hint = f"{shown} refuses the request", "check path, query and body"
    raise SourceError("http.refused", what, detail=f"{detail}: {answer.quoted()}", hint=hint)


def _validators(answer: Answer) -> dict[str, str]:
    """Return the headers of a request that asks whether this answer is still true.

    Only what can be sent back as it came: it is stored with the state.
    """
    pairs = (("If-None-Match", "etag"), ("If-Modified-Since", "last-modified"))
    found = {name: answer.headers.get(of, "") for name, of in pairs}
    return {name: text for name, text in found.items() if text and _is_fit(text)}


def _is_fit(text: str) -> bool:
    return len(text) <= _VALIDATOR_CHARACTERS and text.isascii() and text.isprintable()


def _shown(request: Request) -> str:
    """Return the request without its parameters, which may hold secrets."""
    return f"{request.method} {parse_url(request.url).shown}"
