"""What is known of each file that has been told: the notes that are kept with the state.

A relation's identity is (file, number of the row in it). The journal knows for each file which
version was told and up to which number, so that a file that was replaced or removed can be
taken back without its old content. Invariant: the rows told of a file are numbered 1 ... reach.
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

    path: relative to the pattern's root. version: whatever changes with the content (size, time
    and inode, or an object's tag). modified_us: microseconds since 2000, UTC. is_settled: False
    while somebody may still be writing. fault: why the file cannot be opened at all; then the
    path is one for people.
    """

    path: str
    size: int
    modified_us: int
    version: str
    is_resolved: bool = True
    fault: str = ""


@dataclass(frozen=True)
class FileNote:
    """What has been told of one file; event: the number of the last of it.

    version, size, modified_us: of the content that is being told or was. reach: the greatest row
    number told so far; old_reach: of the version before, while this one is not through. offset:
    where to read on in a plain file of lines, 0 when only from the start. splits: (byte or row
    group, rows before it) where parts of the file may begin. broken: why it cannot be read on.
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
        """As a note; the inverse of `decode_note`."""
        values = (self.version, self.size, self.modified_us, self.event, self.reach)
        rest = (self.old_reach, self.is_done, self.offset, self.splits, self.broken)
        return orjson.dumps([_FORM, *values, *rest])

    def stat(self, path: str) -> FileStat:
        """The file as it was when it was told."""
        return FileStat(path, self.size, self.modified_us, self.version)


def decode_note(note: bytes) -> FileNote:
    """A FileNote from its bytes."""
    form, *values = orjson.loads(note)
    if form != _FORM:
        raise InvariantError("source.notes", f"a file's note has form {form}")
    *known, splits, broken = values
    return FileNote(*known, splits=tuple((at, number) for at, number in splits), broken=broken)


def owner_of(key: str) -> tuple[str, str, str]:
    """(relation, pin, path) of the key of a note."""
    relation, pin, path = key.split("/", 2)
    return unquote(relation), pin, path


@dataclass
class Journal:
    """The files of one relation that have been told, by path.

    pin: names the reading of the relation that began with `FilesSource.pin`, so that notes of an
    earlier one are told from it. event: the number of the last thing that was told.
    """

    relation: str
    pin: str
    event: int = 0
    files: dict[str, FileNote] = field(default_factory=dict)

    @staticmethod
    def read(relation: str, place: Mapping[str, Any], notes: Mapping[str, bytes]) -> Journal:
        """From a place of the relation and the notes of the whole source."""
        journal = Journal(relation, str(place["pin"]), int(place["event"]))
        for key, note in notes.items():
            owner, pin, path = owner_of(key)
            if (owner, pin) == (relation, journal.pin):
                journal.files[path] = decode_note(note)
        return journal

    @property
    def place(self) -> dict[str, Any]:
        """Where the relation stands."""
        return {"pin": self.pin, "event": self.event}

    def notes(self) -> dict[str, bytes]:
        """All notes of the relation."""
        return {self._key(path): note.encode() for path, note in self.files.items()}

    def put(self, path: str, note: FileNote | None) -> dict[str, bytes | None]:
        """Keep or forget one file; the notes that change by it."""
        if note is None:
            self.files.pop(path, None)
        else:
            self.files[path] = note
        return {self._key(path): None if note is None else note.encode()}

    def compare(self, listing: Iterable[FileStat]) -> tuple[list[FileStat], list[str]]:
        """(files to tell, oldest first; paths that are gone).

        A file is told when it is settled and new, of another version, or not through.
        """
        told, there = [], set()
        for stat in listing:
            there.add(stat.path)
            note = self.files.get(stat.path)
            if note is not None and note.version == stat.version:
                is_reported = not note.is_done
            else:
                is_reported = stat.is_resolved
            if is_reported:
                told.append(stat)
        told.sort(key=lambda stat: (stat.modified_us, stat.path))
        return told, sorted(self.files.keys() - there)

    def _key(self, path: str) -> str:
        return f"{quote(self.relation, safe='')}/{self.pin}/{path}"
