"""The tasks of a distributed view: step an epoch, look rows up, export state.

A process caches the buckets that its tasks have opened. Before a task uses one, it brings it to the
committed epoch that the driver names: a state at that version is used, one behind catches up, any
other is replaced from its base and the logs after it. Invariant: what a task emits depends on
nothing that is only in its process or on its disk.
"""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import shutil
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import ParamSpec

import orjson

from connectors import netguard
from connectors.objects.shared_storage import NameTakenError, SharedStorage
from connectors.pages import decode_delta, encode_delta
from connectors.spark.frame import Row
from connectors.spark.maintained.bases import (
    cut_files,
    new_folder,
    read_bases,
    write_base,
    write_files,
)
from connectors.spark.maintained.bucket_state import BucketState, Version
from connectors.spark.maintained.commits import base_epoch, lost
from connectors.spark.maintained.files import (
    EpochInput,
    Manifest,
    digest_of,
    input_name,
    numbered,
    pack,
    require_digest,
    unpack_views,
)
from connectors.spark.maintained.layout import (
    ANSWERED,
    FAILED,
    LOGGED,
    MEASURED,
    OUTPUT,
    STORED,
    WRITTEN,
    Layout,
    MaintainedView,
    Spread,
)
from connectors.spark.maintained.output import SHOWN, parts_of
from connectors.spark.records import encode_error
from dataflow.errors import TemporaryError, TidemarkError
from dataflow.expressions.evaluator import Evaluator
from storage.errors import StorageError
from storage.failpoints import failpoint

# Pages for one task of a later step with so many bytes are stored by the task that made them.
FILED_BYTES = 1 << 20
# The tag of a row that says where they are.
_FILED = -1

Pages = dict[int, dict[int, list[bytes]]]
_P = ParamSpec("_P")


@lru_cache(maxsize=4)
def _view_of(content: bytes) -> MaintainedView:
    view: MaintainedView = pickle.loads(content)
    netguard.install(view.guard)
    return view


@lru_cache(maxsize=4)
def _evaluator_of(content: bytes) -> Evaluator:
    return _view_of(content).evaluator()


@lru_cache(maxsize=8)
def _layout_of(content: bytes, buckets: int, spread: Spread) -> Layout:
    return Layout(_view_of(content), buckets, spread)


@dataclass(frozen=True)
class Job:
    """What all tasks of a view share.

    content: the pickled MaintainedView, which goes from the driver to the tasks and is in no file.
    previous: the committed version that every state is brought to. generation: of the driver.
    spread: the keys that are spread after that version, and while its next epoch is stepped.
    commit: the digest of that version's manifest. nbytes: of what the tasks read at worst.
    """

    content: bytes = field(repr=False)
    storage: SharedStorage
    buckets: int
    groups: int
    generation: int
    previous: Version
    spread: Spread = ()
    commit: str = ""
    nbytes: int = 0

    @property
    def layout(self) -> Layout:
        """The stages over the buckets."""
        return _layout_of(self.content, self.buckets, self.spread)

    def buckets_of(self, group: int) -> range:
        """Return the contiguous buckets of a group.

        Of 5 buckets in 2 groups: 0 and 1, then 2 to 4.
        """
        first, end = group * self.buckets, (group + 1) * self.buckets
        return range(first // self.groups, end // self.groups)

    def group_of(self, slot: int, group: int) -> int:
        """See Work: rows for the driver stay where they are."""
        if slot < 0:
            return group
        # The inverse of buckets_of.
        return ((Layout.bucket_of(slot) + 1) * self.groups - 1) // self.buckets


# --- states of this process ----------------------------------------------------------------------

_Key = tuple[str, int, Spread, int, int]


class _States:
    """The open buckets of this process, by folder.

    restored: how many were made from their bases; replayed: how many epochs were stepped again.
    """

    def __init__(self) -> None:
        self.restored = self.replayed = 0
        self._open: dict[tuple[str, str], dict[_Key, BucketState]] = {}
        atexit.register(self.close)

    def find(self, job: Job, level: int, bucket: int, folder: str) -> BucketState:
        """Return a bucket's state at whatever version is cached."""
        view = job.layout.view
        states = self._open.setdefault((folder, view.scope), {})
        # Where other keys were spread, the operators of a state sent their rows elsewhere.
        layout = (view.identity, job.buckets, job.spread)
        stale = [k for k in states if k[:3] != layout]
        for key in stale:
            states.pop(key).close()
        key = (*layout, level, bucket)
        if key not in states:
            states[key] = self._opened(job, level, bucket, Path(folder))
        return states[key]

    def _opened(self, job: Job, level: int, bucket: int, folder: Path) -> BucketState:
        name = f"{job.layout.view.identity}/{job.buckets}/{level}-{bucket}"
        path, evaluator = folder / name, _evaluator_of(job.content)
        try:
            return BucketState(job.layout, level, bucket, path, evaluator)
        except StorageError as error:
            if error.code == "state.locked":
                # Another process of this machine has not ended yet: start from the base.
                path = folder / f"process-{os.getpid()}" / name
            else:
                shutil.rmtree(path, ignore_errors=True)
            return BucketState(job.layout, level, bucket, path, evaluator)

    def drop(self, state: BucketState, *, is_damaged: bool) -> None:
        """Forget what a failed task has not committed; all of it, if the store failed."""
        for states in self._open.values():
            for key, found in list(states.items()):
                if found is state:
                    del states[key]
        if is_damaged:
            state.discard()
        else:
            state.close()

    def close(self, folder: str | None = None) -> None:
        """Close all states, or those of a folder."""
        for key in [k for k in self._open if folder in (None, k[0])]:
            for state in self._open.pop(key).values():
                state.close()


STATES = _States()


def state_at(job: Job, level: int, bucket: int, folder: str) -> BucketState:
    """Return a bucket's state at the job's previous version, exactly.

    TemporaryError spark.late_task: the state belongs to a later driver or epoch, so this task is a
    late copy. TidemarkError spark.state_lost: a file of the committed history is missing.
    """
    state = STATES.find(job, level, bucket, folder)
    _check_in_time(job, state)
    if state.version != job.previous or not state.is_open:
        with _dropped_if_failed(state):
            _bring_to(job, state, folder)
    state.generation = job.generation
    return state


def _check_in_time(job: Job, state: BucketState) -> None:
    """A later driver may go back to an earlier epoch, an earlier one may not step at all."""
    is_over = state.generation == job.generation and state.version.epoch > job.previous.epoch + 1
    if state.generation > job.generation or is_over:
        raise TemporaryError(
            "spark.late_task",
            "a task of an earlier epoch or driver came late",
            detail=f"bucket {state.level}-{state.bucket} is at epoch {state.version.epoch}",
            hint="no action needed",
        )


@contextmanager
def _dropped_if_failed(state: BucketState) -> Iterator[None]:
    """Drop a state that was left in the middle; the next task finds its committed version."""
    try:
        yield
    except StorageError as error:
        STATES.drop(state, is_damaged=True)
        raise TemporaryError(
            "spark.local_state",
            "the local state of a bucket failed",
            detail=str(error)[:500],
            hint="no action needed: it is made again from the shared storage",
        ) from error
    except BaseException:
        STATES.drop(state, is_damaged=False)
        raise


def _bring_to(job: Job, state: BucketState, folder: str) -> None:
    manifests = _Manifests(job)
    try:
        if not _can_catch_up(job, state, manifests):
            _restore(job, state, manifests, folder)
            STATES.restored += 1
        for epoch in range(state.version.epoch + 1, job.previous.epoch + 1):
            _replay(job, state, manifests[epoch])
            STATES.replayed += 1
    except FileNotFoundError as error:
        raise lost(str(error)[:500]) from error


class _Manifests:
    """Committed epochs by number, each read once: those of the driver's history."""

    def __init__(self, job: Job) -> None:
        self._storage = job.storage
        self._newest = job.previous.epoch
        self._found: dict[int, Manifest] = {}
        # Each manifest names the one before it.
        self._digests = {self._newest: job.commit}

    def __getitem__(self, epoch: int) -> Manifest:
        for number in range(min(self._digests), epoch - 1, -1):
            name = numbered("manifest", number)
            content = self._storage.get(name)
            require_digest(content, self._digests[number], name)
            self._found[number], _ = Manifest.decode(content)
            self._digests[number - 1] = self._found[number].before
        return self._found[epoch]


def _can_catch_up(job: Job, state: BucketState, manifests: _Manifests) -> bool:
    """Return whether a state is at an earlier epoch of the history, of which the rest is there."""
    at, target = state.version, job.previous
    if not 0 < at.epoch < target.epoch:
        return False
    base = _base_epoch(job, state, manifests)
    return at.epoch >= base and manifests[at.epoch].batch == at.batch


def _base_epoch(job: Job, state: BucketState, manifests: _Manifests) -> int:
    if job.previous.epoch == 0:
        return 0
    names = manifests[job.previous.epoch].bases.get(f"{state.level}-{state.bucket}")
    return base_epoch(names[-1]) if names else 0


def _restore(job: Job, state: BucketState, manifests: _Manifests, folder: str) -> None:
    names: Sequence[str] = ()
    if job.previous.epoch:
        names = manifests[job.previous.epoch].bases.get(f"{state.level}-{state.bucket}", ())
    if not names:
        state.reset(Version())
        return
    with new_folder(Path(folder)) as downloaded:
        base, files = read_bases(job.storage, names, Path(downloaded))
        state.reset(Version(base.epoch, base.batch), files)


def _replay(job: Job, state: BucketState, manifest: Manifest) -> None:
    """Step a committed epoch again; its output was used long ago."""
    pages: Pages = {}
    if manifest.input:
        slots = {job.layout.slot_of(job.layout.cut.stages[n], state.bucket) for n in state.specs}
        for content in _inputs(job, state, manifest):
            _sort(unpack_views(content, slots), pages)
        answers = {
            slot: _answers(job, manifest, slot, digest)
            for slot, digest in manifest.answers().items()
            if slot in slots
        }
        state.step(pages, is_first=manifest.is_first, answers=answers)
    state.commit(Version(manifest.epoch, manifest.batch), None)


def _inputs(job: Job, state: BucketState, manifest: Manifest) -> Iterator[bytes]:
    """Yield the page files that a bucket was given in an epoch."""
    if state.level == 0:
        name = input_name(manifest.epoch, state.version.batch)
        content = job.storage.get(name)
        require_digest(content, manifest.given, name)
        yield from _given(job.storage, *EpochInput.decode(content), state.bucket)
        return
    for level, first, end, name in manifest.logs:
        if level == state.level and first <= state.bucket < end:
            yield job.storage.get(name)


def _given(
    storage: SharedStorage, given: EpochInput, payload: bytes, bucket: int
) -> Iterator[bytes]:
    """Yield the page files of a bucket in an epoch's input."""
    found = given.ranges.get(str(bucket))
    if found is not None:
        start, stop = found
        yield storage.get(given.data, start, stop) if given.data else payload[start:stop]
    for name, start, stop in given.stored(bucket):
        yield storage.get(name, start, stop)


def _answers(job: Job, manifest: Manifest, slot: int, digest: str) -> bytes:
    name = _answers_name(manifest, slot)
    content = job.storage.get(name)
    require_digest(content, digest, name)
    return content


def _answers_name(at: Manifest | EpochInput, slot: int) -> str:
    return f"{numbered('answers', at.epoch)}-{at.batch}/{slot}"


def _sort(rows: Iterable[Row], pages: Pages) -> None:
    for slot, tag, page in rows:
        pages.setdefault(slot, {}).setdefault(tag, []).append(page)


# --- works ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """What a task took. process: its host and number. restored, replayed: see _States."""

    level: int
    group: int
    process: str
    seconds: float
    restored: int
    replayed: int


def returning_errors(run: Callable[_P, Iterable[Row]]) -> Callable[_P, Iterable[Row]]:
    """Have a task return its error as a row: it would fail again, and the driver gets the code.

    Temporary errors and those of the local disk are raised: Spark runs the task again.
    """

    @functools.wraps(run)
    def runs(*given: _P.args, **named: _P.kwargs) -> Iterable[Row]:
        try:
            return list(run(*given, **named))
        except TidemarkError as error:
            if error.is_temporary:
                raise
            return [(FAILED, 0, encode_error(error))]
        except FileNotFoundError as error:
            if str(error.filename or "").startswith("/"):
                raise
            return [(FAILED, 0, encode_error(lost(str(error)[:500])))]

    return runs


@dataclass(frozen=True)
class BucketWork:
    """A work of one step whose tasks have the groups of buckets of a job."""

    job: Job

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
        return self.job.nbytes

    def group_of(self, slot: int, group: int) -> int:
        """See Work."""
        return group


@dataclass(frozen=True)
class EpochWork(BucketWork):
    """One epoch: a step for each level.

    inline: the pages of the input, if they are in its document. rewritten: the buckets,
    "level-bucket", whose base is written on this occasion, as of the epoch before. output_bytes:
    more than so many for the sink go to a file.
    """

    input: EpochInput
    inline: bytes = field(repr=False)
    rewritten: frozenset[str] = frozenset()
    output_bytes: int = sys.maxsize

    @property
    def steps(self) -> int:
        """See Work."""
        return len(self.job.layout.levels)

    def group_of(self, slot: int, group: int) -> int:
        """See Work."""
        return self.job.group_of(slot, group)

    @returning_errors
    def run(self, step: int, group: int, rows: Iterable[Row], folder: str) -> Iterable[Row]:
        """Step the buckets of a group in one level; pass on rows that are not for it."""
        started, restored, replayed = time.perf_counter(), STATES.restored, STATES.replayed
        found = self._stored(step, self._run(step, group, rows, folder))
        figures = Figures(
            step,
            group,
            f"{socket.gethostname()}:{os.getpid()}",
            time.perf_counter() - started,
            STATES.restored - restored,
            STATES.replayed - replayed,
        )
        return [*found, (MEASURED, step, orjson.dumps(asdict(figures)))]

    def _run(self, level: int, group: int, rows: Iterable[Row], folder: str) -> list[Row]:
        layout = self.job.layout
        given: list[Row] = []
        filed: list[bytes] = []
        out: list[Row] = []
        for row in rows:
            is_here = row[0] >= 0 and layout.stage_of(row[0]).level == level
            if is_here and row[1] == _FILED:
                filed.append(row[2])
            else:
                (given if is_here else out).append(row)
        buckets = self.job.buckets_of(group)
        if level == 0:
            given = [row for bucket in buckets for row in self._input_of(bucket)]
        elif given:
            out.append((LOGGED, level, self._logged(level, group, given)))
        for page in filed:
            (_, _, _, name), _ = orjson.loads(page)
            given += unpack_views(self.job.storage.get(name))
            out.append((LOGGED, level, page))
        failpoint("spark.bucket.before")
        by_bucket: dict[int, Pages] = {bucket: {} for bucket in buckets}
        for row in given:
            _sort([row], by_bucket[layout.bucket_of(row[0])])
        given.clear()
        made: list[Row] = []
        for bucket in buckets:
            pages = by_bucket.pop(bucket)
            if layout.stages_in(level, bucket):
                made += self._step(level, bucket, pages, folder)
        out += self._filed(made)
        failpoint("spark.bucket.after")
        return out

    def _stored(self, level: int, rows: list[Row]) -> list[Row]:
        """Put many rows for the sink into files, which the driver reads one by one."""
        shown = [row for row in rows if row[0] in SHOWN]
        if sum(len(page) for _, _, page in shown) <= self.output_bytes:
            return rows
        found = [row for row in rows if row[0] not in SHOWN]
        for part in parts_of(shown, self.output_bytes):
            name = f"{numbered('out', self.input.epoch)}-{uuid.uuid4().hex}"
            self.job.storage.put(name, pack(part))
            found.append((STORED, level, name.encode()))
        return found

    def _filed(self, rows: Sequence[Row]) -> Iterator[Row]:
        """Yield rows, and for many bytes to one task a row that says where they are stored.

        What that task would have to store is then stored at once, and passes no shuffle.
        """
        addressed: dict[tuple[int, int], list[Row]] = {}
        for row in rows:
            if row[0] < 0:
                yield row
                continue
            to = self.job.layout.stage_of(row[0]).level, self.job.group_of(row[0], 0)
            addressed.setdefault(to, []).append(row)
        for (level, group), found in addressed.items():
            if sum(len(page) for _, _, page in found) < FILED_BYTES:
                yield from found
            else:
                yield found[0][0], _FILED, self._logged(level, group, found)

    def _input_of(self, bucket: int) -> Iterator[Row]:
        for content in _given(self.job.storage, self.input, self.inline, bucket):
            yield from unpack_views(content)

    def _logged(self, level: int, group: int, rows: Sequence[Row]) -> bytes:
        """Store what the tasks of a group are given by other stages; return where it is, and the
        bytes of each bucket."""
        log = numbered("log", self.input.epoch)
        name = f"{log}/{level}-{group}-{uuid.uuid4().hex}"
        self.job.storage.put(name, pack(rows))
        nbytes: dict[str, int] = {}
        for slot, _, page in rows:
            key = f"{level}-{self.job.layout.bucket_of(slot)}"
            nbytes[key] = nbytes.get(key, 0) + len(page)
        buckets = self.job.buckets_of(group)
        entry = [level, buckets.start, buckets.stop, name]
        return orjson.dumps([entry, nbytes])

    def _step(self, level: int, bucket: int, pages: Pages, folder: str) -> list[Row]:
        target = Version(self.input.epoch, self.input.batch)
        state = STATES.find(self.job, level, bucket, folder)
        _check_in_time(self.job, state)
        if state.version == target and state.output is not None:
            # Another attempt has stepped it here; its input was the same.
            state.generation = self.job.generation
            return state.output
        state = state_at(self.job, level, bucket, folder)
        with _dropped_if_failed(state):
            out: list[Row] = []
            key = f"{level}-{bucket}"
            if key in self.rewritten:
                out.append(_rewritten(self.job, key, state, folder))
            out += self._answered(state, pages)
            failpoint("spark.bucket.commit")
            state.commit(target, out)
            return out

    def _answered(self, state: BucketState, pages: Pages) -> list[Row]:
        """Step a state with the answers of the first attempt."""
        is_first = self.input.is_first
        rows = state.step(pages, is_first=is_first)
        recorded = state.recorded()
        if not recorded:
            return rows
        earlier = {}
        for slot, answers in recorded.items():
            name = _answers_name(self.input, slot)
            try:
                self.job.storage.create(name, answers)
            except NameTakenError:
                earlier[slot] = self.job.storage.get(name)
        if earlier:
            state.reopen()
            rows = state.step(pages, is_first=is_first, answers={**recorded, **earlier})
        used = {**recorded, **earlier}.items()
        named = [orjson.dumps([slot, digest_of(answers)]) for slot, answers in used]
        return [*rows, *((ANSWERED, 0, page) for page in named)]


def _rewritten(job: Job, key: str, state: BucketState, folder: str) -> Row:
    """Write the base of a state, as it is committed."""
    with new_folder(Path(folder)) as local:
        files = write_files(state.store, state.specs, Path(local))
        at = state.version.epoch, state.version.batch
        found = write_base(job.storage, key, at, files)
    return WRITTEN, state.level, orjson.dumps([found.key, found.name, found.nbytes])


@dataclass(frozen=True)
class LookupWork(BucketWork):
    """Looks up rows of a base relation by their keys, at the previous epoch.

    slots: the keys of each bucket, as a page.
    """

    slots: Mapping[int, bytes]

    @returning_errors
    def run(self, step: int, group: int, rows: Iterable[Row], folder: str) -> Iterable[Row]:
        """Return the rows of a group's buckets as pages."""
        for slot, page in self.slots.items():
            bucket = self.job.layout.bucket_of(slot)
            if bucket in self.job.buckets_of(group):
                state = state_at(self.job, 0, bucket, folder)
                keys = decode_delta(bytearray(page)).columns
                yield OUTPUT, 0, encode_delta(state.lookup(slot, keys))


@dataclass(frozen=True)
class DueWork(BucketWork):
    """Finds when rows leave or come by a clock, at the previous epoch.

    thresholds: by node, its values of the clock at all candidates, as a page.
    """

    thresholds: Mapping[int, bytes]

    @returning_errors
    def run(self, step: int, group: int, rows: Iterable[Row], folder: str) -> Iterable[Row]:
        """Return the first candidate at which that happens, of each bucket that has such nodes."""
        layout = self.job.layout
        for level in range(len(layout.levels)):
            for bucket in self.job.buckets_of(group):
                stages = layout.stages_in(level, bucket)
                numbers = {n for s in stages for n in s.nodes} & self.thresholds.keys()
                if not numbers:
                    continue
                state = state_at(self.job, level, bucket, folder)
                for number in sorted(numbers):
                    (values,) = decode_delta(bytearray(self.thresholds[number])).columns
                    yield OUTPUT, level, orjson.dumps(state.first_change(number, values))


@dataclass(frozen=True)
class ExportWork(BucketWork):
    """Writes state as of the previous epoch as bases for so many buckets and these spread keys.

    at: the version that the bases get. levels: those whose state is written.
    """

    buckets: int
    spread: Spread
    at: Version
    levels: frozenset[int]

    @returning_errors
    def run(self, step: int, group: int, rows: Iterable[Row], folder: str) -> Iterable[Row]:
        """Write the bases of a group's buckets."""
        old, new = self.job.layout, _layout_of(self.job.content, self.buckets, self.spread)
        for level in sorted(self.levels):
            for bucket in self.job.buckets_of(group):
                if not old.stages_in(level, bucket):
                    continue
                state = state_at(self.job, level, bucket, folder)
                with new_folder(Path(folder)) as local:
                    stages = dict.fromkeys(state.stage_numbers, bucket)
                    files = cut_files(state.store, old, stages, new, Path(local))
                    for key, found in files.items():
                        at = self.at.epoch, self.at.batch
                        base = write_base(self.job.storage, key, at, found)
                        yield WRITTEN, level, orjson.dumps([key, base.name, base.nbytes])
