"""Oracle: PostgreSQL's own views of the same queries, through changes of the schema under them.

Each file of live/ is one case: a schema, views, and statements after each of which every view must
be live and equal. All run on one service, each with tables of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService
from tests.harness.verdicts import require_same_rows

FILES = sorted((Path(__file__).parent / "live").glob("*.sql"))


@dataclass
class LiveCase:
    """schema: its statements; views: queries by name; steps: statements."""

    schema: str = ""
    views: dict[str, str] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)


def read_case(path: Path) -> LiveCase:
    """Read a file: `-- @schema`, `-- @view NAME` and `-- @do`, each before its SQL."""
    case = LiveCase()
    for section in path.read_text().split("-- @")[1:]:
        head, _, sql = section.partition("\n")
        word, _, name = head.partition(" ")
        match word:
            case "schema":
                case.schema = sql
            case "view":
                case.views[name] = sql.strip()
            case "do":
                case.steps.append(sql)
            case _:
                raise ValueError(f"{path.name}: @{word}")
    assert case.schema and case.views and case.steps, path.name
    return case


@pytest.fixture(scope="module")
def place(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RunningService, Database]]:
    with new_database(postgres) as database:
        folder = tmp_path_factory.mktemp("live")
        with RunningService(database.dsn, folder) as service:
            yield service, database


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_views_follow_as_postgresqls_own(
    place: tuple[RunningService, Database], path: Path
) -> None:
    service, database = place
    case = read_case(path)
    database.execute(case.schema)
    for name, query in case.views.items():
        database.execute(f"CREATE VIEW own_{name} AS {query}")
        service.create(name, query, backfill="local")
    try:
        for step in case.steps:
            database.execute(step)
            require_equal(service, database, list(case.views))
    finally:
        service.clear()


def require_equal(service: RunningService, database: Database, names: list[str]) -> None:
    """Each view is live at the position of now, with the rows of PostgreSQL's own."""
    ((position,),) = database.rows("SELECT pg_current_wal_flush_lsn()::text")
    for name in names:
        # Once the position is shown, the catalog was checked after it.
        service.await_so(
            lambda n=name: (
                service.call("GET", f"/views/{n}/wait?position={position}&timeout_s=20").status_code
                == 200
            )
        )
        service.await_status(name)
        service.wait(name, position)
        require_same_rows(database, name, f"SELECT * FROM own_{name}")
