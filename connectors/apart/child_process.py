"""A child process as the service uses it: calls of one object's methods, and the end of both.

Invariant: whatever the child does, a call returns, raises an error of ours, or is ended by `kill`.
A child that ends by itself is a TemporaryError of its source or sink, which is opened again after a
pause. Used by one thread; `interrupt`, `kill` and `close` may be called from any.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from connectors import netguard, secrets
from connectors.apart import frames, starter
from connectors.apart.child_program import INTERRUPT, Request, Sent, Setup
from connectors.outside import texts
from connectors.outside.boundary import Side
from dataflow.errors import TemporaryError, TidemarkError
from storage import failpoints

MEBIBYTE = 1 << 20
# A child that does not answer a call for longer is ended.
ANSWER_S = 120.0
# One that was interrupted, or asked to close, has so long.
INTERRUPTED_S, CLOSE_S = 10.0, 5.0
# Its exit status comes once it has ended.
_STATUS_S = 2.0
_STEP_S = 0.25
_ERROR_BYTES = 2000
_ATTEMPTS = 2
_NEVER = float("inf")
# The last event.
ENDED = "ended"

OnEvent = Callable[[str, Any], None]


class ChildFault(Exception):
    """A method in a child has raised something that is no error of ours, there."""


@dataclass(frozen=True)
class Use:
    """Whom a child is for. side, name: of the source or sink. options: anything with references to
    the secrets that it may resolve. memory_mb: that it may use beyond its code.
    """

    kind: starter.Kind
    side: Side
    name: str
    options: Any
    memory_mb: int

    @property
    def title(self) -> str:
        """Return what `ps` shows of its child."""
        return texts.clean(f"{self.kind.what} {self.side} {self.name}")


class Child:
    """One child and the object in it. has_failed: it has ended, or can only be ended."""

    def __init__(
        self, use: Use, maker: str, *arguments: Any, on_event: OnEvent | None = None
    ) -> None:
        """Start it and make its object. TidemarkError, as the maker raises it; TemporaryError
        source.process_ended, sink.process_ended.
        """
        self._use = use
        self._lock = threading.Lock()
        self._sent: dict[int, Iterable[Any]] = {}
        self._kill_at = _NEVER
        self._is_closed = False
        self.has_failed = False
        self._exit_code = ""
        self.pid = 0
        found = secrets.resolved_in(use.options)
        setup = Setup(maker, arguments, found, netguard.installed(), failpoints.as_set())
        for _ in range(_ATTEMPTS):
            self._started = starter.start(use.kind, use.title, use.memory_mb * MEBIBYTE)
            try:
                if self._has_begun(setup):
                    break
                starter.close(self._started)
            except BaseException:
                self.close()
                raise
        else:
            raise starter.not_started("the process that starts it has ended")
        if on_event is not None:
            threading.Thread(
                target=self._read_events, args=(on_event,), name="child-events", daemon=True
            ).start()

    def _has_begun(self, setup: Setup) -> bool:
        """Return False if the fork server has ended just then, as an idle one does."""
        try:
            with suppress(OSError):  # then nothing answers
                frames.send(self._started.calls, setup)
            self.pid = self._answer(ANSWER_S)
        except TemporaryError:
            if not self.has_failed or self._exit_code:
                raise
            self.has_failed = False
            return False
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def call(self, method: str, *arguments: Any, within_s: float = ANSWER_S, **named: Any) -> Any:
        """Return what the method returns, within so many seconds, or since items were asked for."""
        self._sent = {}
        passed = [self._passed(one) for one in arguments]
        self._send(Request(method, passed, named))
        return self._answer(within_s)

    def each(self, method: str, *arguments: Any) -> Iterator[Any]:
        """Yield what the method yields; the child is busy with it until the end."""
        self._send(Request(method, arguments, is_each=True))
        while True:
            kind, value = self._received(_NEVER)
            if kind != "item":
                self._value(kind, value)
                return
            yield value

    def interrupt(self) -> None:
        """Interrupt the object, and end the child if the present call does not return soon."""
        self._kill_at = min(self._kill_at, time.monotonic() + INTERRUPTED_S)
        with suppress(OSError):  # it has ended
            self._started.events.send(INTERRUPT)

    def kill(self) -> None:
        """End the child at once, whatever it does; the present call raises."""
        self._started.kill()

    def close(self) -> None:
        """End the child."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        with suppress(OSError):  # it has ended
            self._started.events.shutdown(socket.SHUT_RDWR)
        if not self._has_ended(_STATUS_S):
            self._started.kill()
        starter.close(self._started)

    def _passed(self, argument: Any) -> Any:
        if not isinstance(argument, Items):
            return argument
        number = len(self._sent)
        self._sent[number] = argument.items
        return Sent(number)

    def _send(self, value: Any) -> None:
        try:
            frames.send(self._started.calls, value)
        except OSError:
            raise self._ended() from None

    def _answer(self, within_s: float) -> Any:
        deadline = time.monotonic() + within_s
        iterators: dict[int, Iterator[Any]] = {}
        while True:
            kind, value = self._received(deadline)
            if kind not in ("first", "next"):
                return self._value(kind, value)
            try:
                if kind == "first":
                    iterators[value] = iter(self._sent[value])
                item = _next_of(iterators[value])
            except BaseException:
                # The child still waits for it.
                self.has_failed = True
                raise
            self._send(item)
            deadline = time.monotonic() + within_s

    def _value(self, kind: str, value: Any) -> Any:
        if kind == "value":
            return value
        if kind == "error" and isinstance(value, TidemarkError):
            raise value
        if kind == "memory":
            raise self._error(
                "process_memory",
                "needs more memory than it may use",
                detail=f"its process may use {self._use.memory_mb} MiB",
                hint="the server may send batches that are too large; it is tried again",
            )
        fault, place = value
        raise ChildFault(f"{fault} at {place}")

    def _received(self, deadline: float) -> tuple[str, Any]:
        poll = select.poll()
        poll.register(self._started.calls, select.POLLIN)
        try:
            while not poll.poll(_STEP_S * 1000):
                now = time.monotonic()
                if now > deadline or now > self._kill_at:
                    self.kill()
                    self._has_ended(_STATUS_S)
                    raise self._silent()
            return frames.receive(self._started.calls)
        except (frames.EndedError, OSError):
            raise self._ended() from None

    def _read_events(self, on_event: OnEvent) -> None:
        with suppress(frames.EndedError):  # then the next call raises
            while True:
                on_event(*frames.receive(self._started.events))
        if not self._is_closed:
            on_event(ENDED, None)

    def _has_ended(self, within_s: float) -> bool:
        poll = select.poll()
        poll.register(self._started.status, select.POLLIN)
        return bool(poll.poll(within_s * 1000))

    def _ended(self) -> TemporaryError:
        """Return the error for a child that has ended while it was needed."""
        if not self._is_closed and self._has_ended(_STATUS_S):
            self._exit_code = os.read(self._started.status, 16).decode()
        return self._error(
            "process_ended",
            "has lost its process",
            detail=f"{_described(self._exit_code)}{self._last_words()}",
            hint="no action needed if it comes back: it is started again with growing pauses; "
            "check the server",
        )

    def _silent(self) -> TemporaryError:
        return self._error(
            "process_ended",
            "has lost its process",
            detail="it did not answer, and was ended",
            hint="check the server; it is started again with growing pauses",
        )

    def _error(self, name: str, what: str, *, detail: str, hint: str) -> TemporaryError:
        self.has_failed = True
        use = self._use
        named = f'{use.kind.what} {use.side} "{use.name}"'
        return TemporaryError(f"{use.side}.{name}", f"{named} {what}", detail=detail, hint=hint)

    def _last_words(self) -> str:
        """Return the end of what it has written to standard error."""
        try:
            size = os.fstat(self._started.errors).st_size
            found = os.pread(self._started.errors, _ERROR_BYTES, max(0, size - _ERROR_BYTES))
        except OSError:
            return ""
        text = " ".join(found.decode(errors="replace").split())
        return f": {texts.shown(text)}" if text else ""


@dataclass(frozen=True)
class Items:
    """An argument whose items a child asks for, one by one."""

    items: Iterable[Any]


def _next_of(iterator: Iterator[Any]) -> tuple[str, Any]:
    for item in iterator:
        return "item", item
    return "end", None


def _described(code: str) -> str:
    if not code:
        return "it ended"
    number = int(code)
    return f"signal {-number} ended it" if number < 0 else f"it ended with exit code {number}"
