"""A work as one Spark job: its steps are Spark's stages, its shuffles are Spark's.

Each task of a step runs where the last epoch's ran, so that it finds its buckets open. Python has
no interface for this: the executors' places are given to records by py4j, and a shuffle's partition
takes the place of the record that it is zipped with. Where this fails, tasks run anywhere and read
states from the shared storage. A local master has one executor, so there each step is a job whose
tasks are kept apart by the environment of their processes. Invariant: places change the time that
an epoch takes, nothing else.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext, TaskContext
from pyspark.serializers import AutoBatchedSerializer, BatchedSerializer, CPickleSerializer
from pyspark.sql import SparkSession

from connectors.spark.frame import Row
from connectors.spark.job_watch import WARM_UP
from connectors.spark.maintained.scheduler import Work
from connectors.spark.session import LazySession

DAEMON = "connectors.spark.maintained.daemon"
# Settings of a session that maintains views.
SETTINGS = {
    # One process for each core keeps its buckets; a second one would open them again.
    "spark.executor.cores": "1",
    "spark.python.daemon.module": DAEMON,
    "spark.python.worker.reuse": "true",
    # A copy of a slow task would be killed with the process that has the buckets.
    "spark.speculation": "false",
    "spark.locality.wait": "1s",
    # Epochs and backfills have a pool each: a build does not hold up the version before it.
    "spark.scheduler.mode": "FAIR",
}
FOLDER = "tidemark-buckets"
FAILED = "the tasks of an epoch failed on Spark"
# On a local master, the variable of the environment that names the task.
_GROUP = "TIDEMARK_GROUP"
# So many of its processes are started early at most: a view may have fewer buckets than there are
# cores.
_WARMED = 4


class SparkScheduler:
    """Runs works on a session's executors. folder: for states, on each executor's own disk.

    tasks_for_core: more tasks than cores even out skew, and cost about 10 ms each.
    """

    def __init__(self, session: LazySession, folder: str, tasks_for_core: int = 1) -> None:
        self._session = session
        self._folder = f"{folder}/{FOLDER}-{uuid.uuid4().hex[:12]}"
        self._tasks_for_core = tasks_for_core
        self._places: tuple[str, ...] | None = None
        self._located: Any = None
        self._own_context: SparkContext | None = None
        self._owned: dict[int, RDD] = {}

    @property
    def tasks(self) -> int:
        """See Scheduler."""
        if not self._session.cores:
            self._session.jobs.run(lambda _: None, "Spark did not start")
        return max(1, self._session.cores) * self._tasks_for_core

    def warm(self) -> None:
        """Start the session and the Python processes of its executors. TidemarkError spark.*."""

        def warm(session: SparkSession) -> None:
            context = session.sparkContext
            # Its function is one of Python's own: executors need nothing else for it.
            if self._session.is_local:
                count = min(self.tasks, _WARMED)
                with self._session.step_lock:
                    context.union([self._own(context, g).map(abs) for g in range(count)]).collect()
            else:
                context.parallelize(range(self.tasks), self.tasks).map(abs).collect()

        self._session.jobs.run(warm, "Spark did not warm up", pool=WARM_UP)

    def run(self, work: Work) -> Sequence[Row]:
        """See Scheduler."""

        def run(session: SparkSession) -> Sequence[Row]:
            context = session.sparkContext
            if self._session.is_local:
                return self._run_here(context, work)
            rows: list[Row] = self._job(context, work).collect()
            return rows

        return self._session.jobs.run(run, FAILED, nbytes=work.nbytes, tasks=work.groups)

    def _run_here(self, context: SparkContext, work: Work) -> list[Row]:
        """Run a work on a local master: each step is a job, and its rows pass this process.

        The processes of a local master share one executor, and Spark gives a task to any of them,
        unless they differ in their environment. A shuffle has one environment for all its tasks.
        Views of one session take turns, step by step: two tasks at a time of one environment would
        need two processes, and a bucket is open in one.
        """
        content = pickle.dumps(work)
        given: list[list[Row]] = [[] for _ in range(work.groups)]
        for step in range(work.steps):
            tasks = [
                self._own(context, group).mapPartitionsWithIndex(
                    _OwnStep(content, step, group, rows, self._folder)
                )
                for group, rows in enumerate(given)
            ]
            given = [[] for _ in range(work.groups)]
            with self._session.step_lock:
                found = context.union(tasks).collect()
            for group, row in found:
                given[group].append(row)
        return [row for rows in given for row in rows]

    def _own(self, context: SparkContext, group: int) -> RDD:
        """Return an RDD of one record, whose functions run in a process of this group's own."""
        if self._own_context is not context:
            self._owned, self._own_context = {}, context
        if group not in self._owned:
            record = context.parallelize(range(1), 1)
            own: Any = object.__new__(SparkContext)
            own.__dict__.update(context.__dict__)
            jvm: Any = context._jvm
            # In the JVM, so that it is not sent again with each task.
            own.environment = jvm.java.util.HashMap(context.environment)
            own.environment.put(_GROUP, str(group))
            self._owned[group] = RDD(record._jrdd, own, record._jrdd_deserializer)
        return self._owned[group]

    def _job(self, context: SparkContext, work: Work) -> RDD:
        content = pickle.dumps(work)
        located = self._located_records(context, work.groups)
        if located is None:
            first = context.parallelize(range(work.groups), work.groups)
        else:
            first = RDD(located, context, CPickleSerializer())
        rdd = first.mapPartitionsWithIndex(_step(content, 0, self._folder))
        for step in range(1, work.steps):
            shuffled = rdd.partitionBy(work.groups, _same)
            run = _step(content, step, self._folder)
            if located is None:
                rdd = shuffled.values().mapPartitionsWithIndex(run)
            else:
                rdd = _placed(context, shuffled, located).mapPartitionsWithIndex(
                    _unbatched(run, shuffled._jrdd_deserializer)
                )
        return rdd.values()

    def _located_records(self, context: SparkContext, groups: int) -> Any:
        """Return a JVM RDD of one record in each partition, with the places of its executors.

        None: Spark does not say where they are.
        """
        try:
            places = _places(context)
            if not places:
                return None
            if self._located is None or self._places != (*places, str(groups)):
                where = [places[g * len(places) // groups] for g in range(groups)]
                self._located = _records_at(context, where)
                self._places = (*places, str(groups))
        except (Py4JError, AttributeError, TypeError):
            return None
        return self._located


def _same(group: int) -> int:
    return group


def _step(content: bytes, step: int, folder: str) -> Callable[[int, Iterable], Iterator]:
    """Return the function of a step: rows of a group in, (group, row) out."""

    def run(group: int, rows: Iterable[Any]) -> Iterator[tuple[int, Row]]:
        # Read to the end: the process of a task that does not is not used again.
        given = [row for row in rows if isinstance(row, tuple)]
        work: Work = pickle.loads(content)
        for row in work.run(step, group, given, local_folder(folder)):
            yield work.group_of(row[0], group), row

    return run


@dataclass(frozen=True)
class _OwnStep:
    """The function of one task: a record in, (group, row) out."""

    content: bytes
    step: int
    group: int
    given: Sequence[Row]
    folder: str

    def __call__(self, partition: int, records: Iterable) -> Iterator[tuple[int, Row]]:
        """Run the task."""
        list(records)
        return _step(self.content, self.step, self.folder)(self.group, self.given)


def local_folder(folder: str) -> str:
    """Return the folder of this process's states: that of the executor that it belongs to.

    The processes of an executor are forked from one daemon, one after the other. Where several run
    at a time, the first to open a bucket has it.
    """
    context = TaskContext.get()
    of_executor = str(os.getppid()) if context is not None else str(os.getpid())
    path = Path(folder) / of_executor
    path.mkdir(parents=True, exist_ok=True)
    return str(path)


def _unbatched(run: Callable[[int, Iterable], Iterator], serializer: Any) -> Any:
    """Return the function of a step for partitions that come as one list of serialized pairs."""

    def unpacked(group: int, partitions: Iterable[Sequence[bytes]]) -> Iterator[tuple[int, Row]]:
        pairs = (p for parts in partitions for part in parts for p in _loaded(serializer, part))
        return run(group, [row for _, row in pairs])

    return unpacked


def _loaded(serializer: Any, content: bytes) -> Iterable[Any]:
    inner = serializer.serializer if isinstance(serializer, BatchedSerializer) else serializer
    found = inner.loads(bytes(content))
    return found if isinstance(serializer, BatchedSerializer) else [found]


def _placed(context: SparkContext, shuffled: RDD, located: Any) -> RDD:
    """Return a shuffled RDD whose partitions have the places of those records.

    Each partition becomes one record, since only partitions of equal sizes can be zipped.
    """
    jvm: Any = context._jvm
    partitions: Any = shuffled._jrdd
    zipped = partitions.glom().zip(located).keys()
    pickled = jvm.org.apache.spark.api.python.SerDeUtil.javaToPython(zipped)
    return RDD(pickled, context, AutoBatchedSerializer(CPickleSerializer()))


def _places(context: SparkContext) -> list[str]:
    """Return the task locations of all executors, by id."""
    java_context: Any = context._jsc
    found = []
    executors = java_context.sc().statusStore().executorList(True).iterator()
    while executors.hasNext():
        executor = executors.next()
        if executor.id() != "driver":
            host = executor.hostPort().rsplit(":", 1)[0]
            found.append((int(executor.id()), f"executor_{host}_{executor.id()}"))
    return [place for _, place in sorted(found)]


def _records_at(context: SparkContext, places: Sequence[str]) -> Any:
    """Return a JVM RDD of a record at each place: the pickled number of its partition."""
    jvm: Any = context._jvm
    to_scala = jvm.scala.jdk.javaapi.CollectionConverters.asScala
    records = jvm.java.util.ArrayList()
    for number, place in enumerate(places):
        preferred = jvm.java.util.ArrayList()
        preferred.add(place)
        record = bytearray(pickle.dumps(number))
        records.add(jvm.scala.Tuple2(record, to_scala(preferred).toSeq()))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    java_context: Any = context._jsc
    rdd = java_context.sc().makeRDD(to_scala(records).toSeq(), tag)
    return jvm.org.apache.spark.api.java.JavaRDD.fromRDD(rdd, tag)
