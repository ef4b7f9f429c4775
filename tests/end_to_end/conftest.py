"""The targets of additional sinks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import Database, new_database
from tests.harness.webhook_receiver import SECRET, Receiver


@pytest.fixture
def other(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """Another database of the same server, for a sink."""
    with new_database(postgres) as made:
        yield made


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A server that webhooks are sent to; the service knows its secret."""
    monkeypatch.setenv("SECRET_WEBHOOK", SECRET)
    running = Receiver()
    yield running
    running.stop()
