"""Watch one relation's folder: list it repeatedly and emit new, replaced or removed files.

Rows are identified by file and number: UPSERT if they exist, REMOVE if they no longer do, so
repeating some does no harm. Invariant: each piece carries the position and the notes after it. A
watch that is made from them continues exactly there, even in the middle of a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from connectors.files.folder import Folder
from connectors.files.journal import FileNote, FileStat, Journal
from connectors.files.options import RETRACT
from connectors.files.reading import SPLIT_BYTES, BadRow, FileReader, Rows
from connectors.files.records import Stretch
from connectors.files.rejected import RejectedRow, broken_file, rejected_rows
from connectors.files.shape import Shape
from connectors.files.stream import UnreadableFile
from dataflow.changes import Changes
from dataflow.delta import KIND_BYTES, Column
from dataflow.errors import SourceError, TemporaryError
from dataflow.schema import Relation

REMOVED_ROWS = 65_536


@dataclass
class Piece:
    """Changes of one relation; place, notes: after it."""

    relation: str
    position: Mapping[str, Any]
    notes: dict[str, bytes | None]
    changes: Changes | None = None
    rejected: list[RejectedRow] = field(default_factory=list)

    @property
    def event(self) -> int:
        """The piece's number."""
        return self.position["event"]

    @property
    def rows(self) -> int:
        """How many changes it holds."""
        return 0 if self.changes is None else len(self.changes)

    def nbytes(self) -> int:
        """Bytes of its columns and rejected values."""
        columns = () if self.changes is None else self.changes.columns
        return sum(c.nbytes() for c in columns) + sum(len(row[-1]) for row in self.rejected)


class FolderWatch:
    """The watch of one relation.

    relation: with the fields that changes have. waiting: files of the last listing that are still
    to be emitted. skipped: records that were skipped.
    """

    def __init__(
        self,
        shape: Shape,
        relation: Relation,
        folder: Folder,
        journal: Journal,
    ) -> None:
        self.waiting = 0
        self.skipped = 0
        self._shape = shape
        self._relation = relation
        self._folder = folder
        self._journal = journal
        self._reader = FileReader(shape, folder)
        self._desired = [shape.field_index(f.name) for f in relation.fields]

    def poll(self, listing: Iterable[FileStat] | None = None) -> Iterator[Piece]:
        """List the folder and yield what has changed; `waiting` counts the files left.

        listing: an earlier one, in place of a new one. TemporaryError: the folder is unreachable.
        SourceError source.file_replaced, source.bad_record.
        """
        emitted, gone = self._journal.compare(
            self._folder.list_files() if listing is None else listing
        )
        if self._shape.options.on_removed != RETRACT:
            gone = []
        self.waiting = len(emitted) + len(gone)
        for path in gone:
            yield from self._emit_removed(path)
            self.waiting -= 1
        for stat in emitted:
            try:
                yield from self._report(stat)
            except TemporaryError as error:
                # The next listing shows what it has become.
                if error.code != "source.file_changed":
                    raise
            self.waiting -= 1

    def _emit_removed(self, path: str) -> Iterator[Piece]:
        note = self._journal.files[path]
        # Without a version: any later file of this name counts as another file.
        yield from self._retract(path, replace(note, version="", is_done=False), 0)
        yield self._piece(path, None)

    def _retract(self, path: str, note: FileNote, keep: int) -> Iterator[Piece]:
        """Retract the rows after number `keep`, the last ones first."""
        reach = max(note.reach, note.old_reach)
        while reach > keep:
            least = max(reach - REMOVED_ROWS, keep)
            numbers = np.arange(least + 1, reach + 1)
            if least < note.reach:
                note = replace(note, reach=least, offset=0)
            note = replace(note, old_reach=least)
            yield self._piece(path, note, self._removed(path, numbers))
            reach = least

    def _report(self, stat: FileStat) -> Iterator[Piece]:
        note = self._begun(stat)
        stretch = Stretch(note.offset, note.reach) if note.offset else Stretch()
        try:
            for rows in self._reader.read(stat, stretch, note.reach):
                bad = self._rejected(stat, rows.bad)
                changes = self._changes(stat.path, rows, note)
                note = _passed(note, rows)
                yield self._piece(stat.path, note, changes, bad)
            note = replace(note, broken="")
        except UnreadableFile as error:
            bad = self._rejected(stat, [broken_file(str(error))])
            note = replace(note, broken=str(error))
            if not self._shape.options.is_append:
                # An incomplete file has no rows.
                yield from self._retract(stat.path, note, 0)
                note = replace(note, reach=0, splits=())
            yield self._piece(stat.path, _finished(note), None, bad)
            return
        yield from self._retract(stat.path, note, note.reach)
        yield self._piece(stat.path, _finished(note))

    def _rejected(self, stat: FileStat, bad: list[BadRow]) -> list[RejectedRow]:
        emitted = rejected_rows(self._shape, stat, bad)
        self.skipped += len(bad) - len(emitted)
        return emitted

    def _begun(self, stat: FileStat) -> FileNote:
        """Return the note of a file that starts to be emitted."""
        previous = self._journal.files.get(stat.path)
        if previous is not None and previous.version == stat.version:
            return previous
        if previous is not None and self._shape.options.is_append:
            what = f'file "{stat.path}" of relation "{self._shape.name}" was replaced'
            raise SourceError(
                "source.file_replaced",
                what,
                detail="rows of an append_only relation cannot be retracted",
                hint="give new files new names, or declare the relation without append_only",
                relation=self._shape.name,
            )
        old_reach = 0 if previous is None else max(previous.reach, previous.old_reach)
        event = self._journal.event
        return FileNote(stat.version, stat.size, stat.modified_us, event, old_reach=old_reach)

    def _piece(
        self,
        path: str,
        note: FileNote | None,
        changes: Changes | None = None,
        rejected: list[RejectedRow] | None = None,
    ) -> Piece:
        self._journal.event += 1
        if note is not None:
            note = replace(note, event=self._journal.event)
        notes = self._journal.put(path, note)
        position = self._journal.position
        return Piece(self._journal.relation, position, notes, changes, rejected or [])

    def _changes(self, path: str, rows: Rows, note: FileNote) -> Changes | None:
        columns = tuple(rows.columns[i] for i in self._desired)
        n = len(rows.numbers)
        if self._shape.options.is_append:
            kinds = np.full(n, Changes.INSERT, np.uint8)
            return Changes(self._relation, kinds, columns) if n else None
        kinds = np.full(n, Changes.UPSERT, np.uint8)
        emitted = Changes(self._relation, kinds, columns) if n else None
        # Numbers that had a row in the version before and have none now.
        last = min(rows.reach, note.old_reach)
        absent = np.setdiff1d(np.arange(note.reach + 1, last + 1), rows.numbers)
        if not len(absent):
            return emitted
        removed = self._removed(path, absent)
        return removed if emitted is None else joined([emitted, removed])

    def _removed(self, path: str, numbers: np.ndarray) -> Changes:
        n = len(numbers)
        file_at, row_at = self._shape.key
        columns = []
        for index in self._desired:
            if index == file_at:
                column = Column.of(KIND_BYTES, [path]).take(np.zeros(n, np.int64))
            elif index == row_at:
                column = Column(numbers.astype(np.int64))
            else:
                column = Column.nulls(self._shape.fields[index].type.physical, n)
            columns.append(column)
        return Changes(self._relation, np.full(n, Changes.REMOVE, np.uint8), tuple(columns))


def joined(changes: list[Changes]) -> Changes:
    """Return consecutive changes of one relation as one."""
    if len(changes) == 1:
        return changes[0]
    columns = [Column.concat(parts) for parts in zip(*(c.columns for c in changes), strict=True)]
    kinds = np.concatenate([c.kinds for c in changes])
    return Changes(changes[0].relation, kinds, tuple(columns))


def _passed(note: FileNote, rows: Rows) -> FileNote:
    """Return the note after more rows of the file."""
    splits = note.splits
    last = splits[-1][0] if splits else 0
    if rows.offset - last >= SPLIT_BYTES:
        splits = (*splits, (rows.offset, rows.reach))
    return replace(note, reach=rows.reach, offset=rows.offset, splits=splits)


def _finished(note: FileNote) -> FileNote:
    return replace(note, is_done=True, old_reach=0, offset=0)
