"""Write batches of changes to Parquet files of bounded size, by partition.

Files are made in a local folder and sent whole. Invariant: a file that was sent has a name that no
other writer or version uses; it is garbage until a manifest lists it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from connectors.lake.location import UNREACHABLE
from connectors.objects.shared_storage import SharedStorage
from connectors.parquet.manifests import DataFile
from dataflow.errors import SinkError, TemporaryError

FOLDER = "data"
NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
COMPRESSION = "zstd"
# Open files, each with rows in memory; the largest is closed when there are more.
MAX_OPEN = 32
ROW_GROUP_ROWS, ROW_GROUP_BYTES = 131_072, 16 << 20
# Of all open files together: rows in memory, and bytes on the local disk.
MAX_WAITING_BYTES = 48 << 20
MAX_LOCAL_FILES = 4
_MAX_FOLDER_BYTES = 200

Partition = tuple[str | None, ...]


class DataFiles:
    """The files of one version of the manifest. Used with `with`, which removes local files.

    prefix: begins the name of each file. max_bytes: about how large a file may be.
    """

    def __init__(
        self, storage: SharedStorage, partition_by: Sequence[str], prefix: str, max_bytes: int
    ) -> None:
        self.sent: list[DataFile] = []
        self._storage = storage
        self._partition_by = partition_by
        self._prefix = prefix
        self._max_bytes = max_bytes
        self._open: dict[Partition, _OpenFile] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="tidemark-parquet-")
        self._made = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for file in self._open.values():
            file.close()
        self._open.clear()
        self._folder.cleanup()

    def write(self, rows: pa.RecordBatch, epoch: int) -> None:
        """Add changes of one epoch. TemporaryError, SinkError sink.value_unfit."""
        for partition, part in self._parts(rows):
            file = self._open.get(partition)
            if file is None:
                if len(self._open) >= MAX_OPEN:
                    self._send_largest()
                path = Path(self._folder.name) / f"{self._made}.parquet"
                group_bytes = min(ROW_GROUP_BYTES, self._max_bytes)
                file = self._open[partition] = _OpenFile(path, rows.schema, group_bytes)
                self._made += 1
            file.write(part, epoch)
            if file.size() >= self._max_bytes:
                self._send(partition)
        files = self._open.values()
        if sum(file.waiting_bytes for file in files) >= MAX_WAITING_BYTES:
            for file in files:
                file.flush()
            while sum(file.size() for file in files) >= MAX_LOCAL_FILES * self._max_bytes:
                self._send_largest()

    def finish(self) -> list[DataFile]:
        """Send what is open; return all files."""
        for partition in list(self._open):
            self._send(partition)
        return self.sent

    def _send_largest(self) -> None:
        self._send(max(self._open, key=lambda partition: self._open[partition].size()))

    def _parts(self, rows: pa.RecordBatch) -> Iterator[tuple[Partition, pa.RecordBatch]]:
        if not self._partition_by:
            yield (), rows
            return
        texts = [pc.cast(rows[name], pa.string()) for name in self._partition_by]
        encoded = [text.dictionary_encode(null_encoding="encode") for text in texts]
        codes = np.stack([e.indices.to_numpy(zero_copy_only=False) for e in encoded])
        groups, index = np.unique(codes, axis=1, return_inverse=True)
        for number in range(groups.shape[1]):
            values = [
                e.dictionary[int(c)].as_py()
                for e, c in zip(encoded, groups[:, number], strict=True)
            ]
            yield tuple(values), rows.take(pa.array(np.flatnonzero(index.ravel() == number)))

    def _send(self, partition: Partition) -> None:
        file = self._open.pop(partition)
        file.close()
        folders = [_folder(n, v) for n, v in zip(self._partition_by, partition, strict=True)]
        name = f"{self._prefix}-{len(self.sent)}.parquet"
        path = "/".join([FOLDER, *folders, name])
        try:
            self._storage.send(file.path, path)
        except FileNotFoundError:
            # A later writer has deleted what earlier ones had not finished.
            raise TemporaryError(UNREACHABLE, f'file "{path}" was deleted by others') from None
        values = dict(zip(self._partition_by, partition, strict=True))
        self.sent.append(
            DataFile(
                path, file.rows, file.path.stat().st_size, file.epochs[0], file.epochs[1], values
            )
        )
        file.path.unlink()


class _OpenFile:
    """A local file that grows by row groups."""

    def __init__(self, path: Path, schema: pa.Schema, group_bytes: int) -> None:
        self.path = path
        self._group_bytes = group_bytes
        self.rows = 0
        self.epochs = (1 << 62, 0)
        self._stream = pa.OSFile(str(path), "wb")
        self._writer = pq.ParquetWriter(self._stream, schema, compression=COMPRESSION)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_rows = 0
        self.waiting_bytes = 0

    def write(self, rows: pa.RecordBatch, epoch: int) -> None:
        self._waiting.append(rows)
        self._waiting_rows += len(rows)
        self.waiting_bytes += rows.nbytes
        self.rows += len(rows)
        self.epochs = (min(self.epochs[0], epoch), max(self.epochs[1], epoch))
        if self._waiting_rows >= ROW_GROUP_ROWS or self.waiting_bytes >= self._group_bytes:
            self.flush()

    def size(self) -> int:
        """Return about how many bytes the file has."""
        return self._stream.tell()

    def close(self) -> None:
        self.flush()
        self._writer.close()
        self._stream.close()

    def flush(self) -> None:
        """Write the rows in memory as a row group."""
        if self._waiting:
            self._writer.write_table(pa.Table.from_batches(self._waiting))
            self._waiting, self._waiting_rows, self.waiting_bytes = [], 0, 0


def _folder(name: str, value: str | None) -> str:
    found = f"{quote(name, safe='')}={NULL_FOLDER if value is None else quote(value, safe='')}"
    if len(found) > _MAX_FOLDER_BYTES:
        raise SinkError(
            "sink.value_unfit",
            f'a value of column "{name}" is too long for the name of a folder',
            detail=found[:100],
            hint="partition by a column with short values",
        )
    return found
