"""Oracle: of several writers of one name one has written it, in a folder, in a bucket that speaks
S3, and on a server of S3 where one is installed, whatever replies were lost."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest

from connectors.objects import folder_storage, object_storage
from connectors.objects.folder_storage import FolderStorage
from connectors.objects.object_storage import BucketStorage
from connectors.objects.open_storage import open_storage
from connectors.objects.shared_storage import (
    NameTakenError,
    SharedStorage,
    check_conditions,
    download,
)
from dataflow.errors import TemporaryError, TidemarkError
from tests.harness.object_store import object_server, object_store


@pytest.fixture(params=["folder", "bucket", pytest.param("server", marks=pytest.mark.whole)])
def storage(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SharedStorage]:
    if request.param == "folder":
        yield open_storage(str(tmp_path / "shared"))
    elif request.param == "bucket":
        with object_store(monkeypatch) as url:
            yield open_storage(url)
    else:
        with object_server(tmp_path / "objects", monkeypatch) as url:
            yield open_storage(url)


def test_files_are_whole_and_listed(storage: SharedStorage, tmp_path: Path) -> None:
    storage = pickle.loads(pickle.dumps(storage))
    storage.put("log/1/a", b"0123456789")
    (tmp_path / "local").write_bytes(b"x" * 100_000)
    storage.send(tmp_path / "local", "base/1/b")
    assert storage.get("log/1/a") == b"0123456789"
    assert storage.get("log/1/a", 2, 5) == b"234"
    assert storage.get("log/1/a", 8) == b"89"
    download(storage, "base/1/b", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"x" * 100_000
    storage.send(iter([b"y" * 6_000_000, b"", b"z"]), "base/1/c")
    assert b"".join(storage.read("base/1/c")) == b"y" * 6_000_000 + b"z"
    with pytest.raises(FileNotFoundError):
        download(storage, "base/1/d", tmp_path / "other")
    assert not (tmp_path / "other").exists()
    assert storage.names("log") == ["log/1/a"]
    assert storage.names("nothing") == []
    assert storage.names("") == sorted(storage.names(""))
    assert "log/1/a" in storage.names("")
    storage.delete("log/1/a")
    storage.delete("log/1/a")
    assert storage.names("log") == []
    with pytest.raises(FileNotFoundError):
        storage.get("log/1/a")


def test_a_name_is_created_once(storage: SharedStorage) -> None:
    storage.create("manifest/1", b"one")
    with pytest.raises(NameTakenError):
        storage.create("manifest/1", b"two")
    assert storage.get("manifest/1") == b"one"
    # Its own content: the reply to an attempt before was lost.
    storage.create("manifest/1", b"one")
    assert storage.names("manifest") == ["manifest/1"]


def test_one_of_many_writers_has_the_name(storage: SharedStorage) -> None:
    won: list[int] = []
    begin = threading.Barrier(8)

    def write(number: int) -> None:
        begin.wait()
        try:
            storage.create("epochs/7", str(number).encode())
        except NameTakenError:
            return
        won.append(number)

    writers = [threading.Thread(target=write, args=(n,)) for n in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert storage.get("epochs/7") == str(won[0]).encode()
    assert len(won) == 1


def test_a_lost_reply_of_a_bucket_is_no_other_writer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client sends the request again when the reply is lost, and the server refuses it."""
    with object_store(monkeypatch) as url:
        storage = open_storage(url)
        send = obstore.put

        def lose_the_reply(store, path, file, **options):
            send(store, path, file, **options)
            return send(store, path, file, **options)

        monkeypatch.setattr(object_storage.obstore, "put", lose_the_reply)
        storage.create("manifest/1", b"one")
        assert storage.get("manifest/1") == b"one"


def test_a_crash_between_link_and_reply_is_no_other_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FolderStorage(tmp_path)
    monkeypatch.setattr(folder_storage, "force_folder", fail)
    with pytest.raises(TemporaryError, match=r"spark\.storage"):
        storage.create("manifest/1", b"one")
    monkeypatch.undo()
    storage.create("manifest/1", b"one")
    with pytest.raises(NameTakenError):
        storage.create("manifest/1", b"two")
    assert [p.name for p in (tmp_path / "manifest").iterdir()] == ["1"], "a draft is left"


def fail(*_: object) -> None:
    raise OSError("the disk is gone")


def test_conditions_are_checked(storage: SharedStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    check_conditions(storage)
    assert storage.names("check") == []
    if isinstance(storage, BucketStorage):
        send = obstore.put
        forget = lambda store, path, file, **_: send(store, path, file)  # noqa: E731
        monkeypatch.setattr(object_storage.obstore, "put", forget)
        with pytest.raises(TidemarkError, match=r"spark\.storage_unsafe"):
            check_conditions(storage)


def test_a_storage_that_is_away_is_a_temporary_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for storage in (FolderStorage(tmp_path / "file"), FolderStorage(tmp_path / "file/below")):
        with pytest.raises(TemporaryError, match=r"spark\.storage"):
            storage.create("a", b"b")
    with object_store(monkeypatch) as url:
        pass
    monkeypatch.setattr(object_storage, "_RETRIES", {"max_retries": 0})
    with pytest.raises(TemporaryError, match=r"spark\.storage"):
        BucketStorage(url).create("a", b"b")


@pytest.mark.parametrize("url", ["s3://key:secret@bucket/x", "s3://bucket?colour=blue", "s3://"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(TidemarkError, match=r"spark\.storage_url") as refused:
        open_storage(url)
    assert "secret" not in str(refused.value)
