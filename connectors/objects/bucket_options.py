"""How an S3 bucket is reached, by a source's or a sink's options.

Secrets are resolved when the bucket is opened, and no error contains them. Invariant: the host and
the certificate file are checked before they are used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from obstore.store import S3Store

from connectors import netguard, secrets
from connectors.objects.shared_storage import ObjectStorage
from connectors.shuffle_storage import S3
from dataflow.errors import SourceError

_TIMEOUTS = {"timeout": timedelta(seconds=20), "connect_timeout": timedelta(seconds=5)}
_RETRIES = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}


@dataclass(frozen=True)
class BucketOptions:
    """Connection options of an object store.

    access_key, secret_key, session_token: references to secrets; all empty for anonymous access.
    endpoint: empty for AWS. is_virtual_host: the bucket's name is part of the host, not of the
    path.
    """

    endpoint: str = ""
    region: str = "us-east-1"
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    is_virtual_host: bool = False
    ca_file: str = ""


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


def open_store(bucket: str, options: BucketOptions) -> S3Store:
    """Return the client of a bucket. SourceError host.forbidden, path.forbidden, secret.missing."""
    keys = {
        "access_key_id": options.access_key,
        "secret_access_key": options.secret_key,
        "session_token": options.session_token,
    }
    host = options.endpoint or f"https://s3.{options.region}.amazonaws.com"
    netguard.check_url(host.replace("://", f"://{bucket}.") if options.is_virtual_host else host)
    netguard.check_certificate(options.ca_file)
    settings: dict[str, Any] = {name: secrets.resolve(text) for name, text in keys.items() if text}
    if not settings:
        settings["skip_signature"] = True
    if options.endpoint:
        settings["endpoint"] = options.endpoint
    client: dict[str, Any] = {"allow_http": options.endpoint.startswith("http://"), **_TIMEOUTS}
    if options.ca_file:
        client["root_certificate"] = _certificate(options.ca_file)
    settings |= {"region": options.region, "retry_config": _RETRIES, "client_options": client}
    return S3Store(bucket, virtual_hosted_style_request=options.is_virtual_host, **settings)


def _certificate(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        what = f'certificate file "{path}" cannot be read'
        raise SourceError(
            "source.bad_option", what, detail=str(error), hint="check the option ca_file"
        ) from None
