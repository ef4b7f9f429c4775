"""Fixtures of the tests of REST: each module has one database, filled by its TABLES."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.postgres.embedded import EmbeddedPostgres
from tests.harness.postgres import Database, new_database


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, postgres: EmbeddedPostgres) -> Iterator[Database]:
    """The source, and the sink where there is no other, with the module's TABLES."""
    with new_database(postgres) as made:
        made.execute(request.module.TABLES)
        yield made
