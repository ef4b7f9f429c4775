"""How an S3 bucket is reached, by a source's or a sink's options.

Secrets are resolved when the bucket is opened, and no error contains them. Invariant: the host and
the certificate file are checked before they are used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from connectors import netguard, secrets
from connectors.extras import extra_required
from connectors.outside.address import AddressError, Url, parse_url
from connectors.outside.relay import ANSWER_BYTES, proxy_for
from dataflow.errors import SourceError

if TYPE_CHECKING:
    from obstore.store import S3Store

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

    def server(self) -> Url:
        """Return the address of the service, plain. SourceError host.forbidden."""
        text = self.endpoint or f"https://s3.{self.region}.amazonaws.com"
        try:
            return parse_url(text.rstrip("/"))
        except AddressError as error:
            what = f'option "endpoint" {error}'
            hint = "http://host:port or https://host"
            raise SourceError("source.bad_option", what, hint=hint, option="endpoint") from None

    def check(self, bucket: str) -> None:
        """Refuse what must not be reached or read. SourceError host.forbidden, path.forbidden,
        source.bad_option; TemporaryError host.unknown.
        """
        server = self.server()
        host = f"{bucket}.{server.host}" if self.is_virtual_host else server.host
        netguard.check_host(host, server.port)
        netguard.check_certificate(self.ca_file)

    def proxy(self, bucket: str, answer_bytes: int = ANSWER_BYTES) -> str:
        """Return the proxy that leads to this service alone: its client follows redirects.

        answer_bytes: of the largest answer.
        """
        server = self.server()
        names = f"{bucket}.{server.host}" if self.endpoint else "*.amazonaws.com"
        return proxy_for(server, names, answer_bytes)


def open_store(bucket: str, options: BucketOptions) -> S3Store:
    """Return the client of a bucket. SourceError host.forbidden, path.forbidden, secret.missing;
    TidemarkError package.missing.
    """
    with extra_required("a bucket of S3"):
        from obstore.store import S3Store
    keys = {
        "access_key_id": options.access_key,
        "secret_access_key": options.secret_key,
        "session_token": options.session_token,
    }
    options.check(bucket)
    settings: dict[str, Any] = {name: secrets.resolve(text) for name, text in keys.items() if text}
    if not settings:
        settings["skip_signature"] = True
    server = options.server()
    if options.endpoint:
        settings["endpoint"] = str(server)
    client: dict[str, Any] = {"allow_http": server.scheme == "http", **_TIMEOUTS}
    client["proxy_url"] = options.proxy(bucket)
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
