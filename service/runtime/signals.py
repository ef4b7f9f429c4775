"""How the service's processes react to signals.

A process has STOP_S to stop after a request. Its current work may take longer (a statement that
waits for a lock, a large step, a JVM). Then it exits at once, which loses no more than a kill
would: nothing. A second SIGTERM exits at once.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

STOP_S = 2.5
# Exit codes: what shells report for a program ended by a signal; a refused pipeline; and one that
# no restart can fix.
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


def stop_on_terminate(stop: Callable[[], None], on_late: Callable[[], None]) -> None:
    """Call stop on SIGTERM; if that takes longer than STOP_S, call on_late and exit.

    SIGINT is left to the supervisor, which Ctrl-C reaches too.
    """

    def on_terminate(*_: object) -> None:
        signal.signal(signal.SIGTERM, lambda *_: end_now(SIGNALLED + signal.SIGTERM))
        end_later(on_late)
        stop()

    signal.signal(signal.SIGTERM, on_terminate)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def end_later(on_late: Callable[[], None], seconds: float = STOP_S) -> None:
    """Exit with code 0 if the process has not ended by itself after `seconds`."""

    def end() -> None:
        on_late()
        end_now(0)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def end_now(code: int) -> NoReturn:
    """Exit at once, whatever the process is doing, and kill its children."""
    _end_children()
    sys.stderr.flush()
    os._exit(code)


def _end_children() -> None:
    """Kill direct children: a JVM notices the end of its parent, but only once it has started."""
    own = os.getpid()
    for status in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            # proc(5): after the name in parentheses come the state and the parent.
            if int(status.read_text().rpartition(")")[2].split()[1]) == own:
                os.kill(int(status.parent.name), signal.SIGKILL)
