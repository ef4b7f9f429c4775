"""Files in a bucket of an S3 object store.

Objects change as a whole and carry a tag. Every range request names the listed tag, so a file that
is replaced while it is read is detected and its versions are never mixed. Secrets are resolved when
the bucket is first used, and no error contains them.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import IO, Any

import obstore
from obstore.exceptions import (
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import S3Store

from connectors.files.folder import file_changed
from connectors.files.journal import FileStat
from connectors.files.pattern import Pattern
from connectors.objects.bucket_options import BucketOptions, open_store
from dataflow.errors import SourceError, TemporaryError, TidemarkError
from dataflow.types import EPOCH_2000_US

BLOCK_BYTES = 4 << 20
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class BucketFolder:
    """A pattern over the objects of a bucket."""

    def __init__(self, bucket: str, pattern: Pattern, options: BucketOptions) -> None:
        self.bucket = bucket
        self.pattern = pattern
        self._options = options
        self._store: S3Store | None = None

    def list_files(self) -> list[FileStat]:
        """List all objects of the pattern."""
        root = self.pattern.root
        found = []
        try:
            for batch in obstore.list(self._opened(), prefix=root or None, chunk_size=1000):
                for meta in batch:
                    path = meta["path"][len(root) + 1 :] if root else meta["path"]
                    if self.pattern.matches(path):
                        found.append(_stat(path, meta))
        except (BaseError, OSError, ValueError) as error:
            raise self._failed(error) from None
        return found

    def open(self, stat: FileStat) -> IO[bytes]:
        """Return the object as a seekable file, read by ranges."""
        path = f"{self.pattern.root}/{stat.path}" if self.pattern.root else stat.path
        file = io.BufferedReader(_ObjectFile(self, path, stat), BLOCK_BYTES)
        # An opened object must exist, as with a file on disk.
        file.peek(1)
        return file

    def verify(self, file: IO[bytes], stat: FileStat) -> None:
        """Do nothing: each range request named the tag of the listed version."""

    def fetch(self, path: str, stat: FileStat, start: int, stop: int) -> bytes:
        """Return bytes [start, stop) of an object in the listed version."""
        tag = stat.version if stat.version.startswith('"') else None
        options: Any = {"range": (start, stop), **({"if_match": tag} if tag else {})}
        try:
            return bytes(obstore.get(self._opened(), path, options=options).bytes())
        except (PreconditionError, FileNotFoundError):
            raise file_changed(stat.path) from None
        except (BaseError, OSError, ValueError) as error:
            raise self._failed(error) from None

    def _opened(self) -> S3Store:
        if self._store is None:
            self._store = open_store(self.bucket, self._options)
        return self._store

    def _failed(self, error: Exception) -> TidemarkError:
        detail = str(error).partition("\n")[0][:300]
        if "NoSuchBucket" in str(error):
            what = f'bucket "{self.bucket}" does not exist'
            return SourceError("source.bucket_missing", what, hint="create it, or correct the path")
        if isinstance(error, PermissionDeniedError | UnauthenticatedError):
            what = f'bucket "{self.bucket}" rejects the credentials'
            hint = "grant them s3:ListBucket and s3:GetObject"
            return SourceError("source.bucket_denied", what, detail=detail, hint=hint)
        what = f'bucket "{self.bucket}" cannot be read'
        hint = "check the endpoint and the network"
        return TemporaryError("source.bucket", what, detail=detail, hint=hint)


class _ObjectFile(io.RawIOBase):
    """One version of an object; reads fetch ranges."""

    def __init__(self, folder: BucketFolder, path: str, stat: FileStat) -> None:
        super().__init__()
        self._folder = folder
        self._path = path
        self._stat = stat
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._stat.size}[whence]
        self._at = max(start + offset, 0)
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        stop = min(self._at + len(view), self._stat.size)
        if stop <= self._at:
            return 0
        found = self._folder.fetch(self._path, self._stat, self._at, stop)
        view[: len(found)] = found
        self._at += len(found)
        return len(found)


def _stat(path: str, meta: Mapping[str, Any]) -> FileStat:
    modified_us = (meta["last_modified"] - _EPOCH) // timedelta(microseconds=1) - EPOCH_2000_US
    tag = meta["e_tag"] or f"{modified_us}-{meta['size']}"
    return FileStat(path, meta["size"], modified_us, tag)
