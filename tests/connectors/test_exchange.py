"""Oracle: the bytes that went in, in a folder and in an object storage that speaks S3, with and
without a MAC; and what somebody without the key has put there is never given out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.authenticated_shuffle import AuthenticatedExchange, new_key
from connectors.shuffle_storage import Exchange, open_exchange
from dataflow.errors import TemporaryError, TidemarkError
from tests.harness.object_store import object_store


@pytest.fixture(params=["folder", "objects"])
def plain(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Exchange]:
    if request.param == "folder":
        yield open_exchange(str(tmp_path / "exchange"))
        return
    with object_store(monkeypatch) as bucket:
        found = open_exchange(bucket)
        yield found
        found.remove()


@pytest.fixture(params=["plain", "authenticated"])
def exchange(request, plain: Exchange) -> Exchange:
    return plain if request.param == "plain" else AuthenticatedExchange(plain, new_key())


def test_files_go_in_and_come_out(exchange: Exchange, tmp_path: Path) -> None:
    exchange.put("a/small", b"one")
    exchange.put("a/small", b"two")
    with exchange.draft("a/large") as draft:
        draft.write_bytes(b"x" * 100_000)
    assert exchange.get("a/small") == b"two"
    assert exchange.sizes("a") == {"small": 3, "large": 100_000}
    with exchange.open("a/large") as file:
        assert (file.read(10), len(file.read())) == (b"x" * 10, 99_990)
    assert exchange.download("a/large", tmp_path).read_bytes() == b"x" * 100_000
    assert exchange.below("a").get("small") == b"two"
    exchange.below("a").remove()
    assert exchange.sizes("a") == {}
    exchange.remove()
    exchange.remove()


def refuse(exchange: Exchange, name: str, folder: Path) -> None:
    """No way to read it gives out anything."""
    before = sorted(folder.iterdir())
    for read in (exchange.get, exchange.open, lambda name: exchange.download(name, folder)):
        with pytest.raises(TemporaryError, match=r"\[backfill\.unauthentic\]"):
            read(name)
    assert sorted(folder.iterdir()) == before


def test_what_was_not_written_with_the_key_is_refused(plain: Exchange, tmp_path: Path) -> None:
    folder = tmp_path / "brought"
    folder.mkdir()
    ours = AuthenticatedExchange(plain, new_key())
    content = bytes(range(256)) * 40_000  # more than one read, and more than stays in memory
    with ours.draft("a/b") as draft:
        draft.write_bytes(content)
    ours.put("a/c", b"other")
    whole = plain.get("a/b")
    with ours.open("a/b") as file:
        assert file.read() == content
    changed = bytes([whole[0] ^ 1]) + whole[1:]
    others = AuthenticatedExchange(plain, new_key())
    others.put("theirs", content)
    for forged in (
        *(b"", b"x", content, changed, whole[:-1], whole[1:], whole + b"\0"),
        *(plain.get("a/c"), plain.get("theirs")),
    ):
        plain.put("a/b", forged)
        refuse(ours, "a/b", folder)
    plain.put("a/b", whole)
    refuse(others, "a/b", folder)
    assert ours.get("a/b") == content


def test_a_name_is_part_of_what_the_key_vouches_for(plain: Exchange, tmp_path: Path) -> None:
    ours = AuthenticatedExchange(plain, new_key())
    ours.below("a").put("b/c", b"one")
    assert ours.get("a/b/c") == ours.below("a").below("b").get("c") == b"one"
    for name in ("a/b/d", "b/c", "a/bc"):
        plain.put(name, plain.get("a/b/c"))
        refuse(ours, name, tmp_path)
    assert "key" not in repr(ours)
    assert repr(ours.key) not in repr(ours)


def test_a_draft_that_failed_is_not_there(exchange: Exchange) -> None:
    with pytest.raises(ValueError, match="half"), exchange.draft("a/b") as draft:
        draft.write_bytes(b"half")
        raise ValueError("half")
    assert exchange.sizes("a") == {}
    with pytest.raises(FileNotFoundError):
        exchange.open("a/b")
    with pytest.raises(FileNotFoundError):
        exchange.get("a/b")


@pytest.mark.whole
def test_a_storage_that_is_away_is_a_temporary_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with object_store(monkeypatch) as bucket:
        pass
    with pytest.raises(TemporaryError, match=r"backfill\.exchange"):
        open_exchange(bucket).put("a", b"b")


def test_a_url_that_is_none_is_refused() -> None:
    with pytest.raises(TidemarkError, match=r"backfill\.exchange_url") as refused:
        open_exchange("s3://me:secret@bucket/folder?colour=blue").get("a")
    assert "secret" not in str(refused.value)
