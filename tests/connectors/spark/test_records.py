"""Oracle: records and errors as they went in; and what somebody else has put in their place is
refused by its code and never runs (a marker file stays away)."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.authenticated_shuffle import AuthenticatedExchange, new_key
from connectors.partition_cache import RUNS, CachedPartition, Progress
from connectors.shuffle_storage import FolderExchange
from connectors.sink import SinkChanged
from connectors.spark.backfill import gather
from connectors.spark.records import TaskRecord, decode_error, encode_error
from connectors.spark.result import BackfillResult
from connectors.spark.session import LazySession
from dataflow.errors import Position, SqlError, TemporaryError, TidemarkError
from dataflow.schema import RelationName
from storage.store import BulkFile
from tests.connectors.spark.test_backfill import PLANS, check, parts_of, run_spark, run_tasks
from tests.harness.trap import Trap


def test_a_record_is_read_as_it_was_written() -> None:
    file = BulkFile("v1/join/left", "files/3-a.sst", 3, 17, 1, bytes(range(16)))
    empty = BulkFile("v1/join/left", "", 4, 0, 0, b"")
    files, pages = [file, empty], ["files/3-b.page"]
    record = TaskRecord(files, pages, {3, 1}, b"\x00\xff", None, 17, 1 << 40, True)
    assert TaskRecord.decode(record.encode()) == record
    assert TaskRecord.decode(TaskRecord().encode()) == TaskRecord()


@pytest.mark.parametrize(
    "error",
    [
        SqlError("sql.syntax", 'no "x"', detail="é", hint="h", position=Position(2, 7)),
        TemporaryError("source.unreachable", "away", relation=RelationName("shop", "s", "t")),
        TidemarkError("backfill.failed", "failed"),
    ],
)
def test_an_error_is_read_as_it_was_written(error: TidemarkError) -> None:
    found = decode_error(encode_error(error))
    assert (type(found), vars(found), str(found)) == (type(error), vars(error), str(error))


def test_an_error_of_a_kind_of_its_own_is_the_one_it_is_derived_from() -> None:
    assert type(decode_error(encode_error(SinkChanged("sink.changed", "w")))) is TemporaryError


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"null", b"\xff", pickle.dumps({})])
def test_what_is_no_record_is_torn(content: bytes) -> None:
    for read in (TaskRecord.decode, decode_error):
        with pytest.raises(TemporaryError, match=r"\[backfill\.torn\]"):
            read(content)


def run_apart(folder: Path, tamper: Callable[[Path], None]) -> BackfillResult:
    """All tasks over an exchange that others can write to, and do before the result is read."""
    plain = FolderExchange(folder / "elsewhere")
    (folder / "work").mkdir(parents=True)
    job = run_tasks(PLANS["grouped join"], AuthenticatedExchange(plain, new_key()), 2)
    tamper(plain.path)
    return gather(job, folder / "work")


def swap(one: Path, other: Path) -> None:
    """Each has the other's name."""
    third = one.with_name("third")
    one.rename(third)
    other.rename(one)
    third.rename(other)


def swap_kind(folder: Path, pattern: str) -> None:
    """Two files of a kind have each other's names."""
    one, other, *_ = sorted(folder.glob(pattern))
    swap(one, other)


def test_what_tasks_leave_is_read_where_nobody_touched_it(tmp_path: Path) -> None:
    result = run_apart(tmp_path, lambda _: None)
    check(PLANS["grouped join"], result, tmp_path / "state")


@pytest.mark.parametrize("pattern", ["done/part-*", "done/[0-9]*", "files/*.sst", "files/*.page"])
def test_files_that_were_swapped_are_refused(pattern: str, tmp_path: Path) -> None:
    with pytest.raises(TemporaryError, match=r"\[backfill\.unauthentic\]"):
        run_apart(tmp_path, lambda folder: swap_kind(folder, pattern))


def test_files_of_another_backfill_are_refused(tmp_path: Path) -> None:
    """Each has a key of its own, also where the names are the same."""
    run_apart(tmp_path / "other", lambda _: None)
    theirs = tmp_path / "other" / "elsewhere" / "done" / "part-1"
    with pytest.raises(TemporaryError, match=r"\[backfill\.unauthentic\]"):
        run_apart(tmp_path, lambda folder: shutil.copy(theirs, folder / "done") and None)


def test_records_and_files_that_are_gone_are_missed(tmp_path: Path) -> None:
    """Each of them: without one of them rows would be missing from the view, and nobody told."""
    run_apart(tmp_path / "whole", lambda _: None)
    records = sorted(path.name for path in (tmp_path / "whole/elsewhere/done").iterdir())
    assert len(records) > 6
    for name in records:
        with pytest.raises(TemporaryError, match=r"\[backfill\.lost\]"):
            run_apart(tmp_path / name, lambda folder: (folder / "done" / name).unlink())  # noqa: B023
    for pattern in ("files/*.sst", "files/*.page"):
        with pytest.raises(TemporaryError, match=r"\[backfill\.lost\]"):
            run_apart(
                tmp_path / pattern[-4:],
                lambda folder: next(folder.glob(pattern)).unlink(),  # noqa: B023
            )


def test_a_stored_part_that_was_exchanged_is_read_from_its_source(tmp_path: Path) -> None:
    plain = FolderExchange(tmp_path / "elsewhere")
    exchange = AuthenticatedExchange(plain, new_key())
    [drawn, other, *_] = next(iter(parts_of(PLANS["words"]).values()))
    part = CachedPartition(drawn, exchange, "parts/1/one")
    rows = [delta.rows() for delta in part.read()]
    list(CachedPartition(other, exchange, "parts/1/two").read())
    assert [delta.rows() for delta in part.read()] == rows
    swap(plain.path / "parts/1/one", plain.path / "parts/1/two")
    with pytest.raises(TemporaryError, match=r"\[backfill\.unauthentic\]"):
        list(part.read())
    assert [delta.rows() for delta in part.read()] == rows


@pytest.mark.whole
@pytest.mark.parametrize("name", ["done/part-0", "failed/other"])
def test_a_pickle_in_the_exchange_never_runs(
    name: str, session: LazySession, tmp_path: Path
) -> None:
    """Put there while the tasks of a backfill run, over what they have left."""
    elsewhere, marker = tmp_path / "elsewhere", tmp_path / "ran"

    def tamper(progress: Progress) -> None:
        for run in FolderExchange(elsewhere).below(RUNS).folders():
            FolderExchange(elsewhere / RUNS / run).put(name, pickle.dumps(Trap(marker)))

    with pytest.raises(TemporaryError, match=r"\[backfill\.unauthentic\]"):
        run_spark(
            session,
            PLANS["grouped join"],
            tmp_path,
            2,
            exchange=FolderExchange(elsewhere),
            on_progress=tamper,
        )
    assert not marker.exists()
