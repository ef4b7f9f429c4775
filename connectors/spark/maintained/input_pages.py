"""The pages of an epoch's input, and a batch too large for the driver's memory.

Such a batch is cut and stored chunk by chunk, as what tasks read of topics is (`reading`); the
epoch then names the files. Invariant: the pages of all chunks, in order, give each bucket the
changes that one input would have given it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import uuid4

import numpy as np

from connectors.source import StoredInput
from connectors.spark.frame import Row
from connectors.spark.maintained.bucket_state import CHANGES
from connectors.spark.maintained.changes import (
    Fetch,
    changes_of_keys,
    cut_changes,
    decode_changes,
    encode_changes,
)
from connectors.spark.maintained.files import numbered, pack_sections, unpack
from connectors.spark.maintained.layout import Layout
from connectors.spark.maintained.tasks import Job
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.operators.base import kinds_of
from dataflow.operators.tables.table import TableState
from dataflow.schema import Relation, RelationName
from storage.bulk import partition_positions
from storage.memory import MemoryStore

# A file of a batch that is stored in several.
FILE_BYTES = 8 << 20


def pages_of_changes(
    layout: Layout, changes: Sequence[Changes], fetch: Fetch
) -> dict[int, list[Row]]:
    """Return the pages of each bucket; changes of other relations are left out. fetch: as of
    `cut_changes`."""
    tables = layout.view.tables
    changed: dict[RelationName, list[Changes]] = {}
    for part in changes:
        if part.relation.name in tables and len(part):
            changed.setdefault(part.relation.name, []).append(part)
    found: dict[int, list[Row]] = {}
    for name, parts in changed.items():
        stage = layout.source_of(name)
        cut = cut_changes(tables[name], parts, layout.buckets, fetch)
        for bucket, own in enumerate(cut):
            if len(own):
                row = layout.slot_of(stage, bucket), CHANGES, encode_changes(own)
                found.setdefault(bucket, []).append(row)
    return found


class LargeInput:
    """The changes of one batch, stored for the next epoch chunk by chunk.

    fetch: returns rows as of the epoch before. What a chunk has changed counts for those after it.
    """

    def __init__(self, job: Job, epoch: int, fetch: Fetch) -> None:
        self._job = job
        self._epoch = epoch
        self._stored = fetch
        self._parts: list[tuple[str, Mapping[str, Sequence[int]]]] = []
        self._held: dict[int, list[Row]] = {}
        self._held_bytes = 0

    def add(self, changes: Sequence[Changes]) -> None:
        """Store a chunk, after which each relation is in a legal state. TemporaryError
        spark.storage."""
        for bucket, pages in pages_of_changes(self._job.layout, changes, self._fetch).items():
            self._held.setdefault(bucket, []).extend(pages)
            self._held_bytes += sum(len(page) for _, _, page in pages)
        if self._held_bytes >= FILE_BYTES:
            self._put()

    def _put(self) -> None:
        content, sections = pack_sections(self._held)
        self._held, self._held_bytes = {}, 0
        if sections:
            name = f"{numbered('input', self._epoch)}-{uuid4().hex}"
            self._job.storage.put(name, content)
            self._parts.append((name, sections))

    def finish(self) -> StoredInput | None:
        """Return where it is; None if nothing of it concerns the view."""
        self._put()
        if not self._parts:
            return None
        return StoredInput(self._epoch, self._job.buckets, tuple(self._parts))

    def _fetch(self, table: Relation, keys: Delta) -> Delta:
        """Return the rows of these keys after the chunks so far."""
        rows = self._stored(table, keys)
        self._put()
        if not self._parts:
            return rows
        state = TableState(table, range(len(table.fields)), MemoryStore(), "fetched")
        state.load(rows)
        layout = self._job.layout
        stage = layout.source_of(table.name)
        for bucket, at in partition_positions(keys.columns, len(keys), layout.buckets):
            slot, own = layout.slot_of(stage, bucket), keys.take(np.asarray(at))
            for name, sections in self._parts:
                if str(bucket) not in sections:
                    continue
                start, stop = sections[str(bucket)]
                for _, _, page in unpack(self._job.storage.get(name, start, stop), [slot]):
                    state.resolve(changes_of_keys(table, decode_changes(table, page), own))
        empty = Delta.empty(kinds_of(table.fields))
        return Delta.concat([empty, *state.rows()])
