"""Oracle: nothing is read or written without the very mark that the storage got; whether it is a
folder or a bucket."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.objects import marked_bucket
from connectors.objects.marked_storage import open_marked
from connectors.objects.open_storage import open_storage
from connectors.objects.storage_mark import (
    NAME,
    StorageMark,
    new_mark,
    read_mark,
)
from connectors.shuffle_storage import FolderExchange
from dataflow.errors import TemporaryError, TidemarkError
from tests.harness.object_store import object_store

KEY, OTHER = b"k" * 32, b"o" * 32


@pytest.fixture(params=["folder", "bucket"])
def root(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(marked_bucket, "CHECKED_S", 0.0)
    if request.param == "folder":
        yield str(tmp_path / "shared" / "tidemark")
    else:
        with object_store(monkeypatch) as url:
            yield url


def test_a_mark_is_written_once_and_known_by_its_key(root: str) -> None:
    assert read_mark(root, KEY) is None
    found: list[StorageMark] = []
    writers = [threading.Thread(target=lambda: found.append(new_mark(root, KEY))) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(found) == 4
    assert {mark.id for mark in found} == {found[0].id}
    assert read_mark(root, KEY) == found[0]
    for read in (read_mark, new_mark):
        with pytest.raises(TidemarkError, match=r"spark\.storage_other"):
            read(root, OTHER)


def test_every_call_needs_the_mark(root: str) -> None:
    mark = new_mark(root, KEY)
    view, plain = open_marked(root, mark, "group/v1"), open_storage(root)
    view.put("log/1", b"one")
    assert view.get("log/1") == b"one"
    assert view.names("") == ["log/1"]
    assert plain.names("") == ["group/v1/log/1", NAME]
    held = plain.get(NAME)
    others = {
        "spark.storage_absent": [],
        "spark.storage_other": [b'{"id": "another", "mac": "00"}', b"", b"null", b"{}"],
    }
    for code, contents in others.items():
        for content in contents or [None]:
            plain.delete(NAME)
            if content is not None:
                plain.put(NAME, content)
            for call in (
                lambda: view.put("log/2", b"two"),
                lambda: view.create("log/3", b"three"),
                lambda: view.send([b"four"], "log/4"),
                lambda: view.names("manifest"),
                lambda: view.delete("log/1"),
                lambda: view.get("log/5"),
                lambda: list(view.read("log/5")),
            ):
                with pytest.raises(TidemarkError) as refused:
                    call()
                assert refused.value.code == code
                assert refused.value.is_temporary == (code == "spark.storage_absent")
            left = [] if content is None else [NAME]
            assert plain.names("") == ["group/v1/log/1", *left]
    plain.put(NAME, held)
    view.put("log/2", b"two")
    assert view.names("log") == ["log/1", "log/2"]
    with pytest.raises(FileNotFoundError):
        view.get("log/5")


def test_a_folder_that_is_away_is_not_made_again(tmp_path: Path) -> None:
    """Renamed, or an empty one in its place; while a file of it is being written, too."""
    root, aside = tmp_path / "disk" / "tidemark", tmp_path / "aside"
    mark = new_mark(str(root), KEY)
    view = open_marked(str(root), mark, "group/v1")
    exchange = FolderExchange(root, ("exchange",), mark)

    def pieces() -> Iterator[bytes]:
        yield b"one"
        (tmp_path / "disk").rename(aside)
        yield b"two"

    view.send(pieces(), "log/1")
    assert not (tmp_path / "disk").exists(), "it went where the folder is now"
    for is_empty in (False, True):
        if is_empty:
            root.mkdir(parents=True)
        for call in (
            lambda: view.put("a", b""),
            lambda: view.get("log/1"),
            lambda: exchange.put("a", b""),
            lambda: exchange.sizes("a"),
            lambda: exchange.below("a").remove(),
        ):
            with pytest.raises(TemporaryError, match=r"spark\.storage_absent"):
                call()
        assert root.exists() == is_empty
        assert not is_empty or not list(root.iterdir())
    root.rmdir()
    root.parent.rmdir()
    aside.rename(tmp_path / "disk")
    assert view.get("log/1") == b"onetwo"
    exchange.put("a", b"")
