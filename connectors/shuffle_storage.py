"""Storage that a backfill's tasks and the service share: a common folder or object storage.

Invariant: a file is whole or absent. Writing a name again replaces the file. Concurrent writers of
the same content do no harm. Instances are picklable; any process may open the same URL.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

from connectors.extras import require_package
from connectors.objects.open_folder import (
    open_nearest,
    open_unlinked,
    opened_below,
    parts_of,
    path_in,
)
from dataflow.errors import TemporaryError, TidemarkError

if TYPE_CHECKING:
    from pyarrow import fs

S3 = "s3://"


class Exchange(Protocol):
    """Storage of files by relative names with slashes; picklable, used from many machines."""

    def draft(self, name: str) -> AbstractContextManager[Path]:
        """Yield a path to write to; after the block it is moved to `name`, unless the
        block raised.
        """
        ...

    def put(self, name: str, content: bytes) -> None:
        """Write a small file at once."""
        ...

    def get(self, name: str) -> bytes:
        """Return the whole content. FileNotFoundError."""
        ...

    def open(self, name: str) -> BinaryIO:
        """Open for reading from the start; the reader may stop early. FileNotFoundError."""
        ...

    def sizes(self, folder: str) -> dict[str, int]:
        """Return {file: bytes} of the files directly in a folder; empty if there is no
        such folder.
        """
        ...

    def folders(self) -> list[str]:
        """Return the folders directly in it; empty if it does not exist."""
        ...

    def download(self, name: str, folder: Path) -> Path:
        """Return a local path of the file: itself on a local disk, else a copy in `folder`."""
        ...

    def send(self, path: Path, name: str) -> None:
        """Copy a local file into the storage, synced if the storage is a disk; from any thread."""
        ...

    def delete(self, name: str) -> None:
        """Remove a file if it exists."""
        ...

    def below(self, name: str) -> Exchange:
        """Return a subfolder as an exchange."""
        ...

    def remove(self) -> None:
        """Remove it with all its content."""
        ...


def open_exchange(url: str) -> Exchange:
    """Return the exchange at a path or an s3:// URL.

    A URL takes pyarrow's options in its query: region, scheme, endpoint_override. Credentials come
    from AWS's default chain. TidemarkError package.missing.
    """
    if not url.startswith(S3):
        return FolderExchange(Path(url))
    require_package("pyarrow", "a storage in S3")
    return ObjectExchange(url.rstrip("/"))


class RootMark(Protocol):
    """Identifies the root of a folder that may be away (`connectors.objects.storage_mark`)."""

    def check_folder(self, folder: int | None, where: str) -> None:
        """Require the mark in an opened root; None: there is no root. TidemarkError."""
        ...


@dataclass(frozen=True)
class FolderExchange:
    """A folder on a shared disk: below `path`, which may have links, no link is followed.

    inside: the folder, from there. mark: of the root; without one, a missing root is made.
    """

    path: Path
    inside: tuple[str, ...] = ()
    mark: RootMark | None = None

    @contextmanager
    def draft(self, name: str) -> Iterator[Path]:
        """See Exchange."""
        *folders, last = parts_of(name)
        with self._opened(folders, makes=True) as folder:
            draft = f".{last}.{uuid.uuid4().hex}"
            try:
                yield path_in(folder, draft, self.path.joinpath(*self.inside, *folders))
                os.replace(draft, last, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(draft, dir_fd=folder)
                raise

    def put(self, name: str, content: bytes) -> None:
        """See Exchange."""
        with self.draft(name) as draft:
            draft.write_bytes(content)

    def get(self, name: str) -> bytes:
        """See Exchange."""
        with self.open(name) as file:
            return file.read()

    def open(self, name: str) -> BinaryIO:
        """See Exchange."""
        *folders, last = parts_of(name)
        with self._opened(folders) as folder:
            return os.fdopen(open_unlinked(last, os.O_RDONLY, folder), "rb")

    def sizes(self, folder: str) -> dict[str, int]:
        """See Exchange."""
        found = {}
        with suppress(FileNotFoundError), self._opened(parts_of(folder)) as opened:
            for entry in os.scandir(opened):
                if entry.is_file(follow_symlinks=False) and not entry.name.startswith("."):
                    found[entry.name] = entry.stat(follow_symlinks=False).st_size
        return found

    def folders(self) -> list[str]:
        """See Exchange."""
        with suppress(FileNotFoundError), self._opened([]) as opened:
            return sorted(e.name for e in os.scandir(opened) if e.is_dir(follow_symlinks=False))
        return []

    def download(self, name: str, folder: Path) -> Path:
        """See Exchange. Its path may be replaced by whoever else can write there."""
        return self.path.joinpath(*self.inside, *parts_of(name))

    def send(self, path: Path, name: str) -> None:
        """See Exchange."""
        with (
            self.draft(name) as draft,
            path.open("rb") as source,
            draft.open("wb") as target,
        ):
            shutil.copyfileobj(source, target, 8 << 20)
            target.flush()
            os.fsync(target.fileno())
        with self._opened(parts_of(name)[:-1]) as folder:
            os.fsync(folder)

    def delete(self, name: str) -> None:
        """See Exchange."""
        *folders, last = parts_of(name)
        with suppress(FileNotFoundError), self._opened(folders) as folder:
            os.unlink(last, dir_fd=folder)

    def below(self, name: str) -> Exchange:
        """See Exchange."""
        return replace(self, inside=(*self.inside, *parts_of(name)))

    def remove(self) -> None:
        """See Exchange."""
        if not self.inside:
            shutil.rmtree(self.path, ignore_errors=True)
            return
        *above, last = self.inside
        with suppress(FileNotFoundError), replace(self, inside=tuple(above))._opened([]) as folder:
            shutil.rmtree(last, ignore_errors=True, dir_fd=folder)

    @contextmanager
    def _opened(self, folders: Sequence[str], *, makes: bool = False) -> Iterator[int]:
        """Yield a folder. FileNotFoundError, OSError; SourceError path.forbidden: it is a link."""
        nearest, missing = open_nearest(self.path)
        try:
            if self.mark is not None:
                self.mark.check_folder(None if missing else nearest, str(self.path))
            if missing and not makes:
                raise FileNotFoundError(str(self.path))
            parts = [*missing, *self.inside, *folders]
            with opened_below(nearest, parts, makes=makes) as opened:
                yield opened
        finally:
            os.close(nearest)


@dataclass(frozen=True)
class ObjectExchange:
    """A prefix in an S3 bucket; the store itself makes objects appear whole."""

    url: str

    @contextmanager
    def draft(self, name: str) -> Iterator[Path]:
        """See Exchange."""
        with tempfile.TemporaryDirectory(prefix="tidemark-draft-") as folder:
            draft = Path(folder) / "draft"
            yield draft
            with (
                self._reached() as (files, base),
                draft.open("rb") as source,
                files.open_output_stream(f"{base}/{name}") as target,
            ):
                shutil.copyfileobj(source, target, 8 << 20)

    def put(self, name: str, content: bytes) -> None:
        """See Exchange."""
        with self._reached() as (files, base), files.open_output_stream(f"{base}/{name}") as target:
            target.write(content)

    def get(self, name: str) -> bytes:
        """See Exchange."""
        with self.open(name) as file:
            return file.read()

    def open(self, name: str) -> BinaryIO:
        """See Exchange."""
        with self._reached() as (files, base):
            return cast(BinaryIO, files.open_input_file(f"{base}/{name}"))

    def sizes(self, folder: str) -> dict[str, int]:
        """See Exchange."""
        from pyarrow import fs

        with self._reached() as (files, base):
            selector = fs.FileSelector(f"{base}/{folder}", allow_not_found=True)
            found = files.get_file_info(selector)
        return {f.base_name: f.size or 0 for f in found if f.type == fs.FileType.File}

    def folders(self) -> list[str]:
        """See Exchange."""
        from pyarrow import fs

        with self._reached() as (files, base):
            found = files.get_file_info(fs.FileSelector(base, allow_not_found=True))
        return sorted(f.base_name for f in found if f.type == fs.FileType.Directory)

    def download(self, name: str, folder: Path) -> Path:
        """See Exchange."""
        path = folder / f"{uuid.uuid4().hex}-{name.rsplit('/', 1)[-1]}"
        with self.open(name) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target, 8 << 20)
        return path

    def send(self, path: Path, name: str) -> None:
        """See Exchange."""
        with (
            self._reached() as (files, base),
            path.open("rb") as source,
            files.open_output_stream(f"{base}/{name}") as target,
        ):
            shutil.copyfileobj(source, target, 8 << 20)

    def delete(self, name: str) -> None:
        """See Exchange."""
        with self._reached() as (files, base), suppress(FileNotFoundError):
            files.delete_file(f"{base}/{name}")

    def below(self, name: str) -> Exchange:
        """See Exchange."""
        return ObjectExchange(url_below(self.url, name))

    def remove(self) -> None:
        """See Exchange."""
        with self._reached() as (files, base), suppress(FileNotFoundError):
            files.delete_dir(base)

    @contextmanager
    def _reached(self) -> Iterator[tuple[fs.FileSystem, str]]:
        try:
            yield _reach(self.url)
        except FileNotFoundError:
            raise
        except OSError as error:
            base = shown_url(self.url)
            raise TemporaryError(
                "backfill.exchange", f'cannot reach "{base}"', detail=str(error)[:1000]
            ) from error


def force_names(folder: Path) -> None:
    """Wait until the names in a folder are durable."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@lru_cache(maxsize=8)
def _reach(url: str) -> tuple[fs.FileSystem, str]:
    """Return a URL's file system, shared by all its users in this process, and the path in it."""
    from pyarrow import fs

    try:
        return fs.FileSystem.from_uri(url)
    except (ValueError, TypeError) as error:
        raise TidemarkError(
            "backfill.exchange_url",
            f'"{shown_url(url)}" is not a supported object storage URL',
            detail=str(error)[:1000],
            hint="s3://bucket/prefix?region=...&scheme=https&endpoint_override=host:port",
        ) from error


def _split(url: str) -> tuple[str, str]:
    base, mark, query = url.partition("?")
    return base.rstrip("/"), mark + query


def url_below(url: str, name: str) -> str:
    """Return the URL, or path, of a subfolder; it keeps the parameters.

    >>> url_below("s3://bucket/folder/?region=x", "sub/folder")
    's3://bucket/folder/sub/folder?region=x'
    """
    base, query = _split(url)
    return f"{base}/{name}{query}"


def shown_url(url: str) -> str:
    """Return the URL without any secret in it; a path as it is.

    >>> shown_url("s3://key:secret@bucket/folder?region=x")
    's3://bucket/folder'
    """
    base, _ = _split(url)
    return S3 + base.removeprefix(S3).rpartition("@")[2] if base.startswith(S3) else base
