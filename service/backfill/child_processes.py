"""Child processes that build views; small ones are reused for the next view.

A child is a separate program (`run_backfill`) that imports before it does anything, so a few of
them serve any number of views. The first is forked while the process has no threads. Invariant: a
child that failed, was cancelled or held many rows ends with its job; all of them end with their
parent process, or by `close`.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection, Pipe
from threading import Lock

from connectors.partition_cache import OnProgress
from connectors.spark.result import BackfillResult
from dataflow.errors import TidemarkError
from service.backfill import run_backfill
from service.backfill.local_backfill import BackfillJob
from service.runtime.forking import Forked
from service.runtime.log import log

# How many idle children are retained, and the most rows that such a child may have read.
MAX_IDLE, MAX_ROWS = 2, 200_000
ATTEMPTS = 3
# How often a cancellation is looked for while a child reports nothing.
POLL_S = 0.5


class Children:
    """begin: called first in each child; picklable. Used from the builds' threads."""

    def __init__(self, begin: Callable[[], None] | None = None) -> None:
        self._begin = begin
        self._idle: list[_Child] = []
        self._lock = Lock()
        # The kernel ends a child with the thread that has started it: one that stays.
        self._starter = ThreadPoolExecutor(1, "children")

    def prepare(self) -> None:
        """Have one that has nothing left to import; only where there are no other threads yet."""
        with self._lock:
            self._idle.append(_Child(self._begin, _forked))

    def run(self, job: BackfillJob, on_progress: OnProgress) -> BackfillResult:
        """Run a job in a child. TidemarkError as raised there, with its code.

        If the child dies (killed for its memory, say), another continues with the parts that were
        not read completely; backfill.died after the third.
        """
        for attempt in range(1, ATTEMPTS):
            try:
                return self._run_once(job, on_progress)
            except TidemarkError as error:
                if error.code != "backfill.died":
                    raise
                log.warning("backfill.again", attempt=attempt)
                shutil.rmtree(job.work_dir, ignore_errors=True)
                job.work_dir.mkdir(parents=True)
        return self._run_once(job, on_progress)

    def _run_once(self, job: BackfillJob, on_progress: OnProgress) -> BackfillResult:
        child = self._take(job)
        result = None
        try:
            result = child.result(on_progress)
            return result
        finally:
            self._keep_idle(child, result)

    def close(self) -> None:
        """End the idle ones."""
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.end()
        self._starter.shutdown(wait=False)

    def _take(self, job: BackfillJob) -> _Child:
        """Return a child that has begun the job."""
        while True:
            with self._lock:
                child = self._idle.pop() if self._idle else None
            is_new = child is None
            child = child or self._starter.submit(_Child, self._begin, _started).result()
            try:
                child.begin(job)
                return child
            except BaseException as error:
                child.end()
                if not isinstance(error, EOFError | OSError):
                    raise
                if is_new:
                    raise _died() from None
                # The child was killed while it was idle.

    def _keep_idle(self, child: _Child, result: BackfillResult | None) -> None:
        with self._lock:
            if result is not None and result.rows <= MAX_ROWS and len(self._idle) < MAX_IDLE:
                self._idle.append(child)
                return
        child.end()


class _Child:
    """One process and our end of the pipe to it."""

    def __init__(
        self,
        begin: Callable[[], None] | None,
        start: Callable[[Connection], subprocess.Popen[bytes] | Forked],
    ) -> None:
        self._begin = begin
        self._pipe, theirs = Pipe()
        self._process = start(theirs)
        theirs.close()

    def begin(self, job: BackfillJob) -> None:
        """Send it a job; EOFError or OSError if it is gone."""
        self._pipe.send((self._begin, job))
        self._begin = None
        self._pipe.recv()

    def result(self, on_progress: OnProgress) -> BackfillResult:
        """Wait for the end of the job that it was given.

        on_progress: also called while nothing is reported, since it raises if the job is cancelled:
        a source that does not answer the child reports nothing.
        """
        progress = None
        while True:
            try:
                if progress is not None and not self._pipe.poll(POLL_S):
                    on_progress(progress)
                    continue
                kind, value = self._pipe.recv()
            except (EOFError, OSError):
                raise _died() from None
            if kind == "progress":
                progress = value
                on_progress(value)
            elif kind == "error":
                raise value
            else:
                return value

    def end(self) -> None:
        """Whatever it is doing."""
        self._process.terminate()
        self._process.wait()
        self._pipe.close()


def _started(pipe: Connection) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "service.backfill.run_backfill",
            str(pipe.fileno()),
            str(os.getpid()),
        ],
        stdin=subprocess.DEVNULL,
        pass_fds=(pipe.fileno(),),
    )


def _forked(pipe: Connection) -> Forked:
    main = functools.partial(run_backfill.main, pipe, os.getpid())
    return Forked(main, dict(os.environ), (pipe.fileno(),))


def run_alone(job: BackfillJob, on_progress: OnProgress) -> BackfillResult:
    """Run one job in a separate child."""
    children = Children()
    try:
        return children.run(job, on_progress)
    finally:
        children.close()


def _died() -> TidemarkError:
    return TidemarkError(
        "backfill.died",
        "the backfill's process ended without a result",
        hint="is there memory enough for it? options.backfill=spark runs it apart",
    )
