"""Oracle: the processor's time of this thread as the kernel counts it."""

from __future__ import annotations

import threading
import time

from service.runtime.work_clock import WorkClock


def _work(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def test_own_work_counts_and_waiting_only_where_it_is_named() -> None:
    clock = WorkClock()
    started = clock()
    _work(0.02)
    other = threading.Thread(target=_work, args=(0.1,))
    other.start()
    other.join()
    time.sleep(0.05)
    assert 0.02 <= clock() - started < 0.06
    started = clock()
    with clock.waiting():
        _work(0.02)
        time.sleep(0.1)
    assert 0.12 <= clock() - started < 0.5
