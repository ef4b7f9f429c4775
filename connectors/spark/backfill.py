"""The distributed initial backfill: a view's own operators over buckets of its snapshot.

Spark moves pages and runs tasks; it computes nothing itself. Invariant: state files, output and
error rows are those of the in-process road, cut by hash. For this version the executors share a
disk with the service, and the rows of one bucket fit into a task's memory.
"""

from __future__ import annotations

import pickle
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from connectors.source import SnapshotPart
from connectors.spark.frame import FRAME, Row, to_table
from connectors.spark.pages import decode_delta, encode_delta
from connectors.spark.segment import Job
from connectors.spark.session import LazySession
from connectors.spark.source import JOB_OPTION, PARTS_OPTION, SnapshotSource
from connectors.spark.stages import NO_INPUT, NODE, Cut, Spec, cut
from connectors.spark.tasks import DONE, FAILED, RecordingStore, TaskRecord, run_slots, write_job
from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from dataflow.expressions.evaluator import Evaluator
from dataflow.operators.table import table_spec
from dataflow.schema import VIEW_SOURCE, Relation, RelationName
from dataflow.sql.lower import Node, make_operator
from dataflow.sql.plan import Scan
from storage.store import ArrangementSpec, BulkFile

ROWS_PER_BUCKET = 500_000
MOST_BUCKETS = 512
POLL_S = 0.2
_REGISTERING = threading.Lock()

OnProgress = Callable[[int, int], None]


@dataclass
class BackfillResult:
    """What a backfill leaves: state files, the view's first rows and error rows.

    rows: how many were read from the snapshot. The files live in the work directory.
    """

    files: list[BulkFile]
    output: list[Path]
    errors: Delta | None
    rows: int

    def read_output(self) -> Iterator[Delta]:
        """The view's first rows, each once, in chunks."""
        for path in self.output:
            yield decode_delta(path.read_bytes())


class SparkBackfill:
    """Backfills views on one session.

    buckets: into how many tasks a stage is cut; None: by the relations' estimated rows.
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
    ) -> BackfillResult:
        """Run the backfill of a view whose lowered nodes read these relations.

        columns: what is kept of each relation, all of `needed_columns` at least. parts: of each
        relation, reading exactly these. evaluator:
        picklable, called once in each task. work_dir: an empty directory on the state's file
        system. on_progress(tasks done, tasks in all) is called in this thread; what it raises
        cancels the backfill. TidemarkError as raised in a task, else spark.failed.
        """
        spark = self._session.get()
        cores = spark.sparkContext.defaultParallelism
        buckets = self._buckets or _bucket_count(relations, cores)
        tables = table_specs(columns, scope, relations, parts)
        stages = cut(nodes, tables, node_specs(nodes, scope, evaluator()), buckets)
        flat = tuple((name, part) for name, shares in parts.items() for part in shares)
        job = Job(work_dir, tuple(nodes), scope, stages, flat, evaluator, columns)
        path = write_job(job)
        action = _Action(spark, path, job)
        total = len(flat) + stages.level_slots[-1]
        action.start()
        try:
            while action.is_alive():
                on_progress(min(len(list((work_dir / DONE).glob("[!.]*"))), total), total)
                action.join(POLL_S)
        except BaseException:
            action.cancel()
            raise
        finally:
            path.unlink()
        if action.failure is not None:
            raise _failure_of(work_dir, action.failure)
        on_progress(total, total)
        return gather(work_dir)


class _Action(threading.Thread):
    """Spark's part, in a thread of its own so that the caller can watch and cancel it."""

    def __init__(self, spark: SparkSession, path: Path, job: Job) -> None:
        super().__init__(name="spark-backfill", daemon=True)
        self.failure: Exception | None = None
        self._spark = spark
        self._path = path
        self._job = job
        self._group = uuid.uuid4().hex

    def run(self) -> None:
        """Run all levels as one Spark job."""
        kept: list[DataFrame] = []
        try:
            self._spark.sparkContext.setJobGroup(self._group, "tidemark backfill", True)
            _last_frame(self._spark, self._path, self._job, kept).count()
        except Exception as error:
            self.failure = error
        finally:
            for frame in kept:
                frame.unpersist()

    def cancel(self) -> None:
        """Stop the tasks and wait for the end."""
        self._spark.sparkContext.cancelJobGroup(self._group)
        self.join()


def _last_frame(spark: SparkSession, path: Path, job: Job, kept: list[DataFrame]) -> DataFrame:
    """The frame of the highest level, by which all others run; frames that are kept are noted."""
    stages = job.cut
    levels = range(1, len(stages.level_slots))
    feeds = {level: sorted(stages.feeding_levels(level)) for level in levels}
    calls = _call_frame(spark, stages)
    frames = {0: _snapshot_frame(spark, path, job)}
    for level in levels:
        if sum(level - 1 in feeding for feeding in feeds.values()) > 1:
            # Read by several levels: not to be computed for each of them.
            kept.append(frames[level - 1].persist(StorageLevel.DISK_ONLY))
        first, end = stages.level_slots[level - 1], stages.level_slots[level]
        given = [calls, *(frames[feeding] for feeding in feeds[level])]
        wanted = [frame.where(f"slot >= {first} AND slot < {end}") for frame in given]
        inputs = _by_slot(reduce(DataFrame.union, wanted), first, end - first)
        frames[level] = inputs.mapInArrow(run_slots(path), FRAME)
    return frames[levels[-1]]


def _snapshot_frame(spark: SparkSession, path: Path, job: Job) -> DataFrame:
    """The pages that the snapshot's parts give."""
    if not job.parts:
        return spark.createDataFrame(to_table([]))
    with _REGISTERING:
        # Two at once are refused, one after the other replace each other.
        spark.dataSource.register(SnapshotSource)
    reader = spark.read.format(SnapshotSource.name()).schema(FRAME)
    reader = reader.option(JOB_OPTION, str(path)).option(PARTS_OPTION, str(len(job.parts)))
    return reader.load()


def _call_frame(spark: SparkSession, stages: Cut) -> DataFrame:
    return spark.createDataFrame(to_table(calling_pages(stages)))


def calling_pages(stages: Cut) -> list[Row]:
    """An empty page for each slot that must run also when no rows come: global aggregates."""
    page = encode_delta(Delta.empty(""))
    called = [s.slot for s in stages.stages if s.kind == NODE and s.buckets == 1]
    return [(slot, NO_INPUT, page) for slot in called]


def _by_slot(frame: DataFrame, first: int, count: int) -> DataFrame:
    if hasattr(frame, "repartitionById"):
        return frame.repartitionById(count, frame["slot"] - first)
    return frame.repartition(count, "slot")


def table_specs(
    columns: Mapping[RelationName, tuple[int, ...]],
    scope: str,
    relations: Sequence[Relation],
    read: Iterable[RelationName],
) -> dict[RelationName, ArrangementSpec | None]:
    """The arrangement of each relation that is read; None for a maintained view's rows, and where
    rows are only ever added."""
    kept = [r for r in relations if not r.is_append]
    specs = {r.name: table_spec(r, columns[r.name], scope) for r in kept}
    return {name: specs.get(name) if name.source != VIEW_SOURCE else None for name in read}


def node_specs(nodes: Sequence[Node], scope: str, evaluator: Evaluator) -> dict[int, list[Spec]]:
    """The state of each node, known by making its operator once."""
    specs = {}
    for number, node in enumerate(nodes):
        if not isinstance(node.plan, Scan):
            store = RecordingStore()
            make_operator(node, store, scope, evaluator, ErrorRows())
            specs[number] = [kept.spec for kept in store.kept.values()]
    return specs


def _bucket_count(relations: Sequence[Relation], cores: int) -> int:
    rows = sum(max(r.row_estimate, 0) for r in relations)
    return max(cores, min(-(-rows // ROWS_PER_BUCKET), MOST_BUCKETS))


def _failure_of(work_dir: Path, failure: Exception) -> TidemarkError:
    for path in (work_dir / FAILED).glob("[!.]*"):
        return pickle.loads(path.read_bytes())
    return TidemarkError(
        "spark.failed",
        "the spark backfill failed",
        detail=str(failure)[-4000:],
        hint="options.backfill=local runs it without Spark",
    )


def gather(work_dir: Path) -> BackfillResult:
    """The result that all tasks of a work directory have left."""
    records: list[TaskRecord] = [
        pickle.loads(path.read_bytes()) for path in sorted((work_dir / DONE).glob("[!.]*"))
    ]
    errors = [decode_delta(r.errors) for r in records if r.errors is not None]
    return BackfillResult(
        [file for record in records for file in record.files],
        [path for record in records for path in record.output],
        Delta.concat(errors).consolidate() if errors else None,
        sum(record.rows for record in records),
    )
