"""The source tasks of a distributed view: they read ranges, and store what the buckets are to step.

They come before an epoch is fixed. A task reads and decodes its ranges, cuts their changes by the
keys of the relations' buckets, and writes them to a file of its own; the driver then fixes an input
that names the files of one attempt of each task. Invariant: nothing that a task has read counts
before that, and nothing is read from a source after it. So a source may give something else the
second time, as a compacted topic does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from uuid import uuid4

import orjson

from connectors.feed_source import FeedRange, RangePlanner, RangeResult
from connectors.pages import decode_delta, encode_delta
from connectors.source import SourceBatch, StoredInput
from connectors.spark.frame import Row
from connectors.spark.maintained.bucket_state import CHANGES
from connectors.spark.maintained.changes import cut_changes, encode_changes, join_changes
from connectors.spark.maintained.files import numbered, pack_sections
from connectors.spark.maintained.layout import FAILED, READ, REJECTED, WRITTEN, Layout
from connectors.spark.maintained.tasks import Job
from connectors.spark.records import decode_error, encode_error
from dataflow.changes import Changes
from dataflow.delta import Delta
from dataflow.errors import InvariantError, TidemarkError
from dataflow.schema import Relation, RelationName
from storage.failpoints import failpoint

# Up to so many records are read by the driver, since a job takes longer than reading them.
FEW_RECORDS = 1_000
# What a record of a topic takes on its way, for the deadline of those who read it.
RECORD_BYTES = 1_024


@dataclass(frozen=True)
class ReadWork:
    """Reads ranges and stores their changes for an epoch that is not fixed yet."""

    job: Job
    epoch: int
    ranges: tuple[FeedRange, ...] = field(repr=False)

    @property
    def steps(self) -> int:
        """See Work."""
        return 1

    @property
    def groups(self) -> int:
        """See Work."""
        return self.job.groups

    @property
    def nbytes(self) -> int:
        """See Work."""
        return RECORD_BYTES * sum(one.size for one in self.ranges)

    def group_of(self, slot: int, group: int) -> int:
        """See Work."""
        return group

    def run(self, step: int, group: int, rows: Iterable[Row], folder: str) -> Iterable[Row]:
        """Read the ranges of a group; return what was found in each, and where their changes are.

        An error is returned too: the source is asked again later, not at once by another task.
        """
        own = self._ranges_of(group)
        if not own:
            return []
        try:
            return self._read(own)
        except TidemarkError as error:
            return [(FAILED, 0, encode_error(error))]

    def _ranges_of(self, group: int) -> list[tuple[int, FeedRange]]:
        """Return contiguous ranges with their numbers; all groups have about as many records."""
        sizes = [one.size for one in self.ranges]
        step = -(-sum(sizes) // self.groups)
        before = accumulate(sizes, initial=0)
        # A range without records at the end is of the last group.
        last = self.groups - 1
        places = [min(last, at // max(1, step)) for at, _ in zip(before, sizes, strict=False)]
        return [
            (number, one)
            for number, (one, place) in enumerate(zip(self.ranges, places, strict=True))
            if place == group
        ]

    def _read(self, own: Sequence[tuple[int, FeedRange]]) -> list[Row]:
        layout, out = self.job.layout, list[Row]()
        found: dict[tuple[RelationName, int], list[Changes]] = {}
        for number, one in own:
            table = layout.view.tables[one.relation]
            for changes in one.read():
                cut = cut_changes(table, [changes], layout.buckets, _not_fetched)
                for bucket, part in enumerate(cut):
                    if len(part):
                        found.setdefault((one.relation, bucket), []).append(part)
            out += _result_rows(number, one.result())
        failpoint("spark.range.read")
        if found:
            name = f"{numbered('input', self.epoch)}-{uuid4().hex}"
            content, sections = pack_sections(_pages(layout, found))
            self.job.storage.put(name, content)
            out.append((WRITTEN, own[0][0], orjson.dumps([name, sections])))
        return out


def _pages(
    layout: Layout, found: Mapping[tuple[RelationName, int], Sequence[Changes]]
) -> dict[int, list[Row]]:
    """Return the pages of each bucket, one for each relation."""
    pages: dict[int, list[Row]] = {}
    for (name, bucket), parts in found.items():
        slot = layout.slot_of(layout.source_of(name), bucket)
        page = encode_changes(join_changes(layout.view.tables[name], parts))
        pages.setdefault(bucket, []).append((slot, CHANGES, page))
    return pages


def read_next(
    planner: RangePlanner,
    work: ReadWork,
    max_rows: int,
    run: Callable[[ReadWork], Sequence[Row]],
) -> SourceBatch | None:
    """Return the batch of what comes next, stored for the epoch of a work; None if nothing does.

    work: without ranges. max_rows: about how many records a task reads. run: returns the rows of
    all its tasks. It raises as `SourceFeed.poll` does.
    """
    ranges = planner.cut(work.groups, max_rows * work.groups)
    while ranges:
        rows = run(replace(work, ranges=tuple(ranges)))
        results = _results(rows, len(ranges))
        if all(result.is_whole for result in results):
            batch = planner.join(ranges, results)
            written = sorted((number, orjson.loads(page)) for slot, number, page in rows
                             if slot == WRITTEN)  # fmt: skip
            parts = tuple((name, sections) for _, (name, sections) in written)
            batch.stored = StoredInput(work.epoch, work.job.buckets, parts) if parts else None
            return batch
        ranges = planner.shorten(ranges, results)
    return None


def _results(rows: Sequence[Row], count: int) -> list[RangeResult]:
    """Return what was found in each of so many ranges. TidemarkError of a failed task."""
    failures = [decode_error(page) for slot, _, page in rows if slot == FAILED]
    if failures:
        raise failures[0]
    facts = {number: orjson.loads(page) for slot, number, page in rows if slot == READ}
    rejected = {number: page for slot, number, page in rows if slot == REJECTED}
    if facts.keys() != set(range(count)):
        raise InvariantError("spark.exchange", f"{len(facts)} of {count} ranges were read")
    found = []
    for number in range(count):
        own, is_whole, failure = facts[number]
        error = None if failure is None else decode_error(failure.encode())
        delta = decode_delta(bytearray(rejected[number]))
        found.append(RangeResult(own, delta, is_whole, error))
    return found


def _not_fetched(relation: Relation, keys: Delta) -> Delta:
    raise InvariantError("spark.exchange", f'a range of "{relation.name}" omits values')


def _result_rows(number: int, result: RangeResult) -> list[Row]:
    failure = None if result.failure is None else encode_error(result.failure).decode()
    facts = orjson.dumps([result.facts, result.is_whole, failure])
    return [(READ, number, facts), (REJECTED, number, encode_delta(result.rejected))]
