"""Oracle: the list of epochs that were appended: readers see a whole prefix of them, in order."""

from __future__ import annotations

import asyncio
import os
from itertools import pairwise
from pathlib import Path

import pytest

from service.runtime.runtime import Runtime
from service.subscriptions import change_log
from service.subscriptions.change_encoder import marker_line
from service.subscriptions.change_feed import ChangeFeeds
from service.subscriptions.change_log import (
    ENDED,
    ChangeLog,
    index_path,
    is_checked,
    rows_path,
    segment_floors,
)
from service.subscriptions.change_reader import ChangeReader, LogPosition

MOST = 1 << 30


class Started(Runtime):
    """A machine that was started once more."""

    def __init__(self, boot: str) -> None:
        self._boot = boot

    def boot(self) -> str:
        return self._boot


def append(log: ChangeLog, *epochs: int) -> None:
    for epoch in epochs:
        lines = [b'{"epoch":%d,"rows":[%d]}' % (epoch, n) for n in range(epoch % 3)]
        log.append(epoch, lines, marker_line(log.head.name, epoch, {}))


def marks(reader: ChangeReader, position: LogPosition | None) -> list[int]:
    """The epochs whose marks stand behind a position."""
    found = []
    while position is not None:
        told = reader.lines(position)
        assert told is not None
        lines, position = told
        if not lines:
            break
        found += [int(line.split(b",")[0][9:]) for line in lines if b'"resume"' in line]
    return found


def opened(folder: Path, log: ChangeLog) -> ChangeReader:
    reader = ChangeReader(folder, log.head)
    reader.refresh()
    return reader


def test_positions_are_found_by_epoch(tmp_path: Path) -> None:
    log = ChangeLog.begin(tmp_path, 10, 600, MOST)
    reader = opened(tmp_path, log)
    assert (reader.floor, reader.newest) == (10, 10)
    append(log, 11, 12, 15)
    assert reader.refresh() and not reader.refresh()
    for epoch, rest in [(10, [11, 12, 15]), (11, [12, 15]), (13, [15]), (15, []), (99, [])]:
        assert marks(reader, reader.position_after(epoch)) == rest
    assert reader.position_after(9) is None


def test_after_a_crash_of_the_machine_a_log_is_looked_through_before_it_is_read(
    tmp_path: Path,
) -> None:
    started, again = Started("one"), Started("two")
    log = ChangeLog.begin(tmp_path, 0, 600, MOST, runtime=started)
    append(log, 1, 2)
    log.close()
    assert is_checked(tmp_path, started)
    assert not is_checked(tmp_path, again)
    found = ChangeLog.reopen(tmp_path, MOST, again)
    assert found is not None and found.reached == 2
    assert is_checked(tmp_path, again)
    found.close()
    # As a crash may leave it: nobody reads it, not even once its writer has looked.
    rows_path(tmp_path, 0).write_bytes(bytes(rows_path(tmp_path, 0).stat().st_size))
    third = Started("three")
    with pytest.raises(ValueError, match="damaged"):
        ChangeLog.reopen(tmp_path, MOST, third)
    assert not is_checked(tmp_path, third)


@pytest.mark.parametrize("torn", ["rows", "index", "both"])
def test_what_a_crash_has_left_is_cut_off(tmp_path: Path, torn: str) -> None:
    log = ChangeLog.begin(tmp_path, 0, 600, MOST)
    append(log, 1, 2)
    reader = opened(tmp_path, log)
    log.close()
    if torn in ("rows", "both"):
        with rows_path(tmp_path, 0).open("ab") as file:
            file.write(b'{"epoch":3,"ro')
    if torn in ("index", "both"):
        with index_path(tmp_path, 0).open("ab") as file:
            file.write(b"\3\0\0\0\0")
    reader.refresh()
    assert reader.newest == 2
    again = ChangeLog.reopen(tmp_path, MOST)
    assert again is not None and again.reached == 2
    append(again, 3, 4)
    reader.refresh()
    assert marks(reader, reader.position_after(0)) == [1, 2, 3, 4]


@pytest.mark.parametrize("rest", [b"", b'{"epoch":2,"rows"', bytes(500_000)])
def test_rows_that_a_machine_crash_lost_have_no_position(tmp_path: Path, rest: bytes) -> None:
    """Their index is there, and nobody has looked at the log since."""
    log = ChangeLog.begin(tmp_path, 0, 600, MOST)
    append(log, 1)
    end = rows_path(tmp_path, 0).stat().st_size
    log.append(2, [b"x" * 400_000], marker_line(log.head.name, 2, {}))
    reader = opened(tmp_path, log)
    log.close()
    with rows_path(tmp_path, 0).open("r+b") as file:
        file.truncate(end)
        file.seek(end)
        file.write(rest)
    position = reader.position_after(1)
    assert position is not None and reader.lines(position) is None


def test_segments_are_rolled_and_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log, "SEGMENT_BYTES", 300)
    log = ChangeLog.begin(tmp_path, 0, 600, MOST)
    reader = opened(tmp_path, log)
    append(log, *range(1, 40))
    reader.refresh()
    assert marks(reader, reader.position_after(0)) == list(range(1, 40))
    floors = segment_floors(tmp_path)
    assert len(floors) > 4 and all(a < b for a, b in pairwise(floors))
    stays = reader.position_after(0)
    log._max_bytes = 700
    log.expire()
    reader.refresh()
    assert reader.floor > 0 and reader.position_after(0) is None
    assert stays is not None and reader.lines(stays) is None
    rest = marks(reader, reader.position_after(reader.floor))
    assert rest == list(range(reader.floor + 1, 40))
    log.close()
    again = ChangeLog.reopen(tmp_path, MOST)
    assert again is not None and again.reached == 39


def test_an_end_is_seen_after_all_that_came_before(tmp_path: Path) -> None:
    log = ChangeLog.begin(tmp_path, 0, 600, MOST)
    reader = opened(tmp_path, log)
    append(log, 1)
    log.end("test")
    assert ENDED in os.listdir(tmp_path)
    assert reader.refresh() and reader.is_over
    assert marks(reader, reader.position_after(0)) == [1]
    assert ChangeLog.reopen(tmp_path, MOST) is None
    another = ChangeLog.begin(tmp_path, 5, 600, MOST)
    assert another.head.name != log.head.name
    assert ENDED not in os.listdir(tmp_path)


def test_a_line_longer_than_a_read_is_whole(tmp_path: Path) -> None:
    log = ChangeLog.begin(tmp_path, 0, 600, MOST)
    line = b'{"epoch":1,"rows":["%b"]}' % (b"x" * 400_000)
    log.append(1, [line], marker_line(log.head.name, 1, {}))
    reader = opened(tmp_path, log)
    position = reader.position_after(0)
    assert position is not None
    told = reader.lines(position)
    assert told is not None and told[0][0] == line


def test_a_waiting_reader_is_woken_when_another_reader_meets_the_next_log(tmp_path: Path) -> None:
    async def read() -> None:
        feeds = ChangeFeeds(lambda: False)
        old = feeds.enter(tmp_path, ChangeLog.begin(tmp_path, 1, 600, MOST).head)
        waiting = asyncio.create_task(old.wait(30))
        await asyncio.sleep(0)
        new = feeds.enter(tmp_path, ChangeLog.begin(tmp_path, 2, 600, MOST).head)
        await asyncio.wait_for(waiting, 5)
        assert old.reader.is_over and not new.reader.is_over

    asyncio.run(read())
