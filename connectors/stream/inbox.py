"""One open connection of a relation, in a thread, with the messages that have not been stored yet.

An inbox outlives the feeds that read it: a feed that is closed and opened again, or other options,
lose nothing. Invariants: items are numbered without gaps. What a feed has taken is retained until
newer items of `buffer_bytes` were taken, so that a batch that fails is read again. Each connection
begins with an item that says whether messages may have been lost before it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from connectors.outside.boundary import boundary
from connectors.polled.schedule import RetryLaterError
from connectors.stream.transport import Link, Received, Transport
from dataflow.errors import TemporaryError, TidemarkError
from storage import clock
from storage.backoff import Backoff

FIRST_S, MAX_S = 0.5, 60.0
JITTER = (0.75, 1.25)
# How long a connection stays open without a feed: longer than any pause before the next one.
LINGER_S = 60.0
# Memory of an item beside its text.
ITEM_BYTES = 200


@dataclass(frozen=True, slots=True)
class Item:
    """A message, or the beginning of a connection (text: None).

    number: of the relation's items, from 1. sequence: within its connection, 0 for its beginning.
    gaps: connections so far before which messages may have been lost. id: Last-Event-ID after it.
    is_exact: whether the server, asked with this id, would continue with the next message.
    """

    number: int
    connection: int
    sequence: int
    gaps: int
    id: str
    is_exact: bool
    text: bytes | None = None
    event: str = ""
    received_us: int = 0
    is_gap: bool = False

    @classmethod
    def of(cls, position: Mapping[str, Any]) -> Item:
        """Return what stands at a position: the last item that was taken."""
        return cls(
            int(position["number"]),
            int(position["connection"]),
            0,
            int(position["gaps"]),
            str(position["id"]),
            bool(position["exact"]),
        )

    def position(self, pin: str) -> dict[str, Any]:
        """Return the position after the item. pin: of the relation's beginning."""
        return {
            "pin": pin,
            "number": self.number,
            "connection": self.connection,
            "gaps": self.gaps,
            "id": self.id,
            "exact": self.is_exact,
        }

    @property
    def nbytes(self) -> int:
        """About how many bytes of memory it takes."""
        return ITEM_BYTES + (0 if self.text is None else len(self.text))


@dataclass(frozen=True)
class InboxOptions:
    """buffer_bytes: of items that were not taken, and of those that were. replays: the server sends
    what came after Last-Event-ID."""

    buffer_bytes: int
    replays: bool


class Inbox:
    """Items after `last`. held: items after it that an earlier inbox has received. name: of the
    source, for errors."""

    def __init__(
        self,
        transport: Transport,
        options: InboxOptions,
        last: Item,
        held: Sequence[Item] = (),
        name: str = "",
    ) -> None:
        self._name = name
        self._transport = transport
        self._options = options
        self._changed = threading.Condition()
        self._items = deque(held)
        self._last = held[-1] if held else last
        self._taken = last.number
        self._unread_bytes = sum(item.nbytes for item in held)
        self._taken_bytes = 0
        self._on_ready: Callable[[], None] | None = None
        self._error: TidemarkError | None = None
        self._is_over = False
        self._link: Link | None = None
        self._timer: threading.Timer | None = None
        self._thread = threading.Thread(target=self._run, name="stream", daemon=True)

    def start(self) -> None:
        """Connect."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it still receives."""
        return self._thread.is_alive() and not self._is_over

    @property
    def is_open(self) -> bool:
        """Whether a connection is open."""
        return self._link is not None and self._error is None

    @property
    def is_over(self) -> bool:
        """Whether it was closed."""
        return self._is_over

    @property
    def unread(self) -> int:
        """Items that were not taken."""
        return self._last.number - self._taken

    def has(self, number: int) -> bool:
        """Return whether all items after this one are there."""
        with self._changed:
            first = self._items[0].number if self._items else self._last.number + 1
            return first - 1 <= number <= self._last.number

    def attach(self, number: int, on_ready: Callable[[], None]) -> None:
        """Let a feed take the items after this one again. They must be there."""
        assert self.has(number)
        with self._changed:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            self._on_ready = on_ready
            self._taken = number
            sizes = [(item.number > number, item.nbytes) for item in self._items]
            self._unread_bytes = sum(size for is_unread, size in sizes if is_unread)
            self._taken_bytes = sum(size for is_unread, size in sizes if not is_unread)
            self._changed.notify_all()

    def detach(self) -> None:
        """Let go of the feed; the connection ends if none comes within LINGER_S."""
        with self._changed:
            self._on_ready = None
            self._timer = threading.Timer(LINGER_S, self._expire)
            self._timer.daemon = True
            self._timer.start()

    def take(self, count: int, until: int | None) -> list[Item]:
        """Return up to `count` items, none after number `until`. Raise why nothing comes."""
        with self._changed:
            found: list[Item] = []
            nbytes, most = 0, self._options.buffer_bytes // 4
            at = self._taken - (self._items[0].number if self._items else 0) + 1
            while at < len(self._items) and len(found) < count and nbytes < most:
                item = self._items[at]
                if until is not None and item.number > until:
                    break
                found.append(item)
                nbytes += item.nbytes
                at += 1
            if found:
                self._taken = found[-1].number
                self._unread_bytes -= nbytes
                self._taken_bytes += nbytes
                self._forget_oldest()
                self._changed.notify_all()
            elif self._error is not None and not self.unread:
                raise self._error
            return found

    def close(self) -> list[Item]:
        """End the connection; return the items that are still there."""
        with self._changed:
            self._is_over = True
            if self._timer is not None:
                self._timer.cancel()
            self._changed.notify_all()
            link, items = self._link, list(self._items)
        if link is not None:
            link.abort()
        return items

    def _forget_oldest(self) -> None:
        while self._items and self._items[0].number <= self._taken:
            if self._taken_bytes <= self._options.buffer_bytes:
                break
            self._taken_bytes -= self._items.popleft().nbytes

    def _expire(self) -> None:
        with self._changed:
            if self._on_ready is not None:
                return
        self.close()

    def _run(self) -> None:
        backoff = Backoff(FIRST_S, MAX_S, jitter=JITTER)
        while not self._is_over:
            pause_s = 0.0
            try:
                with boundary("source", self._name):
                    pause_s = self._receive(backoff)
            except TemporaryError as error:
                self._fail(error)
                if isinstance(error, RetryLaterError):
                    pause_s = error.retry_after_s
            except TidemarkError as error:
                self._fail(error)
                return
            with self._changed:
                pause_s = max(pause_s, backoff.next_s())
                self._changed.wait_for(lambda: self._is_over, pause_s)

    def _receive(self, backoff: Backoff) -> float:
        """Hold one connection until it ends; return how long the server wants to be left alone."""
        with self._transport.open(self._last.id) as link:
            with self._changed:
                if self._is_over:
                    return 0.0
                self._link = link
            try:
                self._begin()
                for found in link.messages():
                    backoff.reset()
                    if not self._put(found):
                        return 0.0
            except TemporaryError as error:
                self._fail(error)
            finally:
                with self._changed:
                    self._link = None
            return link.retry_s

    def _begin(self) -> None:
        """Note a connection, and whether messages may have been lost before it."""
        before = self._last
        is_gap = before.connection > 0 and not (self._options.replays and before.is_exact)
        self._error = None
        self._append(
            Item(
                before.number + 1,
                before.connection + 1,
                0,
                before.gaps + is_gap,
                before.id,
                before.is_exact,
                received_us=clock.wall_ns() // 1000,
                is_gap=is_gap,
            )
        )

    def _put(self, found: Received) -> bool:
        """Add a message once there is space; False if the inbox is closed."""
        before = self._last
        if found.text is None:
            # Only an id, or what is left out: an id counts with the next item.
            self._last = _with_id(before, found) if found.has_id else before
            return not self._is_over
        return self._append(
            Item(
                before.number + 1,
                before.connection,
                before.sequence + 1,
                before.gaps,
                found.id,
                found.has_id,
                found.text,
                found.event,
                clock.wall_ns() // 1000,
            )
        )

    def _append(self, item: Item) -> bool:
        with self._changed:
            limit = self._options.buffer_bytes
            self._changed.wait_for(lambda: self._is_over or self._unread_bytes < limit)
            if self._is_over:
                return False
            was_empty = not self.unread
            self._items.append(item)
            self._last = item
            self._unread_bytes += item.nbytes
            on_ready = self._on_ready if was_empty else None
        if on_ready is not None:
            on_ready()
        return True

    def _fail(self, error: TidemarkError) -> None:
        with self._changed:
            self._error = error
            on_ready = self._on_ready
        if on_ready is not None:
            on_ready()


def _with_id(item: Item, found: Received) -> Item:
    return Item(
        item.number,
        item.connection,
        item.sequence,
        item.gaps,
        found.id,
        found.has_id,
        item.text,
        item.event,
        item.received_us,
    )


@dataclass(frozen=True)
class InboxKey:
    """Whose inbox it is: a source's relation, since the beginning with this pin."""

    source: str
    relation: str
    pin: str


class Inboxes:
    """The inboxes of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[InboxKey, tuple[Transport, InboxOptions, Inbox]] = {}

    def attach(
        self,
        key: InboxKey,
        transport: Transport,
        options: InboxOptions,
        last: Item,
        on_ready: Callable[[], None],
    ) -> Inbox:
        """Return the inbox with the items after `last`, and a connection by these options."""
        with self._lock:
            self._open = {k: found for k, found in self._open.items() if not found[2].is_over}
            before = self._open.get(key)
            held: list[Item] = []
            if before is not None:
                inbox = before[2]
                is_there = inbox.has(last.number)
                if is_there and inbox.is_alive and before[:2] == (transport, options):
                    inbox.attach(last.number, on_ready)
                    return inbox
                held = [one for one in inbox.close() if is_there and one.number > last.number]
            inbox = Inbox(transport, options, last, held, key.source)
            self._open[key] = transport, options, inbox
            inbox.attach(last.number, on_ready)
            inbox.start()
            return inbox

    def close(self) -> None:
        """End all connections."""
        with self._lock:
            for _, _, inbox in self._open.values():
                inbox.close()
            self._open.clear()


INBOXES = Inboxes()


def wait_for_items(inbox: Inbox, count: int, within_s: float) -> list[Item]:
    """Return up to `count` messages that come within so many seconds. Raise why none comes."""
    found: list[Item] = []
    deadline = time.monotonic() + within_s
    while len(found) < count and time.monotonic() < deadline:
        more = inbox.take(count - len(found), None)
        found += [item for item in more if item.text is not None]
        if not more:
            time.sleep(0.05)
    return found
