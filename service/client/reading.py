"""The rows of a view that meet conditions, page by page, synchronous and asynchronous.

Invariant: a page begins after the last row of the previous one, so concurrent inserts and deletes
neither repeat nor hide other rows. Each page is of one snapshot; pages may be of different ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from dataflow.errors import TidemarkError
from service.client.answers import Field
from service.client.calls import Call, Sends, SendsLater
from service.client.rows import Page, Row, RowSet
from service.client.tabular import SHOWN_ROWS, html_of, lines_of

if TYPE_CHECKING:
    import pandas
    import polars  # pyright: ignore[reportMissingImports]
    import pyarrow

T = TypeVar("T")


@dataclass(frozen=True)
class RowOptions:
    """The request. params: conditions, columns, order. limit: total rows, None for all. wait_s: how
    long the service may wait for a position."""

    path: str
    params: tuple[tuple[str, str], ...]
    limit: int | None
    page_rows: int
    wait_s: float

    def described(self, kind: str) -> str:
        """Return the request as text, without reading rows."""
        call = [f"{name}={value!r}" for name, value in self.params]
        call += [f"limit={self.limit}"] if self.limit is not None else []
        path = unquote(self.path.removeprefix("/views/").partition("/")[0])
        return f"<{kind} of {', '.join([path, *call])}: iterate over them, or to_list()>"

    def pages(self) -> Generator[Call[Page], Page, None]:
        """Yield the call for each page; the caller sends the page back."""
        left, after, fields = self.limit, None, None
        while left is None or left > 0:
            size = self.page_rows if left is None else min(left, self.page_rows)
            page = yield self._call(size, after)
            fields = fields or page.fields
            if page.fields != fields:
                raise _changed(self.path)
            left = None if left is None else left - len(page)
            after = page.next
            if after is None:
                return

    def _call(self, size: int, after: str | None) -> Call[Page]:
        page_token = () if after is None else (("after", after),)
        return Call(
            method="GET",
            path=self.path,
            params=(*self.params, ("limit", str(size)), *page_token),
            read=lambda reply: Page.of(reply.body),
            wait_s=self.wait_s,
        )


def _changed(path: str) -> TidemarkError:
    return TidemarkError(
        "rows.view_changed",
        "the view's columns changed between two pages",
        detail=path,
        hint="read the rows again from the start",
    )


class Rows:
    """Rows of a view; each iteration reads them again, page by page, as Row objects."""

    def __init__(self, sender: Sends, options: RowOptions) -> None:
        self._sender = sender
        self._options = options

    def __repr__(self) -> str:
        return self._options.described("Rows")

    def __str__(self) -> str:
        """Read and return the first rows, one per line, and "..." if there are more."""
        return lines_of(self._first(SHOWN_ROWS + 1))

    def _repr_html_(self) -> str:
        found = self._first(SHOWN_ROWS + 1)
        return html_of(found._table(), is_part=len(found) > SHOWN_ROWS)

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        raise TypeError("rows are read when they are iterated over: len(rows.to_list())")

    def _first(self, count: int) -> RowSet:
        """Read the first rows alone."""
        limit = count if self._options.limit is None else min(count, self._options.limit)
        return _whole(list(Rows(self._sender, replace(self._options, limit=limit)).pages()))

    def pages(self) -> Iterator[Page]:
        """Yield the rows by page, with the epoch and positions of each page."""
        calls = self._options.pages()
        call = next(calls, None)
        while call is not None:
            page = self._sender._send(call)
            yield page
            call = _after(calls, page)

    def __iter__(self) -> Iterator[Row]:
        for page in self.pages():
            yield from page

    def dicts(self) -> Iterator[dict[str, Any]]:
        """Yield each row as a dict by column."""
        return (row._asdict() for row in self)

    def into(self, make: Callable[..., T]) -> Iterator[T]:
        """Yield make(**row) for each row; make: a dataclass or NamedTuple, for example."""
        return (make(**row) for row in self)

    def to_list(self) -> list[Row]:
        """Return all rows."""
        return list(self)

    def first(self) -> Row | None:
        """Return the first row, None if there is none."""
        return next(iter(self), None)

    def to_arrow(self, types: Mapping[str, pyarrow.DataType] | None = None) -> pyarrow.Table:
        """Return all rows as an Arrow table, see `RowSet.to_arrow`."""
        return _whole(list(self.pages())).to_arrow(types)

    def to_pandas(self) -> pandas.DataFrame:
        """Return all rows as a pandas DataFrame, see `RowSet.to_pandas`."""
        return _whole(list(self.pages())).to_pandas()

    def to_polars(self) -> polars.DataFrame:
        """Return all rows as a polars DataFrame, see `RowSet.to_polars`."""
        return _whole(list(self.pages())).to_polars()


class AsyncRows:
    """The asynchronous form: `async for row in rows`, `await rows.to_list()`."""

    def __init__(self, sender: SendsLater, options: RowOptions) -> None:
        self._sender = sender
        self._options = options

    def __repr__(self) -> str:
        return self._options.described("AsyncRows")

    async def pages(self) -> AsyncIterator[Page]:
        """Yield the rows by page, with the epoch and positions of each page."""
        calls = self._options.pages()
        call = next(calls, None)
        while call is not None:
            page = await self._sender._send(call)
            yield page
            call = _after(calls, page)

    async def __aiter__(self) -> AsyncIterator[Row]:
        async for page in self.pages():
            for row in page:
                yield row

    async def dicts(self) -> AsyncIterator[dict[str, Any]]:
        """Yield each row as a dict by column."""
        async for row in self:
            yield row._asdict()

    async def into(self, make: Callable[..., T]) -> AsyncIterator[T]:
        """Yield make(**row) for each row; make: a dataclass or NamedTuple, for example."""
        async for row in self:
            yield make(**row)

    async def to_list(self) -> list[Row]:
        """Return all rows."""
        return [row async for row in self]

    async def first(self) -> Row | None:
        """Return the first row, None if there is none."""
        async for row in self:
            return row
        return None

    async def to_arrow(self, types: Mapping[str, pyarrow.DataType] | None = None) -> pyarrow.Table:
        """Return all rows as an Arrow table, see `RowSet.to_arrow`."""
        return _whole([page async for page in self.pages()]).to_arrow(types)

    async def to_pandas(self) -> pandas.DataFrame:
        """Return all rows as a pandas DataFrame, see `RowSet.to_pandas`."""
        return _whole([page async for page in self.pages()]).to_pandas()

    async def to_polars(self) -> polars.DataFrame:
        """Return all rows as a polars DataFrame, see `RowSet.to_polars`."""
        return _whole([page async for page in self.pages()]).to_polars()


def _after(calls: Generator[Call[Page], Page, None], page: Page) -> Call[Page] | None:
    try:
        return calls.send(page)
    except StopIteration:
        return None


def _whole(pages: list[Page]) -> RowSet:
    fields: tuple[Field, ...] = pages[0].fields if pages else ()
    return RowSet(fields, [row for page in pages for row in page])
