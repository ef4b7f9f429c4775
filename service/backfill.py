"""The in-process backfill road: one child process runs a view's own operators over a snapshot.

A snapshot is only the first delta: the same operators as in the stream take it, over a
MemoryStore, and what they then hold is written as files that the store ingests whole. The child
is spawned (never forked), so live views keep their core and a crash costs the build alone.
Spark's road (connectors.spark.backfill) hands over the same `BackfillOutcome`.
"""

from __future__ import annotations

import multiprocessing
import pickle
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Protocol

import numpy as np

from connectors.source import SnapshotPart
from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from dataflow.expressions.evaluator import Evaluator
from dataflow.graph import ViewDataflow
from dataflow.operators.table import TableState
from dataflow.schema import Relation, RelationName
from dataflow.sql.lower import lower
from dataflow.sql.plan import Plan
from storage.memory import MemoryStore
from storage.store import BulkFile

OnProgress = Callable[[int, int], None]


@dataclass
class BackfillJob:
    """All that a backfill needs; picklable.

    columns: what is kept of each relation, all that ViewDataflow.needed_columns names at least.
    parts: for each relation its snapshot parts, reading exactly these.
    work_dir: an empty directory on the state's file system.
    """

    root: Plan
    scope: str
    relations: tuple[Relation, ...]
    columns: Mapping[RelationName, tuple[int, ...]]
    parts: Mapping[RelationName, Sequence[SnapshotPart]]
    evaluator: Callable[[], Evaluator]
    work_dir: Path


class BackfillOutcome(Protocol):
    """What either road leaves: state files, error rows, rows read, and the view's first rows."""

    files: list[BulkFile]
    errors: Delta | None
    rows: int

    def read_output(self) -> Iterator[Delta]:
        """The view's first rows, in chunks."""
        ...


@dataclass
class Backfilled:
    """What this road leaves; output: files of pickled deltas."""

    files: list[BulkFile]
    output: list[Path]
    errors: Delta | None
    rows: int

    def read_output(self) -> Iterator[Delta]:
        """The view's first rows, in chunks."""
        for path in self.output:
            yield pickle.loads(path.read_bytes())


def run_local(job: BackfillJob, on_progress: OnProgress) -> Backfilled:
    """Run the job in a child process. TidemarkError as raised there, with its code."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=_child, args=(job, theirs), daemon=True)
    child.start()
    theirs.close()
    try:
        while True:
            try:
                kind, value = ours.recv()
            except EOFError:
                raise TidemarkError(
                    "backfill.died", "the backfill's process ended without a result"
                ) from None
            if kind == "progress":
                on_progress(*value)
            elif kind == "error":
                raise value
            else:
                return value
    finally:
        child.terminate()
        child.join()


def _child(job: BackfillJob, pipe: Connection) -> None:
    try:
        pipe.send(
            ("result", backfill(job, lambda done, total: pipe.send(("progress", (done, total)))))
        )
    except TidemarkError as error:
        pipe.send(("error", error))
    except Exception:
        detail = traceback.format_exc(limit=-6)
        pipe.send(("error", TidemarkError("backfill.failed", "the backfill failed", detail=detail)))


def backfill(job: BackfillJob, on_progress: OnProgress) -> Backfilled:
    """Run the job right here, relation by relation; progress counts snapshot parts."""
    store, errors = MemoryStore(), ErrorRows()
    dataflow = ViewDataflow(lower(job.root), job.scope, store, job.evaluator(), errors)
    needed = dataflow.needed_columns()
    total, done, rows = sum(map(len, job.parts.values())), 0, 0
    outputs: list[Delta] = [dataflow.seed()]
    for relation in job.relations:
        kept = job.columns[relation.name]
        places = [kept.index(c) for c in needed[relation.name]]
        table = TableState(relation, kept, store, job.scope)
        chunks = []
        for part in job.parts[relation.name]:
            chunks.extend(part.read())
            done += 1
            on_progress(done, total)
        if not chunks:
            continue
        delta = Delta.concat(chunks)
        rows += len(delta)
        table.load(delta)
        if len(places) < len(kept):
            delta = delta.project(places).consolidate()
        outputs.append(dataflow.step({relation.name: delta}))
    output = Delta.concat(outputs).consolidate()
    paths = _write_chunks(output, job.work_dir)
    files = store.write_files(job.work_dir)
    return Backfilled(files, paths, errors.take(), rows)


def _write_chunks(output: Delta, folder: Path, rows: int = 100_000) -> list[Path]:
    paths = []
    for number, start in enumerate(range(0, len(output), rows)):
        path = folder / f"output-{number:05d}.delta"
        # Taken, not sliced: a slice would carry its whole buffers into every file.
        chunk = output.take(np.arange(start, min(start + rows, len(output))))
        path.write_bytes(pickle.dumps(chunk))
        paths.append(path)
    return paths
