"""An object storage that speaks S3, in this process, for as long as a test needs it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer
from pyarrow import fs

BUCKET = "exchange"
_putting = threading.Lock()
_put_object = S3Response.put_object


def _put_alone(response: S3Response) -> object:
    """Check and write as one, which S3 promises and moto's threads do not."""
    with _putting:
        return _put_object(response)


@contextmanager
def object_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The s3:// URL of a bucket; the environment has credentials for it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setattr(S3Response, "put_object", _put_alone)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    place = f"{host}:{port}"
    try:
        files = fs.S3FileSystem(
            endpoint_override=place, scheme="http", region="us-east-1", allow_bucket_creation=True
        )
        files.create_dir(BUCKET)
        yield f"s3://{BUCKET}/tidemark?scheme=http&region=us-east-1&endpoint_override={place}"
    finally:
        server.stop()
