"""A server that speaks MongoDB's protocol, where one is installed: FerretDB over SQLite."""

from __future__ import annotations

import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pymongo import MongoClient
from pymongo.errors import PyMongoError

from connectors.loopback import free_port

BINARY = "ferretdb"
START_S = 60.0


@contextmanager
def ferretdb(folder: Path) -> Iterator[int]:
    """The port of a server of its own, which has its data in a folder."""
    binary = shutil.which(BINARY)
    if binary is None:
        pytest.skip(f"no {BINARY} on the PATH: a server of MongoDB's protocol (a Go module)")
    folder.mkdir(exist_ok=True)
    port = free_port()
    command = [
        binary,
        "--handler=sqlite",
        f"--sqlite-url=file:{folder}/",
        f"--listen-addr=127.0.0.1:{port}",
        "--telemetry=disable",
        "--debug-addr=-",
        f"--state-dir={folder}",
    ]
    with (folder / "server.log").open("wb") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_S
        while not _answers(port):
            said = (folder / "server.log").read_text()[-2000:]
            assert child.poll() is None and time.monotonic() < deadline, said
        yield port
    finally:
        child.kill()
        child.wait()


def _answers(port: int) -> bool:
    try:
        with MongoClient("127.0.0.1", port, serverSelectionTimeoutMS=200) as client:
            client.admin.command("ping")
    except PyMongoError:
        return False
    return True
