"""A work as one job of a Spark Connect server: its steps are data frames, its shuffles Spark's.

A Connect client has no RDDs and cannot say where a task runs. So a task's buckets are often in
another process of its executor, which catches up from the shared storage. Invariant: that changes
the time that an epoch takes, nothing else.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from connectors.spark.frame import FRAME, Row, from_batches, to_batches
from connectors.spark.job_watch import WARM_UP
from connectors.spark.maintained.scheduler import Work
from connectors.spark.maintained.spark_scheduler import FAILED, FOLDER, local_folder
from connectors.spark.session import LazySession
from connectors.spark.warming import warm

# The tag of the page that starts a task, and of one that has a row for it.
_START, _ROW = 0, 1

Batches = Iterable[pa.RecordBatch]


class ConnectScheduler:
    """Runs works on the executors of a Connect server. folder: for states, on each one's disk."""

    def __init__(self, session: LazySession, folder: str) -> None:
        self._session = session
        self._folder = f"{folder}/{FOLDER}-{uuid.uuid4().hex[:12]}"

    @property
    def tasks(self) -> int:
        """See Scheduler."""
        if not self._session.cores:
            self._session.jobs.run(lambda _: None, "Spark did not start")
        return max(1, self._session.cores)

    def warm(self) -> None:
        """Start the session and the Python processes of its executors. TidemarkError spark.*."""

        def warm(session: SparkSession) -> None:
            _started(session, self.tasks).mapInArrow(_warmed, FRAME).count()

        self._session.jobs.run(warm, "Spark did not warm up", pool=WARM_UP)

    def run(self, work: Work) -> Sequence[Row]:
        """See Scheduler."""

        def run(session: SparkSession) -> pa.Table:
            return _last_frame(session, work, self._folder).toArrow()

        found = self._session.jobs.run(run, FAILED, nbytes=work.nbytes, tasks=work.groups)
        return list(from_batches(found.to_batches()))


def _last_frame(session: SparkSession, work: Work, folder: str) -> DataFrame:
    """Return the rows of the last step; its column slot is a row's own."""
    content = pickle.dumps(work)
    frame = _started(session, work.groups).mapInArrow(_step(content, 0, folder), FRAME)
    for step in range(1, work.steps):
        given = _started(session, work.groups).union(frame)
        tasks = given.repartitionById(work.groups, "slot")
        frame = tasks.mapInArrow(_step(content, step, folder), FRAME)
    return frame


def _started(session: SparkSession, groups: int) -> DataFrame:
    """Return a page that starts each task, one in a partition: slot is the number of the task."""
    pages = session.range(0, groups, 1, groups)
    return pages.selectExpr("int(id) AS slot", f"{_START} AS tag", "binary('') AS page")


def _warmed(batches: Batches) -> Iterator[pa.RecordBatch]:
    """Load what tasks run: the server's processes are Spark's own, which have nothing of ours."""
    warm()
    yield from batches


def _step(content: bytes, step: int, folder: str) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Return the function of a step: pages addressed to a task in, and to those of the next out.

    The page of a row for another task has all of it: slot is the number of that task.
    """

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        # Read to the end: the process of a task that does not is not used again.
        given: dict[int, list[Row]] = {}
        for group, tag, page in from_batches(batches):
            rows = given.setdefault(group, [])
            if tag == _ROW:
                rows.append(pickle.loads(page))
        work: Work = pickle.loads(content)
        is_last = step + 1 == work.steps
        for group, rows in given.items():
            made = work.run(step, group, rows, local_folder(folder))
            yield from to_batches(made if is_last else _addressed(work, group, made))

    return run


def _addressed(work: Work, group: int, rows: Iterable[Row]) -> Iterator[Row]:
    for row in rows:
        yield work.group_of(row[0], group), _ROW, pickle.dumps(row)
