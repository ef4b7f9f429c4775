"""The identity of a shared storage: a file in its root that is written once, when it is first used.

A folder that is not mounted, was renamed or was replaced looks like an empty storage, and whoever
creates what is missing writes beside the real one. Invariant: a marked storage reads as missing
only what is missing from the very storage that was marked, and writes nowhere else. A folder is
checked by each call, relative to the same descriptor that is then used. A bucket is checked by
calls that write, at most once in a second, and by each one that finds nothing.
"""

from __future__ import annotations

import hmac
import os
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from uuid import uuid4

import orjson

from connectors.objects.open_folder import open_unlinked
from connectors.objects.open_storage import open_storage
from connectors.objects.shared_storage import NameTakenError
from connectors.shuffle_storage import shown_url
from dataflow.errors import TemporaryError, TidemarkError

NAME = "storage.id"
_CONTEXT = b"tidemark storage mark 1\0"
_LARGEST_BYTES = 4096


@dataclass(frozen=True)
class StorageMark:
    """What the file says. id: random."""

    id: str

    def check_folder(self, folder: int | None, where: str) -> None:
        """Require this mark in an opened folder; None: there is no folder. As for `check`."""
        self.check(None if folder is None else _content_in(folder), where)

    def check(self, content: bytes | None, where: str) -> None:
        """Require this mark in what the file has; None: there is no file.

        TemporaryError spark.storage_absent; TidemarkError spark.storage_other.
        """
        if content is None:
            raise TemporaryError(
                "spark.storage_absent",
                f'the shared storage "{shown_url(where)}" is not there',
                detail=f'its file "{NAME}" is missing: a disk that is not mounted, a folder that '
                "was moved or replaced, or another bucket",
                hint="bring it back: views resume by themselves. If it is gone, set "
                "TIDEMARK_SPARK_STORAGE to another folder or prefix: they are built again there",
            )
        facts = _parsed(content)
        if facts is None or facts["id"] != self.id:
            raise other_storage(where)


def other_storage(where: str) -> TidemarkError:
    """Return the error of a storage with the mark of another service."""
    return TidemarkError(
        "spark.storage_other",
        f'the shared storage "{shown_url(where)}" belongs to another service',
        detail=f'its file "{NAME}" has another identity, and nothing of it was read or written',
        hint="bring the service's own storage back, or set TIDEMARK_SPARK_STORAGE or "
        "TIDEMARK_PREFIX to what no other service has",
    )


def read_mark(root: str, key: bytes) -> StorageMark | None:
    """Return the mark that a holder of the key has written at a root; None if there is none.

    TidemarkError spark.storage_other: another service has; TemporaryError spark.storage.
    """
    try:
        content = open_storage(root).get(NAME)
    except FileNotFoundError:
        return None
    facts = _parsed(content)
    if facts is None or not hmac.compare_digest(facts["mac"], _mac(facts["id"], key)):
        raise other_storage(root)
    return StorageMark(facts["id"])


def check_mark(root: str, mark: StorageMark) -> None:
    """Require a mark at a root. As for `StorageMark.check`; TemporaryError spark.storage."""
    try:
        content = open_storage(root).get(NAME)
    except FileNotFoundError:
        content = None
    mark.check(content, root)


def new_mark(root: str, key: bytes) -> StorageMark:
    """Mark a root that has no mark, and return its mark, perhaps that of another process.

    As for `read_mark`.
    """
    number = uuid4().hex
    content = orjson.dumps({"id": number, "mac": _mac(number, key)})
    try:
        open_storage(root).create(NAME, content)
    except NameTakenError:
        found = read_mark(root, key)
        if found is None:
            raise
        return found
    return StorageMark(number)


def _content_in(folder: int) -> bytes | None:
    """Return the file's content in an opened folder; None if there is none. OSError."""
    with suppress(FileNotFoundError):
        file = open_unlinked(NAME, os.O_RDONLY, folder)
        try:
            return os.read(file, _LARGEST_BYTES)
        finally:
            os.close(file)
    return None


def _parsed(content: bytes) -> dict[str, str] | None:
    """Return what a mark says, whoever has written it; None if it says nothing."""
    try:
        facts = orjson.loads(content)
    except ValueError:
        return None
    is_mark = isinstance(facts, dict) and all(isinstance(facts.get(k), str) for k in ("id", "mac"))
    return facts if is_mark and facts["mac"].isascii() else None


def _mac(number: str, key: bytes) -> str:
    return hmac.new(key, _CONTEXT + number.encode(), sha256).hexdigest()
