"""Work that may call itself deeply, over a query's parts: on a thread with a stack of its own.

Python counts calls by process, and a thread's stack is as large as it was made: so what does not
fit is done again on one with a large stack, one such work at a time, while more calls than usual
are allowed. Invariant: no depth that is allowed here overflows a stack, this thread's or another's.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

# Of a plan in the process that makes it; what is kept of it must do with a fourth of what the
# processes that run it have.
PLANNED = 12_000
RUN = 8_000
KEPT = RUN // 4
_STACK_BYTES = 256 << 20
_ONE_AT_A_TIME = threading.Lock()


def deeply(work: Callable[[], _T], calls: int = PLANNED) -> _T:
    """What `work` answers or raises. RecursionError beyond so many calls inside each other.

    It is begun again where the usual number does not do.
    """
    try:
        return work()
    except RecursionError:
        # Nothing of the first try is kept: it is begun again, with more calls.
        with _ONE_AT_A_TIME:
            return _on_large_stack(work, calls)


def _on_large_stack(work: Callable[[], _T], calls: int) -> _T:
    answers: list[_T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(work())
        except BaseException as error:
            failures.append(error)

    usual, usual_bytes = sys.getrecursionlimit(), threading.stack_size(_STACK_BYTES)
    try:
        thread = threading.Thread(target=run, name="deep")
        sys.setrecursionlimit(max(calls, usual))
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(usual)
        threading.stack_size(usual_bytes)
    if failures:
        raise failures[0]
    return answers[0]
