"""Folders and buckets of files as a source (see the contract `connectors/<type>/source`).

Nothing is reached before the first use. A folder has no history: emitted changes cannot be emitted
again, so the source is not replayable. The journal, stored with the state, says what was emitted.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from connectors.feed_source import DeclaredRelation, FeedPositions, FeedStart, undeclared
from connectors.files.discover import discover_columns
from connectors.files.feed import FilesFeed, batch_of
from connectors.files.folder import Folder
from connectors.files.journal import FileNote, FileStat, Journal, owner_of
from connectors.files.options import FAIL, read_options
from connectors.files.reading import FileReader, Measure
from connectors.files.rejected import broken_file, rejected_rows
from connectors.files.repair import try_again
from connectors.files.shape import Shape, declared_relation, make_shape
from connectors.files.snapshot import FilesSnapshot
from connectors.files.stream import UnreadableFile
from connectors.files.watch import FolderWatch, Piece
from connectors.source import SourceBatch
from dataflow.delta import Delta
from dataflow.errors import SourceError, TemporaryError
from dataflow.schema import Relation

# How many files are measured in parallel: most of the time is spent waiting for store or disk.
_MEASURING = 4


def declare(options: Mapping[str, Any]) -> Sequence[DeclaredRelation]:
    """Return the relations that the options declare."""
    return [declared_relation(relation) for relation in read_options(options)]


def make(name: str, options: Mapping[str, Any], relations: Sequence[Relation]) -> FilesSource:
    """Return the source, with its declared relations."""
    return FilesSource(name, options, relations)


def discover(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options with columns proposed for each relation that has none."""
    columns = {f.relation: list(f.columns) or discover_columns(f) for f in read_options(options)}
    relations: Mapping[str, Any] = options["relations"]
    proposed = {name: {**relations[name], "columns": found} for name, found in columns.items()}
    return {**options, "relations": proposed}


class FilesSource:
    """A FeedSource of files. relations: from `declare`, with resolved types."""

    is_replayable = False

    def __init__(
        self, name: str, options: Mapping[str, Any], relations: Sequence[Relation]
    ) -> None:
        self.name = name
        self._relations = list(relations)
        declared = {found.relation: found for found in read_options(options)}
        self._shapes: dict[str, Shape] = {}
        for relation in relations:
            own = relation.name.name
            if own not in declared:
                raise undeclared(name, relation)
            self._shapes[own] = make_shape(declared[own], relation)

    def relations(self) -> Sequence[Relation]:
        """What can be read, as it was declared."""
        return self._relations

    def check(self) -> None:
        """List each folder, and read the first rows of its newest file."""
        for shape in self._shapes.values():
            folder = shape.options.folder()
            try:
                found = folder.list_files()
                _check_newest(shape, folder, found)
            except TemporaryError as error:
                if error.code != "source.folder":
                    raise
                # The file may come later, but a new declaration without files is most likely a
                # typo.
                raise SourceError(
                    "source.folder", error.what, detail=error.detail, hint=error.hint
                ) from error

    def start_position(self, relation: Relation) -> FeedStart:
        """Return the position with the existing files, which are read once to number their rows."""
        shape = self._shapes[relation.name.name]
        folder = shape.options.folder()
        found = folder.list_files()
        if not all(stat.is_resolved for stat in found):
            time.sleep(shape.options.settle_s)
            found = folder.list_files()
        journal = Journal(relation.name.name, uuid.uuid4().hex[:12])
        stable = [stat for stat in found if stat.is_resolved]
        with ThreadPoolExecutor(_MEASURING) as pool:
            measures = pool.map(lambda stat: _measured(shape, folder, stat), stable)
            for stat, measure in zip(stable, measures, strict=True):
                if measure is not None:
                    journal.files[stat.path] = _first_note(shape, stat, measure)
        return FeedStart(journal.position, journal.notes())

    def first_position(self, relation: Relation) -> FeedStart:
        """See BoundedSource: the position with no files."""
        return FeedStart(Journal(relation.name.name, uuid.uuid4().hex[:12]).position)

    def current_end(self, relations: Sequence[Relation]) -> dict[str, list[FileStat]]:
        """See BoundedSource: the files there are, by relation.

        Those that may still be written are left for the next time, if they do not settle.
        """
        shapes = [self._shapes[relation.name.name] for relation in relations]
        folders = {shape.name.name: shape.options.folder() for shape in shapes}
        found = {name: list(folder.list_files()) for name, folder in folders.items()}
        if not all(stat.is_resolved for files in found.values() for stat in files):
            time.sleep(max(shape.options.settle_s for shape in shapes))
            found = {name: list(folder.list_files()) for name, folder in folders.items()}
        return found

    def read_until(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        end: Mapping[str, list[FileStat]],
        max_rows: int,
    ) -> Iterator[SourceBatch]:
        """See BoundedSource. A file that has changed since is left for the next time."""
        watches, dropped = self._watches(relations, positions, notes)
        pieces: list[Piece] = []
        for name, watch in watches.items():
            for piece in watch.poll(end[name]):
                # A piece without rows, such as the end of a file, is in the batch before it.
                if piece.rows and sum(one.rows for one in pieces) >= max_rows:
                    yield batch_of(self.name, pieces, dropped)
                    pieces, dropped = [], {}
                pieces.append(piece)
        if pieces:
            yield batch_of(self.name, pieces, dropped)

    def open_snapshot(
        self, relations: Sequence[Relation], positions: FeedPositions, notes: Mapping[str, bytes]
    ) -> FilesSnapshot:
        """Return the rows of the files in the notes."""
        shapes = {r.name.name: self._shapes[r.name.name] for r in relations}
        return FilesSnapshot(shapes, positions, notes)

    def open_feed(
        self,
        relations: Sequence[Relation],
        positions: FeedPositions,
        notes: Mapping[str, bytes],
        on_ready: Callable[[], None],
    ) -> FilesFeed:
        """Return the changes of the folders since these positions."""
        watches, dropped = self._watches(relations, positions, notes)
        paused = {
            name: (watch, self._shapes[name].options.poll_s) for name, watch in watches.items()
        }
        return FilesFeed(self.name, paused, dropped, on_ready)

    def _watches(
        self, relations: Sequence[Relation], positions: FeedPositions, notes: Mapping[str, bytes]
    ) -> tuple[dict[str, FolderWatch], dict[str, None]]:
        """Return the watches by relation, and the notes that belong to none of them."""
        watches = {}
        for relation in relations:
            name = relation.name.name
            shape = self._shapes[name]
            journal = Journal.read(name, positions[name], notes)
            watches[name] = FolderWatch(shape, relation, shape.options.folder(), journal)
        snapshot_offsets = {(name, str(position["pin"])) for name, position in positions.items()}
        return watches, {k: None for k in notes if owner_of(k)[:2] not in snapshot_offsets}

    def decode_again(self, relation: Relation, rows: Delta) -> SourceBatch:
        """Read rejected rows again from their files."""
        return try_again(self._shapes[relation.name.name], relation, self.name, rows)


def _check_newest(shape: Shape, folder: Folder, found: Sequence[FileStat]) -> None:
    """Check that the newest file has the declared columns and its first rows are valid."""
    stable = [stat for stat in found if stat.is_resolved]
    barred = [stat for stat in stable if stat.fault]
    stable = [stat for stat in stable if not stat.fault]
    if barred and shape.options.on_error == FAIL:
        what = f'file "{barred[0].path}" cannot be read: {barred[0].fault}'
        hint = 'rename or remove it, or set on_error to "skip" or "dead_letter"'
        raise SourceError(barred[0].code, what, hint=hint)
    if not stable:
        return
    newest = max(stable, key=lambda stat: (stat.modified_us, stat.path))
    reader = FileReader(shape, folder)
    try:
        lacking = reader.lacking(newest)
        if lacking:
            raise _misfit(shape, newest, f"it has no column {', '.join(lacking)}")
        for rows in reader.read(newest):
            if len(rows.numbers):
                return
            if rows.bad:
                raise _misfit(shape, newest, f"row {rows.bad[0].number}: {rows.bad[0].reason}")
    except UnreadableFile as error:
        raise _misfit(shape, newest, str(error)) from None


def _misfit(shape: Shape, stat: FileStat, detail: str) -> SourceError:
    what = f'"{stat.path}" does not fit relation "{shape.name}"'
    hint = "compare the declared columns and options with the file"
    return SourceError("source.bad_sample", what, detail=detail, hint=hint)


def _measured(shape: Shape, folder: Folder, stat: FileStat) -> Measure | None:
    """Measure a file; None if it has another version now, which the feed will emit."""
    try:
        return FileReader(shape, folder).measure(stat)
    except TemporaryError as error:
        if error.code != "source.file_changed":
            raise
        return None


def _first_note(shape: Shape, stat: FileStat, measure: Measure) -> FileNote:
    reach = measure.reach
    if measure.broken:
        rejected_rows(shape, stat, [broken_file(measure.broken)])
        reach = reach if shape.options.is_append else 0
    splits = measure.splits if reach else ()
    note = FileNote(stat.version, stat.size, stat.modified_us, 0, reach, is_done=True)
    return FileNote(**{**vars(note), "splits": splits, "broken": measure.broken})
