"""Deep recursion over a query's parts, on a thread with a large stack.

Python's recursion limit is per process; a thread's stack size is fixed at its creation. Work that
exceeds the usual limit therefore starts again on a thread with a large stack, one at a time, while
the limit is raised. Invariant: no allowed depth overflows any thread's stack.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

# PLANNED: the limit in the process that plans. A stored plan may use a quarter (STORED) of the
# limit of the processes that run it (RUN).
PLANNED = 12_000
RUN = 8_000
STORED = RUN // 4
_STACK_BYTES = 256 << 20
_ONE_AT_A_TIME = threading.Lock()


def deeply(work: Callable[[], _T], calls: int = PLANNED) -> _T:
    """Return what `work` returns, or raise what it raises.

    If the usual limit is too low, run `work` again with up to `calls` nested calls. RecursionError
    beyond that.
    """
    try:
        return work()
    except RecursionError:
        # Discard the first try and start again with a higher limit.
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
