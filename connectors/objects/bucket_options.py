"""The client of an S3 bucket, by options of a source or sink (connectors/outside/bucket_login.py).

Secrets are resolved when the bucket is opened, and no error contains them.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from connectors.extras import extra_required
from connectors.outside.bucket_login import BucketOptions
from dataflow.errors import SourceError

if TYPE_CHECKING:
    from obstore.store import S3Store

_TIMEOUTS = {"timeout": timedelta(seconds=20), "connect_timeout": timedelta(seconds=5)}
_RETRIES: Any = {"max_retries": 2, "retry_timeout": timedelta(seconds=20)}


def open_store(bucket: str, options: BucketOptions) -> S3Store:
    """Return the client of a bucket. SourceError host.forbidden, path.forbidden, secret.missing,
    secret.environment; TidemarkError package.missing.
    """
    with extra_required("a bucket of S3"):
        from obstore.store import S3Store
    config: Any = options.config(bucket)
    client: Any = {**options.transport(bucket), **_TIMEOUTS}
    if options.ca_file:
        client["root_certificate"] = _certificate(options.ca_file)
    return S3Store(
        bucket,
        config=config,
        client_options=client,
        retry_config=_RETRIES,
        credential_provider=options.credential(),
    )


def _certificate(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        what = f'certificate file "{path}" cannot be read'
        raise SourceError(
            "source.bad_option", what, detail=str(error), hint="check the option ca_file"
        ) from None
