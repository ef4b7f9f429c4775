"""The state of one bucket of a level: the stages' operators over a local store.

The store is only a cache: it may be lost, be behind, or have stepped an epoch that was abandoned.
Its version, committed with its rows, says which epoch it is at. Invariant: what a step emits is a
function of the committed history, the epoch's input and its recorded answers, so any state that is
at the same epoch and batch is the same, whichever attempt made it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import orjson

from connectors.feed_source import REJECTED_KINDS
from connectors.pages import decode_delta, encode_delta
from connectors.spark.frame import Row
from connectors.spark.maintained.answers import AnswerRecorder
from connectors.spark.maintained.bases import ingest, open_state
from connectors.spark.maintained.changes import decode_changes, in_slices, slice_positions
from connectors.spark.maintained.files import pack, unpack
from connectors.spark.maintained.layout import COUNTED, ERRORS, FINAL, REJECTED, Layout
from connectors.spark.maintained.skew import count_rows
from connectors.spark.segment import STEP_ROWS, Segment
from connectors.spark.stages import SOURCE, SUMS, Cut, Stage
from dataflow.collect import ErrorRows
from dataflow.delta import Delta
from dataflow.expressions.evaluator import Evaluator
from dataflow.operators.base import table_error
from dataflow.operators.groups import columns_at
from dataflow.operators.tables.table import TableState, UncountedRows
from dataflow.schema import VIEW_SOURCE, RelationName
from dataflow.sql.lower.lowering import Node
from storage.delta import Column
from storage.page_cache import PageCache
from storage.rocks import RocksStore, StoreBudget
from storage.store import BulkFile

# Tags of the pages of a base relation: changes as a source reports them, or rows with weights.
CHANGES, ROWS = 0, 1
# About so many rows are stepped at a time.
SLICE_ROWS = 1 << 17
# A step's output of up to so many bytes is stored, so that a new process need not step it again.
STORED_OUTPUT_BYTES = 256 << 10
_VERSION, _OUTPUT = "version", "output"
_BUDGET = StoreBudget(run_bytes=16 << 20, ahead_bytes=8 << 20, write_buffer_bytes=4 << 20)
# Each open state adds so much to the cache of all states of the process: they differ in size.
_CACHE_BYTES = 32 << 20
_CACHE = PageCache(0)


@dataclass(frozen=True)
class Version:
    """The epoch that a state has stepped last, and its batch; epoch 0 for an empty state."""

    epoch: int = 0
    batch: str = ""


@dataclass(frozen=True)
class _Work:
    """What `Segment` needs, with the evaluator of one stage."""

    nodes: Sequence[Node]
    scope: str
    cut: Cut
    evaluator: Callable[[], Evaluator]
    columns: Mapping[RelationName, tuple[int, ...]]


class _StageState:
    """The operators of one stage in one bucket."""

    def __init__(
        self, layout: Layout, stage: Stage, bucket: int, store: RocksStore, evaluator: Evaluator
    ) -> None:
        self.stage = stage
        self._count = partial(count_rows, layout, stage, bucket)
        self.recorder = None
        if stage.number in layout.answering:
            evaluator = self.recorder = AnswerRecorder(evaluator)
        self.errors = ErrorRows()
        work = _Work(layout.nodes, layout.scope, layout.cut, lambda: evaluator, layout.columns)
        self.segment = Segment(work, stage, store, self.errors)
        self.table: TableState | None = None
        self._relation = None if stage.relation is None else layout.view.tables[stage.relation]
        if self._relation is not None and self._relation.name.source != VIEW_SOURCE:
            columns = range(len(self._relation.fields))
            freed = UncountedRows() if stage.relation in layout.view.freed else None
            self.table = TableState(self._relation, columns, store, layout.scope, freed=freed)
        self._is_cut = layout.is_cut
        self._is_single = layout.is_single(stage)
        self._buckets = layout.buckets
        self._keys = _keys_of(layout, stage)

    def step(self, pages: Mapping[int, Sequence[bytes]], *, is_first: bool) -> list[Row]:
        """Step pages by tag; return the pages for other stages and for the driver."""
        if not pages and not (is_first and self._is_single):
            return []
        counted = None
        if self.stage.kind == SOURCE:
            slices = map(self.segment.read, self._resolved(pages))
        else:
            given = self._slices({tag: _decoded(found) for tag, found in pages.items()})
            counted = self._count(given)
            slices = map(self._stepped, given)
        rows = list(self.segment.pages_of_slices(slices))
        if counted is not None:
            rows.append((COUNTED, 0, orjson.dumps(counted.facts())))
        failed = self.errors.take()
        if len(failed):
            rows.append((ERRORS, 0, encode_delta(failed)))
        rows += [(FINAL, 0, encode_delta(final)) for final in self.errors.take_final()]
        if self.table is not None and self.table.rejected:
            letters, self.table.rejected = self.table.rejected, []
            rows.append((REJECTED, 0, encode_delta(Delta.of(REJECTED_KINDS, letters))))
        return rows

    def _resolved(self, pages: Mapping[int, Sequence[bytes]]) -> Iterator[Delta]:
        """Yield the rows of pages in slices, as whole as the view's nodes need them."""
        assert self._relation is not None
        try:
            if self._is_cut:
                yield from self._deltas_of(pages)
            else:
                yield Delta.concat(list(self._deltas_of(pages))).consolidate()
        except Exception as error:
            found = table_error(self._relation.name, error)
            if found is None or found is error:
                raise
            raise found from error

    def _deltas_of(self, pages: Mapping[int, Sequence[bytes]]) -> Iterator[Delta]:
        assert self._relation is not None
        for delta in _decoded(pages.get(ROWS, ())):
            if self.table is not None:
                self.table.load(delta)
            yield delta.consolidate()
        for page in pages.get(CHANGES, ()):
            assert self.table is not None, "another view's rows come with weights"
            changes = decode_changes(self._relation, page)
            for part in in_slices(self._relation, changes, self._buckets, SLICE_ROWS):
                yield self.table.resolve(part)

    def _slices(self, given: Mapping[int, Sequence[Delta]]) -> list[dict[int, Delta]]:
        """Return rows in slices of whole keys, each consolidated: its work stays in the CPU's
        caches.

        Rows of one bucket may make up for those of another, so a slice has all rows of its keys.
        """
        rows = {tag: Delta.concat(parts) for tag, parts in given.items()}
        count = -(-max(map(len, rows.values()), default=0) // SLICE_ROWS)
        if count < 2 or not self._is_cut or self._is_single:
            return [{tag: delta.consolidate() for tag, delta in rows.items()}]
        found: list[dict[int, Delta]] = [{} for _ in range(count)]
        for tag, delta in rows.items():
            key = columns_at(delta, self._keys[tag])
            for number, at in slice_positions(key, len(delta), self._buckets, count):
                found[number][tag] = delta.take(at).consolidate()
        return [inputs for inputs in found if inputs]

    def _stepped(self, inputs: Mapping[int, Delta]) -> dict[int, Delta]:
        if self._is_single and self._is_cut and not self.stage.is_summed:
            return self.segment.step({tag: list(_parts(delta)) for tag, delta in inputs.items()})
        return self.segment.step_once(inputs)


def _parts(delta: Delta) -> Iterator[Delta]:
    for start in range(0, len(delta), STEP_ROWS):
        yield delta.slice(start, min(start + STEP_ROWS, len(delta)))


def _keys_of(layout: Layout, stage: Stage) -> Mapping[int, Sequence[int]]:
    """Return by input of a stage the columns that its rows are exchanged by."""
    if stage.kind == SOURCE:
        return {}
    keys = [key or () for key in layout.nodes[stage.nodes[0]].exchange]
    return {**dict(enumerate(keys)), SUMS: range(len(keys[0]) if keys else 0)}


def _decoded(pages: Iterable[bytes]) -> list[Delta]:
    # Copied, since a page may lie anywhere in what was read, and kernels want aligned arrays.
    return [decode_delta(bytearray(page)) for page in pages]


class BucketState:
    """A bucket of a level, with its store in `folder`. One process, one thread.

    Opening it finds what an earlier process has left there. StorageError state.locked: another
    process has it.
    """

    def __init__(
        self, layout: Layout, level: int, bucket: int, folder: Path, evaluator: Evaluator
    ) -> None:
        self.level = level
        self.bucket = bucket
        self._layout = layout
        self._folder = folder
        self._evaluator = evaluator
        self.stage_numbers = [s.number for s in layout.stages_in(level, bucket)]
        self.specs = {n: layout.specs[n] for n in self.stage_numbers}
        self.version, self.generation = Version(), 0
        self.output: list[Row] | None = None
        self._opened: RocksStore | None = None
        self._stages: dict[int, _StageState] = {}
        if folder.exists():
            self._open()

    @property
    def is_open(self) -> bool:
        """Whether there is a store; a new bucket has none before `reset`."""
        return self._opened is not None

    @property
    def store(self) -> RocksStore:
        """The store of an open state."""
        assert self._opened is not None, "the state was never reset"
        return self._opened

    def _open(self, files: Sequence[BulkFile] = ()) -> None:
        """Open the store; files: of a base, for an empty one."""
        layout = self._layout
        self._opened = RocksStore(self._folder, _CACHE, budget=_BUDGET)
        _CACHE.resize(_CACHE_BYTES)
        specs = [spec for specs in self.specs.values() for spec, _ in specs]
        if files:
            ingest(self.store, specs, files, Path(files[0].path).parent)
        for spec in specs:
            open_state(self.store, spec)
        self._stages = {
            layout.slot_of(stage, self.bucket): _StageState(
                layout, stage, self.bucket, self.store, self._evaluator
            )
            for stage in layout.stages_in(self.level, self.bucket)
        }
        stored = self.store.get(_VERSION)
        if stored is not None:
            epoch, batch, self.generation = orjson.loads(stored)
            self.version = Version(epoch, batch)
        output = self.store.get(_OUTPUT)
        self.output = None if output is None else list(unpack(output))

    def reset(self, version: Version, files: Sequence[BulkFile] = ()) -> None:
        """Replace the state by a base's; without files, by nothing."""
        self.discard()
        self._open(files)
        self.commit(version, None)

    def reopen(self) -> None:
        """Drop what was not committed."""
        self.close()
        self._open()

    def step(
        self,
        pages: Mapping[int, Mapping[int, Sequence[bytes]]],
        *,
        is_first: bool,
        answers: Mapping[int, bytes] | None = None,
    ) -> list[Row]:
        """Step the pages of an epoch, by slot and tag; nothing is committed.

        answers: those that an earlier attempt recorded, by slot; None to record new ones.
        """
        rows: list[Row] = []
        for slot, state in self._stages.items():
            if state.recorder is not None:
                if answers is None or slot not in answers:
                    state.recorder.record()
                else:
                    state.recorder.replay(answers[slot])
            rows += state.step(pages.get(slot, {}), is_first=is_first)
            self.store.relieve()
        return rows

    def recorded(self) -> dict[int, bytes]:
        """Return the answers recorded by the last step, by slot."""
        found = {
            slot: state.recorder.recorded
            for slot, state in self._stages.items()
            if state.recorder is not None
        }
        return {slot: answers for slot, answers in found.items() if answers is not None}

    def commit(self, version: Version, output: list[Row] | None) -> None:
        """Commit the open step as of a version, and remember its output."""
        facts = orjson.dumps([version.epoch, version.batch, self.generation])
        self.store.put(_VERSION, facts)
        size = sum(len(page) for _, _, page in output or ())
        is_stored = output is not None and size <= STORED_OUTPUT_BYTES
        self.store.put(_OUTPUT, pack(output) if output is not None and is_stored else None)
        self.store.commit()
        self.version, self.output = version, output

    def lookup(self, slot: int, keys: Sequence[Column]) -> Delta:
        """Return the rows of a base relation by keys."""
        spec = self._layout.table_of(self._layout.stage_of(slot))
        assert spec is not None, "only stored relations are looked up"
        return self.store.arrange(spec).lookup(keys)[1]

    def first_change(self, number: int, values: Column) -> int:
        """See `Segment.first_change`; of the stage that has the node."""
        (stage,) = (s for s in self._stages.values() if number in s.stage.nodes)
        return stage.segment.first_change(number, values)

    def discard(self) -> None:
        """Close the store and delete it."""
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def close(self) -> None:
        """Close the store; what was not committed is dropped."""
        if self._opened is not None:
            opened, self._opened = self._opened, None
            try:
                opened.close()
            finally:
                _CACHE.resize(-_CACHE_BYTES)
