"""Shared storage in a folder of a disk; see `shared_storage` for the contract.

Invariant: nothing outside the folder is read, written or deleted, whatever links others put into
it and whatever names a stored file gives (`open_folder`).
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from connectors import netguard
from connectors.objects.open_folder import (
    files_below,
    links_below,
    open_nearest,
    open_unlinked,
    opened_below,
    parts_of,
    real_path,
)
from connectors.objects.shared_storage import COPY_BYTES, pieces_of, reached, require_own
from dataflow.errors import SourceError


@dataclass(frozen=True)
class FolderStorage:
    """A folder on a disk that all machines see, with links and durable renames (not object mounts).

    A name appears by a hard link to a synced draft, which fails if the name is taken. The path of
    the folder itself may have links. code: of the error of a failure; a user of the storage may
    have its own.
    """

    path: Path
    code: str = "spark.storage"

    def create(self, name: str, content: bytes) -> None:
        """See SharedStorage."""
        with self._draft(name) as (folder, draft, last):
            with _written(folder, draft) as file:
                file.write(content)
            names = {"src_dir_fd": folder, "dst_dir_fd": folder}
            try:
                os.link(draft, last, **names, follow_symlinks=False)
            except FileExistsError:
                require_own(self, name, content)

    def put(self, name: str, content: bytes) -> None:
        """See SharedStorage."""
        with self._draft(name) as (folder, draft, last):
            with _written(folder, draft) as file:
                file.write(content)
            os.replace(draft, last, src_dir_fd=folder, dst_dir_fd=folder)

    def send(self, source: Path | Iterable[bytes], name: str) -> None:
        """See SharedStorage."""
        with self._draft(name) as (folder, draft, last):
            with _written(folder, draft) as target:
                for piece in pieces_of(source):
                    target.write(piece)
            os.replace(draft, last, src_dir_fd=folder, dst_dir_fd=folder)

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """See SharedStorage."""
        with reached(str(self.path), self.code), self._opened_file(name) as file:
            file.seek(start)
            return file.read() if stop is None else file.read(stop - start)

    def read(self, name: str) -> Iterator[bytes]:
        """See SharedStorage."""
        with reached(str(self.path), self.code), self._opened_file(name) as source:
            while piece := source.read(COPY_BYTES):
                yield piece

    def names(self, folder: str) -> list[str]:
        """See SharedStorage."""
        parts = parts_of(folder.rstrip("/")) if folder else []
        with reached(str(self.path), self.code), suppress(FileNotFoundError):
            with self._opened(parts) as opened:
                found = [name for name in files_below(opened) if not _is_draft(name)]
            return sorted("/".join([*parts, name]) for name in found)
        return []

    def delete(self, name: str) -> None:
        """See SharedStorage."""
        *folders, last = parts_of(name)
        with (
            reached(str(self.path), self.code),
            suppress(FileNotFoundError),
            self._opened(folders) as folder,
        ):
            os.unlink(last, dir_fd=folder)

    def remove_drafts(self, folders: Sequence[str]) -> None:
        """Delete what killed writers have left in these folders: names that begin with a dot."""
        for name in folders:
            with reached(str(self.path), self.code), suppress(FileNotFoundError):
                with self._opened(parts_of(name)) as opened:
                    drafts = list(filter(_is_draft, files_below(opened)))
                for draft in drafts:
                    self.delete(f"{name}/{draft}")

    def remove_empty(self, folder: str) -> None:
        """Remove a folder directly in this one, and then this one, as far as they are empty."""
        with suppress(OSError), self._opened([]) as root:
            with suppress(OSError):
                os.rmdir(folder, dir_fd=root)
            above = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=root)
            try:
                os.rmdir(os.path.basename(real_path(root, self.path)), dir_fd=above)
            finally:
                os.close(above)

    @contextmanager
    def held(self, *folders: str) -> Iterator[None]:
        """Refuse a folder, or one of these in it, that is replaced by a link while a library uses
        its path, which no descriptor can stand for. SourceError path.forbidden.
        """
        before = self._identities(folders)
        yield
        after = self._identities(folders)
        if any(old not in (None, new) for old, new in zip(before, after, strict=True)):
            raise SourceError(
                "path.forbidden",
                f'folder "{self.path}" was replaced while it was written to',
                hint="check who else can write beside it, and what was written where",
            )

    def require_no_links(self) -> None:
        """Refuse a folder with a link in it, which a library would follow. SourceError
        path.forbidden.
        """
        with reached(str(self.path), self.code), suppress(FileNotFoundError):
            with self._opened([]) as root:
                found = next(links_below(root), "")
            if found:
                raise SourceError(
                    "path.forbidden",
                    f'"{found}" in folder "{self.path}" is a link, which is not followed here',
                    hint="put the folder or file itself in its place",
                )

    def _identities(self, folders: Sequence[str]) -> list[tuple[int, int] | None]:
        """Return device and inode of the root and of these folders; None for what is missing."""
        found: list[tuple[int, int] | None] = []
        for parts in ([], *map(parts_of, folders)):
            try:
                with self._opened(parts) as opened:
                    facts = os.fstat(opened)
                found.append((facts.st_dev, facts.st_ino))
            except FileNotFoundError:
                found.append(None)
        return found

    def check_root(self, real: str) -> None:
        """Refuse a folder that must not be used, by the real path at which it was opened."""

    @contextmanager
    def _opened(self, parts: Sequence[str], *, makes: bool = False) -> Iterator[int]:
        """Yield a folder below the root. FileNotFoundError, OSError; SourceError path.forbidden."""
        nearest, missing = open_nearest(self.path)
        try:
            self.check_root(os.path.join(real_path(nearest, self.path), *missing))
            if missing and not makes:
                raise FileNotFoundError(str(self.path))
            with opened_below(nearest, [*missing, *parts], makes=makes) as opened:
                yield opened
        finally:
            os.close(nearest)

    @contextmanager
    def _opened_file(self, name: str) -> Iterator[BinaryIO]:
        *folders, last = parts_of(name)
        with self._opened(folders) as folder:
            file = os.fdopen(open_unlinked(last, os.O_RDONLY, folder), "rb")
        with file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise IsADirectoryError(name)
            yield file

    @contextmanager
    def _draft(self, name: str) -> Iterator[tuple[int, str, str]]:
        """Yield a folder, the name of a draft in it and the last component of `name`; make the
        name durable if the block succeeds.
        """
        *folders, last = parts_of(name)
        draft = f".{uuid.uuid4().hex}"
        with reached(str(self.path), self.code), self._opened(folders, makes=True) as folder:
            try:
                yield folder, draft, last
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(draft, dir_fd=folder)
            force_folder(folder)


class SinkFolder(FolderStorage):
    """A folder that the options of a sink name: only below a folder that the operator allows."""

    def check_root(self, real: str) -> None:
        """See FolderStorage. SourceError path.forbidden."""
        netguard.check_opened_sink(real, str(self.path))


def force_folder(folder: int) -> None:
    """Wait until the names in an opened folder are durable."""
    os.fsync(folder)


def _is_draft(name: str) -> bool:
    return name.rpartition("/")[2].startswith(".")


@contextmanager
def _written(folder: int, name: str) -> Iterator[BinaryIO]:
    """Yield a new file, which is durable after the block."""
    opened = open_unlinked(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, folder)
    with os.fdopen(opened, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
