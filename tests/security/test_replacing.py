"""Oracle: PostgreSQL's privileges: a view gets a query only from somebody who may change it, and
only one that both that role and the view's owner may run. By REST and by CALL alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import psycopg2
import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness import http
from tests.harness.postgres import Database, new_database
from tests.harness.psql import as_role, roles
from tests.harness.service import RunningService

SCHEMA = """
CREATE TABLE orders (id int PRIMARY KEY, amount int); INSERT INTO orders VALUES (1, 10);
CREATE TABLE secret (id int PRIMARY KEY); INSERT INTO secret VALUES (42);
CREATE TABLE filtered (id int PRIMARY KEY); ALTER TABLE filtered ENABLE ROW LEVEL SECURITY;
"""


@dataclass
class Place:
    """A view of team's, one of the service's, and tokens of team and of mallory, who is its
    member."""

    database: Database
    service: RunningService
    mallory: str
    tokens: dict[str, str]

    def replace(self, who: str, view: str, query: str) -> str:
        """The code of the refusal over REST, "" when it is done."""
        answer = http.post(
            f"{self.service.url}/views/{view}/replace?wait_s=60",
            json={"query": query},
            headers={"Authorization": f"Bearer {self.tokens[who]}"},
            timeout=90,
        )
        return "" if answer.status_code == 200 else answer.json()["code"]

    def call(self, view: str, query: str) -> str:
        """The same as mallory in psql: the SQLSTATE."""
        try:
            as_role(
                self.database,
                self.mallory,
                f"CALL tidemark.replace_view('{view}', $q${query}$q$)",
            )
        except psycopg2.Error as error:
            return error.pgcode or ""
        return ""


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with new_database(postgres) as database:
        team, mallory = f"team_{database.name}", f"mallory_{database.name}"
        folder = tmp_path_factory.mktemp("replacing")
        with roles(database, team, mallory), RunningService(database.dsn, folder) as service:
            database.execute(SCHEMA)
            database.execute(
                f"GRANT {team} TO {mallory}; ALTER ROLE {team} BYPASSRLS;"
                f"GRANT CREATE ON SCHEMA public TO {team};"
                f"GRANT SELECT ON orders, filtered TO {team}; GRANT SELECT ON secret TO {mallory};"
                f"GRANT USAGE ON SCHEMA tidemark TO {mallory};"
                f"GRANT EXECUTE ON PROCEDURE tidemark.replace_view TO {mallory}"
            )
            tokens: dict[str, str] = {}
            for who, level, role in (
                ("admin", "admin", None),
                ("team", "operator", team),
                ("mallory", "operator", mallory),
            ):
                made = http.post(
                    f"{service.url}/tokens",
                    json={"name": who, "role": level, "db_role": role},
                    headers={"Authorization": f"Bearer {tokens.get('admin', '')}"}
                    if tokens
                    else {},
                    timeout=60,
                )
                assert made.status_code == 201, made.text
                tokens[who] = made.json()["token"]
            for who, view in (("admin", "services"), ("team", "teams")):
                made = http.post(
                    f"{service.url}/views?wait_s=60",
                    json={"name": view, "query": "SELECT id FROM orders"},
                    headers={"Authorization": f"Bearer {tokens[who]}"},
                    timeout=90,
                )
                assert made.json()["status"] == "live", made.text
            # What she may read is not hers to change.
            database.execute(f"GRANT SELECT ON services TO {mallory}")
            yield Place(database, service, mallory, tokens)


def test_who_reads_a_view_gives_it_no_query(place: Place) -> None:
    assert place.replace("mallory", "services", "SELECT id FROM secret") == "view.not_owner"
    assert place.call("services", "SELECT id FROM secret") == "42501"
    assert place.database.rows("SELECT id FROM services") == [(1,)]


def test_the_owner_must_be_allowed_to_read_it_too(place: Place) -> None:
    assert place.replace("mallory", "teams", "SELECT id FROM secret") == "source.privilege"
    assert place.call("teams", "SELECT id FROM secret") == "42501"
    assert place.database.rows("SELECT id FROM teams") == [(1,)]


def test_who_asks_must_be_allowed_to_read_it_too(place: Place) -> None:
    """A member inherits what its role was granted, and not that it passes row security."""
    query = "SELECT id FROM filtered"
    assert place.replace("mallory", "teams", query) == "source.row_security"
    assert place.call("teams", query) == "42501"
    assert place.replace("team", "teams", query) == ""


def test_what_both_may_read_is_taken(place: Place) -> None:
    assert place.replace("mallory", "teams", "SELECT id, amount FROM orders") == ""
    assert place.call("teams", "SELECT id, amount + 1 AS amount FROM orders") == ""
    assert place.database.rows("SELECT id, amount FROM teams") == [(1, 11)]
    assert place.replace("admin", "teams", "SELECT id FROM orders") == ""
    # The service may read everything; team may not, and the view is team's.
    assert place.replace("admin", "teams", "SELECT id FROM secret") == "source.privilege"
