"""One database and one running service for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService

TABLES = """
CREATE TABLE t (id int PRIMARY KEY, a int, b text);
INSERT INTO t SELECT i, i % 3, 'b' || i FROM generate_series(1, 30) AS i;
CREATE TABLE keyless (a int);
CREATE TABLE taken (a int);
CREATE TABLE gate (id int PRIMARY KEY, a int);
INSERT INTO gate VALUES (1, 1);
"""


@pytest.fixture(scope="package")
def place(postgres: EmbeddedPostgres) -> Iterator[Database]:
    """The source, and the sink."""
    with new_database(postgres) as made:
        made.execute(TABLES)
        yield made


@pytest.fixture(scope="package")
def service(place: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """Over that database."""
    folder, root = tmp_path_factory.mktemp("service"), tmp_path_factory.getbasetemp()
    with RunningService(place.dsn, folder, allow_folders=root) as running:
        yield running
