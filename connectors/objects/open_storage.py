"""Shared storage by its URL; what only S3 needs is imported for S3."""

from __future__ import annotations

from pathlib import Path

from connectors.extras import extra_required
from connectors.objects.folder_storage import FolderStorage
from connectors.objects.shared_storage import SharedStorage
from connectors.shuffle_storage import S3


def open_storage(url: str) -> SharedStorage:
    """Return the storage at a path or at s3://bucket/prefix?region=...&scheme=...

    endpoint_override=host:port names another server than Amazon's. TidemarkError
    spark.storage_url, package.missing.
    """
    if not url.startswith(S3):
        return FolderStorage(Path(url))
    with extra_required("a storage in S3"):
        from connectors.objects.object_storage import BucketStorage
    storage = BucketStorage(url)
    storage.opened()
    return storage
