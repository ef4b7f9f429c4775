"""A process of the service, forked off by the supervisor with all that it has imported.

Imports are most of a start: forked, a process that has died is back in a fraction of the time, and
what was loaded is in memory once. Invariant: of its parent a child has the modules, the standard
streams and the descriptors it was given, no signal handler and no other open file; a signal that
comes while it begins is not lost. For a parent without threads that could hold a lock.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn

from service.runtime.signals import end_now

# Ctrl-C reaches all processes of a terminal: it is the parent's to end its children.
_HANDLERS = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.SIG_IGN}
_POLL_S = 0.01


class Forked:
    """A child: what of subprocess.Popen a supervisor needs. pid: its own; returncode: None while
    it runs, then its exit code, or minus the number of the signal that has ended it."""

    def __init__(
        self, main: Callable[[], int], environment: Mapping[str, str], keep: Collection[int] = ()
    ) -> None:
        """main: gives the exit code. environment: all of the child's. keep: descriptors that it
        keeps open. From the main thread alone. OSError when the machine has no room for a
        process more."""
        self.returncode: int | None = None
        # Ignored, as whoever has started us may have left it, nobody could ask how a child ended.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with _signals_wait():
            self.pid = os.fork()
            if self.pid == 0:
                _begin(main, environment, keep)

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self) -> int:
        """Until it has ended; the exit code."""
        while (code := self.poll()) is None:
            time.sleep(_POLL_S)
        return code

    def terminate(self) -> None:
        """SIGTERM, if it runs."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        # Not waited for yet, its pid is nobody else's.
        if self.poll() is None:
            os.kill(self.pid, number)


@contextmanager
def _signals_wait() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLERS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin(
    main: Callable[[], int], environment: Mapping[str, str], keep: Collection[int]
) -> NoReturn:
    """The child's whole life; nothing of the parent's stack goes on."""
    code = 1
    try:
        for number, handler in _HANDLERS.items():
            signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(environment)
        _close_all_but(keep)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLERS)
        code = main()
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    finally:
        end_now(code)


def _close_all_but(keep: Collection[int]) -> None:
    first = 3
    for descriptor in sorted(keep):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))
