"""Client and View, AsyncClient and AsyncView: the two senders of the calls.

Invariant: a call returns the service's response or raises TidemarkError. Calls are not retried;
only a stream of changes reconnects, and resumes from its newest marker. Client is thread-safe.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Self, TypeVar

import httpx

from service.client.calls import Call, Sends, SendsLater
from service.client.changes import AsyncChanges, Changes
from service.client.course import Course
from service.client.epochs import Change, Epoch, changes_of
from service.client.reading import AsyncRows, RowOptions, Rows
from service.client.replica import Replica
from service.client.service_calls import ServiceCalls
from service.client.view_reads import ViewReads
from service.client.wire import DEFAULT_URL, NETWORK_ERRORS, Endpoint

T = TypeVar("T")


def connect(
    url: str = DEFAULT_URL, token: str | None = None, *, ca: str | Path | None = None
) -> Client:
    """Return a client of the service at `url`; it connects at its first call.

    token: default is the environment's TIDEMARK_TOKEN. ca: a file of trusted certificates, instead
    of the system's.
    """
    return Client(url, token, ca=ca)


def connect_async(
    url: str = DEFAULT_URL, token: str | None = None, *, ca: str | Path | None = None
) -> AsyncClient:
    """Return a client for asyncio. Await its calls, but not this function."""
    return AsyncClient(url, token, ca=ca)


class Client(ServiceCalls, Sends):
    """The calls of the REST API as methods; `with` closes the connections at the end.

    Every method raises TidemarkError with the service's code, detail, hint and position in the
    query. It is a TemporaryError if a retry may succeed (`service.unreachable` without a response).
    Thread-safe.
    """

    def __init__(
        self, url: str = DEFAULT_URL, token: str | None = None, *, ca: str | Path | None = None
    ) -> None:
        self._endpoint = Endpoint.of(url, token, ca)
        self.url = self._endpoint.url
        self._session = httpx.Client(**self._endpoint.settings())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the next call opens another."""
        self._session.close()
        self._session = httpx.Client(**self._endpoint.settings())

    def view(self, name: str) -> View:
        """Return the view of that name, `name` or `schema.name` as in SQL; nothing is requested
        yet.
        """
        return View(self, name)

    def _send(self, call: Call[T]) -> T:
        try:
            answer = self._session.request(**self._endpoint.request(call))
        except NETWORK_ERRORS as error:
            raise self._endpoint.unreachable(error) from error
        return self._endpoint.read(call, answer)


class View(ViewReads[Rows, Changes], Sends):
    """One view: its status (`state`), rows, changes and lifecycle. Made by Client.view."""

    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self._client = client

    def __repr__(self) -> str:
        return f"<View {self.name} of {self._client.url}>"

    def snapshot(self) -> Epoch:
        """Return all rows as of one epoch, with its number and positions; all in memory."""
        with self.changes() as changes:
            return next(changes)

    def follow(self, *, timeout_ms: float | None = None) -> Iterator[Replica]:
        """Yield the view's rows in memory: the same Replica object after each applied epoch.

        If changes are no longer retained, it starts again with all rows. timeout_ms: see
        `changes`.
        """
        replica = Replica()
        with self.changes(timeout_ms=timeout_ms, on_gap="snapshot") as changes:
            for epoch in changes:
                replica.apply(epoch)
                yield replica

    def stream(
        self,
        since: str = "",
        until: str = "",
        *,
        retractions: bool = True,
        timeout_ms: float | None = None,
    ) -> Iterator[Change]:
        """Return every change of the view's table in order, from its history and then live.

        since, until: a time, a position or an epoch, the first exclusive; without since it begins
        with the oldest retained rows, without until it stays open. retractions: False leaves out
        the rows that changes undo. timeout_ms: end after this time without a change.
        TidemarkError history.*, view.not_found, changes.*.
        """
        with self._stream_of(
            since, until, retractions=retractions, timeout_ms=timeout_ms
        ) as epochs:
            for epoch in epochs:
                yield from changes_of(epoch)

    def _rows_of(self, options: RowOptions) -> Rows:
        return Rows(self, options)

    def _changes_of(self, course: Course) -> Changes:
        return Changes(self._client._session, self._client._endpoint, course)

    def _send(self, call: Call[T]) -> T:
        return self._client._send(call)


class AsyncClient(ServiceCalls, SendsLater):
    """Client for asyncio: await each call; use `async with`, or `aclose()`."""

    def __init__(
        self, url: str = DEFAULT_URL, token: str | None = None, *, ca: str | Path | None = None
    ) -> None:
        self._endpoint = Endpoint.of(url, token, ca)
        self.url = self._endpoint.url
        self._session = httpx.AsyncClient(**self._endpoint.settings())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; the next call opens another."""
        await self._session.aclose()
        self._session = httpx.AsyncClient(**self._endpoint.settings())

    def view(self, name: str) -> AsyncView:
        """Return the view of that name, `name` or `schema.name` as in SQL; nothing is requested
        yet.
        """
        return AsyncView(self, name)

    async def _send(self, call: Call[T]) -> T:
        try:
            answer = await self._session.request(**self._endpoint.request(call))
        except NETWORK_ERRORS as error:
            raise self._endpoint.unreachable(error) from error
        return self._endpoint.read(call, answer)


class AsyncView(ViewReads[AsyncRows, AsyncChanges], SendsLater):
    """View for asyncio."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.name = name
        self._client = client

    def __repr__(self) -> str:
        return f"<AsyncView {self.name} of {self._client.url}>"

    async def snapshot(self) -> Epoch:
        """Return all rows as of one epoch, with its number and positions; all in memory."""
        async with self.changes() as changes:
            return await anext(changes)

    async def follow(self, *, timeout_ms: float | None = None) -> AsyncIterator[Replica]:
        """As `View.follow`, for `async for`."""
        replica = Replica()
        async with self.changes(timeout_ms=timeout_ms, on_gap="snapshot") as changes:
            async for epoch in changes:
                replica.apply(epoch)
                yield replica

    async def stream(
        self,
        since: str = "",
        until: str = "",
        *,
        retractions: bool = True,
        timeout_ms: float | None = None,
    ) -> AsyncIterator[Change]:
        """The asynchronous form of `View.stream`."""
        async with self._stream_of(
            since, until, retractions=retractions, timeout_ms=timeout_ms
        ) as epochs:
            async for epoch in epochs:
                for change in changes_of(epoch):
                    yield change

    def _rows_of(self, options: RowOptions) -> AsyncRows:
        return AsyncRows(self, options)

    def _changes_of(self, course: Course) -> AsyncChanges:
        return AsyncChanges(self._client._session, self._client._endpoint, course)

    async def _send(self, call: Call[T]) -> T:
        return await self._client._send(call)
