"""Client and View, AsyncClient and AsyncView: the two senders of the calls.

Invariant: a call either answers what the service said or raises TidemarkError; nothing is tried
again behind the caller, but for a stream of changes, which goes on from its newest mark.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Self, TypeVar

import httpx

from service.client.calls import Call, Sends, SendsLater
from service.client.changes import AsyncChanges, Changes
from service.client.course import Course
from service.client.epochs import Epoch
from service.client.reading import AsyncRows, Rows, RowWish
from service.client.replica import Replica
from service.client.service_calls import ServiceCalls
from service.client.view_reads import ViewReads
from service.client.wire import DEFAULT_URL, NETWORK_ERRORS, Endpoint

T = TypeVar("T")


def connect(
    url: str = DEFAULT_URL, token: str | None = None, *, ca: str | Path | None = None
) -> Client:
    """A client of the service at `url`; nothing is sent before its first call.

    token: by default that of the environment, TIDEMARK_TOKEN. ca: a file of certificates to trust,
    instead of the system's.
    """
    return Client(url, token, ca=ca)


def connect_async(
    url: str = DEFAULT_URL, token: str | None = None, *, ca: str | Path | None = None
) -> AsyncClient:
    """The same for asyncio: each call is to be awaited, this one is not."""
    return AsyncClient(url, token, ca=ca)


class Client(ServiceCalls, Sends):
    """The calls of the REST API as methods; `with` closes the connections at the end.

    Every method raises TidemarkError with the service's code, detail, hint and position in the
    query; it is a TemporaryError when another try may succeed (`service.unreachable` when nothing
    answers). Safe for several threads.
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
        """The view of that name, `name` or `schema.name` as in SQL; nothing is asked yet."""
        return View(self, name)

    def _send(self, asked: Call[T]) -> T:
        try:
            answer = self._session.request(**self._endpoint.request(asked))
        except NETWORK_ERRORS as error:
            raise self._endpoint.unreachable(error) from error
        return self._endpoint.read(asked, answer)


class View(ViewReads[Rows, Changes], Sends):
    """One view: what it is (`state`), its rows, its changes, its life. Client.view makes it."""

    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self._client = client

    def __repr__(self) -> str:
        return f"<View {self.name} of {self._client.url}>"

    def snapshot(self) -> Epoch:
        """All rows as of one epoch, with its number and positions; whole in memory."""
        with self.changes() as changes:
            return next(changes)

    def follow(self, *, timeout_ms: float | None = None) -> Iterator[Replica]:
        """The view's rows in memory: the same Replica after each epoch that was taken in.

        Where its changes are not kept any more it begins with the rows again. timeout_ms: as of
        `changes`.
        """
        replica = Replica()
        with self.changes(timeout_ms=timeout_ms, on_gap="snapshot") as changes:
            for epoch in changes:
                replica.apply(epoch)
                yield replica

    def _rows_of(self, wish: RowWish) -> Rows:
        return Rows(self, wish)

    def _changes_of(self, course: Course) -> Changes:
        return Changes(self._client._session, self._client._endpoint, course)

    def _send(self, asked: Call[T]) -> T:
        return self._client._send(asked)


class AsyncClient(ServiceCalls, SendsLater):
    """Client for asyncio: the same calls, each to be awaited; `async with`, or `aclose()`."""

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
        """The view of that name, `name` or `schema.name` as in SQL; nothing is asked yet."""
        return AsyncView(self, name)

    async def _send(self, asked: Call[T]) -> T:
        try:
            answer = await self._session.request(**self._endpoint.request(asked))
        except NETWORK_ERRORS as error:
            raise self._endpoint.unreachable(error) from error
        return self._endpoint.read(asked, answer)


class AsyncView(ViewReads[AsyncRows, AsyncChanges], SendsLater):
    """View for asyncio."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.name = name
        self._client = client

    def __repr__(self) -> str:
        return f"<AsyncView {self.name} of {self._client.url}>"

    async def snapshot(self) -> Epoch:
        """All rows as of one epoch, with its number and positions; whole in memory."""
        async with self.changes() as changes:
            return await anext(changes)

    async def follow(self, *, timeout_ms: float | None = None) -> AsyncIterator[Replica]:
        """As `View.follow`, for `async for`."""
        replica = Replica()
        async with self.changes(timeout_ms=timeout_ms, on_gap="snapshot") as changes:
            async for epoch in changes:
                replica.apply(epoch)
                yield replica

    def _rows_of(self, wish: RowWish) -> AsyncRows:
        return AsyncRows(self, wish)

    def _changes_of(self, course: Course) -> AsyncChanges:
        return AsyncChanges(self._client._session, self._client._endpoint, course)

    async def _send(self, asked: Call[T]) -> T:
        return await self._client._send(asked)
