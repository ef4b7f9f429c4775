"""Subscriptions: a view's rows and then its epochs, for any number of subscribers.

A subscription starts in one of four ways. It sends the view's rows and their epoch, from one
snapshot of the sink; or that epoch only. It continues after the last progress marker of a
subscriber. Or it continues after the epoch that a named subscriber has acknowledged, reading from
the view's history what the log lacks. From there on it is the view's log. Invariant: the changes
between two markers are exactly the difference between their epochs. A subscriber that reads too
slowly falls behind the log's retention or times out, and gets an error; nothing is stored for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import re
from collections.abc import AsyncGenerator, Callable, Collection, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool

from connectors.postgres.catalog import history_records
from connectors.postgres.catalog.catalog import ViewRow
from connectors.postgres.query.history_rows import point_of, read_changes
from connectors.postgres.sink.postgres_sink import PostgresSink
from connectors.sink import Progress, SinkTable
from dataflow.delta import Delta
from dataflow.errors import TemporaryError, TidemarkError
from service.engine.view_positions import Read, positions_of
from service.sinks.sink_workers import shown_positions
from service.subscriptions.change_encoder import (
    begin_line,
    change_lines,
    marker_line,
    no_rows,
    row_lines,
)
from service.subscriptions.change_feed import (
    ChangeFeed,
    ChangeFeeds,
    Framing,
    MarkerName,
    framed,
    touch,
)
from service.subscriptions.change_log import ENDED, FOLDER, LogHead, is_checked, read_head
from service.views.dependencies import relations_read
from service.views.groups import group_of
from service.views.lifecycle import DesiredState, ViewState
from service.views.requested_changes import published_of, table_of
from service.views.view_lookup import find_view

# An error as JSON, in the form of the API that sends the stream.
ErrorJson = Callable[[TidemarkError], bytes]

if TYPE_CHECKING:
    from service.factory.service_factory import ServiceFactory

# How long a new log may take to start.
BEGIN_S = 15.0
# Epochs of a history that are read in one snapshot.
PAST_EPOCHS = 1_000
_POLL_S = 0.02
# Tells the markers of a history from its changes.
_MARKER = b"\0"
_TOKEN = re.compile(r"([0-9a-f]{16})\.(\d{1,18})")


@dataclass(frozen=True)
class StreamOptions:
    """The request of a subscriber.

    resume: a token, or "". subscription: its name, or "". role: whose rights on the view's history
    apply then, "" for the service's. marker: the event name of progress markers.
    """

    has_rows: bool = True
    resume: str = ""
    heartbeat_s: float = 15.0
    subscription: str = ""
    role: str = ""
    marker: MarkerName = "progress"


class Subscriptions:
    """One per API process; used in its event loop."""

    def __init__(self, factory: ServiceFactory, feeds: ChangeFeeds) -> None:
        self._factory = factory
        self._settings = factory.settings
        self._control = factory.control()
        self._feeds = feeds
        self._sinks: dict[str, PostgresSink] = {}
        self.timeout_s = float(factory.settings.changes_timeout_s)

    async def open(self, view: str, options: StreamOptions) -> Subscription:
        """Add a subscriber. TidemarkError view.not_found, view.not_live, changes.bad_token,
        changes.expired, changes.too_many, changes.unavailable; with a name subscription.not_found,
        history.*, auth.rights.
        """
        token = parsed_token(options.resume)
        row = await run_in_threadpool(self._live_view, view)
        if self._feeds.readers >= self._settings.changes_readers:
            raise too_many(self._settings.changes_readers)
        settings = self._settings.for_group(group_of(row))
        folder = settings.state / FOLDER / row.identity
        acknowledged: int | None = None
        if options.subscription:
            acknowledged = await run_in_threadpool(self._acknowledged, row, options, token)
        elif token is not None:
            _require_log(await run_in_threadpool(read_head, folder), token)
        head = await self._log(folder, row)
        feed = self._feeds.enter(folder, head)
        try:
            return await self._begun(row, feed, options, token, acknowledged)
        except BaseException:
            self._feeds.leave(feed)
            raise

    def _acknowledged(
        self, row: ViewRow, options: StreamOptions, token: tuple[str, int] | None
    ) -> int:
        """Return the epoch after which a named subscriber reads: that of its token, if newer."""
        found = history_records.subscriptions(self._control, row.identity)
        epoch = next((s.epoch for s in found if s.name == options.subscription), None)
        if epoch is None:
            raise TidemarkError(
                "subscription.not_found",
                f'view "{row.title}" has no subscription "{options.subscription}"',
                hint="check the name: the list of the view's named readers has all of them",
            )
        epoch = epoch if token is None else max(epoch, token[1])
        point_of(self._settings.sink, table_of(row), str(epoch), options.role)
        return epoch

    async def _begun(
        self,
        row: ViewRow,
        feed: ChangeFeed,
        options: StreamOptions,
        token: tuple[str, int] | None,
        acknowledged: int | None,
    ) -> Subscription:
        rows = _Rows(self._sink(group_of(row)), published_of(row), has_rows=options.has_rows)
        subscription = Subscription(self, row, feed, rows, options)
        read = await run_in_threadpool(self._read_by, row)
        subscription.read = read
        if acknowledged is not None:
            # The log has everything after what the sink shows now.
            until = (await run_in_threadpool(rows.progress)).epoch
            source = self._settings.sink, feed.reader.head.name
            subscription.past = _Past(source, published_of(row), acknowledged, until, read)
            return subscription
        if token is None:
            return subscription
        _require_log(feed.reader.head, token)
        subscription.epoch = token[1]
        if token[1] < feed.reader.floor:
            raise _expired("its epochs are no longer retained")
        if token[1] > feed.reader.newest:
            progress = await run_in_threadpool(rows.progress)
            if token[1] > progress.epoch:
                raise _expired("the sink does not show its epoch, or was rewound")
        return subscription

    def _sink(self, group: str) -> PostgresSink:
        if group not in self._sinks:
            self._sinks[group] = self._factory.sink_of(group)
        return self._sinks[group]

    def leave(self, feed: ChangeFeed) -> None:
        """Remove a subscriber."""
        self._feeds.leave(feed)

    @property
    def is_stopped(self) -> bool:
        """Return True if the service is stopping."""
        return self._feeds.is_stopped

    def why_over(self, row: ViewRow) -> TidemarkError:
        """Return the error that explains why the log of a view has ended."""
        rows = self._control.list_views()
        found = next((r for r in rows if r.identity == row.identity), None)
        if found is None:
            is_there = any((r.schema, r.name) == (row.schema, row.name) for r in rows)
            code = "changes.view_replaced" if is_there else "changes.view_dropped"
            what = "was replaced" if is_there else "was dropped"
            hint = "subscribe again; it starts with the rows" if is_there else "see GET /views"
            return TidemarkError(code, f'view "{row.title}" {what}', hint=hint)
        if found.desired == DesiredState.DROPPED:
            return TidemarkError("changes.view_dropped", f'view "{row.title}" was dropped')
        if found.status == ViewState.FAILED:
            return TidemarkError(
                "changes.view_failed",
                f'view "{row.title}" has failed',
                detail=found.detail or found.code or "",
                hint=found.hint or "see GET /views/{name}",
            )
        if found.title != row.title:
            return TidemarkError(
                "changes.view_replaced",
                f'view "{row.title}" was renamed to "{found.title}"',
                hint="subscribe to that name; it starts with the rows",
            )
        return TemporaryError(
            "changes.interrupted",
            f'the changes of view "{row.title}" cannot continue without a gap',
            detail="it was rebuilt, or missing epochs are no longer retained",
            hint="subscribe again without a token; it starts with the rows",
        )

    def _live_view(self, view: str) -> ViewRow:
        self._control.ensure()
        row = find_view(self._control, view)
        if row.status != ViewState.LIVE:
            raise TidemarkError(
                "view.not_live",
                f'view "{row.title}" is not live',
                detail=f"it is {row.status}",
                hint="subscribe once the view is live",
            )
        return row

    def _read_by(self, row: ViewRow) -> set[Read]:
        return relations_read(row, self._control.list_views())

    async def _log(self, folder: Path, row: ViewRow) -> LogHead:
        """Return the running log of a view; request one if there is none."""
        deadline = asyncio.get_running_loop().time() + BEGIN_S
        await run_in_threadpool(touch, [folder])
        is_reported = False
        while True:
            head = read_head(folder) if is_checked(folder, self._factory.runtime) else None
            if head is not None and not (folder / ENDED).exists():
                return head
            if not is_reported:
                is_reported = True
                await run_in_threadpool(self._control.notify)
            if asyncio.get_running_loop().time() > deadline:
                raise TemporaryError(
                    "changes.unavailable",
                    f'the changes of view "{row.title}" are not available',
                    detail="the pipeline does not write them",
                    hint="see GET /health, and try again",
                )
            await asyncio.sleep(_POLL_S)


class Subscription:
    """One subscriber and its events.

    epoch: what it resumes from, or None. past: what it reads before the log, of a named one. read:
    what the view reads, directly or through views. error: what it has ended with.
    """

    def __init__(
        self,
        subscriptions: Subscriptions,
        row: ViewRow,
        feed: ChangeFeed,
        rows: _Rows,
        options: StreamOptions,
    ) -> None:
        self.epoch: int | None = None
        self.past: _Past | None = None
        self.read: Collection[Read] = ()
        self.error: TidemarkError | None = None
        self.title = row.title
        self.timeout_s = subscriptions.timeout_s
        self.retention_s = feed.reader.head.retention_s
        self._subscriptions = subscriptions
        self._row = row
        self._feed = feed
        self._rows = rows
        self._heartbeat_s = options.heartbeat_s
        self._marker_name: MarkerName = options.marker
        self._is_closed = False

    async def frames(
        self, framing: Framing, error_json: ErrorJson
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield all events in pieces of bounded size; end after an `error`, or with the service."""
        try:
            async for piece in self._pieces(framing):
                yield piece
        except TidemarkError as error:
            self.error = error
            yield [framed(framing, b"error", error_json(error))]

    async def _pieces(self, framing: Framing) -> AsyncGenerator[list[bytes], None]:
        yield [framed(framing, b"begin", self._rows.begin_line(self.title))]
        beat = framed(framing, b"heartbeat", b"{}")
        epoch = self.epoch
        if self.past is not None:
            past = self.past
            reading = self._read_pieces(
                past, lambda line: past.framed(framing, self._marker_name, line), beat
            )
            async with contextlib.aclosing(reading) as pieces:
                async for piece in pieces:
                    yield piece
            epoch = past.epoch
        elif epoch is None:
            snapshot = self._read_pieces(
                self._rows, lambda line: framed(framing, b"snapshot", line), beat
            )
            async with contextlib.aclosing(snapshot) as pieces:
                async for piece in pieces:
                    yield piece
            epoch = self._rows.shown.epoch
            yield [self._marker(framing, self._rows.shown)]
        reader = self._feed.reader
        # Only then is it known which of the log's epochs come after this one.
        while reader.newest < epoch and not reader.is_over:
            if not await self._has_more():
                yield [beat]
            if self._subscriptions.is_stopped:
                return
        position = reader.position_after(epoch)
        while True:
            found = (
                None
                if position is None
                else self._feed.frames(position, framing, self._marker_name)
            )
            if found is None:
                raise too_slow("the log no longer has its next epoch")
            pieces, position = found
            if pieces:
                yield pieces
            elif self._subscriptions.is_stopped:
                return
            elif reader.is_over:
                raise await run_in_threadpool(self._subscriptions.why_over, self._row)
            elif not await self._has_more():
                yield [beat]

    async def _read_pieces(
        self, rows: _Rows | _Past, frame: Callable[[bytes], bytes], beat: bytes
    ) -> AsyncGenerator[list[bytes], None]:
        """Yield what is read of the sink, with heartbeats while it is read."""
        is_over = False
        try:
            while not is_over:
                task = asyncio.ensure_future(run_in_threadpool(rows.next_lines))
                try:
                    while not (await asyncio.wait((task,), timeout=self._heartbeat_s))[0]:
                        yield [beat]
                finally:
                    # Its thread uses the session until it is done.
                    await asyncio.wait((task,))
                lines = task.result()
                is_over = not lines
                if lines:
                    yield [frame(line) for line in lines]
        finally:
            rows.close()

    async def _has_more(self) -> bool:
        """Return True if something came before the next heartbeat is due."""
        began = asyncio.get_running_loop().time()
        await self._feed.wait(self._heartbeat_s)
        return asyncio.get_running_loop().time() - began < self._heartbeat_s

    def _marker(self, framing: Framing, progress: Progress) -> bytes:
        name = self._feed.reader.head.name
        shown = shown_positions(positions_of(progress.positions, self.read))
        line = marker_line(name, progress.epoch, shown)
        return framed(
            framing, self._marker_name.encode(), line, f"{name}.{progress.epoch}".encode()
        )

    def close(self) -> None:
        """Remove the subscriber."""
        if not self._is_closed:
            self._is_closed = True
            self._subscriptions.leave(self._feed)


class _Rows:
    """A view's rows with the progress that they show; its methods block, one after another.

    shown: the progress, once lines were read.
    """

    shown: Progress

    def __init__(self, sink: PostgresSink, table: SinkTable, *, has_rows: bool) -> None:
        self._sink = sink
        self._table = table
        self._has_rows = has_rows
        self._open = contextlib.ExitStack()
        self._lines = self._snapshot()

    def begin_line(self, title: str) -> bytes:
        """Return the line that describes the view, its columns and its key."""
        return begin_line(title, self._table)

    def next_lines(self) -> list[bytes]:
        """Return some more lines, [] at the end."""
        return next(self._lines, [])

    def close(self) -> None:
        """Close the session."""
        self._open.close()

    def progress(self) -> Progress:
        """Return the sink's progress."""
        with self._sink.rows_at(self._table) as (progress, _):
            return progress

    def _snapshot(self) -> Iterator[list[bytes]]:
        self.shown, rows = self._open.enter_context(self._sink.rows_at(self._table))
        if self._has_rows:
            yield from self._pages(self.shown.epoch, rows)

    def _pages(self, epoch: int, rows: Iterator[Delta]) -> Iterator[list[bytes]]:
        is_empty = True
        for delta in rows:
            for line in row_lines(self._table.fields, delta, epoch):
                is_empty = False
                yield [line]
        if is_empty:
            yield [no_rows(epoch)]


class _Past:
    """The changes of a view's history from an epoch until another one, or a later one; its methods
    block, one after another.

    epoch: up to where they were read. source: DSN of the sink, and name of the view's log. read:
    what the view reads.
    """

    def __init__(
        self,
        source: tuple[str, str],
        table: SinkTable,
        epoch: int,
        until: int,
        read: Collection[Read],
    ) -> None:
        self.epoch = epoch
        self._of_view = read
        self._until = until
        self._dsn, self._log = source
        self._table = table
        self._lines = self._read()

    def next_lines(self) -> list[bytes]:
        """Return some more lines, [] at the end."""
        return next(self._lines, [])

    def framed(self, framing: Framing, marker: MarkerName, line: bytes) -> bytes:
        """Return a line as an event: a progress marker, or changes."""
        if not line.startswith(_MARKER):
            return framed(framing, b"changes", line)
        line = line[len(_MARKER) :]
        token = f"{self._log}.{json.loads(line)['epoch']}".encode()
        return framed(framing, marker.encode(), line, token)

    def close(self) -> None:
        """Close the session."""
        self._lines.close()

    def _read(self) -> Generator[list[bytes], None, None]:
        while self.epoch < self._until:
            changes = read_changes(self._dsn, self._table, self.epoch, PAST_EPOCHS)
            with contextlib.closing(changes):
                for (epoch, positions), found in itertools.groupby(changes, key=lambda c: c[:2]):
                    for _, _, delta in found:
                        if delta is not None:
                            for line in change_lines(self._table.fields, delta, epoch):
                                yield [line]
                    shown = shown_positions(positions_of(positions, self._of_view))
                    yield [_MARKER + marker_line(self._log, epoch, shown)]
                    self.epoch = epoch


def parsed_token(token: str) -> tuple[str, int] | None:
    """Return (log, epoch) of a token, None for "". TidemarkError changes.bad_token."""
    if not token:
        return None
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise _bad_token(token)
    return found[1], int(found[2])


def too_many(limit: int) -> TidemarkError:
    """Return the error for a subscriber beyond the limit of the process."""
    return TemporaryError(
        "changes.too_many",
        "there are too many subscribers",
        detail=f"the limit is {limit}",
        hint="try again later, or raise TIDEMARK_CHANGES_READERS",
    )


def too_slow(detail: str) -> TidemarkError:
    """Return the error for a subscriber that reads too slowly."""
    return TidemarkError(
        "changes.too_slow",
        "the reader is too slow",
        detail=detail,
        hint="read faster, or resume from the last progress marker while it is retained",
    )


def _require_log(head: LogHead | None, token: tuple[str, int]) -> None:
    if head is None or head.name != token[0]:
        raise _expired("the token's log no longer exists")


def _expired(detail: str) -> TidemarkError:
    return TidemarkError(
        "changes.expired",
        "the changes since the token are no longer retained",
        detail=detail,
        hint="subscribe without a token, which starts with the rows; the view's option "
        "changes_retention_s retains more",
    )


def _bad_token(token: str) -> TidemarkError:
    return TidemarkError(
        "changes.bad_token",
        f'"{token[:80]}" is not a valid resume token',
        hint="send the `resume` of the last progress marker, unchanged",
    )
