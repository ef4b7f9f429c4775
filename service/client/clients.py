"""Client and View, AsyncClient and AsyncView: the two senders of the calls.

Invariant: a call either answers what the service said or raises TidemarkError; nothing is tried
again behind the caller, but for a stream of changes, which goes on from its newest mark.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Literal, Self, TypeVar

import httpx

from service.client.calls import Call, Sends, SendsLater
from service.client.changes import AsyncChanges, Changes
from service.client.conditions import Order, Where
from service.client.epochs import Epoch
from service.client.reading import AsyncRows, Rows
from service.client.replica import Replica
from service.client.service_calls import ServiceCalls
from service.client.view_calls import PAGE_ROWS, ViewCalls
from service.client.wire import DEFAULT_URL, NETWORK_ERRORS, Place

T = TypeVar("T")
HEARTBEAT_S = 5.0
RECONNECT_S = 300.0


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
        self._place = Place.of(url, token, ca)
        self.url = self._place.url
        self._session = httpx.Client(**self._place.settings())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the next call opens another."""
        self._session.close()
        self._session = httpx.Client(**self._place.settings())

    def view(self, name: str) -> View:
        """The view of that name, `name` or `schema.name` as in SQL; nothing is asked yet."""
        return View(self, name)

    def _send(self, asked: Call[T]) -> T:
        try:
            answer = self._session.request(**self._place.request(asked))
        except NETWORK_ERRORS as error:
            raise self._place.unreachable(error) from error
        return self._place.read(asked, answer)


class View(ViewCalls, Sends):
    """One view: what it is (`state`), its rows, its changes, its life. Client.view makes it."""

    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self._client = client

    def __repr__(self) -> str:
        return f"<View {self.name} of {self._client.url}>"

    def rows(
        self,
        *,
        columns: Sequence[str] = (),
        where: Where | None = None,
        order: str | Order | Sequence[str | Order] = (),
        limit: int | None = None,
        page_rows: int = PAGE_ROWS,
        min_position: str | None = None,
        wait_s: float = 30,
    ) -> Rows:
        """The rows that meet all conditions, in order; read page by page as they are iterated.

        where: {"region": "north"}, or conditions as `tidemark.col("total") >= 100`. order: as in
        REST, "total.desc,region", or `col("total").desc()`; the key comes behind it. limit: of all
        pages. min_position, wait_s: wait until that commit is visible. TidemarkError view.not_live,
        rows.*, view.wait_timeout.
        """
        wish = self._row_wish(
            columns,
            where,
            order,
            limit,
            page_rows=page_rows,
            min_position=min_position,
            wait_s=wait_s,
        )
        return Rows(self, wish)

    def changes(
        self,
        *,
        snapshot: bool = True,
        resume: str | None = None,
        timeout_ms: float | None = None,
        progress: bool = False,
        on_gap: Literal["raise", "snapshot"] = "raise",
        heartbeat_s: float = HEARTBEAT_S,
        reconnect_s: float = RECONNECT_S,
    ) -> Changes:
        """The view's rows as one epoch, and then each epoch that changes it, as it happens.

        snapshot: False begins with what changes from now on. resume: the token of an epoch, to go
        on behind it. timeout_ms: end the iteration when nothing has come for so long; None: never.
        progress: give epochs that change nothing too, with their positions. on_gap: what comes
        where changes are not kept any more: the error, or a snapshot again. heartbeat_s: three
        times this silence is a lost connection. reconnect_s: how long a lost connection is tried
        again, from the newest mark. TidemarkError changes.*, view.not_live.
        """
        course = self._course(
            snapshot=snapshot,
            resume=resume,
            timeout_ms=timeout_ms,
            progress=progress,
            on_gap=on_gap,
            heartbeat_s=heartbeat_s,
            reconnect_s=reconnect_s,
        )
        return Changes(self._client._session, self._client._place, course)

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

    def _send(self, asked: Call[T]) -> T:
        return self._client._send(asked)


class AsyncClient(ServiceCalls, SendsLater):
    """Client for asyncio: the same calls, each to be awaited; `async with`, or `aclose()`."""

    def __init__(
        self, url: str = DEFAULT_URL, token: str | None = None, *, ca: str | Path | None = None
    ) -> None:
        self._place = Place.of(url, token, ca)
        self.url = self._place.url
        self._session = httpx.AsyncClient(**self._place.settings())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; the next call opens another."""
        await self._session.aclose()
        self._session = httpx.AsyncClient(**self._place.settings())

    def view(self, name: str) -> AsyncView:
        """The view of that name, `name` or `schema.name` as in SQL; nothing is asked yet."""
        return AsyncView(self, name)

    async def _send(self, asked: Call[T]) -> T:
        try:
            answer = await self._session.request(**self._place.request(asked))
        except NETWORK_ERRORS as error:
            raise self._place.unreachable(error) from error
        return self._place.read(asked, answer)


class AsyncView(ViewCalls, SendsLater):
    """View for asyncio."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.name = name
        self._client = client

    def __repr__(self) -> str:
        return f"<AsyncView {self.name} of {self._client.url}>"

    def rows(
        self,
        *,
        columns: Sequence[str] = (),
        where: Where | None = None,
        order: str | Order | Sequence[str | Order] = (),
        limit: int | None = None,
        page_rows: int = PAGE_ROWS,
        min_position: str | None = None,
        wait_s: float = 30,
    ) -> AsyncRows:
        """As `View.rows`, for `async for`."""
        wish = self._row_wish(
            columns,
            where,
            order,
            limit,
            page_rows=page_rows,
            min_position=min_position,
            wait_s=wait_s,
        )
        return AsyncRows(self, wish)

    def changes(
        self,
        *,
        snapshot: bool = True,
        resume: str | None = None,
        timeout_ms: float | None = None,
        progress: bool = False,
        on_gap: Literal["raise", "snapshot"] = "raise",
        heartbeat_s: float = HEARTBEAT_S,
        reconnect_s: float = RECONNECT_S,
    ) -> AsyncChanges:
        """As `View.changes`, for `async for`."""
        course = self._course(
            snapshot=snapshot,
            resume=resume,
            timeout_ms=timeout_ms,
            progress=progress,
            on_gap=on_gap,
            heartbeat_s=heartbeat_s,
            reconnect_s=reconnect_s,
        )
        return AsyncChanges(self._client._session, self._client._place, course)

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

    async def _send(self, asked: Call[T]) -> T:
        return await self._client._send(asked)
