"""A service process, forked by the supervisor with everything it has imported.

Imports are most of a start: forked, a dead process is back in a fraction of the time, and shared
modules are in memory once. Invariant: a child inherits only modules, standard streams and the
descriptors passed to it; no signal handler and no other open file. A signal that arrives while it
starts is not lost. The parent must have no threads that could hold a lock.
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

# Ctrl-C reaches all processes of a terminal; the parent ends its children.
_HANDLERS = {signal.SIGTERM: signal.SIG_DFL, signal.SIGINT: signal.SIG_IGN}
_POLL_S = 0.01


class Forked:
    """A child process, with the part of subprocess.Popen that a supervisor needs.

    returncode: None while it runs, then its exit code, or minus the number of the signal that ended
    it.
    """

    def __init__(
        self, main: Callable[[], int], environment: Mapping[str, str], keep: Collection[int] = ()
    ) -> None:
        """Fork the child; call from the main thread only.

        main: returns the exit code. environment: the child's whole environment. keep: descriptors
        that stay open in the child. OSError if the machine cannot start another process.
        """
        self.returncode: int | None = None
        # If SIGCHLD is ignored, as our parent may have left it, no exit code can be read.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with _signals_wait():
            self.pid = os.fork()
            if self.pid == 0:
                _begin(main, environment, keep)

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self) -> int:
        """Wait until it has ended; return the exit code."""
        while (code := self.poll()) is None:
            time.sleep(_POLL_S)
        return code

    def terminate(self) -> None:
        """Send SIGTERM if it runs."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL if it runs."""
        self._send(signal.SIGKILL)

    def _send(self, number: int) -> None:
        # Until it has been waited for, its pid cannot be reused.
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
    """Run the child until it exits; nothing of the parent's stack continues."""
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
