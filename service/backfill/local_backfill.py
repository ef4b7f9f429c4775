"""The local backfill engine: a child process (`children`) runs a view's operators over a snapshot.

A snapshot is only the first delta: the same operators as in the stream process it, over a
MemoryStore, and their state is written as files that the store ingests as a whole. In a child, live
views retain their core, and a crash affects the build alone. The Spark engine
(connectors.spark.backfill) takes the same parts and returns the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from connectors.pages import encode_delta
from connectors.partition_cache import OnProgress, Progress, is_cached, rejected_of
from connectors.shuffle_storage import Exchange
from connectors.source import SnapshotPart
from connectors.spark.result import BackfillResult, added_up
from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.expressions.evaluator import Evaluator
from dataflow.graph import ViewDataflow
from dataflow.operators.tables.table import TableState
from dataflow.plan.nodes import Plan
from dataflow.schema import Relation, RelationName
from dataflow.sql.lower.lowering import lower
from storage.failpoints import failpoint
from storage.memory import MemoryStore


@dataclass
class BackfillJob:
    """The complete description of a backfill; picklable.

    columns: what is stored of each relation, at least those of ViewDataflow.needed_columns. parts:
    for each relation its snapshot parts, reading exactly these. work_dir: an empty directory on the
    state's file system. exchange: where tasks on other machines write their results, if not there.
    """

    root: Plan
    scope: str
    relations: tuple[Relation, ...]
    columns: Mapping[RelationName, tuple[int, ...]]
    parts: Mapping[RelationName, Sequence[SnapshotPart]]
    evaluator: Callable[[], Evaluator]
    work_dir: Path
    exchange: Exchange | None = None


def backfill(
    job: BackfillJob, on_progress: OnProgress, store: MemoryStore | None = None
) -> BackfillResult:
    """Run the job right here, relation by relation; progress counts snapshot parts.

    store: an empty one, which writes the files.
    """
    store, errors = store or MemoryStore(), ErrorRows()
    dataflow = ViewDataflow(lower(job.root), job.scope, store, job.evaluator(), errors)
    needed = dataflow.needed_columns()
    reader = _Reader(sum(map(len, job.parts.values())), on_progress)
    on_progress(reader.progress)
    outputs: list[Delta] = [dataflow.seed()]
    for relation in job.relations:
        kept = job.columns[relation.name]
        positions = [kept.index(c) for c in needed[relation.name]]
        table = TableState(relation, kept, store, job.scope)
        chunks = [rows for part in job.parts[relation.name] for rows in reader.read(part)]
        if not chunks:
            continue
        delta = Delta.concat(chunks)
        table.load(delta)
        if len(positions) < len(kept):
            delta = delta.project(positions).consolidate()
        outputs.append(dataflow.step({relation.name: delta}))
    output = Delta.concat(outputs).consolidate()
    paths = _write_chunks(output, job.work_dir)
    failpoint("backfill.files.before")
    files = store.write_files(job.work_dir)
    failpoint("backfill.files.after")
    rejected = added_up(reader.rejected)
    return BackfillResult(files, paths, errors.take(), rejected, reader.progress.rows)


class _Reader:
    """Reads parts and counts."""

    def __init__(self, total: int, on_progress: OnProgress) -> None:
        self.progress = Progress(0, total)
        self.rejected: list[Delta] = []
        self._on_progress = on_progress

    def read(self, part: SnapshotPart) -> Iterator[Delta]:
        failpoint("backfill.part.before")
        rows, size_bytes = self.progress.rows, self.progress.bytes
        for chunk in part.read():
            rows += len(chunk)
            size_bytes += chunk.nbytes()
            yield chunk
        rejected = rejected_of(part)
        if rejected is not None:
            self.rejected.append(rejected)
        self.progress = replace(
            self.progress,
            parts_done=self.progress.parts_done + 1,
            parts_reused=self.progress.parts_reused + is_cached(part),
            rows=rows,
            bytes=size_bytes,
        )
        failpoint("backfill.part.after")
        self._on_progress(self.progress)


def _write_chunks(output: Delta, folder: Path, rows: int = 100_000) -> list[Path]:
    paths = []
    for number, start in enumerate(range(0, len(output), rows)):
        path = folder / f"output-{number:05d}.page"
        chunk = output.slice(start, min(start + rows, len(output)))
        path.write_bytes(encode_delta(chunk))
        paths.append(path)
    return paths
