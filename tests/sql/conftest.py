"""The planning schema once for each PostgreSQL version."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import Database
from tests.sql.planning import planning_database


@pytest.fixture(scope="session")
def shop(every_postgres: EmbeddedPostgres) -> Iterator[Database]:
    """A database with the schema of tests.sql.planning; tests leave it as it is."""
    with planning_database(every_postgres) as database:
        yield database
