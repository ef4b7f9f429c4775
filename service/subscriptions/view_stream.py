"""A view as a stream: every change of its table in order, from its history and then live.

Invariant: the changes between two markers are exactly the difference between their epochs, and
each epoch comes once, with the clock and the positions that the history has for it. Nothing is
stored for a reader, and no session is open while it waits: one poll of the newest epochs wakes all
readers of a process.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool

from connectors.postgres.catalog import history_records
from connectors.postgres.catalog.catalog import Control, ViewRow
from connectors.postgres.query.history_rows import (
    Point,
    StreamBounds,
    no_history,
    read_stream,
    read_stream_rows,
    stream_bounds,
)
from connectors.sink import SinkTable
from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from service.sinks.sink_workers import shown_positions
from service.subscriptions.change_encoder import begin_line, stream_lines
from service.subscriptions.change_feed import Framing, framed
from service.subscriptions.subscriptions import PAST_EPOCHS, ErrorJson, too_many
from service.views.requested_changes import table_of
from service.views.view_lookup import find_view

if TYPE_CHECKING:
    from service.factory.service_factory import ServiceFactory

POLL_S = 0.02


@dataclass(frozen=True)
class StreamRange:
    """The request of a reader.

    since, until: points, the first exclusive; since "" begins with the oldest readable rows, until
    "" leaves the stream open. role: whose rights on the history apply, "" for the service's.
    """

    since: str = ""
    until: str = ""
    has_retractions: bool = True
    heartbeat_s: float = 15.0
    role: str = ""


class ViewStreams:
    """One per API process; used in its event loop."""

    def __init__(self, factory: ServiceFactory, is_stopping: Callable[[], bool]) -> None:
        self._settings = factory.settings
        self._control = factory.control()
        self._epochs = EpochWatch(self._control)
        self._is_stopping = is_stopping
        self._readers = 0

    async def open(self, view: str, range: StreamRange) -> ViewStream:
        """Add a reader. TidemarkError view.not_found, changes.too_many, history.*, auth.rights."""
        row, bounds = await run_in_threadpool(self._found, view, range)
        if self._readers >= self._settings.changes_readers:
            raise too_many(self._settings.changes_readers)
        self._readers += 1
        return ViewStream(self, row, range, bounds)

    def _found(self, view: str, range: StreamRange) -> tuple[ViewRow, StreamBounds]:
        self._control.ensure()
        row = find_view(self._control, view)
        points = range.since, range.until
        return row, stream_bounds(self._settings.sink, table_of(row), points, range.role)

    def leave(self) -> None:
        """Remove a reader."""
        self._readers -= 1

    @property
    def is_stopping(self) -> bool:
        """Return True if the service is stopping."""
        return self._is_stopping()

    @property
    def sink(self) -> str:
        """Return the DSN of the sink."""
        return self._settings.sink

    @property
    def timeout_s(self) -> float:
        """Return after which time a reader that reads nothing is disconnected."""
        return float(self._settings.changes_timeout_s)

    async def has_news(self, row: ViewRow, after: int, within_s: float) -> bool:
        """Return True once a view has an epoch after one; False after within_s.

        TidemarkError view.not_found, history.none if it has none any more.
        """
        newest = await self._epochs.wait((row.schema, row.name), after, within_s)
        if newest is None:
            found = await run_in_threadpool(find_view, self._control, row.title)
            raise no_history(found.title)
        return newest > after


class ViewStream:
    """One reader and its events. error: what it has ended with."""

    def __init__(
        self, streams: ViewStreams, row: ViewRow, range: StreamRange, bounds: StreamBounds
    ) -> None:
        self.error: TidemarkError | None = None
        self.title = row.title
        self.timeout_s = streams.timeout_s
        self.retention_s = bounds.retained_s
        self._streams = streams
        self._row = row
        self._table: SinkTable = table_of(row)
        self._range = range
        self._bounds = bounds
        self._is_closed = False

    async def frames(
        self, framing: Framing, error_json: ErrorJson
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield all events in pieces of bounded size; end with `end` or `error`, or with the
        service."""
        try:
            async for piece in self._pieces(framing):
                yield piece
        except TidemarkError as error:
            self.error = error
            yield [framed(framing, b"error", error_json(error))]

    def close(self) -> None:
        """Remove the reader."""
        if not self._is_closed:
            self._is_closed = True
            self._streams.leave()

    async def _pieces(self, framing: Framing) -> AsyncGenerator[list[bytes], None]:
        yield [framed(framing, b"begin", begin_line(self.title, self._table))]
        begun, until = self._bounds.after, self._bounds.until
        if self._bounds.begins_with_rows:
            reading = _Reading(read_stream_rows(self._streams.sink, self._table, begun), self)
            async for pieces in reading.pieces(framing):
                yield pieces
        yield [_marker(framing, begun)]
        after = begun.epoch
        while not self._streams.is_stopping:
            last = None if until is None else until.epoch
            changes = read_stream(self._streams.sink, self._table, after, last, PAST_EPOCHS)
            reading = _Reading(changes, self)
            async for pieces in reading.pieces(framing):
                yield pieces
            if reading.last is not None:
                after = reading.last.epoch
                yield [_marker(framing, reading.last)]
            elif until is not None:
                yield [framed(framing, b"end", b"{}")]
                return
            elif not await self._streams.has_news(self._row, after, self._range.heartbeat_s):
                yield [framed(framing, b"heartbeat", b"{}")]

    @property
    def heartbeat_s(self) -> float:
        """Return the longest silence."""
        return self._range.heartbeat_s

    def lines(self, point: Point, delta: Delta) -> Iterator[bytes]:
        """Return changes of an epoch as lines of bounded size."""
        keeps = self._range.has_retractions
        return stream_lines(self._table.fields, delta, _head(point), has_retractions=keeps)


class _Reading:
    """Changes that are read in threads and sent as events. last: the epoch read last."""

    def __init__(self, changes: Any, stream: ViewStream) -> None:
        self.last: Point | None = None
        self._changes = changes
        self._stream = stream
        self._lines = self._read()

    async def pieces(self, framing: Framing) -> AsyncGenerator[list[bytes], None]:
        """Yield events, with heartbeats while reading takes long; a marker closes each epoch but
        the last."""
        try:
            while True:
                task = asyncio.ensure_future(run_in_threadpool(next, self._lines, None))
                try:
                    while not (await asyncio.wait((task,), timeout=self._stream.heartbeat_s))[0]:
                        yield [framed(framing, b"heartbeat", b"{}")]
                finally:
                    # Its thread uses the session until it is done.
                    await asyncio.wait((task,))
                found = task.result()
                if found is None:
                    return
                if isinstance(found, Point):
                    yield [_marker(framing, found)]
                else:
                    yield [framed(framing, b"changes", found)]
        finally:
            self._changes.close()

    def _read(self) -> Iterator[bytes | Point]:
        for point, delta in self._changes:
            if self.last is not None and point.epoch != self.last.epoch:
                yield self.last
            self.last = point
            yield from self._stream.lines(point, delta)


class EpochWatch:
    """The newest epochs of views with a history, polled while somebody waits for one."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._newest: Mapping[tuple[str, str], int] = {}
        self._changed = asyncio.Event()
        self._waiting = 0
        self._task: asyncio.Task[None] | None = None
        self._error: TidemarkError | None = None

    async def wait(self, view: tuple[str, str], after: int, within_s: float) -> int | None:
        """Return the newest epoch of a view once it is after another one, or after within_s; None
        if the view has no history."""
        deadline = asyncio.get_running_loop().time() + within_s
        self._waiting += 1
        try:
            if self._task is None or self._task.done():
                self._newest = await run_in_threadpool(self._poll)
                self._task = asyncio.create_task(self._keep_polling())
            while (newest := self._newest.get(view)) is not None and newest <= after:
                left_s = deadline - asyncio.get_running_loop().time()
                if left_s <= 0:
                    break
                try:
                    async with asyncio.timeout(left_s):
                        await self._changed.wait()
                except TimeoutError:
                    break
                if self._error is not None:
                    raise self._error
            return newest
        finally:
            self._waiting -= 1

    async def _keep_polling(self) -> None:
        while self._waiting:
            await asyncio.sleep(POLL_S)
            try:
                newest = await run_in_threadpool(self._poll)
            except TidemarkError as error:
                # All who wait get it, and may subscribe again.
                self._error, newest = error, {}
            if newest != self._newest:
                self._newest = newest
                self._changed.set()
                self._changed = asyncio.Event()
            if self._error is not None:
                return

    def _poll(self) -> Mapping[tuple[str, str], int]:
        self._error = None
        return history_records.newest_epochs(self._control)


def _head(point: Point) -> dict[str, Any]:
    return {
        "epoch": point.epoch,
        "committed_at": point.committed_at,
        "positions": shown_positions(point.positions),
    }


def _marker(framing: Framing, point: Point) -> bytes:
    facts = {**_head(point), "resume": str(point.epoch)}
    line = json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()
    return framed(framing, b"progress", line, str(point.epoch).encode())
