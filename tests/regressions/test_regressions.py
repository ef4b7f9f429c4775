"""Oracle: PostgreSQL's own answer, over cases that were wrong once.

Each file of this folder is one case, as tests/equality/case.py reads it; the generator of
queries writes them. `-- open: <who>` at its head marks one that is known and not yet repaired.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.equality.case import read_case, run_case
from tests.equality.history import opened_store
from tests.harness.postgres import new_database, versions_to_test

# Each store on a server of its own version: some cases are of one version's canonical text.
VERSIONS = {"memory": versions_to_test()[0], "rocks": versions_to_test()[-1]}
FILES = sorted(Path(__file__).parent.glob("*.sql"))


@pytest.mark.parametrize("store", VERSIONS)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_case_is_right_now(
    servers: Callable[[int], EmbeddedPostgres],
    path: Path,
    store: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    case = read_case(path)
    if case.open:
        reason = f"open: {case.open}"
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    server = servers(VERSIONS[store])
    with new_database(server) as database, opened_store(store, tmp_path) as opened:
        outcome = run_case(database, case, opened)
    assert not outcome.refused, outcome.refused
    assert not outcome.faults, outcome.text(
        {"case": case.query}, f"pytest {__file__} -k {path.stem}"
    )
    assert outcome.comparisons > len(case.transactions)


def test_files_read_back_as_written(tmp_path: Path) -> None:
    for path in FILES:
        again = tmp_path / path.name
        again.write_text(read_case(path).text())
        assert read_case(again) == read_case(path)
