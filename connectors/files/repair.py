"""Retry of rejected rows: read them again from the same version of their file.

Invariant: a row of a version that was replaced or removed never comes back. The feed has emitted
the newer content, so such a rejected row is only dropped.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from connectors.feed_source import REJECTED_COLUMNS
from connectors.files.journal import FileStat
from connectors.files.options import KEEP
from connectors.files.reading import FileReader
from connectors.files.shape import Shape
from connectors.files.stream import UnreadableFile
from connectors.files.watch import joined
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.schema import Relation

_PLACE = REJECTED_COLUMNS.index("place")
_KEY = REJECTED_COLUMNS.index("key")


@dataclass(frozen=True)
class _Letter:
    """A rejected row: its index, its number in the file and the file's version."""

    index: int
    number: int
    version: str


def try_again(shape: Shape, relation: Relation, source: str, rows: Delta) -> SourceBatch:
    """Return the changes of rows that are valid now, and all resolved rows at weight -1."""
    folder = shape.options.folder()
    there = {stat.path: stat for stat in folder.look()}
    reader = FileReader(shape, folder)
    changes: list[Changes] = []
    settled: list[int] = []
    for path, letters in _by_file(rows).items():
        stat = there.get(path)
        if stat is None:
            if shape.options.on_removed != KEEP:
                settled += [letter.index for letter in letters]
            continue
        settled += [letter.index for letter in letters if letter.version != stat.version]
        same = [letter for letter in letters if letter.version == stat.version and letter.number]
        if same:
            found, told = _read_again(reader, relation, stat, same)
            changes += told
            settled += found
    index = np.array(sorted(settled), np.int64)
    repaired = rows.take(index)
    return SourceBatch(
        0,
        [joined(changes)] if changes else [],
        0,
        sum(len(c) for c in changes),
        source=source,
        rejected=repaired.weighted(np.full(len(index), -1, np.int64)),
    )


def _by_file(rows: Delta) -> dict[str, list[_Letter]]:
    found: dict[str, list[_Letter]] = defaultdict(list)
    places = rows.columns[_PLACE].texts()
    versions = rows.columns[_KEY].texts()
    for index, (place, version) in enumerate(zip(places, versions, strict=True)):
        path, _, number = (place or "").rpartition(":")
        if not path or not number.isdigit():
            path, number = place or "", "0"
        found[path].append(_Letter(index, int(number), version or ""))
    return found


def _read_again(
    reader: FileReader, relation: Relation, stat: FileStat, letters: list[_Letter]
) -> tuple[list[int], list[Changes]]:
    by_number = {letter.number: letter.index for letter in letters}
    numbers = np.array(sorted(by_number), np.int64)
    wanted = [reader.shape.field_index(f.name) for f in relation.fields]
    kind = Changes.INSERT if reader.shape.options.is_append else Changes.UPSERT
    settled: list[int] = []
    changes: list[Changes] = []
    try:
        for rows in reader.read(stat, last=int(numbers[-1])):
            keep = np.flatnonzero(np.isin(rows.numbers, numbers))
            if not len(keep):
                continue
            columns = tuple(rows.columns[i].take(keep) for i in wanted)
            changes.append(Changes(relation, np.full(len(keep), kind, np.uint8), columns))
            settled += [by_number[n] for n in rows.numbers[keep].tolist()]
    except UnreadableFile:
        # The file is broken after the rows that could be read; the others stay rejected.
        return settled, changes
    return settled, changes
