"""Work that may take long, while its caller shows that it is alive."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

REPORT_S = 0.5
_T = TypeVar("_T")


def finished(work: Callable[[], _T], while_waiting: Callable[[], object], name: str) -> _T:
    """Return what `work` returns in a thread of this name; raise what it raises.

    while_waiting: called twice a second in the caller's thread.
    """
    found: list[_T] = []
    failures: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join(REPORT_S)
    while thread.is_alive():
        while_waiting()
        thread.join(REPORT_S)
    if failures:
        raise failures[0]
    return found[0]
