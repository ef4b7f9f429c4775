"""The jobs of a Spark session while they run: which wait, why, and which must be ended.

Spark waits without limit for executors, and for a master that has forgotten the application. Here
each job has a deadline by its size, after which it is run again with twice the time; and a session
that cannot get executors any more is ended, and a new one runs the work again. Invariant: a job
without progress has a reason, in Spark's own words if there are any, until it makes some. One
thread watches while there are jobs; an idle session costs nothing.
"""

from __future__ import annotations

import math
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from dataflow.errors import TemporaryError, TidemarkError
from storage.backoff import Backoff

POLL_S = 1.0
# A job has a reason once none of its tasks has run for so long, or once they or the session's
# start have taken so long.
WAITING_S, LATE_S = 8.0, 20.0
# A Connect server's processes compile what the first job sends them.
COMPILED_S = 60.0
# Time for the tasks of a job, and for each byte that one of them reads at worst.
DEADLINE_S, BYTES_PER_S = 300.0, 1 << 20
# After the master has gone, executors are missed for so long; else the cluster may replace them.
FORGOTTEN_S, GONE_S = 5.0, 120.0
# A job that was cancelled has so long to end.
CANCELLED_S = 30.0
PAUSE_S = (1.0, 15.0)
# Pools of the scheduler, which is fair between them. Nothing waits for what warms up.
EPOCHS, BACKFILL, WARM_UP = "epochs", "backfill", "warm-up"
# Raised by calls on a lost session, in addition to the error of its job.
GONE = (Py4JError, PySparkException, OSError)
# A session that did not start is tried again if the cluster may be the cause.
_UNREACHABLE = re.compile("unresponsive|Failed to connect|refused|not accepted", re.IGNORECASE)
_LINE = re.compile(
    r"^\S+ (?:WARN|ERROR|FATAL) org\.apache\.spark\.(?:scheduler|deploy)\.\S+: (.*)$",
    re.MULTILINE,
)
_MASTER_LOST = re.compile(r"Connection to \S+ failed; waiting for master|Disconnected from Spark")
_LONGEST_WORDS = 300
_T = TypeVar("_T")


class WatchedSession(Protocol):
    """The part of `LazySession` that a watch needs."""

    @property
    def log_path(self) -> Path | None:
        """Spark's own log; None before a session starts."""
        ...

    def get(self) -> SparkSession:
        """Return the session, started if there is none."""
        ...

    @property
    def grows(self) -> bool:
        """Whether Spark adds and removes executors by itself, so that none may be right."""
        ...

    def end(self, session: SparkSession) -> None:
        """End the session at once, if it is still this one; its jobs fail."""
        ...


@dataclass(frozen=True)
class Progress:
    """Executors of the session, tasks that run on them, and those of one group: running, ended."""

    executors: int
    running: int
    own_running: int
    own_ended: int


@dataclass
class WatchedJob:
    """One work on its way; see the module's constants."""

    pool: str
    late_s: float
    deadline_s: float
    group: str = field(default_factory=lambda: f"tidemark-{uuid.uuid4().hex}")
    # None while the session starts.
    session: SparkSession | None = None
    ended: int = 0
    idle_s: float = 0.0
    ran_s: float = 0.0
    without_executors_s: float = 0.0
    had_executors: bool = False
    cancelled_s: float | None = None
    waiting: str = ""
    # Why the watch has ended its session, which the next one makes good.
    lost: str = ""
    # Set before its session is stopped: nothing takes its place.
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        """What calls on its session raise; of one that was stopped even the objects are gone."""
        return (Exception,) if self.stopped.is_set() else GONE

    def begin(self, session: SparkSession | None) -> None:
        """Begin in a session: what was seen of another one does not count."""
        self.session, self.had_executors, self.lost = session, False, ""
        self.idle_s = self.ran_s = self.without_executors_s = 0.0
        self.ended, self.cancelled_s = 0, None


class SparkLog:
    """What Spark writes to its log about executors and its master, read once."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._read = 0
        self.words = ""
        self.is_master_lost = False

    def refresh(self, path: Path | None) -> None:
        """Read what is new. Another path is another session."""
        if path != self._path:
            self._path, self._read, self.words, self.is_master_lost = path, 0, "", False
        if path is None:
            return
        with suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(self._read)
            content = file.read()
            content = content[: content.rfind(b"\n") + 1]
            self._read += len(content)
            for found in _LINE.finditer(content.decode(errors="replace")):
                self.words = found[1][:_LONGEST_WORDS]
                self.is_master_lost |= bool(_MASTER_LOST.search(self.words))

    def forget(self) -> None:
        """Forget the words: tasks run, so nothing is wrong any more."""
        self.words = ""


class JobWatch:
    """Runs works on a session, and watches them; used by any number of threads."""

    def __init__(self, session: WatchedSession) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._jobs: list[WatchedJob] = []
        self._log = SparkLog()
        self._watcher: threading.Thread | None = None
        self._polled_at = 0.0

    def waiting(self, pool: str | None = None) -> str:
        """Return why the jobs of a pool make no progress; "" if they make some.

        None: of all pools but WARM_UP.
        """
        with self._lock:
            found = [j for j in self._jobs if j.pool == pool or (not pool and j.pool != WARM_UP)]
        return next((j.waiting for j in found if j.waiting), "")

    def stop(self) -> None:
        """Let every job end with its session, which is about to be stopped."""
        with self._lock:
            for job in self._jobs:
                job.stopped.set()

    @contextmanager
    def job(self, pool: str, nbytes: int | None = None, tasks: int = 1) -> Iterator[WatchedJob]:
        """Watch what is done meanwhile.

        pool: whose it is. nbytes: read at worst, by so many tasks; None if that is not known, so
        that it may take as long as it does.
        """
        work_s = math.inf if nbytes is None else nbytes / max(1, tasks) / BYTES_PER_S
        job = WatchedJob(pool, LATE_S + work_s / 4, DEADLINE_S + work_s)
        with self._lock:
            self._jobs.append(job)
            if self._watcher is None:
                self._polled_at = time.monotonic()
                self._watcher = threading.Thread(target=self._watch, name="spark-jobs", daemon=True)
                self._watcher.start()
        try:
            yield job
        finally:
            with self._lock:
                self._jobs.remove(job)

    def run(
        self,
        action: Callable[[SparkSession], _T],
        what: str,
        *,
        pool: str = EPOCHS,
        nbytes: int = 0,
        tasks: int = 1,
    ) -> _T:
        """Return what `action` does on the session.

        It is called again on a new session if the cluster was away, and with twice the time if it
        took too long. what: the error if it fails. TemporaryError spark.job; TidemarkError as of
        `LazySession.get`.
        """
        pauses = Backoff(*PAUSE_S)
        with self.job(pool, nbytes, tasks) as job:
            while True:
                try:
                    job.begin(None)
                    session = self._session.get()
                    enter(session, job)
                    job.begin(session)
                    return action(session)
                except TidemarkError as error:
                    if error.code != "spark.start_failed" or not error.is_temporary:
                        raise
                    job.waiting = _reason(error.what, self._log.words)
                except job.failures as error:
                    if job.cancelled_s is not None:
                        job.deadline_s *= 2
                    elif job.lost:
                        job.waiting = job.lost
                    else:
                        raise failed(what, error) from error
                if job.stopped.wait(pauses.next_s()):
                    raise failed(what, RuntimeError("the session was stopped"))

    # --- the watcher's thread -------------------------------------------------------------------

    def _watch(self) -> None:
        while True:
            time.sleep(POLL_S)
            with self._lock:
                jobs = list(self._jobs)
                if not jobs:
                    self._watcher = None
                    return
            now = time.monotonic()
            passed_s, self._polled_at = now - self._polled_at, now
            self._log.refresh(self._session.log_path)
            for job in jobs:
                try:
                    self._inspect(job, passed_s)
                except job.failures:
                    continue  # its session has just ended: its own thread reports that

    def _inspect(self, job: WatchedJob, passed_s: float) -> None:
        session = job.session
        self._count(job, None if session is None else progress_of(session, job.group), passed_s)
        if session is None:
            return
        if job.cancelled_s is not None:
            job.cancelled_s += passed_s
            if job.cancelled_s > CANCELLED_S:
                self._session.end(session)
        elif job.ran_s > job.deadline_s:
            job.cancelled_s = 0.0
            _cancel(session, job)
        elif self._is_lost(job):
            reason = _reason("the session has lost its executors and is ended", self._log.words)
            with self._lock:
                for other in self._jobs:
                    other.lost = reason
            self._session.end(session)

    def _count(self, job: WatchedJob, found: Progress | None, passed_s: float) -> None:
        if found is None:
            # The session starts, or is a Connect server's, which does not say.
            job.idle_s += passed_s if job.session is None else 0.0
            job.ran_s += passed_s if job.session is not None else 0.0
            job.waiting = self._why(job, "its session starts", LATE_S, COMPILED_S)
            return
        is_moving = found.own_running > 0 or found.own_ended > job.ended
        job.ended = max(job.ended, found.own_ended)
        job.had_executors |= found.executors > 0
        job.without_executors_s = 0.0 if found.executors else job.without_executors_s + passed_s
        if is_moving:
            job.idle_s, job.ran_s = 0.0, job.ran_s + passed_s
            self._log.forget()
        else:
            job.idle_s += passed_s
        if found.running and not is_moving:
            # Its turn will come: every job ahead of it has a deadline.
            job.waiting = self._why(job, "tasks of other views run", job.late_s)
        else:
            job.waiting = self._why(job, "no task runs", WAITING_S)

    def _why(self, job: WatchedJob, what: str, patience_s: float, compiled_s: float = 0.0) -> str:
        if job.cancelled_s is not None:
            return _reason(f"tasks took longer than {job.deadline_s:.0f} s, and run again", "")
        if job.idle_s > patience_s:
            return _reason(what, self._log.words)
        if job.ran_s > job.late_s + compiled_s:
            return _reason("tasks take longer than they should", self._log.words)
        # Until a job makes progress, the reason of a session that was ended is still the reason.
        return "" if job.ran_s else job.waiting

    def _is_lost(self, job: WatchedJob) -> bool:
        grows = self._session.grows
        if self._log.is_master_lost:
            return job.without_executors_s > (GONE_S if grows else FORGOTTEN_S)
        return job.had_executors and not grows and job.without_executors_s > GONE_S


def _reason(what: str, words: str) -> str:
    text = f"Spark makes no progress: {what}{': ' if words else ''}{words}"
    return str(TemporaryError("spark.waiting", text))


def failed(what: str, error: Exception) -> TidemarkError:
    """Return the error of a job that Spark has failed, or of the way to it."""
    return TemporaryError(
        "spark.job",
        what,
        detail=str(error)[-4000:],
        hint="no action needed if it is a short failure: the epoch is run again",
    )


def is_unreachable(text: str) -> bool:
    """Return whether a session did not start because its master does not answer.

    >>> is_unreachable("All masters are unresponsive! Giving up."), is_unreachable("no such class")
    (True, False)
    """
    return _UNREACHABLE.search(text) is not None


def enter(session: SparkSession, job: WatchedJob) -> None:
    """Count what this thread begins on a session as a watched job, in its pool of the scheduler."""
    if is_connect_session(session):
        session.clearTags()
        session.addTag(job.group)
        return
    context = session.sparkContext
    # Interrupted, a task ends its process of Python too.
    context.setJobGroup(job.group, "an epoch of Tidemark", interruptOnCancel=True)
    context.setLocalProperty("spark.scheduler.pool", job.pool)


def _cancel(session: SparkSession, job: WatchedJob) -> None:
    if is_connect_session(session):
        session.interruptTag(job.group)
    else:
        session.sparkContext.cancelJobGroup(job.group)


def is_connect_session(session: SparkSession) -> bool:
    """Return whether a session is a client of a Connect server."""
    return not hasattr(session, "_jsparkSession")


def progress_of(session: SparkSession, group: str) -> Progress | None:
    """Return how far the jobs of a group are; None if Spark does not say. One of GONE."""
    if is_connect_session(session):
        return None
    context: Any = session.sparkContext
    executors = running = 0
    found = context._jsc.sc().statusStore().executorList(True).iterator()
    while found.hasNext():
        executor = found.next()
        executors += executor.id() != "driver" or context.master.startswith("local")
        running += executor.activeTasks()
    tracker = context.statusTracker()
    own_running = own_ended = 0
    for number in tracker.getJobIdsForGroup(group):
        info = tracker.getJobInfo(number)
        stages = [tracker.getStageInfo(s) for s in info.stageIds] if info else []
        own_running += sum(s.numActiveTasks for s in stages if s)
        own_ended += sum(s.numCompletedTasks + s.numFailedTasks for s in stages if s)
    return Progress(executors, running, own_running, own_ended)
