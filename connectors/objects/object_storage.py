"""Shared storage in a bucket of S3, by a client that is a package of the extra `s3`.

Imported where a bucket is opened; see `shared_storage` for the contract.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store

from connectors.objects.folder_storage import FolderStorage
from connectors.objects.shared_storage import COPY_BYTES, reached, require_own
from connectors.shuffle_storage import S3, shown_url
from dataflow.errors import TidemarkError

_TIMEOUTS = {"timeout": timedelta(seconds=30), "connect_timeout": timedelta(seconds=5)}
_RETRIES: Any = {"max_retries": 4, "retry_timeout": timedelta(seconds=30)}
# Parameters of a storage's URL, as in `connectors.shuffle_storage`.
_PARAMETERS = ("region", "scheme", "endpoint_override")


@dataclass(frozen=True)
class ObjectStorage:
    """A prefix in an S3 bucket whose server has conditional writes (If-None-Match: *).

    Amazon, MinIO, Ceph, Garage and SeaweedFS have them; a server that ignores the condition would
    let two writers commit one epoch, so `check_conditions` refuses it. url: as errors show it. A
    subclass opens the client.
    """

    url: str
    code: str = field(default=FolderStorage.code, kw_only=True)

    def opened(self) -> tuple[S3Store, str]:
        """Return the client, and the prefix of names: empty, or with a slash at its end."""
        raise NotImplementedError

    def _reached(self) -> AbstractContextManager[None]:
        return reached(self.url, self.code, (BaseError,))

    def create(self, name: str, content: bytes) -> None:
        """See SharedStorage."""
        with self._reached():
            store, base = self.opened()
            try:
                obstore.put(store, base + name, content, mode="create", use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                require_own(self, name, content)

    def put(self, name: str, content: bytes) -> None:
        """See SharedStorage."""
        with self._reached():
            store, base = self.opened()
            obstore.put(store, base + name, content)

    def send(self, source: Path | Iterable[bytes], name: str) -> None:
        """See SharedStorage."""
        with self._reached():
            store, base = self.opened()
            obstore.put(store, base + name, source)

    def get(self, name: str, start: int = 0, stop: int | None = None) -> bytes:
        """See SharedStorage."""
        with self._reached():
            store, base = self.opened()
            if stop is not None:
                return bytes(obstore.get_range(store, base + name, start=start, end=stop))
            return bytes(obstore.get(store, base + name).bytes())[start:]

    def read(self, name: str) -> Iterator[bytes]:
        """See SharedStorage."""
        with self._reached():
            store, base = self.opened()
            for part in obstore.get(store, base + name).stream(min_chunk_size=COPY_BYTES):
                yield bytes(part)

    def names(self, folder: str) -> list[str]:
        """See SharedStorage."""
        with self._reached():
            store, base = self.opened()
            listed = obstore.list(store, prefix=f"{base}{folder}" or None, chunk_size=1000)
            return sorted(meta["path"][len(base) :] for batch in listed for meta in batch)

    def delete(self, name: str) -> None:
        """See SharedStorage."""
        with self._reached(), suppress(FileNotFoundError):
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
