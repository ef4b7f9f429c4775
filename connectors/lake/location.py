"""Where a lake's files lie: a folder of this machine, or a prefix in an S3 bucket.

Invariant: a folder is written to only below a folder that the operator allows; the address of a
bucket is checked before it is opened. Secrets are references until then.
"""

from __future__ import annotations

import contextlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from connectors import netguard, secrets
from connectors.extras import extra_required
from connectors.objects.bucket_options import BucketOptions
from connectors.objects.shared_storage import (
    FolderStorage,
    SharedStorage,
    check_conditions,
)
from connectors.option_reader import OptionReader
from connectors.sink import SinkTable
from dataflow.errors import TemporaryError

S3 = "s3://"
PAGE = "docs/LAKE_SINKS.md"
# The error of a target that cannot be reached; temporary.
UNREACHABLE = "sink.unreachable"
# Both become part of the host that is reached.
_BUCKET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_REGION = re.compile(r"[A-Za-z0-9-]{1,64}")
_NOT_NAME = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True)
class Location:
    """path: absolute, or s3://bucket/prefix, without a slash at its end. bucket: its options."""

    path: str
    bucket: BucketOptions

    @staticmethod
    def of(reader: OptionReader) -> Location:
        """Read the options of a location. SinkError sink.bad_option, secret.plain."""
        path = reader.take("path", str).rstrip("/")
        bucket = bucket_options(reader)
        if path.startswith(S3):
            name = path.removeprefix(S3).partition("/")[0]
            if not _BUCKET_NAME.fullmatch(name):
                raise reader.refused("path", "does not name a valid bucket", detail=name)
        elif not path.startswith("/") or ".." in path.split("/"):
            hint = "/folder or s3://bucket/prefix"
            raise reader.refused("path", "is neither absolute nor in a bucket", hint=hint)
        elif bucket != BucketOptions():
            raise reader.refused("path", "is no bucket, but options of a bucket are given")
        return Location(path, bucket)

    @property
    def is_bucket(self) -> bool:
        """Return True for a prefix in a bucket."""
        return self.path.startswith(S3)

    def check(self) -> None:
        """Refuse what must not be written to. SourceError path.forbidden, host.forbidden."""
        if self.is_bucket:
            netguard.check_url(self.bucket.endpoint or "https://s3.amazonaws.com")
            netguard.check_certificate(self.bucket.ca_file)
        else:
            netguard.check_sink_path(self.path)

    def storage(self) -> SharedStorage:
        """Return the files at this location; errors as in `check`."""
        self.check()
        if not self.is_bucket:
            return FolderStorage(Path(self.path), UNREACHABLE)
        with extra_required("a bucket of S3"):
            from connectors.objects.option_bucket import OptionBucket
        return OptionBucket(self.path, self.bucket, code=UNREACHABLE)

    def check_writable(self) -> None:
        """Write a file and delete it. TemporaryError; TidemarkError sink.unsafe_storage."""
        check_conditions(self.storage(), code="sink.unsafe_storage")
        if not self.is_bucket:
            # Folders that the check has made.
            for folder in (f"{self.path}/check", self.path):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)

    def secret(self, name: str) -> str:
        """Return a credential of the bucket, resolved: access_key, secret_key, session_token."""
        return secrets.resolve(getattr(self.bucket, name))


def unreached(detail: str) -> TemporaryError:
    """Return the error of a target that cannot be reached."""
    return TemporaryError(
        UNREACHABLE,
        "the sink's files cannot be reached",
        detail=detail[:500],
        hint="no action needed if it is a short failure; else check the path and the network",
    )


def bucket_options(reader: OptionReader) -> BucketOptions:
    """Read how a bucket is reached. SinkError sink.bad_option, secret.plain."""
    region = reader.take("region", str, "us-east-1")
    if not _REGION.fullmatch(region):
        raise reader.refused("region", "is not a valid region name", detail=region)
    endpoint = reader.take("endpoint", str, "")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise reader.refused("endpoint", "must be a URL", detail=endpoint)
    keys = {name: reader.take(name, str, "") for name in ("access_key", "secret_key")}
    keys["session_token"] = reader.take("session_token", str, "")
    for name, value in keys.items():
        if value:
            secrets.refuse_plain(name, value)
    if bool(keys["access_key"]) != bool(keys["secret_key"]):
        raise reader.refused("secret_key", "and access_key require each other")
    is_virtual_host = reader.take("virtual_host", bool, False)
    ca_file = reader.take("ca_file", str, "")
    return BucketOptions(endpoint, region, **keys, is_virtual_host=is_virtual_host, ca_file=ca_file)


def max_delay_s(reader: OptionReader, default: float) -> float:
    """Read how long changes may wait for more of them, in seconds. SinkError sink.bad_option."""
    found = reader.raw("max_delay_s")
    found = default if found is None else found
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= 3600:
        raise reader.refused("max_delay_s", "must be a number of seconds between 0 and 3600")
    return float(found)


def plain_name(table: SinkTable) -> str:
    """Return a view's name in letters, digits, dashes and underscores."""
    title = f"{table.schema}_{table.name}" if table.schema != "public" else table.name
    return _NOT_NAME.sub("_", title)
