"""Oracle: the changes that were made at the server of each source, by the origin's own writer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import source_contract as contract
from tests.harness.postgres import Database
from tests.harness.source_contract import Origin
from tests.harness.tiers import count
from tests.recovery.origins import ORIGINS

KILLS = count("TIDEMARK_TEST_KILLS", 1, 20)
FAULTS = count("TIDEMARK_TEST_FAULTS", 1, 20)
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "11"))

pytestmark = pytest.mark.timeout(300 + 60 * max(KILLS, FAULTS))


@pytest.fixture(params=ORIGINS)
def origin(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Origin]:
    with ORIGINS[request.param](request, tmp_path, SEED) as made:
        yield made


def test_kills(origin: Origin, database: Database, tmp_path: Path) -> None:
    contract.check_kills(origin, database, tmp_path / "service", KILLS, SEED)


def test_faults(origin: Origin, database: Database, tmp_path: Path) -> None:
    contract.check_faults(origin, database, tmp_path / "service", FAULTS, SEED)
