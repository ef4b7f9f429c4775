"""Where a lake's files lie: a folder of this machine, or a prefix in an S3 bucket.

Invariant: a folder is written to only below a folder that the operator allows; the address of a
bucket is checked before it is opened. Secrets are references until then.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from connectors import netguard
from connectors.extras import extra_required
from connectors.objects.bucket_options import BucketOptions
from connectors.objects.folder_storage import SinkFolder
from connectors.objects.shared_storage import SharedStorage, check_conditions
from connectors.option_reader import OptionReader
from connectors.outside.address import AddressError, parse_folder, parse_object_url
from connectors.outside.bucket_login import read_bucket_keys
from connectors.outside.texts import clean
from connectors.sink import SinkTable
from connectors.url_options import read_url
from dataflow.errors import TemporaryError

S3 = "s3://"
PAGE = "docs/LAKE_SINKS.md"
# The error of a target that cannot be reached; temporary.
UNREACHABLE = "sink.unreachable"
# It becomes part of the host that is reached.
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
        text, bucket = reader.take("path", str), bucket_options(reader)
        try:
            path = _plain(text)
        except AddressError as error:
            hint = "/folder or s3://bucket/prefix"
            raise reader.refused("path", str(error), detail=clean(text), hint=hint) from None
        if not path.startswith(S3) and bucket != BucketOptions():
            raise reader.refused("path", "is no bucket, but options of a bucket are given")
        return Location(path, bucket)

    @property
    def is_bucket(self) -> bool:
        """Return True for a prefix in a bucket."""
        return self.path.startswith(S3)

    @property
    def bucket_name(self) -> str:
        """The name of the bucket; a part of the path if there is none."""
        return self.path.removeprefix(S3).partition("/")[0]

    def check(self) -> None:
        """Refuse what must not be written to. SourceError path.forbidden, host.forbidden,
        secret.environment.
        """
        if self.is_bucket:
            self.bucket.check(self.bucket_name)
        else:
            netguard.check_sink_path(self.path)

    def storage(self) -> SharedStorage:
        """Return the files at this location; errors as in `check`."""
        self.check()
        if not self.is_bucket:
            return SinkFolder(Path(self.path), UNREACHABLE)
        with extra_required("a bucket of S3"):
            from connectors.objects.option_bucket import OptionBucket
        return OptionBucket(self.path, self.bucket, code=UNREACHABLE)

    @contextmanager
    def held(self, folder: str) -> Iterator[None]:
        """Let a library that opens paths itself use this location, and one folder in it.

        SourceError path.forbidden: it has links, or was replaced meanwhile; others as in `check`.
        """
        self.check()
        if self.is_bucket:
            yield
            return
        storage = SinkFolder(Path(self.path), UNREACHABLE)
        storage.require_no_links()
        with storage.held(folder):
            yield

    def check_writable(self) -> None:
        """Write a file and delete it. TemporaryError; TidemarkError sink.unsafe_storage."""
        storage = self.storage()
        check_conditions(storage, code="sink.unsafe_storage")
        if isinstance(storage, SinkFolder):
            # Folders that the check has made.
            storage.remove_empty("check")


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
    endpoint = read_url(reader, "endpoint", endpoint.rstrip("/")) if endpoint else ""
    keys = read_bucket_keys(reader)
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


def _plain(text: str) -> str:
    """Return a folder, or s3://bucket/prefix, rebuilt from its parts. AddressError.

    >>> _plain("/lake//a/"), _plain("s3://bucket/a/")
    ('/lake/a', 's3://bucket/a')
    """
    if not text.startswith(S3):
        return parse_folder(text)
    bucket, prefix = parse_object_url(text)
    return f"{S3}{bucket}/{prefix}".rstrip("/")
