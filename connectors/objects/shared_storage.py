"""Storage that several writers share: a folder, or an S3 bucket with conditional writes.

Distributed views and sinks in files keep their commits in it. Invariant: a file is whole or absent,
and durable when a call returns. A name is written once: `create` refuses a name that is taken, and
names that `put` writes contain something unique. Instances are picklable and used from any process.
Listings may be stale; nothing but garbage collection and the search for the newest commit relies on
them.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from connectors.shuffle_storage import force_names, shown_url
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

    def send(self, path: Path, name: str) -> None:
        """Write a local file, as `put`."""
        ...

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return the bytes [start, stop) of a file. FileNotFoundError."""
        ...

    def download(self, name: str, path: Path) -> None:
        """Copy a file to a local path. FileNotFoundError."""
        ...

    def names(self, folder: str) -> list[str]:
        """Return the names of all files in a folder at any depth, sorted, relative to the root.

        "": of all files.
        """
        ...

    def delete(self, name: str) -> None:
        """Remove a file if it exists."""
        ...


@dataclass(frozen=True)
class FolderStorage:
    """A folder on a disk that all machines see, with links and durable renames (not object mounts).

    A name appears by a link to a synced draft, which fails if the name is taken. code: of the error
    of a failure; a user of the storage may have its own.
    """

    path: Path
    code: str = "spark.storage"

    def create(self, name: str, content: bytes) -> None:
        """See SharedStorage."""
        with self._draft(name) as draft:
            _write_synced(draft, content)
            try:
                os.link(draft, self.path / name)
            except FileExistsError:
                require_own(self, name, content)

    def put(self, name: str, content: bytes) -> None:
        """See SharedStorage."""
        with self._draft(name) as draft:
            _write_synced(draft, content)
            os.replace(draft, self.path / name)

    def send(self, path: Path, name: str) -> None:
        """See SharedStorage."""
        with self._draft(name) as draft:
            with path.open("rb") as source, draft.open("wb") as target:
                shutil.copyfileobj(source, target, COPY_BYTES)
                target.flush()
                os.fsync(target.fileno())
            os.replace(draft, self.path / name)

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """See SharedStorage."""
        with reached(str(self.path), self.code), (self.path / name).open("rb") as file:
            file.seek(start)
            return file.read() if stop is None else file.read(stop - start)

    def download(self, name: str, path: Path) -> None:
        """See SharedStorage."""
        with reached(str(self.path), self.code):
            shutil.copyfile(self.path / name, path)

    def names(self, folder: str) -> list[str]:
        """See SharedStorage."""
        with reached(str(self.path), self.code):
            found = (self.path / folder).rglob("*")
            paths = [p for p in found if not p.name.startswith(".") and p.is_file()]
        return sorted(p.relative_to(self.path).as_posix() for p in paths)

    def delete(self, name: str) -> None:
        """See SharedStorage."""
        with reached(str(self.path), self.code):
            (self.path / name).unlink(missing_ok=True)

    @contextmanager
    def _draft(self, name: str) -> Iterator[Path]:
        """Yield a path beside a name; make the name durable if the block succeeds."""
        path = self.path / name
        draft = path.with_name(f".{uuid.uuid4().hex}")
        with reached(str(self.path), self.code):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                yield draft
            finally:
                draft.unlink(missing_ok=True)
            force_names(path.parent)


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


def require_own(storage: SharedStorage, name: str, content: bytes) -> None:
    """Raise NameTakenError unless a taken name has this content: the reply was lost."""
    try:
        found = storage.get(name)
    except FileNotFoundError:
        # Another writer has not finished (S3 answers 409), or the file was deleted since.
        raise OSError(f"{name} is being written by another process") from None
    if found != content:
        raise NameTakenError(name) from None


def _write_synced(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


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
