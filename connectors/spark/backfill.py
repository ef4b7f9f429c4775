"""The distributed initial backfill: a view's own operators over buckets of its snapshot.

Spark moves pages and runs tasks; it computes nothing itself. Invariant: state files, output, error
rows and rejected records equal those of the local engine, cut by hash. The rows of one bucket must
fit into a task's memory. A lost session is started again; finished parts are not read again.
Threads: `_Action` runs the Spark job; the caller's thread watches and cancels it.
"""

from __future__ import annotations

import pickle
import threading
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from connectors.authenticated_shuffle import AuthenticatedExchange, new_key
from connectors.pages import decode_delta, encode_delta
from connectors.partition_cache import RUNS, OnProgress, Progress, is_cached
from connectors.shuffle_storage import Exchange, FolderExchange
from connectors.source import SnapshotPart
from connectors.spark.frame import FRAME, Row, to_table
from connectors.spark.job_watch import BACKFILL, WatchedJob, enter
from connectors.spark.records import DONE, FAILED, PART, TaskRecord, decode_error
from connectors.spark.result import BackfillResult, added_up
from connectors.spark.segment import Job, additive_nodes, node_specs, table_specs
from connectors.spark.session import GONE, LazySession
from connectors.spark.stages import NO_INPUT, NODE, Cut, cut
from connectors.spark.tasks import read_parts, run_slots
from dataflow.delta import Delta
from dataflow.errors import TemporaryError, TidemarkError
from dataflow.expressions.evaluator import Evaluator
from dataflow.schema import Relation, RelationName
from dataflow.sql.lower.lowering import Node
from storage.failpoints import failpoint

ROWS_PER_BUCKET = 500_000
MAX_BUCKETS = 512
POLL_S = 0.2
ATTEMPTS = 3
# Spark's message if a task's process has died.
WORKER_LOST = "Python worker exited unexpectedly"


class SparkBackfill:
    """Backfills views on one session.

    buckets: the number of tasks of a stage; None: by the relations' estimated rows.
    """

    def __init__(self, session: LazySession, buckets: int | None = None) -> None:
        self._session = session
        self._buckets = buckets

    def run(
        self,
        *,
        nodes: Sequence[Node],
        scope: str,
        relations: Sequence[Relation],
        columns: Mapping[RelationName, tuple[int, ...]],
        parts: Mapping[RelationName, Sequence[SnapshotPart]],
        evaluator: Callable[[], Evaluator],
        work_dir: Path,
        on_progress: OnProgress,
        exchange: Exchange | None = None,
        is_copied: bool = True,
    ) -> BackfillResult:
        """Run the backfill of a view whose lowered nodes read these relations.

        columns: the stored columns of each relation, at least all of `needed_columns`. parts: of
        each relation, reading exactly these. evaluator: picklable, called once in each task.
        work_dir: on the state's file system. exchange: storage that the executors can also reach,
        default work_dir; others may write there, so a key that is only in the job authenticates
        what tasks write. is_copied: the result's files are copied to work_dir; else they stay in
        the exchange. on_progress is called in this thread; if it raises, the backfill is
        cancelled. TidemarkError as raised in a task; spark.lost if the session was lost repeatedly;
        else spark.failed.
        """
        nodes = tuple(nodes)
        flat = tuple((name, part) for name, chunks in parts.items() for part in chunks)
        tables = table_specs(columns, scope, relations, parts)
        specs = node_specs(nodes, scope, evaluator())
        waiting = Progress(0, len(flat), parts_reused=sum(is_cached(part) for _, part in flat))
        for attempt in range(ATTEMPTS):
            with self._session.jobs.job(BACKFILL):
                # Watched, since a cluster may not let it start.
                spark = self._session.get(partial(on_progress, waiting))
            buckets = self._buckets or _bucket_count(relations, self._session.cores)
            stages = cut(nodes, tables, specs, buckets, additive_nodes(nodes))
            run = (exchange or FolderExchange(work_dir)).below(f"{RUNS}/{uuid.uuid4().hex}")
            if exchange is not None:
                run = AuthenticatedExchange(run, new_key())
            failpoint("spark.job.before")
            job = Job(run, nodes, scope, stages, flat, evaluator, columns)
            failure = self._attempt(spark, job, on_progress)
            if failure is None:
                failpoint("spark.files.before")
                return gather(job, work_dir if is_copied else None)
            found = _reported_error(run)
            run.remove()
            if found is not None:
                raise found
            is_alive = self._session.is_alive()
            # A cluster retries lost tasks itself, a local master does not.
            if is_alive and (WORKER_LOST not in str(failure) or attempt + 1 == ATTEMPTS):
                raise _spark_failed(failure)
            if attempt + 1 == ATTEMPTS:
                raise _session_lost(failure)
        raise AssertionError("an attempt either ends or is followed by another")

    def _attempt(self, spark: SparkSession, job: Job, on_progress: OnProgress) -> Exception | None:
        """Run one Spark job to its end and watch it; return Spark's error if it fails."""
        watch = _Watch(job)
        with self._session.jobs.job(BACKFILL) as watched:
            action = _Action(spark, job, watched)
            action.start()
            try:
                while action.is_alive():
                    on_progress(watch.refresh())
                    if watch.has_failed():
                        action.cancel()
                        return action.failure or RuntimeError("cancelled")
                    action.join(POLL_S)
            except BaseException:
                action.cancel()
                job.exchange.remove()
                raise
        if action.failure is None:
            on_progress(replace(watch.refresh(), tasks_done=watch.tasks))
        return action.failure


class _Watch:
    """Counts the records of finished tasks in the exchange; each record is read once."""

    def __init__(self, job: Job) -> None:
        self.tasks = job.cut.level_slots[-1]
        self._exchange = job.exchange
        self._counted: set[str] = set()
        persisted = sum(is_cached(part) for _, part in job.parts)
        self._progress = Progress(0, len(job.parts), tasks_total=self.tasks, parts_reused=persisted)

    def refresh(self) -> Progress:
        """Return the progress of the job."""
        found = self._progress
        parts, tasks = found.parts_done, found.tasks_done
        rows, size_bytes = found.rows, found.bytes
        for name in sorted(self._exchange.sizes(DONE).keys() - self._counted):
            self._counted.add(name)
            if name.startswith(PART):
                record = TaskRecord.decode(self._exchange.get(f"{DONE}/{name}"))
                parts, rows = parts + 1, rows + record.rows
                size_bytes += record.size_bytes
            else:
                tasks += 1
        self._progress = replace(
            found, parts_done=parts, tasks_done=tasks, rows=rows, bytes=size_bytes
        )
        return self._progress

    def has_failed(self) -> bool:
        """Return True if a task failed permanently, so that another run would fail too."""
        error = _reported_error(self._exchange)
        return error is not None and not error.is_temporary


class _Action(threading.Thread):
    """Runs the Spark job in a separate thread, so that the caller can watch and cancel it."""

    def __init__(self, spark: SparkSession, job: Job, watched: WatchedJob) -> None:
        super().__init__(name="spark-backfill", daemon=True)
        self._watched = watched
        self.failure: Exception | None = None
        self._spark = spark
        self._job = job
        self._tag = f"tidemark-{uuid.uuid4().hex}"

    def run(self) -> None:
        """Run all levels as one Spark job."""
        persisted: list[DataFrame] = []
        try:
            enter(self._spark, self._watched)
            self._watched.begin(self._spark)
            self._spark.addTag(self._tag)
            _last_frame(self._spark, self._job, persisted).count()
        except Exception as error:
            self.failure = error
        finally:
            with suppress(*GONE):  # lost with their session
                for frame in persisted:
                    frame.unpersist()

    def cancel(self) -> None:
        """Cancel the tasks and wait for the end."""
        while self.is_alive():
            with suppress(*GONE):  # a lost session runs no tasks
                self._spark.interruptTag(self._tag)
            self.join(1.0)


def _last_frame(spark: SparkSession, job: Job, persisted: list[DataFrame]) -> DataFrame:
    """Return the frame of the highest level, which runs all others; append persisted frames to
    `persisted`.
    """
    stages, content = job.cut, pickle.dumps(job)
    levels = range(1, len(stages.level_slots))
    feeds = {level: sorted(stages.feeding_levels(level)) for level in levels}
    calls = _call_frame(spark, stages)
    frames = {0: _snapshot_frame(spark, content, len(job.parts))}
    for level in levels:
        if sum(level - 1 in feeding for feeding in feeds.values()) > 1:
            # Several levels read it: do not compute it for each of them.
            persisted.append(frames[level - 1].persist(StorageLevel.DISK_ONLY))
        first, end = stages.level_slots[level - 1], stages.level_slots[level]
        given = [calls, *(frames[feeding] for feeding in feeds[level])]
        ranges = [frame.where(f"slot >= {first} AND slot < {end}") for frame in given]
        inputs = _by_slot(reduce(lambda left, right: left.union(right), ranges), first, end - first)
        frames[level] = inputs.mapInArrow(run_slots(content), FRAME)
    return frames[levels[-1]]


def _snapshot_frame(spark: SparkSession, content: bytes, parts: int) -> DataFrame:
    """Return the pages of the snapshot's parts, one Spark partition for each part."""
    if not parts:
        return _frame_of(spark, [])
    return spark.range(0, parts, 1, parts).mapInArrow(read_parts(content), FRAME)


def _call_frame(spark: SparkSession, stages: Cut) -> DataFrame:
    return _frame_of(spark, calling_pages(stages))


def _frame_of(spark: SparkSession, rows: Sequence[Row]) -> DataFrame:
    if rows:
        return spark.createDataFrame(to_table(rows))
    # A table without rows gives a Connect client nothing, not even its columns.
    return spark.range(0).selectExpr("int(id) AS slot", "int(id) AS tag", "binary('') AS page")


def calling_pages(stages: Cut) -> list[Row]:
    """Return an empty page for each slot that must run without input: global aggregates."""
    page = encode_delta(Delta.empty(""))
    called = [s.slot for s in stages.stages if s.kind == NODE and s.buckets == 1]
    return [(slot, NO_INPUT, page) for slot in called]


def _by_slot(frame: DataFrame, first: int, count: int) -> DataFrame:
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(count, frame["slot"] - first)
    return frame.repartition(count, "slot")


def _bucket_count(relations: Sequence[Relation], cores: int) -> int:
    rows = sum(max(r.row_estimate, 0) for r in relations)
    return max(cores, min(-(-rows // ROWS_PER_BUCKET), MAX_BUCKETS))


def _reported_error(exchange: Exchange) -> TidemarkError | None:
    """Return the error that a failed task stored; a permanent one first."""
    names = exchange.sizes(FAILED)
    errors = [decode_error(exchange.get(f"{FAILED}/{name}")) for name in names]
    return min(errors, key=lambda error: error.is_temporary, default=None)


def _spark_failed(failure: Exception) -> TidemarkError:
    return TidemarkError(
        "spark.failed",
        "the spark backfill failed",
        detail=str(failure)[-4000:],
        hint="set options.backfill=local to run it without Spark",
    )


def _session_lost(failure: Exception) -> TidemarkError:
    return TemporaryError(
        "spark.lost",
        f"spark was lost {ATTEMPTS} times in one backfill",
        detail=str(failure)[-4000:],
        hint="check its memory, or set options.backfill=local to run it without Spark",
    )


def gather(job: Job, folder: Path | None) -> BackfillResult:
    """Return the result that all tasks of a run have stored.

    folder: to which remote files are copied; None: they stay in the exchange.

    TemporaryError backfill.lost: a task's record or a file is missing.
    """
    exchange = job.exchange
    try:
        found = sorted(exchange.sizes(DONE))
        by_name = {name: TaskRecord.decode(exchange.get(f"{DONE}/{name}")) for name in found}
        records = list(by_name.values())
        missing = _expected(job, records) - by_name.keys()
        if missing:
            raise _lost(f"{len(missing)} task records, including {min(missing)}")
        files = [file for record in records for file in record.files]
        output: list[Path | str] = [name for record in records for name in record.output]
        if folder is not None:
            local = [exchange.download(file.path, folder) for file in files]
            files = [replace(f, path=str(p)) for f, p in zip(files, local, strict=True)]
            output = [exchange.download(str(name), folder) for name in output]
        return BackfillResult(
            files,
            output,
            added_up([decode_delta(r.errors) for r in records if r.errors is not None]),
            added_up([decode_delta(r.rejected) for r in records if r.rejected is not None]),
            sum(record.rows for record in records),
            exchange if folder is None else None,
        )
    except FileNotFoundError as error:
        raise _lost(str(error)) from error


def _expected(job: Job, records: Iterable[TaskRecord]) -> set[str]:
    """Return the names of the records of all tasks: every slot that got pages has run."""
    slots = {slot for slot, _, _ in calling_pages(job.cut)}
    slots.update(*(record.fed for record in records))
    return {f"{PART}{number}" for number in range(len(job.parts))} | set(map(str, slots))


def _lost(what: str) -> TemporaryError:
    return TemporaryError(
        "backfill.lost",
        "files of the backfill's tasks are missing",
        detail=what[:1000],
        hint="the backfill is retried; check who else can remove files from this storage",
    )
