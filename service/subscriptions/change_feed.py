"""The logs of changes that an API process reads just now, each once for all its readers.

Invariant: nothing is kept for a reader but its place in the log; what readers at the same place
get is made once. While a log has readers its `wanted` is touched, so that the pipeline keeps it.
"""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from service.runtime.log import log
from service.subscriptions.change_log import WANTED, LogHead
from service.subscriptions.change_reader import ChangeReader, Place
from service.subscriptions.folder_watch import FolderWatch

CACHE_BYTES = 8 << 20
TOUCH_S = 2.0
# How often all logs are looked at where the system tells of changes, and where it does not.
LOOK_S = (0.5, 0.005)

Framing = Literal["sse", "socket"]


class ChangeFeed:
    """One log and those who wait for it."""

    def __init__(self, folder: Path, head: LogHead) -> None:
        self.reader = ChangeReader(folder, head)
        self.readers = 0
        # In the order in which they came.
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._framed: OrderedDict[tuple[Framing, Place], tuple[list[bytes], Place]] = OrderedDict()
        self._framed_bytes = 0
        self.reader.refresh()

    def look(self) -> None:
        """Take in what is new, and wake who waits for it."""
        if self.reader.refresh():
            self.wake()

    def wake(self) -> None:
        """Let everyone look again."""
        waiting, self._waiting = self._waiting, {}
        for one in waiting:
            if not one.done():
                one.set_result(None)

    async def wait(self, seconds: float) -> None:
        """Until there may be something new, at most so long."""
        loop = asyncio.get_running_loop()
        told = loop.create_future()
        self._waiting[told] = None
        timer = loop.call_later(seconds, _report, told)
        try:
            await told
        finally:
            timer.cancel()
            self._waiting.pop(told, None)

    def frames(self, place: Place, framing: Framing) -> tuple[list[bytes], Place] | None:
        """The events from a place on as they go out, and the place behind them; None when the
        place is not there any more."""
        known = self._framed.get((framing, place))
        if known is not None:
            return known
        found = self.reader.lines(place)
        if found is None or not found[0]:
            return found
        made = [framed(framing, *event_of(line)) for line in found[0]]
        made = [b"".join(made)] if framing == "sse" else made
        self._remember((framing, place), (made, found[1]))
        return made, found[1]

    def _remember(self, key: tuple[Framing, Place], made: tuple[list[bytes], Place]) -> None:
        self._framed[key] = made
        self._framed_bytes += sum(map(len, made[0]))
        while self._framed_bytes > CACHE_BYTES:
            _, (oldest, _) = self._framed.popitem(last=False)
            self._framed_bytes -= sum(map(len, oldest))

    def close(self) -> None:
        """Give back the files."""
        self.reader.close()
        self.wake()


class ChangeFeeds:
    """All of one API process; lives in its event loop. is_stopping: asked now and then."""

    def __init__(self, is_stopping: Callable[[], bool]) -> None:
        self._is_stopping = is_stopping
        self._feeds: dict[Path, ChangeFeed] = {}
        self._watch: FolderWatch | None = None
        self._task: asyncio.Task[None] | None = None
        self.is_stopped = False

    @property
    def readers(self) -> int:
        """How many there are."""
        return sum(feed.readers for feed in self._feeds.values())

    def enter(self, folder: Path, head: LogHead) -> ChangeFeed:
        """One reader more of a log."""
        self._begin()
        feed = self._feeds.get(folder)
        if feed is None or feed.reader.head != head:
            if feed is not None:
                # The log was begun anew since the last look, and nothing looks at this one again:
                # those who wait for it learn here that it is over.
                feed.look()
            feed = ChangeFeed(folder, head)
            self._feeds[folder] = feed
            assert self._watch is not None
            self._watch.add(folder)
            # What was written between the first look and the watch.
            feed.look()
        feed.readers += 1
        return feed

    def leave(self, feed: ChangeFeed) -> None:
        """One reader less."""
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
            self._task = asyncio.create_task(self._look_after())

    def _changed(self, folder: Path) -> None:
        feed = self._feeds.get(folder)
        if feed is not None:
            feed.look()

    async def _look_after(self) -> None:
        """Touch, and look where nothing was told."""
        assert self._watch is not None
        pause = LOOK_S[0] if self._watch.is_reported else LOOK_S[1]
        touch_at = 0.0
        while not self.is_stopped:
            await asyncio.sleep(pause)
            self.is_stopped = self._is_stopping()
            feeds = list(self._feeds.values())
            for feed in feeds:
                feed.look()
                if self.is_stopped:
                    feed.wake()
            now = asyncio.get_running_loop().time()
            if now > touch_at:
                touch_at = now + TOUCH_S
                touch([feed.reader.folder for feed in feeds])


def touch(folders: Sequence[Path]) -> None:
    """Ask for the logs in these folders."""
    for folder in folders:
        try:
            if not (folder / WANTED).exists():
                folder.mkdir(parents=True, exist_ok=True)
                (folder / WANTED).touch()
            os.utime(folder / WANTED)
        except OSError as error:
            # A full disk, mostly; it is asked for again, and readers are told when nothing comes.
            log.debug("changes.unasked", why=str(error))


def event_of(line: bytes) -> tuple[bytes, bytes, bytes]:
    """(name of the event, its line, its id or nothing) of a line of a log.

    >>> event_of(b'{"epoch":7,"positions":{},"resume":"a1.7"}')[::2]
    (b'mark', b'a1.7')
    """
    if line.startswith(b'"positions"', line.index(b",") + 1):
        return b"mark", line, line[line.rindex(b'"resume":"') + 10 : -2]
    return b"changes", line, b""


def framed(framing: Framing, name: bytes, line: bytes, identity: bytes = b"") -> bytes:
    """An event as it goes out: of server-sent events (WHATWG HTML, 9.2), or a text of a socket.

    >>> framed("sse", b"heartbeat", b"{}")
    b'event: heartbeat\\ndata: {}\\n\\n'
    """
    if framing == "sse":
        shown = b"id: %b\n" % identity if identity else b""
        return b"%bevent: %b\ndata: %b\n\n" % (shown, name, line)
    return b'{"event":"%b","data":%b}' % (name, line)


def _report(told: asyncio.Future[None]) -> None:
    if not told.done():
        told.set_result(None)
