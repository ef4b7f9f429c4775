"""What runs in Spark's workers: read a part, or run the stage of a slot.

A task gets all pages of its slot and steps its stage over a memory store. It writes the store's
content as files for the product store, and passes pages on. Invariant: a task is a function of the
snapshot, so it may run twice; it counts once, by the record that it writes at its end. The job,
with its connection strings, is inside the functions that Spark gets: it is in no file, plan, log or
UI of Spark's. It may therefore be pickled: no other version ever reads it.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pyarrow as pa

from connectors import netguard
from connectors.pages import decode_delta, encode_delta
from connectors.partition_cache import is_cached, rejected_of
from connectors.spark.frame import Row, from_batches, to_batches
from connectors.spark.records import DONE, FAILED, PART, TaskRecord, encode_error
from connectors.spark.segment import PAGE_ROWS, Job, Segment, split
from connectors.spark.stages import NODE, STATE, Spec, Stage, key_columns
from dataflow.collect import ErrorRows
from dataflow.delta import Column, Delta
from dataflow.errors import TidemarkError
from storage.bulk import BulkWriter
from storage.failpoints import failpoint
from storage.memory import MemoryArrangement, MemoryStore, MemorySums
from storage.store import ArrangementSpec, BulkFile

FILES = "files"

Batches = Iterable[pa.RecordBatch]


@lru_cache(maxsize=1)
def _load_job(content: bytes) -> Job:
    job: Job = pickle.loads(content)
    netguard.install(job.guard)
    return job


def read_parts(content: bytes) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Return the function for mapInArrow that reads each part of the pickled job by its number."""

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from to_batches(read_part(_load_job(content), number))

    return run


def read_part(job: Job, number: int) -> Iterator[Row]:
    """Read one part of the snapshot and run what needs no exchange; yield pages by slot."""
    errors, record = ErrorRows(), TaskRecord()
    relation, part = job.parts[number]
    with _failures_stored(job):
        record.is_kept = is_cached(part)
        segment = Segment(job, job.cut.source_of(relation), MemoryStore(), errors)
        for rows in part.read():
            record.rows += len(rows)
            record.size_bytes += rows.nbytes()
            yield from _with_slots(segment.pages(segment.read(rows)), record)
        rejected = rejected_of(part)
        if rejected is not None:
            record.rejected = encode_delta(rejected)
        failpoint("spark.part.after")
        _finish(job, f"{PART}{number}", record, errors)


def run_slots(content: bytes) -> Callable[[Batches], Iterator[pa.RecordBatch]]:
    """Return the function for mapInArrow that runs each slot of the pickled job whose
    pages arrive.
    """

    def run(batches: Batches) -> Iterator[pa.RecordBatch]:
        slots: dict[int, dict[int, list[Delta]]] = {}
        for slot, tag, page in from_batches(batches):
            slots.setdefault(slot, {}).setdefault(tag, []).append(decode_delta(page))
        job = _load_job(content)
        for slot in sorted(slots):
            with _failures_stored(job):
                yield from to_batches(run_slot(job, slot, slots.pop(slot)))

    return run


def run_slot(job: Job, slot: int, inputs: dict[int, list[Delta]]) -> Iterator[Row]:
    """Run the stage of a slot over its rows, by input; yield pages for later slots."""
    stage, errors, record = job.cut.stage_of(slot), ErrorRows(), TaskRecord()
    if stage.kind == NODE:
        store = MemoryStore()
        segment = Segment(job, stage, store, errors)
        yield from _with_slots(segment.pages(segment.step(inputs)), record)
        for state in store.contents():
            if state.spec.name in stage.moved:
                to = job.cut.stages[stage.moved[state.spec.name]]
                for rows in _state_rows(state):
                    yield from _with_slots(split(rows, key_columns(state.spec), to, 0), record)
            else:
                record.files += _write_state(job, state.spec, _state_rows(state), slot)
    elif stage.kind == STATE:
        assert stage.spec is not None
        record.files += _write_state(job, stage.spec, inputs[0], slot)
    else:
        record.output = _write_output(job, Delta.concat(inputs[0]).consolidate(), slot)
    failpoint("spark.slot.after")
    _finish(job, str(slot), record, errors)


def _with_slots(pages: Iterable[Row], record: TaskRecord) -> Iterator[Row]:
    """Yield the pages, and store their slots in the record."""
    for page in pages:
        record.fed.add(page[0])
        yield page


def _state_rows(state: MemoryArrangement | MemorySums) -> Iterator[Delta]:
    """Yield the stored rows; sums are columns after their key."""
    if isinstance(state, MemoryArrangement):
        yield from state.scan()
        return
    for keys, sums in state.scan():
        columns = [*keys, *(Column(row) for row in sums)]
        yield Delta(columns, np.ones(sums.shape[1], np.int64))


def _write_state(job: Job, spec: Spec, state: Iterable[Delta], slot: int) -> list[BulkFile]:
    """Write the rows of _state_rows as the file of one bucket; return no file if there are none."""
    found = [rows for rows in state if len(rows)]
    if not found:
        return []
    stage: Stage = job.cut.stage_of(slot)
    name = _new_name(slot, "sst")
    with job.exchange.draft(name) as draft:
        writer = BulkWriter(spec, slot - stage.slot, stage.buckets, str(draft))
        for rows in found:
            if isinstance(spec, ArrangementSpec):
                writer.add(rows)
            else:
                width = len(spec.key_kinds)
                sums = np.array([c.values for c in rows.columns[width:]], np.int64)
                writer.add_sums(rows.columns[:width], sums)
        file = writer.finish()
        if not file.pages:
            draft.touch()  # the rows cancelled each other
    return [replace(file, path=name)] if file.pages else []


def _write_output(job: Job, rows: Delta, slot: int) -> list[str]:
    names = []
    for start in range(0, len(rows), PAGE_ROWS):
        name = _new_name(slot, "page")
        job.exchange.put(name, encode_delta(rows.slice(start, min(start + PAGE_ROWS, len(rows)))))
        names.append(name)
    return names


def _new_name(slot: int, ending: str) -> str:
    return f"{FILES}/{slot}-{uuid.uuid4().hex}.{ending}"


def _finish(job: Job, name: str, record: TaskRecord, errors: ErrorRows) -> None:
    found = errors.take()
    if len(found):
        record.errors = encode_delta(found)
    job.exchange.put(f"{DONE}/{name}", record.encode())


@contextmanager
def _failures_stored(job: Job) -> Iterator[None]:
    """Store an error with its code for the driver; Spark would pass on only its text."""
    try:
        yield
    except TidemarkError as error:
        job.exchange.put(f"{FAILED}/{uuid.uuid4().hex}", encode_error(error))
        raise
