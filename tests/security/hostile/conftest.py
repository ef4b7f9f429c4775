"""One database and one running service for each set-up, for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import new_database
from tests.security.hostile.ground import Ground, ground_of

# The service as deploy/role.sql makes it; the others in the whole suite alone.
SETUPS = [
    pytest.param("super", marks=pytest.mark.whole),
    "role",
    pytest.param("apart", marks=pytest.mark.whole),
]


@pytest.fixture(scope="package", params=SETUPS)
def ground(
    request: pytest.FixtureRequest,
    postgres: EmbeddedPostgres,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Ground]:
    """The service over a database in which mallory has a schema of her own."""
    folder = tmp_path_factory.mktemp(f"service_{request.param}")
    with new_database(postgres) as database, ground_of(database, folder, request.param) as made:
        yield made


@pytest.fixture(autouse=True)
def fresh(ground: Ground) -> None:
    """What an earlier test has left is not this one's."""
    ground.notes()
