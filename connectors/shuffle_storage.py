"""Storage that a backfill's tasks and the service share: a common folder or object storage.

Invariant: a file is whole or absent. Writing a name again replaces the file. Concurrent writers of
the same content do no harm. Instances are picklable; any process may open the same URL.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol, cast

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
    from AWS's default chain.
    """
    return ObjectExchange(url.rstrip("/")) if url.startswith(S3) else FolderExchange(Path(url))


@dataclass(frozen=True)
class FolderExchange:
    """A folder on a shared disk."""

    path: Path

    @contextmanager
    def draft(self, name: str) -> Iterator[Path]:
        """See Exchange."""
        path = self.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            yield draft
            os.replace(draft, path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def put(self, name: str, content: bytes) -> None:
        """See Exchange."""
        with self.draft(name) as draft:
            draft.write_bytes(content)

    def get(self, name: str) -> bytes:
        """See Exchange."""
        return (self.path / name).read_bytes()

    def open(self, name: str) -> BinaryIO:
        """See Exchange."""
        return (self.path / name).open("rb")

    def sizes(self, folder: str) -> dict[str, int]:
        """See Exchange."""
        found = {}
        with suppress(FileNotFoundError):
            for path in (self.path / folder).iterdir():
                if path.is_file() and not path.name.startswith("."):
                    found[path.name] = path.stat().st_size
        return found

    def folders(self) -> list[str]:
        """See Exchange."""
        found = self.path.iterdir() if self.path.is_dir() else ()
        return sorted(path.name for path in found if path.is_dir())

    def download(self, name: str, folder: Path) -> Path:
        """See Exchange."""
        return self.path / name

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
        force_names((self.path / name).parent)

    def delete(self, name: str) -> None:
        """See Exchange."""
        (self.path / name).unlink(missing_ok=True)

    def below(self, name: str) -> Exchange:
        """See Exchange."""
        return FolderExchange(self.path / name)

    def remove(self) -> None:
        """See Exchange."""
        shutil.rmtree(self.path, ignore_errors=True)


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
