"""One engine for all of its tests, in a database of its own on the shared server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tidemark
from connectors.postgres.embedded.function_tables import SCHEMA
from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import Database, new_database


@pytest.fixture(scope="package")
def own_database(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        yield made


@pytest.fixture(scope="package")
def engine(own_database: Database) -> Iterator[tidemark.Engine]:
    with tidemark.Engine(own_database.dsn) as running:
        yield running
    left = own_database.rows(
        "SELECT name FROM tidemark.views UNION ALL SELECT nspname::text FROM pg_namespace "
        f"WHERE nspname = '{SCHEMA}' UNION ALL SELECT slot_name::text FROM pg_replication_slots "
        "WHERE database = current_database() UNION ALL SELECT pubname::text FROM pg_publication"
    )
    assert left == [], "an engine without a state_dir leaves nothing in a database it was given"
