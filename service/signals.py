"""What each of the service's processes does about signals and about its parent."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask the kernel for SIGKILL when the parent ends, however it ends; exit if it has already."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() == 1:
        os._exit(0)


def stop_on_terminate(stop: Callable[[], None]) -> None:
    """Call stop on SIGTERM; leave SIGINT to the supervisor, whom Ctrl-C reaches as well."""
    signal.signal(signal.SIGTERM, lambda *_: stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
