"""Oracle: PostgreSQL wakes a session however many files its process has open; what the kernel says
of how many that may be."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator

import pytest

from connectors.postgres.catalog.catalog import Control
from connectors.postgres.catalog.listener import Listener
from connectors.postgres.catalog.requests import Requests
from connectors.postgres.schema.channels import CHANNEL
from service.runtime.memory_budget import allow_files
from tests.harness.postgres import Database

# More than select() can tell apart.
OPEN = 1100


@pytest.fixture
def _many_files() -> Iterator[None]:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if 0 <= most < 2 * OPEN:
        pytest.skip(f"no more than {most} files may be open at once")
    allow_files()
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(OPEN)]
    yield
    for file in files:
        os.close(file)


def _notify(database: Database, channel: str) -> None:
    database.execute(f"NOTIFY {channel}")


@pytest.mark.usefixtures("_many_files")
def test_a_change_of_the_catalog_is_heard(database: Database) -> None:
    listener = Listener(database.dsn)
    assert listener.wait(0), "what came before is not known"
    assert not listener.wait(0.1)
    assert listener._session is not None and listener._session.fileno() > 1024
    session = listener._session
    _notify(database, CHANNEL)
    assert listener.wait(30)
    assert listener._session is session, "it was lost"
    listener.close()


@pytest.mark.usefixtures("_many_files")
def test_a_request_is_heard(database: Database) -> None:
    control = Control(database.dsn)
    control.ensure()
    control.close()
    requests = Requests(database.dsn)
    requests.wait(0.1)
    _notify(database, CHANNEL)
    began = time.monotonic()
    requests.wait(300)
    assert time.monotonic() - began < 200
    requests.close()


def test_a_process_may_open_what_the_system_lets_it() -> None:
    soft, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, most - 1), most))
        allow_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most, most)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
