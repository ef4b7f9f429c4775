"""Oracle: the bytes that went in, in a folder and in an object storage that speaks S3."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.exchange import Exchange, open_exchange
from dataflow.errors import TemporaryError, TidemarkError
from tests.harness.object_store import object_store


@pytest.fixture(params=["folder", "objects"])
def exchange(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Exchange]:
    if request.param == "folder":
        yield open_exchange(str(tmp_path / "exchange"))
        return
    with object_store(monkeypatch) as bucket:
        yield open_exchange(bucket)


def test_files_go_in_and_come_out(exchange: Exchange, tmp_path: Path) -> None:
    exchange.put("a/small", b"one")
    exchange.put("a/small", b"two")
    with exchange.draft("a/large") as draft:
        draft.write_bytes(b"x" * 100_000)
    assert exchange.get("a/small") == b"two"
    assert exchange.sizes("a") == {"small": 3, "large": 100_000}
    with exchange.open("a/large") as file:
        assert (file.read(10), len(file.read())) == (b"x" * 10, 99_990)
    assert exchange.bring("a/large", tmp_path).read_bytes() == b"x" * 100_000
    assert exchange.below("a").get("small") == b"two"
    exchange.below("a").remove()
    assert exchange.sizes("a") == {}
    exchange.remove()
    exchange.remove()


def test_a_draft_that_failed_is_not_there(exchange: Exchange) -> None:
    with pytest.raises(ValueError, match="half"), exchange.draft("a/b") as draft:
        draft.write_bytes(b"half")
        raise ValueError("half")
    assert exchange.sizes("a") == {}
    with pytest.raises(FileNotFoundError):
        exchange.open("a/b")
    with pytest.raises(FileNotFoundError):
        exchange.get("a/b")


def test_a_storage_that_is_away_is_a_temporary_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with object_store(monkeypatch) as bucket:
        pass
    with pytest.raises(TemporaryError, match=r"backfill\.exchange"):
        open_exchange(bucket).put("a", b"b")


def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(TidemarkError, match=r"backfill\.exchange_url") as refused:
        open_exchange("s3://me:secret@bucket/folder?colour=blue").get("a")
    assert "secret" not in str(refused.value)
