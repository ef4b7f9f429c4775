"""Shared storage in a bucket that the options of a source or sink describe.

Imported where such a bucket is opened: its client is a package of the extra `s3`.
"""

from __future__ import annotations

from dataclasses import dataclass

from obstore.store import S3Store

from connectors.objects.bucket_options import BucketOptions, open_store
from connectors.objects.object_storage import ObjectStorage
from connectors.shuffle_storage import S3


@dataclass(frozen=True)
class OptionBucket(ObjectStorage):
    """A prefix, s3://bucket/prefix, that options describe; each instance has one client."""

    options: BucketOptions

    def opened(self) -> tuple[S3Store, str]:
        """See ObjectStorage."""
        bucket, _, prefix = self.url.removeprefix(S3).partition("/")
        store = self.__dict__.get("_store")
        if store is None:
            store = self.__dict__["_store"] = open_store(bucket, self.options)
        return store, f"{prefix}/" if prefix else ""

    def __getstate__(self) -> dict[str, object]:
        """Leave the client out: another process opens its own, with references only."""
        return {name: value for name, value in self.__dict__.items() if name != "_store"}
