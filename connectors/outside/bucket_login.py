"""Logins to buckets: all that a client of S3 connects with.

`object_store`, the client within obstore and deltalake, completes what it lacks from AWS_*
variables: keys, a session token, another endpoint, headers; and from variables of proxies, files in
the user's home and the cloud's metadata service. Invariant: a bucket gets the keys of its options
or none, whole, and requests go to the endpoint that was checked. Secrets stay references until a
client is made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from connectors import netguard
from connectors.option_reader import OptionReader
from connectors.outside.address import AddressError, Url, parse_url
from connectors.outside.relay import ANSWER_BYTES, proxy_for
from connectors.secrets import refuse_plain, resolve
from dataflow.errors import SourceError

AGENT = "tidemark"
# Settings of requests that variables would change.
_PLAIN = {
    "aws_s3_express": "false",
    "aws_request_payer": "false",
    "aws_unsigned_payload": "false",
    "aws_disable_tagging": "false",
    "aws_imdsv1_fallback": "false",
    "aws_conditional_put": "etag",
}
# What no setting takes back: the name or key of an encryption, another kind of checksum.
_UNAVOIDABLE = ("server_side_encryption", "checksum_algorithm")
_TOKENS = ("session_token", "token")


@dataclass(frozen=True)
class BucketOptions:
    """How a bucket is reached.

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

    @property
    def is_anonymous(self) -> bool:
        """Return True if requests are not signed."""
        return not self.access_key

    def server(self) -> Url:
        """Return the address of the service, plain. SourceError source.bad_option."""
        text = self.endpoint or f"https://s3.{self.region}.amazonaws.com"
        try:
            return parse_url(text.rstrip("/"))
        except AddressError as error:
            what = f'option "endpoint" {error}'
            hint = "http://host:port or https://host"
            raise SourceError("source.bad_option", what, hint=hint, option="endpoint") from None

    def url(self, bucket: str) -> str:
        """Return the endpoint that requests for a bucket go to, always a given one."""
        server = self.server()
        if self.endpoint or not self.is_virtual_host:
            return str(server)
        return str(replace(server, host=f"{bucket}.{server.host}"))

    def check(self, bucket: str) -> None:
        """Refuse what must not be reached or read. SourceError host.forbidden, path.forbidden,
        secret.environment, source.bad_option; TemporaryError host.unknown.
        """
        server = self.server()
        host = f"{bucket}.{server.host}" if self.is_virtual_host else server.host
        netguard.check_host(host, server.port)
        netguard.check_certificate(self.ca_file)
        _refuse_environment(os.environ)

    def proxy(self, bucket: str, answer_bytes: int = ANSWER_BYTES) -> str:
        """Return the proxy that leads to this service alone: its client follows redirects.

        answer_bytes: of the largest answer.
        """
        server = self.server()
        names = f"{bucket}.{server.host}" if self.endpoint else "*.amazonaws.com"
        return proxy_for(server, names, answer_bytes)

    def config(self, bucket: str) -> dict[str, str]:
        """Return the client's settings except for the keys. Errors as of `check`."""
        self.check(bucket)
        url = self.url(bucket)
        return {
            **_PLAIN,
            "aws_region": self.region,
            "aws_endpoint_url": url,
            "aws_endpoint_url_s3": url,
            "aws_virtual_hosted_style_request": str(self.is_virtual_host).lower(),
            "aws_skip_signature": str(self.is_anonymous).lower(),
        }

    def transport(self, bucket: str, answer_bytes: int = ANSWER_BYTES) -> dict[str, str]:
        """Return how the client connects: to the endpoint, through the relay alone."""
        return {
            "allow_http": str(self.server().scheme == "http").lower(),
            "allow_invalid_certificates": "false",
            "proxy_url": self.proxy(bucket, answer_bytes),
            "proxy_excludes": "",
            "user_agent": AGENT,
            "default_content_type": "application/octet-stream",
        }

    def credential(self) -> BucketKeys | None:
        """Return what gives obstore the keys of a request; None for anonymous access.

        SourceError secret.missing, secret.forbidden.
        """
        if self.is_anonymous:
            return None
        found = BucketKeys(self)
        found()
        return found

    def storage_options(self, bucket: str, answer_bytes: int = ANSWER_BYTES) -> dict[str, str]:
        """Return all settings for deltalake. Errors as of `config` and `credential`."""
        found = {
            **{name.upper(): value for name, value in self.config(bucket).items()},
            **self.transport(bucket, answer_bytes),
            "timeout": "30s",
            "connect_timeout": "5s",
        }
        if self.is_anonymous:
            return found
        found["AWS_ACCESS_KEY_ID"] = resolve(self.access_key)
        found["AWS_SECRET_ACCESS_KEY"] = resolve(self.secret_key)
        # An empty one is a header of its own: only where the service's would be sent instead.
        if self.session_token or any(_is_set(os.environ, name) for name in _TOKENS):
            found["AWS_SESSION_TOKEN"] = resolve(self.session_token)
        return found


@dataclass(frozen=True)
class BucketKeys:
    """What obstore calls for keys; it holds references only, in another process too."""

    options: BucketOptions

    def __call__(self) -> Any:
        """Return the keys; without a session token, none. SourceError secret.missing."""
        return {
            "access_key_id": resolve(self.options.access_key),
            "secret_access_key": resolve(self.options.secret_key),
            "token": resolve(self.options.session_token) or None,
            "expires_at": None,
        }


def read_bucket_keys(reader: OptionReader) -> dict[str, str]:
    """Read access_key, secret_key and session_token: references, and whole.

    Errors `<side>.bad_option`; SourceError secret.plain, secret.forbidden.
    """
    names = ("access_key", "secret_key", "session_token")
    keys = {name: reader.take(name, str, "") for name in names}
    for name, value in keys.items():
        if value:
            refuse_plain(name, value)
    if bool(keys["access_key"]) != bool(keys["secret_key"]):
        raise reader.refused("secret_key", "and access_key require each other")
    if keys["session_token"] and not keys["access_key"]:
        raise reader.refused("session_token", "requires access_key and secret_key")
    return keys


def _refuse_environment(variables: Mapping[str, str]) -> None:
    """Refuse variables that would change what every bucket gets. SourceError secret.environment."""
    for name in _UNAVOIDABLE:
        if _is_set(variables, name):
            raise SourceError(
                "secret.environment",
                f'the variable "AWS_{name.upper()}" would have an effect on buckets of others',
                detail="the client of buckets adds it, and the key it names, to each request",
                hint="unset it where the service runs; set it as the default of your own bucket",
            )


def _is_set(variables: Mapping[str, str], name: str) -> bool:
    """Return True if a variable is set by any of the names that the client knows."""
    return any(found.lower() in (name, f"aws_{name}") for found in variables)
