"""Bulk load: one partition of an arrangement as one file that a RocksStore ingests whole.

The range of key hashes is cut into equal partitions. A task that has all rows of one partition
writes their pages as an SST file, without a database. Invariant: the files of all partitions, in
order, are one run, and hold exactly what `apply` of the same rows would have stored.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import xxhash
from rocksdict import DBCompressionType, IngestExternalFileOptions, Options, Rdict, SstFileWriter
from tidemark_native import storage as kernels

from storage.delta import Column, Delta, hash_columns
from storage.errors import StorageError
from storage.layout import Layout
from storage.pages import Selection, Tuning, below_zero, cut, order_rows, verify
from storage.run_writer import RunWriter
from storage.runs import BULK_RUN, page_key
from storage.store import ArrangementSpec, BulkFile, SumsSpec

_PARTITION_SHIFT = 32
_FEW = 1 << 16


def identity_of(name: str) -> int:
    """Return the 64-bit number of an arrangement in storage keys."""
    return xxhash.xxh64_intdigest(name.encode())


def partition_of(hashes: np.ndarray, partitions: int) -> np.ndarray:
    """Return int64[n]: the partition, 0 <= p < partitions < 2^32, of each uint64 key hash;
    ascending.

    >>> partition_of(np.array([0, 1 << 63, 2**64 - 1], np.uint64), 4).tolist()
    [0, 2, 3]
    """
    top = hashes >> np.uint64(32)
    return ((top * np.uint64(partitions)) >> np.uint64(32)).astype(np.int64)


def partition_rows(columns: Sequence[Column], n: int, partitions: int) -> np.ndarray:
    """Return int64[n]: the partition of each row, from its key columns in the order of the key."""
    return partition_of(hash_columns(columns, n), partitions)


def partition_positions(
    columns: Sequence[Column], n: int, partitions: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each partition that has rows, with the positions of these, int64, in their order."""
    yield from positions_by(partition_rows(columns, n, partitions))


def positions_by(partition: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each number in int64[n], ascending, with its positions, int64, in their order."""
    if not len(partition):
        return
    if int(partition.max()) < _FEW:
        partition = partition.astype(np.uint16)  # which are sorted in linear time
    order = np.argsort(partition, kind="stable")
    ordered = partition[order]
    starts = [0, *(np.flatnonzero(ordered[1:] != ordered[:-1]) + 1).tolist(), len(order)]
    for start, end in itertools.pairwise(starts):
        yield int(ordered[start]), order[start:end]


def raw_options(*, compress: bool) -> Options:
    """Return the RocksDB options that database and files share."""
    options = Options(raw_mode=True)
    kind = DBCompressionType.lz4() if compress else DBCompressionType.none()
    options.set_compression_type(kind)
    return options


class BulkWriter:
    """Collects the rows of one partition and writes them as one file at `path`.

    The spec is that of the arrangement or sums; nothing is written before `finish`.
    """

    def __init__(
        self,
        spec: ArrangementSpec | SumsSpec,
        partition: int,
        partitions: int,
        path: str,
        tuning: Tuning | None = None,
    ) -> None:
        self.spec = spec
        self.partition = partition
        self.partitions = partitions
        self.path = path
        self._layout = Layout.of(spec)
        self._tuning = tuning or Tuning()
        self._columns: list[Sequence[Column]] = []
        self._values: list[np.ndarray] = []

    def add(self, delta: Delta) -> None:
        """Add rows of an arrangement; equal rows are summed at the end."""
        self._add(delta.columns, delta.weights.reshape(1, -1))

    def add_sums(self, keys: Sequence[Column], sums: np.ndarray) -> None:
        """Add int64[width, n] sums of n keys."""
        self._add(keys, sums)

    def _add(self, columns: Sequence[Column], values: np.ndarray) -> None:
        if values.shape[1]:
            self._columns.append(columns)
            self._values.append(np.ascontiguousarray(values, np.int64))

    def finish(self) -> BulkFile:
        """Write the file. A partition without rows returns pages = 0 and no file.

        StorageError state.mismatch: a row belongs to another partition. NegativeWeightError.
        """
        if not self._values:
            return self._file(0, [])
        columns = [Column.concat(parts) for parts in zip(*self._columns, strict=True)]
        image = self._layout.image(columns, np.concatenate(self._values, axis=1))
        selection = order_rows(self._layout, image)
        if not len(selection.hits):
            return self._file(0, [])
        self._check(image)
        return self.write_ordered([selection])

    def write_ordered(self, selections: Iterable[Selection]) -> BulkFile:
        """Write the file of rows that come in order, each once, in place of `finish`.

        NegativeWeightError.
        """
        writer = SstFileWriter(raw_options(compress=True))
        writer.open(self.path)
        identity = identity_of(self.spec.name)
        first_number = self.partition << _PARTITION_SHIFT
        run = RunWriter(writer.__setitem__, identity, BULK_RUN, first_number)
        for selection in selections:
            if isinstance(self.spec, ArrangementSpec):
                negative = below_zero(self.spec.name, self._layout, selection)
                if negative is not None:
                    raise negative
            for page in cut(self._layout, selection, self._tuning):
                run.add(page)
        run.finish()
        if run.rows:
            writer.finish()
        return self._file(run.rows, run.first)

    def _check(self, image: np.ndarray) -> None:
        hashes = self._layout.hashes_of(image)
        ends = np.array([hashes.min(), hashes.max()], np.uint64)
        if (partition_of(ends, self.partitions) != self.partition).any():
            detail = f'rows of "{self.spec.name}" outside of partition {self.partition}'
            raise StorageError("state.mismatch", detail, "partition rows with partition_rows")

    def _file(self, rows: int, first: list[tuple[int, int]]) -> BulkFile:
        hashes = np.array(first, np.uint64).reshape(-1, 2).T.tobytes()
        path = self.path if rows else ""
        return BulkFile(self.spec.name, path, self.partition, rows, len(first), hashes)


def page_numbers(file: BulkFile) -> np.ndarray:
    """Return uint64[pages]: the numbers of a file's pages in their run."""
    start = np.uint64(file.partition << _PARTITION_SHIFT)
    return np.arange(file.pages, dtype=np.uint64) + start


def first_rows(file: BulkFile) -> np.ndarray:
    """Return uint64[2, pages]: key hash and row hash of the first row of each page."""
    return np.frombuffer(file.first_hashes, np.uint64).reshape(2, file.pages)


def read_file(
    file: BulkFile, spec: ArrangementSpec | SumsSpec
) -> Iterator[tuple[list[Column], np.ndarray]]:
    """Yield the rows of a file by pages: (columns, int64[width, n] values). The file is
    not moved.
    """
    if file.pages == 0:
        return
    layout = Layout.of(spec)
    with tempfile.TemporaryDirectory() as directory:
        copy = str(Path(directory) / "pages.sst")
        shutil.copyfile(file.path, copy)
        options = raw_options(compress=False)
        options.create_if_missing(True)
        db = Rdict(str(Path(directory) / "db"), options)
        try:
            take = IngestExternalFileOptions()
            take.set_move_files(True)
            db.ingest_external_file([copy], take)
            identity = identity_of(file.name)
            for number in page_numbers(file).tolist():
                key = page_key(identity, BULK_RUN, number)
                page = verify(db.get(key), layout, f'page of "{file.name}"')
                hits = kernels.hits_of(page.address, np.arange(page.rows))
                values = layout.values_of(np.frombuffer(page.sealed, np.uint64))
                yield layout.columns(hits), np.ascontiguousarray(values)
        finally:
            db.close()
