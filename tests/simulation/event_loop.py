"""An event loop of asyncio in a fiber: the API's coroutines among the simulated threads.

Where it would wait for sockets it lets other fibers continue, in the run's own time. Calls that the
product gives to a pool of threads run in fibers of the same process.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from greenlet import getcurrent

from service.subscriptions.change_log import REQUESTED
from tests.simulation.fibers import FOREVER, Fiber, Killed, Loop


class FiberEventLoop(asyncio.BaseEventLoop):
    """Of one process; `run` in a fiber of it."""

    def __init__(self, fibers: Loop) -> None:
        super().__init__()
        self.fibers = fibers
        self._is_woken = False
        self._selector = self
        self.set_exception_handler(lambda loop, context: None)

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        """To its end, or until the process is killed."""
        self.run_until_complete(main)

    def time(self) -> float:
        return self.fibers.now

    def select(self, timeout: float | None) -> Sequence[Any]:
        """As of a selector that has no sockets."""
        self.fibers.pause(FOREVER if timeout is None else timeout, lambda: self._is_woken)
        self._is_woken = False
        return ()

    def _process_events(self, event_list: Sequence[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        self._is_woken = True


async def in_fiber(run: Callable[..., Any], *given: Any) -> Any:
    """As starlette's run_in_threadpool."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, FiberEventLoop)
    done: asyncio.Future[Any] = loop.create_future()

    def work() -> None:
        try:
            answer, error = run(*given), None
        except Killed:
            raise
        except BaseException as raised:
            answer, error = None, raised
        loop.call_soon_threadsafe(_resolve, done, answer, error)

    fiber = getcurrent()
    assert isinstance(fiber, Fiber)
    loop.fibers.start(work, "pool", fiber.process)
    return await done


def _resolve(done: asyncio.Future[Any], answer: Any, error: BaseException | None) -> None:
    if done.cancelled():
        return
    if error is None:
        done.set_result(answer)
    else:
        done.set_exception(error)


def touch(folders: Sequence[Path]) -> None:
    """As service.subscriptions.change_feed.touch, by the clock of the run."""
    fiber = getcurrent()
    assert isinstance(fiber, Fiber)
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / REQUESTED).touch()
        os.utime(folder / REQUESTED, (fiber.loop.now, fiber.loop.now))


class SilentWatch:
    """As FolderWatch where nothing is told in time: folders are examined now and then."""

    is_reported = True

    def __init__(self, changed: Callable[[Path], None]) -> None:
        del changed

    def add(self, folder: Path) -> bool:
        return True

    def remove(self, folder: Path) -> None:
        """Nothing is watched."""
