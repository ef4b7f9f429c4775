"""The journal: which version of each file was emitted, as notes stored with the state.

A row is identified by (file, number of the row in it). For each file the journal knows the emitted
version and the last row number. The rows of a replaced or removed file can therefore be retracted
without its old content. Invariant: the emitted rows of a file are numbered 1 ... reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote

import orjson

from dataflow.errors import InvariantError

_FORM = 1


@dataclass(frozen=True)
class FileStat:
    """One file as a listing shows it.

    path: relative to the pattern's root. version: changes with the content (size, time and inode,
    or an object's tag). modified_us: microseconds since 2000, UTC. is_resolved: False while the
    file may still be written. fault: why the file is never opened; then the path is only for
    people, and code is of the error if nothing may be left out.
    """

    path: str
    size: int
    modified_us: int
    version: str
    is_resolved: bool = True
    fault: str = ""
    code: str = ""


@dataclass(frozen=True)
class FileNote:
    """What was emitted of one file; event: the number of its last event.

    version, size, modified_us: of the content that is or was emitted. reach: the greatest row
    number emitted so far; old_reach: that of the version before, while this one is incomplete.
    offset: where to continue in a plain file of lines, 0 if only from the start. splits: (byte or
    row group, rows before it) where parts of the file may start. broken: why the file cannot be
    read further.
    """

    version: str
    size: int
    modified_us: int
    event: int
    reach: int = 0
    old_reach: int = 0
    is_done: bool = False
    offset: int = 0
    splits: tuple[tuple[int, int], ...] = ()
    broken: str = ""

    def encode(self) -> bytes:
        """Return the note's bytes; the inverse of `decode_note`."""
        values = (self.version, self.size, self.modified_us, self.event, self.reach)
        rest = (self.old_reach, self.is_done, self.offset, self.splits, self.broken)
        return orjson.dumps([_FORM, *values, *rest])

    def stat(self, path: str) -> FileStat:
        """Return the file as it was when it was emitted."""
        return FileStat(path, self.size, self.modified_us, self.version)


def decode_note(note: bytes) -> FileNote:
    """Return a FileNote from its bytes."""
    form, *values = orjson.loads(note)
    if form != _FORM:
        raise InvariantError("source.notes", f"a file's note has form {form}")
    *rest, splits, broken = values
    return FileNote(*rest, splits=tuple((at, number) for at, number in splits), broken=broken)


def owner_of(key: str) -> tuple[str, str, str]:
    """Return (relation, pin, path) of a note's key."""
    relation, reading_id, path = key.split("/", 2)
    return unquote(relation), reading_id, path


@dataclass
class Journal:
    """The emitted files of one relation, by path.

    reading_id: identifies the reading that began with `FilesSource.start_position`, so that notes
    of an earlier reading are ignored. event: the number of the last event.
    """

    relation: str
    reading_id: str
    event: int = 0
    files: dict[str, FileNote] = field(default_factory=dict)

    @staticmethod
    def read(relation: str, position: Mapping[str, Any], notes: Mapping[str, bytes]) -> Journal:
        """Read a relation's journal from its position and the notes of the whole source."""
        journal = Journal(relation, str(position["pin"]), int(position["event"]))
        for key, note in notes.items():
            owner, reading_id, path = owner_of(key)
            if (owner, reading_id) == (relation, journal.reading_id):
                journal.files[path] = decode_note(note)
        return journal

    @property
    def position(self) -> dict[str, Any]:
        """The position of the relation."""
        return {"pin": self.reading_id, "event": self.event}

    def notes(self) -> dict[str, bytes]:
        """Return all notes of the relation."""
        return {self._key(path): note.encode() for path, note in self.files.items()}

    def put(self, path: str, note: FileNote | None) -> dict[str, bytes | None]:
        """Store or remove one file; return the notes that change."""
        if note is None:
            self.files.pop(path, None)
        else:
            self.files[path] = note
        return {self._key(path): None if note is None else note.encode()}

    def compare(self, listing: Iterable[FileStat]) -> tuple[list[FileStat], list[str]]:
        """Return (files to emit, oldest first; paths that were removed).

        A file is emitted if it is stable and new, of another version, or incomplete.
        """
        to_emit, there = [], set()
        for stat in listing:
            there.add(stat.path)
            note = self.files.get(stat.path)
            if note is not None and note.version == stat.version:
                is_reported = not note.is_done
            else:
                is_reported = stat.is_resolved
            if is_reported:
                to_emit.append(stat)
        to_emit.sort(key=lambda stat: (stat.modified_us, stat.path))
        return to_emit, sorted(self.files.keys() - there)

    def _key(self, path: str) -> str:
        return f"{quote(self.relation, safe='')}/{self.reading_id}/{path}"
