"""What a child process does: it makes one object, and calls its methods until the service ends it.

Requests come one at a time: `call` answers a value, `each` sends what a method yields, item by
item. A second connection has what must not wait: events of the object, its interruption, and the
end. Invariant: the process ends as soon as that connection does.
"""

from __future__ import annotations

import importlib
import os
import socket
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from connectors import netguard, secrets
from connectors.apart import frames
from dataflow.errors import TidemarkError, described
from storage import failpoints

INTERRUPT = b"i"
# The frames of a traceback that say where: the innermost ones.
_FRAMES = 3


@dataclass(frozen=True)
class Setup:
    """What a child is for.

    maker: "module:function", called with a function that reports events, and with the arguments.
    secrets: what the references in its options stand for; it can read no others.
    """

    maker: str
    arguments: Sequence[Any]
    secrets: Mapping[str, str]
    guard: netguard.Guard
    failpoints: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Request:
    """A call of a method of the object. is_each: of one that yields."""

    method: str
    arguments: Sequence[Any] = ()
    named: Mapping[str, Any] = field(default_factory=dict)
    is_each: bool = False


@dataclass(frozen=True)
class Sent:
    """Stands for something to iterate over that stays in the service's process, by its number."""

    number: int


class _Pulled:
    """Items that the service sends one by one, whenever it is iterated."""

    def __init__(self, calls: socket.socket, number: int) -> None:
        self._calls = calls
        self._number = number

    def __iter__(self) -> Iterator[Any]:
        first = True
        while True:
            frames.send(self._calls, ("first" if first else "next", self._number))
            first = False
            kind, item = frames.receive(self._calls, is_trusted=True)
            if kind == "end":
                return
            yield item


def run(calls: socket.socket, events: socket.socket) -> None:
    """Serve one object. EndedError: the service has gone."""
    setup: Setup = frames.receive(calls, is_trusted=True)
    secrets.use(setup.secrets)
    netguard.install(setup.guard)
    failpoints.set_failpoints(*setup.failpoints)
    made: list[Any] = []
    threading.Thread(target=_await_end, args=(events, made), name="events", daemon=True).start()
    module, _, name = setup.maker.partition(":")

    def make() -> int:
        maker: Callable[..., Any] = getattr(importlib.import_module(module), name)
        made.append(maker(_reporter(events), *setup.arguments))
        return os.getpid()

    if not _answer(calls, make):
        return
    while True:
        request: Request = frames.receive(calls, is_trusted=True)
        method = getattr(made[0], request.method)
        arguments = [_unsent(calls, one) for one in request.arguments]
        if request.is_each:
            _answer(calls, lambda: _send_each(calls, method(*arguments, **request.named)))  # noqa: B023
        else:
            _answer(calls, lambda: method(*arguments, **request.named))  # noqa: B023


def _answer(calls: socket.socket, work: Callable[[], Any]) -> bool:
    """Do something and send its value, or how it has failed; return whether it has not."""
    try:
        answer = "value", work()
    except TidemarkError as error:
        answer = "error", error
    except MemoryError:
        answer = "memory", None
    except frames.EndedError:
        raise
    except Exception as error:
        answer = "fault", (described(error), _where(error))
    frames.send(calls, answer)
    return answer[0] == "value"


def _send_each(calls: socket.socket, items: Iterable[Any]) -> None:
    for item in items:
        frames.send(calls, ("item", item))


def _unsent(calls: socket.socket, argument: Any) -> Any:
    return _Pulled(calls, argument.number) if isinstance(argument, Sent) else argument


def _reporter(events: socket.socket) -> Callable[[str, Any], None]:
    lock = threading.Lock()

    def report(name: str, value: Any = None) -> None:
        with lock:
            frames.send(events, (name, value))

    return report


def _await_end(events: socket.socket, made: list[Any]) -> None:
    """End the process with the connection; interrupt the object when that is asked for."""
    try:
        while events.recv(1) == INTERRUPT:
            if made:
                made[0].interrupt()
    finally:
        os._exit(0)


def _where(error: BaseException) -> str:
    found = traceback.extract_tb(error.__traceback__)[-_FRAMES:]
    return " < ".join(f"{frame.filename}:{frame.lineno}" for frame in reversed(found))
