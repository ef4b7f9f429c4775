"""An S3 object store on loopback (moto's server), written to by boto3."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

BUCKET = "lake"
KEYS = {"TIDEMARK_TEST_ACCESS_KEY": "AKIDEXAMPLE", "TIDEMARK_TEST_SECRET_KEY": "not-a-secret"}


@dataclass
class Store:
    """A running store; client: boto3's."""

    endpoint: str
    client: Any
    server: Any

    def options(self) -> dict[str, Any]:
        """How a source reaches it."""
        return {
            "endpoint": self.endpoint,
            "access_key": "${env:TIDEMARK_TEST_ACCESS_KEY}",
            "secret_key": "${env:TIDEMARK_TEST_SECRET_KEY}",
        }

    def put(self, key: str, content: bytes) -> None:
        """Write an object."""
        self.client.put_object(Bucket=BUCKET, Key=key, Body=content)

    def delete(self, key: str) -> None:
        """Remove an object."""
        self.client.delete_object(Bucket=BUCKET, Key=key)


@contextmanager
def running_store() -> Iterator[Store]:
    """A store with one empty bucket, stopped at the end."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        access, secret = KEYS.values()
        client = boto3.client(
            "s3",
            endpoint_url=endpoint,
            aws_access_key_id=access,
            aws_secret_access_key=secret,
            region_name="us-east-1",
        )
        client.create_bucket(Bucket=BUCKET)
        yield Store(endpoint, client, server)
    finally:
        server.stop()
