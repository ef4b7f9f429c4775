"""Oracle: what hostile buckets, proxies and metadata services receive while the environment has
credentials of the service; a client of its own takes them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import obstore
import pytest
from deltalake import DeltaTable
from obstore.exceptions import BaseError
from obstore.store import S3Store

from connectors.delta.options import DeltaOptions
from connectors.delta.table_options import read_options as read_delta
from connectors.files.options import read_options as read_files
from connectors.lake.location import Location
from connectors.objects.option_bucket import OptionBucket
from connectors.option_reader import OptionReader
from connectors.outside.bucket_login import BucketOptions
from connectors.parquet.options import ParquetOptions
from connectors.sink import SinkTable
from dataflow.errors import TidemarkError
from dataflow.schema import Field
from dataflow.types import INT4
from tests.security.login_servers import HttpRecorder, recording_http

MARK = "marker"
KEYS = {"access_key": "${env:SECRET_KEY}", "secret_key": "${env:SECRET_SECRET}"}
TOKEN = {"session_token": "${env:SECRET_TOKEN}"}
TABLE = SinkTable("public", "v", (Field("id", INT4, False),), (0,))
Options = dict[str, Any]


class Servers(NamedTuple):
    """bucket: of the options. others: proxies, metadata, another endpoint."""

    bucket: HttpRecorder
    others: HttpRecorder


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Servers]:
    """Servers, and an environment that names all of them but the bucket of the options."""
    with ExitStack() as stack:
        found = Servers(*(stack.enter_context(recording_http()) for _ in range(2)))
        elsewhere = found.others.url
        (tmp_path / "credentials").write_text(
            f"[{MARK}]\naws_access_key_id={MARK}\naws_secret_access_key={MARK}\n"
        )
        (tmp_path / "config").write_text(f"[profile {MARK}]\nendpoint_url={elsewhere}\n")
        keys = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "TOKEN", "SECURITY_TOKEN")
        variables = {
            **{f"AWS_{name}": MARK for name in keys},
            "TOKEN": MARK,
            "SESSION_TOKEN": MARK,
            **{f"AWS_ENDPOINT{name}": elsewhere for name in ("", "_URL", "_URL_S3", "_URL_STS")},
            **{f"AWS_{name}REGION": f"{MARK}-1" for name in ("", "DEFAULT_")},
            "AWS_METADATA_ENDPOINT": elsewhere,
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": elsewhere,
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{elsewhere}/container",
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "config"),
            "AWS_ROLE_ARN": f"arn:aws:iam::1:role/{MARK}",
            "AWS_PROFILE": MARK,
            "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials"),
            "AWS_CONFIG_FILE": str(tmp_path / "config"),
            "AWS_USER_AGENT": MARK,
            "AWS_BUCKET": MARK,
            "AWS_S3_EXPRESS": "true",
            "AWS_REQUEST_PAYER": "true",
            "AWS_SKIP_SIGNATURE": "true",
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true",
            "AWS_DEFAULT_CONTENT_TYPE": f"{MARK}/{MARK}",
            "AWS_PROXY_URL": elsewhere,
            "AWS_PROXY_EXCLUDES": "127.0.0.1",
            "NO_PROXY": "",
            "no_proxy": "",
            **{f"{name}_PROXY": elsewhere for name in ("HTTP", "HTTPS", "ALL")},
            **{f"{name}_proxy": elsewhere for name in ("http", "https", "all")},
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        for name in ("KEY", "SECRET", "TOKEN"):
            monkeypatch.setenv(f"SECRET_{name}", f"own-{name.lower()}")
        yield found


def _read_file(options: Options) -> None:
    [relation] = read_files({"relations": {"r": {"path": "s3://lake/p/*.csv", **options}}})
    relation.folder().list_files()


def _write_parquet(options: Options) -> None:
    location = ParquetOptions.of({"path": "s3://lake/p", **options}, TABLE).location
    # Another process opens a client of its own.
    pickle.loads(pickle.dumps(location.storage())).put("name", b"content")


def _write_delta(options: Options) -> None:
    chosen = DeltaOptions.of({"path": "s3://lake/p", **options}, TABLE)
    DeltaTable(chosen.location.path, storage_options=chosen.client_options())


def _read_delta(options: Options) -> None:
    relations = {"t": {"path": "s3://lake/p", **options}}
    [table] = read_delta({"relations": relations}, needs_columns=False)
    table.check()
    DeltaTable(table.location.path, storage_options=table.client())


CLIENTS: dict[str, Callable[[Options], None]] = {
    "files": _read_file,
    "parquet": _write_parquet,
    "delta": _write_delta,
    "delta_source": _read_delta,
}


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("keys", [{}, KEYS, {**KEYS, **TOKEN}], ids=["none", "keys", "token"])
def test_a_bucket_gets_the_keys_of_its_options_alone(
    client: str, keys: Options, servers: Servers
) -> None:
    with pytest.raises((TidemarkError, OSError)):
        CLIENTS[client]({"endpoint": servers.bucket.url, **keys})
    assert not servers.others.requests
    assert servers.bucket.requests
    for method, path, headers in servers.bucket.requests:
        assert MARK not in f"{method} {path} {headers}"
        assert path.split("?")[0].split("/")[1] == "lake"
        signature = headers.get("authorization", "")
        assert ("Credential=own-key/" in signature) == bool(keys)
        assert ("us-east-1" in signature) == bool(keys)
        assert headers.get("x-amz-security-token", "") == (
            "own-token" if "session_token" in keys else ""
        )


def test_a_client_of_its_own_takes_them(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_S3_EXPRESS", "AWS_PROXY_URL", "AWS_SKIP_SIGNATURE"):
        monkeypatch.delenv(name)
    with suppress(BaseError, OSError):
        list(obstore.list(S3Store("b", client_options={"allow_http": True})))
    assert MARK in str(servers.others.requests)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("part", ["access_key", "secret_key", "session_token"])
def test_half_of_a_login_is_refused(client: str, part: str, servers: Servers) -> None:
    """The client would complete it by the service's own."""
    options = {"endpoint": servers.bucket.url, part: "${env:SECRET_KEY}"}
    with pytest.raises(TidemarkError) as raised:
        CLIENTS[client](options)
    assert raised.value.code.endswith(".bad_option")
    assert not servers.bucket.requests


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize(
    "variable",
    ["AWS_SERVER_SIDE_ENCRYPTION", "AWS_CHECKSUM_ALGORITHM", "aws_server_side_encryption"],
)
def test_what_cannot_be_taken_back_is_refused(
    client: str, variable: str, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the key of an encryption, which the client sends with each request."""
    monkeypatch.setenv(variable, "AES256")
    with pytest.raises(TidemarkError) as raised:
        CLIENTS[client]({"endpoint": servers.bucket.url, **KEYS})
    assert raised.value.code == "secret.environment"
    assert not servers.bucket.requests


def test_amazon_is_named_too() -> None:
    """Without an endpoint of its own, the client would take one of the environment."""
    plain, virtual = BucketOptions(region="eu-west-1"), BucketOptions(is_virtual_host=True)
    assert plain.url("b") == "https://s3.eu-west-1.amazonaws.com"
    assert virtual.url("b") == "https://b.s3.us-east-1.amazonaws.com"


def test_a_storage_is_pickled_without_secrets(servers: Servers) -> None:
    reader = OptionReader({"path": "s3://lake/p", "endpoint": servers.bucket.url, **KEYS}, "sink")
    storage = Location.of(reader).storage()
    assert isinstance(storage, OptionBucket)
    storage.opened()
    assert b"own-" not in pickle.dumps(storage)
