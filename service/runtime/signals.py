"""What each of the service's processes does about signals and about its parent.

A process that is asked to stop has `STOP_S` for it. What it is in the middle of may take longer (a
statement that waits for a lock, a large step, a JVM): then it ends where it is, which loses no more
than a kill would, and that is nothing. A second SIGTERM ends it at once.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

STOP_S = 2.5
# Exit codes: as shells tell of a program that a signal has ended; a pipeline's that was refused,
# and one whom no restart can help.
SIGNALLED = 128
REFUSED, FINAL = 3, 4
FINAL_CODES = frozenset(
    {
        "state.version",
        "state.unknown_type",
        "state.unknown_field",
        "state.foreign",
        "sink.version",
    }
)

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None) -> None:
    """Ask the kernel for SIGKILL when the parent ends, however it ends; exit if it has already.

    parent: its pid, as it knows it (in a container the supervisor may well be process 1); None
    for a process that someone has started by hand.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent is not None and os.getppid() != parent:
        os._exit(0)


def stop_on_terminate(stop: Callable[[], None], on_late: Callable[[], None]) -> None:
    """Call stop on SIGTERM, and where that takes too long on_late before the end.

    SIGINT is left to the supervisor, whom Ctrl-C reaches as well.
    """

    def on_terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: end_now(SIGNALLED + signal.SIGTERM))
        end_later(on_late)
        stop()

    signal.signal(signal.SIGTERM, on_terminate)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_later(on_late: Callable[[], None], seconds: float = STOP_S) -> None:
    """End the process, as done, when it has not ended by itself until then."""

    def end() -> None:
        on_late()
        end_now(0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def end_now(code: int) -> NoReturn:
    """End the process, whatever it is doing, and those that it has started."""
    _end_children()
    sys.stderr.flush()
    os._exit(code)


def _end_children() -> None:
    """A JVM would see the end of its parent by itself, but only once it has started."""
    own = os.getpid()
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            # proc(5): after the name in parentheses come the state and the parent.
            if int(status.read_text().rpartition(")")[2].split()[1]) == own:
                os.kill(int(status.parent.name), signal.SIGKILL)
