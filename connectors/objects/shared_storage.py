"""Storage that several writers share: a folder, or an S3 bucket with conditional writes.

Distributed views and sinks in files keep their commits in it. Invariant: a file is whole or absent,
and durable when a call returns. A name is written once: `create` refuses a name that is taken, and
names that `put` writes contain something unique. Instances are picklable and used from any process.
Listings may be stale; nothing but garbage collection and the search for the newest commit relies on
them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from connectors.shuffle_storage import shown_url
from dataflow.errors import TemporaryError, TidemarkError

COPY_BYTES = 8 << 20


class NameTakenError(Exception):
    """`create` found the name taken by other content."""


class SharedStorage(Protocol):
    """Files by relative names with slashes. Every call may raise TemporaryError spark.storage."""

    def create(self, name: str, content: bytes) -> None:
        """Write a file that must not exist yet.

        Of several writers of one name, exactly one returns; the others get NameTakenError. If the
        name is taken by exactly this content, the call returns: the reply to an earlier attempt of
        its own was lost. Writers that must exclude each other therefore put something of their own
        into the content.
        """
        ...

    def put(self, name: str, content: bytes) -> None:
        """Write a file whose name no one else uses for other content."""
        ...

    def send(self, source: Path | Iterable[bytes], name: str) -> None:
        """Write a local file, or bytes in pieces, as `put`."""
        ...

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes [start, stop) of a file. FileNotFoundError."""
        ...

    def read(self, name: str) -> Iterator[bytes]:
        """Yield the content of a file in pieces. FileNotFoundError."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names of all files in a folder at any depth, sorted, relative to the root.

        "": of all files.
        """
        ...

    def delete(self, name: str) -> None:
        """Remove a file if it exists."""
        ...


def check_conditions(storage: SharedStorage, code: str = "spark.storage_unsafe") -> None:
    """Refuse a storage that lets two writers create one name. TidemarkError with this code.

    It leaves no file.
    """
    name = f"check/{uuid.uuid4().hex}"
    storage.create(name, b"first")
    try:
        storage.create(name, b"second")
    except NameTakenError:
        return
    finally:
        storage.delete(name)
    raise TidemarkError(
        code,
        "the shared storage overwrites files that exist",
        detail="a second write with If-None-Match: * succeeded, so two writers could both commit",
        hint="use a server with conditional writes, or a folder",
    )


def pieces_of(source: Path | Iterable[bytes]) -> Iterator[bytes]:
    """Yield what `SharedStorage.send` is given."""
    if not isinstance(source, Path):
        yield from source
        return
    with source.open("rb") as file:
        while piece := file.read(COPY_BYTES):
            yield piece


def download(storage: SharedStorage, name: str, path: Path) -> None:
    """Copy a file to a local path; nothing is left there if that fails. FileNotFoundError."""
    try:
        with path.open("wb") as target:
            for piece in storage.read(name):
                target.write(piece)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def require_own(storage: SharedStorage, name: str, content: bytes) -> None:
    """Raise NameTakenError unless a taken name has this content: the reply was lost."""
    try:
        found = storage.get(name)
    except FileNotFoundError:
        # Another writer has not finished (S3 answers 409), or the file was deleted since.
        raise OSError(f"{name} is being written by another process") from None
    if found != content:
        raise NameTakenError(name) from None


@contextmanager
def reached(where: str, code: str, failures: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn a failure of the storage into a TemporaryError; a missing file keeps its own.

    failures: of a client, beside OSError.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, *failures) as error:
        raise TemporaryError(
            code,
            f'cannot reach the shared storage "{shown_url(where)}"',
            detail=str(error).partition("\n")[0][:500],
            hint="no action needed if it is a short failure: the epoch is repeated",
        ) from error
