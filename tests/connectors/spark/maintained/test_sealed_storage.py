"""Oracle: the bytes that were written; a refusal for whatever another file of the storage says."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import pytest

from connectors.objects.folder_storage import FolderStorage
from connectors.objects.sealed_storage import BLOCK_BYTES, SealedStorage, derived_key
from connectors.objects.shared_storage import NameTakenError, download
from dataflow.errors import TidemarkError

KEY = b"k" * 32
SIZES = (0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES + 7)


@pytest.fixture
def storage(tmp_path: Path) -> SealedStorage:
    return SealedStorage(FolderStorage(tmp_path / "shared"), KEY)


@pytest.mark.parametrize("size", SIZES)
def test_files_come_back_whole_and_in_parts(
    storage: SealedStorage, tmp_path: Path, size: int
) -> None:
    content = os.urandom(size)
    storage.put("a/put", content)
    (tmp_path / "local").write_bytes(content)
    storage.send(tmp_path / "local", "a/sent")
    storage.send((content[at : at + 1000] for at in range(0, size, 1000)), "a/pieces")
    for name in ("a/put", "a/sent", "a/pieces"):
        assert storage.get(name) == content
        download(storage, name, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == content
        for start in {0, 1, size // 2, BLOCK_BYTES - 1, BLOCK_BYTES}:
            for stop in {start, start + 1, size // 2 + 1, size}:
                if start <= stop <= size:
                    assert storage.get(name, start, stop) == content[start:stop]
            if start <= size:
                assert storage.get(name, start) == content[start:]


def test_a_name_is_created_once(storage: SealedStorage) -> None:
    storage.create("a", b"one")
    storage.create("a", b"one")
    with pytest.raises(NameTakenError):
        storage.create("a", b"two")
    with pytest.raises(FileNotFoundError):
        storage.get("b")


@pytest.mark.parametrize("size", SIZES)
def test_whatever_was_cut_added_or_moved_is_refused(
    storage: SealedStorage, tmp_path: Path, size: int
) -> None:
    written = os.urandom(size)
    storage.put("a", written)
    path = tmp_path / "shared" / "a"
    sealed = path.read_bytes()
    ends = {0, 1, 31, 32, len(sealed) // 2, len(sealed) - 1}
    blocks = range(0, len(sealed), BLOCK_BYTES + 32)
    wrong = [sealed[:end] for end in (*ends, *blocks) if end < len(sealed)]
    wrong += [sealed + sealed, sealed + b"x", sealed[32:], bytes(len(sealed))]
    if size > BLOCK_BYTES:
        first, second = sealed[: BLOCK_BYTES + 32], sealed[BLOCK_BYTES + 32 :]
        wrong += [second, second + first, first + first + second]
    for content in wrong:
        path.write_bytes(content)
        with pytest.raises(TidemarkError, match=r"spark\.unauthentic"):
            storage.get("a")
        with pytest.raises(TidemarkError, match=r"spark\.unauthentic"):
            download(storage, "a", tmp_path / "copy")
        assert not (tmp_path / "copy").exists()
        # A part is right or refused, since it may come from blocks that nobody has touched.
        try:
            assert storage.get("a", 0, size) == written
        except TidemarkError as error:
            assert error.code == "spark.unauthentic"
    path.rename(path.with_name("b"))
    path.with_name("b").write_bytes(sealed)
    with pytest.raises(TidemarkError, match=r"spark\.unauthentic"):
        storage.get("b")


def test_keys_differ_by_purpose_and_are_not_shown(storage: SealedStorage) -> None:
    storage.put("a", b"one")
    for purpose in ("tidemark/spark1/v1", "tidemark/spark1/v2"):
        other = SealedStorage(storage.storage, derived_key(KEY, purpose))
        with pytest.raises(TidemarkError, match=r"spark\.unauthentic"):
            other.get("a")
    assert "kkk" not in repr(storage)
    assert pickle.loads(pickle.dumps(storage)).get("a") == b"one"
