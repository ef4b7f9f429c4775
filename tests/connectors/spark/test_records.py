"""Oracle: records and errors as they went in; and what somebody else has put in their place is
refused by its code and never runs (a marker file stays away)."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.exchange import FolderExchange
from connectors.kept_parts import RUNS, Progress
from connectors.sink import SinkChanged
from connectors.spark.records import TaskRecord, decode_error, encode_error
from connectors.spark.session import LazySession
from dataflow.errors import Position, SqlError, TemporaryError, TidemarkError
from dataflow.schema import RelationName
from storage.store import BulkFile
from tests.connectors.spark.test_backfill import PLANS, run_spark


class Trap:
    """Makes a file where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable, tuple]:
        return Path.touch, (self.marker,)


def test_a_record_is_read_as_it_was_written() -> None:
    file = BulkFile("v1/join/left", "files/3-a.sst", 3, 17, 1, bytes(range(16)))
    empty = BulkFile("v1/join/left", "", 4, 0, 0, b"")
    record = TaskRecord([file, empty], ["files/3-b.page"], b"\x00\xff", None, 17, 1 << 40, True)
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


@pytest.mark.parametrize("name", ["done/part-0", "failed/other"])
def test_a_pickle_in_the_exchange_never_runs(
    name: str, session: LazySession, tmp_path: Path
) -> None:
    """Put there while the tasks of a backfill run, over what they have left."""
    elsewhere, marker = tmp_path / "elsewhere", tmp_path / "ran"

    def tamper(progress: Progress) -> None:
        for run in FolderExchange(elsewhere).below(RUNS).folders():
            FolderExchange(elsewhere / RUNS / run).put(name, pickle.dumps(Trap(marker)))

    with pytest.raises(TidemarkError, match=r"\[backfill\.\w+\]"):
        run_spark(
            session,
            PLANS["grouped join"],
            tmp_path,
            2,
            exchange=FolderExchange(elsewhere),
            on_progress=tamper,
        )
    assert not marker.exists()
