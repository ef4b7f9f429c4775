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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store

from connectors.shuffle_storage import S3, force_names, shown_url
from dataflow.errors import TemporaryError, TidemarkError

_TIMEOUTS = {"timeout": timedelta(seconds=30), "connect_timeout": timedelta(seconds=5)}
_RETRIES: Any = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
# Parameters of a storage's URL, as in `connectors.shuffle_storage`.
_PARAMETERS = ("region", "scheme", "endpoint_override")
_COPY_BYTES = 8 << 20
# The error of a storage that cannot be reached; a user of it may have its own.
CODE = "spark.storage"


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


def open_storage(url: str) -> SharedStorage:
    """Return the storage at a path or at s3://bucket/prefix?region=...&scheme=...

    endpoint_override=host:port names another server than Amazon's. TidemarkError
    spark.storage_url.
    """
    if not url.startswith(S3):
        return FolderStorage(Path(url), code="spark.storage")
    _opened(url)
    return BucketStorage(url, code="spark.storage")


@dataclass(frozen=True)
class FolderStorage:
    """A folder on a disk that all machines see, with links and durable renames (not object mounts).

    A name appears by a link to a synced draft, which fails if the name is taken. code: of the error
    of a failure.
    """

    path: Path
    code: str = CODE

    def create(self, name: str, content: bytes) -> None:
        """See SharedStorage."""
        with self._draft(name) as draft:
            _write_synced(draft, content)
            try:
                os.link(draft, self.path / name)
            except FileExistsError:
                _require_own(self, name, content)

    def put(self, name: str, content: bytes) -> None:
        """See SharedStorage."""
        with self._draft(name) as draft:
            _write_synced(draft, content)
            os.replace(draft, self.path / name)

    def send(self, path: Path, name: str) -> None:
        """See SharedStorage."""
        with self._draft(name) as draft:
            with path.open("rb") as source, draft.open("wb") as target:
                shutil.copyfileobj(source, target, _COPY_BYTES)
                target.flush()
                os.fsync(target.fileno())
            os.replace(draft, self.path / name)

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """See SharedStorage."""
        with _reached(str(self.path), self.code), (self.path / name).open("rb") as file:
            file.seek(start)
            return file.read() if stop is None else file.read(stop - start)

    def download(self, name: str, path: Path) -> None:
        """See SharedStorage."""
        with _reached(str(self.path), self.code):
            shutil.copyfile(self.path / name, path)

    def names(self, folder: str) -> list[str]:
        """See SharedStorage."""
        with _reached(str(self.path), self.code):
            found = (self.path / folder).rglob("*")
            paths = [p for p in found if not p.name.startswith(".") and p.is_file()]
        return sorted(p.relative_to(self.path).as_posix() for p in paths)

    def delete(self, name: str) -> None:
        """See SharedStorage."""
        with _reached(str(self.path), self.code):
            (self.path / name).unlink(missing_ok=True)

    @contextmanager
    def _draft(self, name: str) -> Iterator[Path]:
        """Yield a path beside a name; make the name durable if the block succeeds."""
        path = self.path / name
        draft = path.with_name(f".{uuid.uuid4().hex}")
        with _reached(str(self.path), self.code):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                yield draft
            finally:
                draft.unlink(missing_ok=True)
            force_names(path.parent)


@dataclass(frozen=True)
class ObjectStorage:
    """A prefix in an S3 bucket whose server has conditional writes (If-None-Match: *).

    Amazon, MinIO, Ceph, Garage and SeaweedFS have them; a server that ignores the condition would
    let two writers commit one epoch, so `check_conditions` refuses it. url: as errors show it. A
    subclass opens the client.
    """

    url: str
    code: str = field(default=CODE, kw_only=True)

    def opened(self) -> tuple[S3Store, str]:
        """Return the client, and the prefix of names: empty, or with a slash at its end."""
        raise NotImplementedError

    def create(self, name: str, content: bytes) -> None:
        """See SharedStorage."""
        with _reached(self.url, self.code):
            store, base = self.opened()
            try:
                obstore.put(store, base + name, content, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                _require_own(self, name, content)

    def put(self, name: str, content: bytes) -> None:
        """See SharedStorage."""
        with _reached(self.url, self.code):
            store, base = self.opened()
            obstore.put(store, base + name, content)

    def send(self, path: Path, name: str) -> None:
        """See SharedStorage."""
        with _reached(self.url, self.code):
            store, base = self.opened()
            obstore.put(store, base + name, path)

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """See SharedStorage."""
        with _reached(self.url, self.code):
            store, base = self.opened()
            if stop is not None:
                return bytes(obstore.get_range(store, base + name, start=start, end=stop))
            return bytes(obstore.get(store, base + name).bytes())[start:]

    def download(self, name: str, path: Path) -> None:
        """See SharedStorage."""
        with _reached(self.url, self.code), path.open("wb") as target:
            store, base = self.opened()
            for part in obstore.get(store, base + name).stream(min_chunk_size=_COPY_BYTES):
                target.write(part)

    def names(self, folder: str) -> list[str]:
        """See SharedStorage."""
        with _reached(self.url, self.code):
            store, base = self.opened()
            listed = obstore.list(store, prefix=f"{base}{folder}" or None, chunk_size=1000)
            return sorted(meta["path"][len(base) :] for batch in listed for meta in batch)

    def delete(self, name: str) -> None:
        """See SharedStorage."""
        with _reached(self.url, self.code), suppress(FileNotFoundError):
            store, base = self.opened()
            obstore.delete(store, base + name)


@dataclass(frozen=True)
class BucketStorage(ObjectStorage):
    """A bucket as `open_storage` reads its URL.

    Credentials are those of the environment or the machine's role.
    """

    def opened(self) -> tuple[S3Store, str]:
        """See ObjectStorage."""
        return _opened(self.url)


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


def _require_own(storage: SharedStorage, name: str, content: bytes) -> None:
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
def _reached(where: str, code: str) -> Iterator[None]:
    """Turn a failure of the storage into a TemporaryError; a missing file keeps its own."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, BaseError) as error:
        raise TemporaryError(
            code,
            f'cannot reach the shared storage "{shown_url(where)}"',
            detail=str(error).partition("\n")[0][:500],
            hint="no action needed if it is a short failure: the epoch is repeated",
        ) from error


@lru_cache(maxsize=8)
def _opened(url: str) -> tuple[S3Store, str]:
    """Return the client of a URL, shared by its users in this process, and the prefix of names."""
    base, _, query = url.removeprefix(S3).partition("?")
    bucket, _, prefix = base.partition("/")
    parameters = {name: values[-1] for name, values in parse_qs(query).items()}
    unknown = sorted(parameters.keys() - set(_PARAMETERS))
    if unknown or not bucket or "@" in bucket:
        raise TidemarkError(
            "spark.storage_url",
            f'"{shown_url(url)}" is not a supported storage URL',
            detail=f"unknown parameters: {', '.join(unknown)}" if unknown else "no plain bucket",
            hint="s3://bucket/prefix?region=...&scheme=https&endpoint_override=host:port",
        )
    settings: dict[str, Any] = {"region": parameters.get("region", "us-east-1")}
    scheme = parameters.get("scheme", "https")
    if "endpoint_override" in parameters:
        settings["endpoint"] = f"{scheme}://{parameters['endpoint_override']}"
    client: Any = {"allow_http": scheme == "http", **_TIMEOUTS}
    opened: Callable[..., S3Store] = S3Store
    store = opened(bucket, retry_config=_RETRIES, client_options=client, **settings)
    return store, f"{prefix.strip('/')}/" if prefix.strip("/") else ""
