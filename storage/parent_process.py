"""A process that ends with the one that has started it, also after kill -9.

Invariant: nothing outlives the service. The kernel's signal comes at the end of the thread that has
started the process, so that thread has to wait for it.
"""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None) -> None:
    """Ask the kernel for SIGKILL when the parent ends; exit if it has ended already.

    parent: its own pid as it sees it (in a container the supervisor may be process 1); None for a
    process started by hand.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if parent is not None and os.getppid() != parent:
        os._exit(0)
