"""The change logs that an API process is reading, each read once for all its subscribers.

Invariant: nothing is stored for a subscriber except its position in the log; frames at the same
position are made once. While a log has subscribers, its file `wanted` is touched, so that the
pipeline continues it. Everything runs in one event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from service.runtime.log import log
from service.subscriptions.change_log import REQUESTED, LogHead
from service.subscriptions.change_reader import ChangeReader, LogPosition
from service.subscriptions.folder_watch import FolderWatch

CACHE_BYTES = 8 << 20
TOUCH_S = 2.0
# Seconds between polls of all logs, with and without file notifications from the system.
POLL_S = (0.5, 0.005)

Framing = Literal["sse", "socket"]
# The event that closes an epoch; `mark` is its earlier name, for one release.
MarkerName = Literal["progress", "mark"]
_FrameKey = tuple[Framing, MarkerName, LogPosition]


class ChangeFeed:
    """One log and the tasks that wait for it."""

    def __init__(self, folder: Path, head: LogHead) -> None:
        self.reader = ChangeReader(folder, head)
        self.readers = 0
        # In order of arrival.
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._framed: OrderedDict[_FrameKey, tuple[list[bytes], LogPosition]] = OrderedDict()
        self._framed_bytes = 0
        self.reader.refresh()

    def refresh(self) -> None:
        """Read new epochs and wake the waiting tasks."""
        if self.reader.refresh():
            self.wake()

    def wake(self) -> None:
        """Wake all waiting tasks."""
        waiting, self._waiting = self._waiting, {}
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Wait until there may be something new, at most `seconds`."""
        loop = asyncio.get_running_loop()
        woken = loop.create_future()
        self._waiting[woken] = None
        timer = loop.call_later(seconds, _wake, woken)
        try:
            await woken
        finally:
            timer.cancel()
            self._waiting.pop(woken, None)

    def frames(
        self, position: LogPosition, framing: Framing, marker: MarkerName = "progress"
    ) -> tuple[list[bytes], LogPosition] | None:
        """Return the events at a position as they are sent, and the position after them.

        None if the log no longer has this position.
        """
        key = (framing, marker, position)
        cached = self._framed.get(key)
        if cached is not None:
            return cached
        found = self.reader.lines(position)
        if found is None or not found[0]:
            return found
        made = [framed(framing, *event_of(line, marker)) for line in found[0]]
        made = [b"".join(made)] if framing == "sse" else made
        self._remember(key, (made, found[1]))
        return made, found[1]

    def _remember(self, key: _FrameKey, made: tuple[list[bytes], LogPosition]) -> None:
        self._framed[key] = made
        self._framed_bytes += sum(map(len, made[0]))
        while self._framed_bytes > CACHE_BYTES:
            _, (oldest, _) = self._framed.popitem(last=False)
            self._framed_bytes -= sum(map(len, oldest))

    def close(self) -> None:
        """Close the files and wake the waiting tasks."""
        self.reader.close()
        self.wake()


class ChangeFeeds:
    """All feeds of one API process; lives in its event loop. is_stopping: polled periodically."""

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        self._is_stopping = is_stopping
        self._feeds: dict[Path, ChangeFeed] = {}
        self._watch: FolderWatch | None = None
        self._task: asyncio.Task[None] | None = None
        self.is_stopped = False

    @property
    def readers(self) -> int:
        """Return the number of subscribers."""
        return sum(feed.readers for feed in self._feeds.values())

    def enter(self, folder: Path, head: LogHead) -> ChangeFeed:
        """Add a subscriber of a log."""
        self._begin()
        feed = self._feeds.get(folder)
        if feed is None or feed.reader.head != head:
            if feed is not None:
                # The log was started again since the last refresh, and nothing else refreshes this
                # feed: its waiting tasks learn here that it has ended.
                feed.refresh()
            feed = ChangeFeed(folder, head)
            self._feeds[folder] = feed
            assert self._watch is not None
            self._watch.add(folder)
            # Read what was written between the first refresh and the watch.
            feed.refresh()
        feed.readers += 1
        return feed

    def leave(self, feed: ChangeFeed) -> None:
        """Remove a subscriber."""
        feed.readers -= 1
        if feed.readers:
            return
        feed.close()
        folder = feed.reader.folder
        if self._feeds.get(folder) is feed:
            del self._feeds[folder]
            assert self._watch is not None
            self._watch.remove(folder)

    def _begin(self) -> None:
        if self._task is None:
            self._watch = FolderWatch(self._changed)
            self._task = asyncio.create_task(self._keep_refreshing())

    def _changed(self, folder: Path) -> None:
        feed = self._feeds.get(folder)
        if feed is not None:
            feed.refresh()

    async def _keep_refreshing(self) -> None:
        """Touch the requested logs, and refresh feeds without notifications."""
        assert self._watch is not None
        pause = POLL_S[0] if self._watch.is_reported else POLL_S[1]
        touch_at = 0.0
        while not self.is_stopped:
            await asyncio.sleep(pause)
            self.is_stopped = self._is_stopping()
            feeds = list(self._feeds.values())
            for feed in feeds:
                feed.refresh()
                if self.is_stopped:
                    feed.wake()
            now = asyncio.get_running_loop().time()
            if now > touch_at:
                touch_at = now + TOUCH_S
                touch([feed.reader.folder for feed in feeds])


def touch(folders: Sequence[Path]) -> None:
    """Request the logs in these folders."""
    for folder in folders:
        try:
            if not (folder / REQUESTED).exists():
                folder.mkdir(parents=True, exist_ok=True)
                (folder / REQUESTED).touch()
            os.utime(folder / REQUESTED)
        except OSError as error:
            # Usually a full disk; the request is repeated, and subscribers get an error if nothing
            # comes.
            log.debug("changes.unrequested", why=str(error))


def event_of(line: bytes, marker: MarkerName = "progress") -> tuple[bytes, bytes, bytes]:
    """Return (event name, line, id or b"") of a line of a log.

    >>> event_of(b'{"epoch":7,"positions":{},"resume":"a1.7"}')[::2]
    (b'progress', b'a1.7')
    """
    if line.startswith(b'"positions"', line.index(b",") + 1):
        return marker.encode(), line, line[line.rindex(b'"resume":"') + 10 : -2]
    return b"changes", line, b""


def framed(framing: Framing, name: bytes, line: bytes, identity: bytes = b"") -> bytes:
    """Return an event as it is sent: a server-sent event (WHATWG HTML, 9.2), or a WebSocket text.

    >>> framed("sse", b"heartbeat", b"{}")
    b'event: heartbeat\\ndata: {}\\n\\n'
    """
    if framing == "sse":
        shown = b"id: %b\n" % identity if identity else b""
        return b"%bevent: %b\ndata: %b\n\n" % (shown, name, line)
    return b'{"event":"%b","data":%b}' % (name, line)


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
