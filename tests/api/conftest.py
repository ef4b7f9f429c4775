"""Fixtures of the tests of REST: each module has one database, filled by its TABLES."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.client_faces import Face, faces
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService


@pytest.fixture(scope="module")
def place(request: pytest.FixtureRequest, postgres: EmbeddedPostgres) -> Iterator[Database]:
    """The source, and the sink where there is no other, with the module's TABLES."""
    with new_database(postgres) as made:
        made.execute(request.module.TABLES)
        yield made


@pytest.fixture(scope="module", params=["sync", "async"])
def face(
    request: pytest.FixtureRequest,
    service: RunningService,
    place: Database,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Face]:
    """The Python client of the module's service, called synchronously and from asyncio."""
    folder = tmp_path_factory.mktemp(request.param)
    with faces(request.param, service, place, folder) as made:
        yield made
