"""What runs inside Spark's workers: read a part, or run the stage of a slot.

A task gets all pages of its slot, steps its stage over a memory store, writes what the store then
holds as files for the product store, and hands on pages. Invariant: a task is a function of the
snapshot, so it may run twice; it counts once, by the record that it puts in place at its end.
"""

from __future__ import annotations

import os
import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa

from connectors.spark.frame import Row, from_batches, to_batches
from connectors.spark.pages import decode_delta, encode_delta
from connectors.spark.segment import PAGE_ROWS, Job, Segment, split
from connectors.spark.stages import NODE, STATE, Spec, Stage
from dataflow.collect import ErrorRows
from dataflow.delta import Column, Delta
from dataflow.errors import TidemarkError
from storage.bulk import BulkWriter
from storage.memory import MemoryArrangement, MemoryStore, MemorySums
from storage.store import ArrangementSpec, BulkFile, SumsSpec

JOB_FILE = "job"
DONE, FAILED, FILES = "done", "failed", "files"


@dataclass
class TaskRecord:
    """What a finished task leaves. output: files of one page; errors: a page; rows: read by it."""

    files: list[BulkFile] = field(default_factory=list)
    output: list[Path] = field(default_factory=list)
    errors: bytes | None = None
    rows: int = 0


class RecordingStore(MemoryStore):
    """A memory store that knows what was arranged in it, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, MemoryArrangement | MemorySums] = {}

    def arrange(self, spec: ArrangementSpec) -> MemoryArrangement:
        """Open or create."""
        found = self.kept[spec.name] = super().arrange(spec)
        return found

    def arrange_sums(self, spec: SumsSpec) -> MemorySums:
        """Open or create."""
        found = self.kept[spec.name] = super().arrange_sums(spec)
        return found


def write_job(job: Job) -> Path:
    """Put the job where its tasks find it; only we may read it, for it holds connections."""
    for name in (DONE, FAILED, FILES):
        (job.folder / name).mkdir(parents=True)
    path = job.folder / JOB_FILE
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        pickle.dump(job, file)
    return path


@lru_cache(maxsize=1)
def _load_job(path: Path) -> Job:
    return pickle.loads(path.read_bytes())


def read_part(path: Path, number: int) -> Iterator[Row]:
    """Read one part of the snapshot and run what needs no exchange; pages by slot."""
    job, errors, record = _load_job(path), ErrorRows(), TaskRecord()
    relation, part = job.parts[number]
    with _failures_kept(job):
        segment = Segment(job, job.cut.source_of(relation), MemoryStore(), errors)
        for rows in part.read():
            record.rows += len(rows)
            yield from segment.pages(segment.read(rows))
        _finish(job, f"part-{number}", record, errors)


def run_slots(path: Path) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for mapInArrow: runs each slot whose pages come in."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        slots: dict[int, dict[int, list[Delta]]] = {}
        for slot, tag, page in from_batches(batches):
            slots.setdefault(slot, {}).setdefault(tag, []).append(decode_delta(page))
        job = _load_job(path)
        for slot in sorted(slots):
            with _failures_kept(job):
                yield from to_batches(run_slot(job, slot, slots.pop(slot)))

    return run


def run_slot(job: Job, slot: int, inputs: dict[int, list[Delta]]) -> Iterator[Row]:
    """Run the stage of a slot over its rows, by input; pages for later slots."""
    stage, errors, record = job.cut.stage_of(slot), ErrorRows(), TaskRecord()
    folder = job.folder / FILES / f"{slot}-{uuid.uuid4().hex}"
    folder.mkdir()
    if stage.kind == NODE:
        store = RecordingStore()
        segment = Segment(job, stage, store, errors)
        yield from segment.pages(segment.step(inputs))
        for name, kept in store.kept.items():
            if name in stage.moved:
                to = job.cut.stages[stage.moved[name]]
                for rows in _state_rows(kept):
                    yield from split(rows, _state_key(kept.spec), to, 0)
            else:
                record.files += _write_state(kept.spec, _state_rows(kept), (stage, slot), folder)
    elif stage.kind == STATE:
        assert stage.spec is not None
        record.files += _write_state(stage.spec, inputs[0], (stage, slot), folder)
    else:
        record.output = _write_output(Delta.concat(inputs[0]).consolidate(), folder)
    _finish(job, str(slot), record, errors)


def _state_rows(kept: MemoryArrangement | MemorySums) -> Iterator[Delta]:
    """What is kept, as rows; sums stand as columns behind their key."""
    if isinstance(kept, MemoryArrangement):
        yield from kept.scan()
        return
    for keys, sums in kept.scan():
        columns = [*keys, *(Column(row) for row in sums)]
        yield Delta(columns, np.ones(sums.shape[1], np.int64))


def _state_key(spec: Spec) -> Sequence[int]:
    return spec.key if isinstance(spec, ArrangementSpec) else range(len(spec.key_kinds))


def _write_state(
    spec: Spec, state: Iterable[Delta], place: tuple[Stage, int], folder: Path
) -> list[BulkFile]:
    """The rows of _state_rows as the file of one bucket; none when there are none."""
    stage, slot = place
    path = str(folder / f"{uuid.uuid4().hex}.sst")
    writer = BulkWriter(spec, slot - stage.slot, stage.buckets, path)
    for rows in state:
        if isinstance(spec, ArrangementSpec):
            writer.add(rows)
        else:
            width = len(spec.key_kinds)
            sums = np.array([c.values for c in rows.columns[width:]], np.int64)
            writer.add_sums(rows.columns[:width], sums)
    file = writer.finish()
    return [file] if file.pages else []


def _write_output(rows: Delta, folder: Path) -> list[Path]:
    paths = []
    for start in range(0, len(rows), PAGE_ROWS):
        path = folder / f"{start}.page"
        path.write_bytes(encode_delta(rows.slice(start, min(start + PAGE_ROWS, len(rows)))))
        paths.append(path)
    return paths


def _finish(job: Job, name: str, record: TaskRecord, errors: ErrorRows) -> None:
    found = errors.take()
    if len(found):
        record.errors = encode_delta(found)
    _put(job.folder / DONE / name, pickle.dumps(record))


@contextmanager
def _failures_kept(job: Job) -> Iterator[None]:
    """Errors with a code reach the driver as they are; Spark would hand over only their text."""
    try:
        yield
    except TidemarkError as error:
        _put(job.folder / FAILED / uuid.uuid4().hex, pickle.dumps(error))
        raise


def _put(path: Path, content: bytes) -> None:
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    draft.write_bytes(content)
    os.replace(draft, path)
