"""Oracle: the figures of a disk that the test sets."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from storage import reserve
from storage.reserve import RESERVE_BYTES, Reserve


@pytest.mark.parametrize(
    ("total_bytes", "left_bytes", "is_short"),
    [
        (100 << 30, RESERVE_BYTES, False),
        (100 << 30, RESERVE_BYTES - 4096, True),
        (1 << 30, 52 << 20, False),
        (1 << 30, 51 << 20, True),
    ],
)
def test_of_a_large_disk_a_size_of_a_small_one_a_part(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    total_bytes: int,
    left_bytes: int,
    is_short: bool,
) -> None:
    disk = SimpleNamespace(f_blocks=total_bytes // 4096, f_bavail=left_bytes // 4096, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    monkeypatch.setattr(reserve, "CHECK_S", 0.0)
    kept = Reserve(tmp_path)
    assert kept.is_short == is_short
    if is_short:
        with pytest.raises(OSError, match="reserve") as found:
            kept.take(1)
        assert found.value.errno == errno.ENOSPC
        disk.f_bavail = disk.f_blocks
    kept.take(1)
    assert not kept.is_short


def test_many_writes_within_a_second_are_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    disk = SimpleNamespace(f_blocks=1 << 20, f_bavail=1 << 20, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: disk)
    monkeypatch.setattr(reserve, "CHECK_S", 3600.0)
    kept = Reserve(tmp_path)
    kept.take(1)
    disk.f_bavail = 0
    kept.take(1)
    with pytest.raises(OSError, match="reserve"):
        for _ in range(10):
            kept.take(reserve.CHECK_BYTES // 4)
