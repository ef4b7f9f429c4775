"""An object storage that speaks S3, for as long as a test needs it: in this process, or a server of
its own where one is installed."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from moto.s3.responses import S3Response
from moto.server import ThreadedMotoServer
from pyarrow import fs

from connectors.loopback import free_port

# A server of objects in a folder, whose conditional writes are those of the file system.
GATEWAY = "versitygw"
START_S = 30.0
_putting = threading.Lock()
_put_object = S3Response.put_object


def _put_alone(response: S3Response) -> object:
    """Check and write as one, which S3 promises and moto's threads do not."""
    with _putting:
        return _put_object(response)


@contextmanager
def object_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The s3:// URL of a bucket; the environment has credentials for it."""
    _give_credentials(monkeypatch)
    monkeypatch.setattr(S3Response, "put_object", _put_alone)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield _new_bucket(f"{host}:{port}")
    finally:
        server.stop()


@contextmanager
def object_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The same of a server of its own, which has its objects in a folder."""
    binary = shutil.which(GATEWAY)
    if binary is None:
        pytest.skip(f"no {GATEWAY} on the PATH: a server of S3 (a Go module) to test against")
    _give_credentials(monkeypatch)
    folder.mkdir()
    port = free_port()
    keys = ["--access", "test", "--secret", "test", "--port", f"127.0.0.1:{port}"]
    with (folder.parent / "objects.log").open("wb") as log:
        child = subprocess.Popen([binary, *keys, "posix", str(folder)], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_S
        while not _answers(port):
            assert child.poll() is None and time.monotonic() < deadline, Path(log.name).read_text()
            time.sleep(0.05)
        yield _new_bucket(f"127.0.0.1:{port}")
    finally:
        child.kill()
        child.wait()


def _answers(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _give_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def _new_bucket(place: str) -> str:
    files = fs.S3FileSystem(
        endpoint_override=place, scheme="http", region="us-east-1", allow_bucket_creation=True
    )
    # All servers of moto in a process have the same buckets.
    bucket = f"exchange-{uuid.uuid4().hex}"
    files.create_dir(bucket)
    return f"s3://{bucket}/tidemark?scheme=http&region=us-east-1&endpoint_override={place}"
