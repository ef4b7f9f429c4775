"""The rows of all files of a relation's position, in parts for any number of readers.

Invariant: a part reads exactly the versions in the journal, or ends with `source.file_changed`:
then the feed has to catch up first. A file that was removed under `on_removed: keep`, or from an
append-only relation, has no rows any more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from connectors.feed_source import FeedPositions
from connectors.files.folder import Folder
from connectors.files.journal import FileNote, Journal
from connectors.files.options import KEEP
from connectors.files.reading import FileReader
from connectors.files.records import Stretch
from connectors.files.rejected import RejectedRow, broken_file, rejected_delta, rejected_rows
from connectors.files.shape import Shape
from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from dataflow.schema import Relation

LEAST_PART_BYTES = 8 << 20


@dataclass(frozen=True)
class FileChunk:
    """A stretch of one file, in the version of its note."""

    path: str
    note: FileNote
    stretch: Stretch
    last: int


@dataclass
class FilesPart:
    """Some files, or a stretch of one, of a relation."""

    name: str
    shape: Shape
    columns: tuple[int, ...]
    chunks: tuple[FileChunk, ...]
    _bad: list[RejectedRow] = field(default_factory=list)

    def read(self) -> Iterator[Delta]:
        """Yield rows of weight 1 with the requested columns."""
        self._bad = []
        folder = self.shape.options.folder()
        reader = FileReader(self.shape, folder)
        for chunk in self.chunks:
            # A chunk without rows is that of a broken file, which is not opened.
            is_needed = self.shape.options.on_removed == KEEP and chunk.last
            if not is_needed or _is_there(folder, chunk):
                yield from self._read_chunk(reader, chunk)

    def rejected(self) -> Delta:
        """Return the records that `read` rejected."""
        return rejected_delta(self._bad)

    def _read_chunk(self, reader: FileReader, chunk: FileChunk) -> Iterator[Delta]:
        note, stat = chunk.note, chunk.note.stat(chunk.path)
        if chunk.last:
            for rows in reader.read(stat, chunk.stretch, chunk.stretch.after, chunk.last):
                self._bad += rejected_rows(self.shape, stat, rows.bad)
                if len(rows.numbers):
                    columns = [rows.columns[i] for i in self.columns]
                    yield Delta(columns, np.ones(len(rows.numbers), np.int64))
        if note.broken and chunk.last == note.reach:
            self._bad += rejected_rows(self.shape, stat, [broken_file(note.broken)])


class FilesSnapshot:
    """Relations at the positions in the notes."""

    def __init__(
        self, shapes: Mapping[str, Shape], positions: FeedPositions, notes: Mapping[str, bytes]
    ) -> None:
        self._shapes = shapes
        self._journals = {name: Journal.read(name, positions[name], notes) for name in shapes}

    def parts(
        self,
        relation: Relation,
        columns: Sequence[int],
        count: int,
        known: Sequence[str] = (),
    ) -> Sequence[FilesPart]:
        """Return about `count` parts of equal size.

        They are always the same for one position and count: the journal alone determines their
        content.
        """
        name = relation.name.name
        shape = self._shapes[name]
        selected = [shape.field_index(relation.fields[i].name) for i in columns]
        parts = []
        for chunks in _cut(self._journals[name], count):
            content = repr([(s.path, s.note.version, s.stretch, s.last) for s in chunks])
            digest = hashlib.sha256(content.encode()).hexdigest()[:16]
            parts.append(FilesPart(f"{name}-{digest}", shape, tuple(selected), tuple(chunks)))
        return parts

    def close(self) -> None:
        """Do nothing: the snapshot holds nothing."""


def _cut(journal: Journal, count: int) -> Iterator[list[FileChunk]]:
    files = sorted(journal.files.items())
    size = sum(note.size for _, note in files) // max(count, 1)
    most, chunks, size_so_far = max(size, LEAST_PART_BYTES), [], 0
    for path, note in files:
        for chunk, chunk_bytes in _chunks(path, note):
            chunks.append(chunk)
            size_so_far += chunk_bytes
            if size_so_far >= most:
                yield chunks
                chunks, size_so_far = [], 0
    if chunks:
        yield chunks


def _chunks(path: str, note: FileNote) -> Iterator[tuple[FileChunk, int]]:
    """Yield stretches of a file with their size in bytes; none for a file without rows."""
    starts = [(0, 0), *note.splits]
    ends: list[tuple[int | None, int]] = [*note.splits, (None, note.reach)]
    for (offset, after), (stop, last) in zip(starts, ends, strict=True):
        if after < note.reach or (note.broken and not after):
            chunk = FileChunk(path, note, Stretch(offset, after, stop), min(last, note.reach))
            yield chunk, note.size // len(starts)


def _is_there(folder: Folder, chunk: FileChunk) -> bool:
    """Return True if a file that may be gone can still be read."""
    try:
        folder.open(chunk.note.stat(chunk.path)).close()
    except TidemarkError as error:
        # Or it is a link now, which leads outside the folders that may be read.
        if error.code in ("source.file_changed", "path.forbidden"):
            return False
        raise
    return True
