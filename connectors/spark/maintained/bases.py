"""The state of buckets as files: written, ingested, and cut again for other buckets.

Files are those of `storage.bulk`, whole for an arrangement. Rows go to the bucket of their exchange
key, which the leading columns of every state's key are, except those of spread keys. Invariant: the
files of all buckets hold exactly the rows of the state, each once or as copies of it; of the copies
that in the bucket of the key counts.
"""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from connectors.objects.shared_storage import SharedStorage, download
from connectors.spark.maintained.files import Base, numbered
from connectors.spark.maintained.layout import Layout
from connectors.spark.stages import Spec, Stage, key_columns
from dataflow.delta import Column, Delta
from dataflow.operators.joins.spreading import side_of_state
from storage.bulk import BulkWriter, partition_positions, read_file
from storage.delta import hash_columns
from storage.rocks import RocksStore
from storage.store import ArrangementSpec, BulkFile, Store

# Key columns, and int64[width, n] values: a weight, or sums.
Rows = tuple[Sequence[Column], np.ndarray]
HEAD = "base"


@dataclass(frozen=True)
class Written:
    """A base: its bucket "level-bucket", its name, and its bytes."""

    key: str
    name: str
    nbytes: int


def write_base(
    storage: SharedStorage, key: str, at: tuple[int, str], files: Sequence[BulkFile]
) -> Written:
    """Store local files as a base of a bucket after an epoch; at: the epoch and its batch."""
    folder = f"{numbered(f'base/{key}', at[0])}-{uuid.uuid4().hex}"
    listed, nbytes = [], 0
    for number, file in enumerate(files):
        nbytes += Path(file.path).stat().st_size
        name = f"{folder}/{number:04d}.sst"
        storage.send(Path(file.path), name)
        listed.append([file.name, name, file.rows, file.pages, file.first_hashes.hex()])
    storage.put(f"{folder}/{HEAD}", Base(*at, listed, nbytes).encode())
    return Written(key, f"{folder}/{HEAD}", nbytes)


def read_bases(
    storage: SharedStorage, names: Sequence[str], folder: Path
) -> tuple[Base, list[BulkFile]]:
    """Return the last of some bases of one epoch, and the files of all, copied to a folder.

    FileNotFoundError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    bases = [Base.decode(storage.get(name))[0] for name in names]
    files = []
    for arrangement, file, rows, pages, hashes in [f for base in bases for f in base.files]:
        path = folder / f"{len(files):04d}.sst"
        download(storage, file, path)
        files.append(BulkFile(arrangement, str(path), 0, rows, pages, bytes.fromhex(hashes)))
    return bases[-1], files


def ingest(store: Store, specs: Iterable[Spec], files: Sequence[BulkFile], folder: Path) -> None:
    """Ingest a base into an empty store; several files of one arrangement are merged first."""
    by_name: dict[str, list[BulkFile]] = {}
    for file in files:
        by_name.setdefault(file.name, []).append(file)
    taken = []
    for spec in specs:
        open_state(store, spec)
        found = by_name.get(spec.name, [])
        taken += found if len(found) < 2 else [_merged(spec, found, folder)]
    store.ingest(taken)


def _merged(spec: Spec, files: Sequence[BulkFile], folder: Path) -> BulkFile:
    writer = BulkWriter(spec, 0, 1, str(folder / f"{uuid.uuid4().hex}.sst"))
    for file in files:
        for columns, values in read_file(file, spec):
            _add(writer, (columns, values))
    return writer.finish()


def open_state(store: Store, spec: Spec) -> None:
    """Create a state if it does not exist yet."""
    if isinstance(spec, ArrangementSpec):
        store.arrange(spec)
    else:
        store.arrange_sums(spec)


def rows_of(store: Store, spec: Spec) -> Iterator[Rows]:
    """Yield the rows of a state, in chunks."""
    if isinstance(spec, ArrangementSpec):
        for rows in store.arrange(spec).scan():
            yield rows.columns, rows.weights.reshape(1, -1)
    else:
        yield from store.arrange_sums(spec).scan()


def write_files(
    store: RocksStore, stages: Mapping[int, Sequence[tuple[Spec, int]]], folder: Path
) -> list[BulkFile]:
    """Write the state of some stages, one local file an arrangement."""
    files = [
        store.write_file(spec, str(folder / f"{uuid.uuid4().hex}.sst"))
        for specs in stages.values()
        for spec, _ in specs
    ]
    return [file for file in files if file.pages]


def cut_files(
    store: Store, old: Layout, stages: Mapping[int, int], new: Layout, folder: Path
) -> dict[str, list[BulkFile]]:
    """Write the state of some stages for the buckets of another layout, by "level-bucket".

    stages: by number, the bucket of the old layout whose state the store has.
    """
    found: dict[str, list[BulkFile]] = {}
    for number, own in stages.items():
        for spec, width in old.specs[number]:
            held = rows_of(store, spec)
            rows = (_counted_once(old.cut.stages[number], spec, width, h, own) for h in held)
            for key, file in cut_rows(rows, new, number, (spec, width), folder).items():
                found.setdefault(key, []).append(file)
    return found


def cut_rows(
    rows: Iterable[Rows], layout: Layout, number: int, state: tuple[Spec, int], folder: Path
) -> dict[str, BulkFile]:
    """Write rows of one state of a stage for the buckets of a layout, by "level-bucket".

    state: with how many columns of its key decide the bucket.
    """
    stage, writers = layout.cut.stages[number], dict[int, BulkWriter]()
    spec, width = state
    for some in rows:
        for bucket, part in _by_bucket(stage, spec, width, some):
            if layout.is_single(stage):
                bucket = layout.bucket_of(stage.slot)
            if bucket not in writers:
                path = str(folder / f"{uuid.uuid4().hex}.sst")
                writers[bucket] = BulkWriter(spec, 0, 1, path)
            _add(writers[bucket], part)
    files = {f"{stage.level}-{bucket}": writer.finish() for bucket, writer in writers.items()}
    return {key: file for key, file in files.items() if file.pages}


def stored_bytes(store: Store, layout: Layout) -> dict[int, int]:
    """Return about the bytes of a view's state by level, if one store has all of it."""
    found: dict[int, int] = {}
    for number, specs in layout.specs.items():
        level = layout.cut.stages[number].level
        for spec, _ in specs:
            open_state(store, spec)
            found[level] = found.get(level, 0) + store.size(spec.name)[1]
    return found


def _by_bucket(stage: Stage, spec: Spec, width: int, rows: Rows) -> Iterator[tuple[int, Rows]]:
    """Yield the rows of each bucket; width: how many columns of the key decide it."""
    columns, values = rows
    buckets, n = stage.buckets, values.shape[1]
    if width == 0 or buckets == 1:
        yield 0, rows
        return
    key = key_columns(spec)[:width]
    if stage.routing is None:
        parts = partition_positions([columns[c] for c in key], n, buckets)
    else:
        side = side_of_state(spec.name)
        parts = stage.routing.positions(columns, key, n, buckets, side)
    for number, at in parts:
        yield number, ([c.take(at) for c in columns], values[:, at])


def _counted_once(stage: Stage, spec: Spec, width: int, rows: Rows, bucket: int) -> Rows:
    """Return the rows of a bucket without copies of rows that count in another one."""
    if stage.routing is None or not len(stage.routing.hashes) or stage.buckets == 1:
        return rows
    columns, values = rows
    hashes = hash_columns([columns[c] for c in key_columns(spec)[:width]], values.shape[1])
    side = side_of_state(spec.name)
    once = stage.routing.counted_once(hashes, side, stage.buckets, bucket)
    if once.all():
        return rows
    at = np.flatnonzero(once)
    return [c.take(at) for c in columns], values[:, at]


def _add(writer: BulkWriter, rows: Rows) -> None:
    columns, values = rows
    if isinstance(writer.spec, ArrangementSpec):
        writer.add(Delta(columns, values[0]))
    else:
        writer.add_sums(columns, values)


def one_state(
    storage: SharedStorage, layout: Layout, bases: Mapping[str, Sequence[str]], folder: Path
) -> list[BulkFile]:
    """Return the state of all buckets as files for one store, in the given empty folder.

    One arrangement at a time is in memory.
    """
    found: dict[tuple[int, str], list[tuple[int, BulkFile]]] = {}
    for key, names in bases.items():
        level, bucket = map(int, key.split("-"))
        for file in read_bases(storage, names, folder / key)[1]:
            found.setdefault((level, file.name), []).append((bucket, file))
    files = []
    for number, specs in layout.specs.items():
        stage = layout.cut.stages[number]
        for spec, width in specs:
            writer = BulkWriter(spec, 0, 1, str(folder / f"{uuid.uuid4().hex}.sst"))
            for bucket, file in found.get((stage.level, spec.name), ()):
                for rows in read_file(file, spec):
                    _add(writer, _counted_once(stage, spec, width, rows, bucket))
            files.append(writer.finish())
    return [file for file in files if file.pages]


def new_folder(parent: Path) -> tempfile.TemporaryDirectory:
    """Return a temporary folder on the disk of another."""
    parent.mkdir(parents=True, exist_ok=True)
    return tempfile.TemporaryDirectory(dir=parent)
