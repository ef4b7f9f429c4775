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

_POSITION = REJECTED_COLUMNS.index("position")
_KEY = REJECTED_COLUMNS.index("key")


@dataclass(frozen=True)
class _RejectedRow:
    """A rejected row: its index, its number in the file and the file's version."""

    index: int
    number: int
    version: str


def try_again(shape: Shape, relation: Relation, source: str, rows: Delta) -> SourceBatch:
    """Return the changes of rows that are valid now, and all resolved rows at weight -1."""
    folder = shape.options.folder()
    there = {stat.path: stat for stat in folder.list_files()}
    reader = FileReader(shape, folder)
    changes: list[Changes] = []
    resolved: list[int] = []
    for path, rejected_rows in _by_file(rows).items():
        stat = there.get(path)
        if stat is None:
            if shape.options.on_removed != KEEP:
                resolved += [rejected.index for rejected in rejected_rows]
            continue
        resolved += [
            rejected.index for rejected in rejected_rows if rejected.version != stat.version
        ]
        same = [
            rejected
            for rejected in rejected_rows
            if rejected.version == stat.version and rejected.number
        ]
        if same:
            found, emitted = _read_again(reader, relation, stat, same)
            changes += emitted
            resolved += found
    index = np.array(sorted(resolved), np.int64)
    repaired = rows.take(index)
    return SourceBatch(
        0,
        [joined(changes)] if changes else [],
        0,
        sum(len(c) for c in changes),
        source=source,
        rejected=repaired.weighted(np.full(len(index), -1, np.int64)),
    )


def _by_file(rows: Delta) -> dict[str, list[_RejectedRow]]:
    found: dict[str, list[_RejectedRow]] = defaultdict(list)
    positions = rows.columns[_POSITION].texts()
    versions = rows.columns[_KEY].texts()
    for index, (position, version) in enumerate(zip(positions, versions, strict=True)):
        path, _, number = (position or "").rpartition(":")
        if not path or not number.isdigit():
            path, number = position or "", "0"
        found[path].append(_RejectedRow(index, int(number), version or ""))
    return found


def _read_again(
    reader: FileReader, relation: Relation, stat: FileStat, rejected_rows: list[_RejectedRow]
) -> tuple[list[int], list[Changes]]:
    by_number = {rejected.number: rejected.index for rejected in rejected_rows}
    numbers = np.array(sorted(by_number), np.int64)
    selected = [reader.shape.field_index(f.name) for f in relation.fields]
    kind = Changes.INSERT if reader.shape.options.is_append else Changes.UPSERT
    resolved: list[int] = []
    changes: list[Changes] = []
    try:
        for rows in reader.read(stat, last=int(numbers[-1])):
            keep = np.flatnonzero(np.isin(rows.numbers, numbers))
            if not len(keep):
                continue
            columns = tuple(rows.columns[i].take(keep) for i in selected)
            changes.append(Changes(relation, np.full(len(keep), kind, np.uint8), columns))
            resolved += [by_number[n] for n in rows.numbers[keep].tolist()]
    except UnreadableFile:
        # The file is broken after the rows that could be read; the others stay rejected.
        return resolved, changes
    return resolved, changes
