"""Oracle: the grants of sources. Raw records, and words that may quote them, are shown to those
alone who may read their relation; SELECT on a view that reads it is not enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness import http
from tests.harness.postgres import Database, new_database
from tests.harness.psql import as_role, roles
from tests.harness.service import RunningService
from tests.harness.waiting import wait_until

COLUMNS = [{"name": "id", "type": "bigint"}, {"name": "price", "type": "numeric(10,2)"}]
SECRET = "hidden-in-a-record"


@dataclass
class Place:
    """A source with two relations, each with a record that is no row and a view over it."""

    database: Database
    service: RunningService
    folder: Path
    role: str
    tokens: dict[str, str]

    def ask(self, who: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """(status, body)."""
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        client = self.service.client
        answer = client.request(method, path, json=body, headers=headers, timeout=60)
        return answer.status_code, answer.json()

    def letters(self, who: str, query: str = "") -> Any:
        """The relations of the dead letters that are shown, or the code of a refusal."""
        status, told = self.ask(who, "GET", f"/dead-letters{query}")
        if status != 200:
            return status, told["code"]
        return [letter["relation"] for letter in told["dead_letters"]]


def _shop(folder: Path) -> dict[str, Any]:
    relations = {}
    for name in ("prices", "wages"):
        (folder / name).mkdir(parents=True)
        (folder / name / "a.csv").write_text(f"id,price\n1,2.50\n2,{SECRET}-{name}\n")
        path = f"{folder / name}/*.csv"
        relations[name] = {"path": path, "columns": COLUMNS, "on_error": "dead_letter"}
    return {"name": "shop", "type": "files", "options": {"relations": relations}}


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with new_database(postgres) as database:
        role, folder = f"clerk_{database.name}", tmp_path_factory.mktemp("records")
        with (
            roles(database, role),
            RunningService(database.dsn, folder / "service", allow_folders=folder) as service,
        ):
            database.execute(f"GRANT CREATE ON SCHEMA public TO {role}")
            made = Place(database, service, folder, role, {})
            for who, level, db_role in (
                ("admin", "admin", None),
                ("reader", "reader", role),
                ("operator", "operator", role),
            ):
                body = {"name": who, "role": level, "db_role": db_role}
                admin = made.tokens.get("admin")
                headers = {"Authorization": f"Bearer {admin}"} if admin else {}
                answer = http.post(f"{service.url}/tokens", json=body, headers=headers, timeout=60)
                made.tokens[who] = answer.json()["token"]
            assert made.ask("admin", "POST", "/sources", _shop(folder))[0] == 201
            for name in ("prices", "wages"):
                query = f"SELECT count(*) AS n FROM shop.{name}"
                body = {"name": name, "query": query, "options": {"backfill": "local"}}
                status, view = made.ask("admin", "POST", "/views?wait_s=60", body)
                assert (status, view["status"]) == (201, "live"), view
            wait_until(lambda: len(made.letters("admin")) == 2)
            yield made


def test_records_of_no_readable_relation_are_refused(place: Place) -> None:
    refused = (403, "auth.rights")
    for who in ("reader", "operator"):
        assert place.letters(who) == []
        assert place.letters(who, "?source=shop") == refused
        assert place.letters(who, "?source=shop&relation=wages") == refused
        assert place.letters(who, "?source=nosuch") == refused
    for call in ("retry", "drop"):
        body = {"source": "shop"}
        status, told = place.ask("operator", "POST", f"/dead-letters/{call}", body)
        assert (status, told["code"]) == refused
    assert place.letters("admin", "?source=shop") == ["prices", "wages"]


def test_a_readable_view_hides_malformed_records(place: Place) -> None:
    """It has one row, a count; the records would show what was counted."""
    place.database.execute(f"GRANT SELECT ON prices TO {place.role}")
    try:
        assert place.ask("reader", "GET", "/views/prices/rows")[0] == 200
        assert place.letters("reader") == []
        assert place.letters("reader", "?source=shop&relation=prices") == (403, "auth.rights")
    finally:
        place.database.execute(f"REVOKE SELECT ON prices FROM {place.role}")


def test_a_grant_shows_the_records_of_its_relation_alone(place: Place) -> None:
    granted = {"role": place.role, "relation": "prices"}
    assert place.ask("admin", "POST", "/sources/shop/grants", granted)[0] == 200
    try:
        for query in ("", "?source=shop", "?source=shop&relation=prices"):
            assert place.letters("reader", query) == ["prices"], query
        refused = (403, "auth.rights")
        assert place.letters("reader", "?source=shop&relation=wages") == refused
        # Who may read them may not drop them: the view is another's.
        body = {"source": "shop", "relation": "prices"}
        status, told = place.ask("operator", "POST", "/dead-letters/drop", body)
        assert (status, told["code"]) == refused
    finally:
        path = f"/sources/shop/grants?role={place.role}&relation=prices"
        assert place.ask("admin", "DELETE", path)[0] == 200
    assert place.letters("reader") == []


def test_the_owner_of_all_views_drops_records(place: Place) -> None:
    owner = "UPDATE tidemark.views SET created_by = %s WHERE name = 'wages'"
    service = "SELECT created_by FROM tidemark.views WHERE name = 'wages'"
    ((before,),) = place.database.rows(service)
    place.database.execute(owner, (place.role,))
    body = {"source": "shop", "relation": "wages"}
    try:
        assert place.ask("operator", "POST", "/dead-letters/retry", body) == (202, {"count": 1})
        status, told = place.ask("operator", "POST", "/dead-letters/drop", {"source": "shop"})
        assert (status, told["code"]) == (403, "auth.rights")
    finally:
        place.database.execute(owner, (before,))


def test_nothing_else_quotes_a_record(place: Place) -> None:
    """Every list and look that a database role is let into, with a source that has stopped at a
    record and says so."""
    folder = place.folder / "pay"
    folder.mkdir()
    (folder / "a.csv").write_text("id,price\n1,2.50\n")
    relations = {"pay": {"path": f"{folder}/*.csv", "columns": COLUMNS}}
    source = {"name": "office", "type": "files", "options": {"relations": relations}}
    assert place.ask("admin", "POST", "/sources", source)[0] == 201
    body = {"name": "pay", "query": "SELECT count(*) AS n FROM office.pay"}
    body["options"] = {"backfill": "local"}
    assert place.ask("admin", "POST", "/views?wait_s=60", body)[0] == 201
    (folder / "b.csv").write_text(f"id,price\n2,{SECRET}-wages\n")
    place.service.await_so(lambda: SECRET in str(place.ask("admin", "GET", "/sources/office")))
    paths = ("/sources", "/sources/office", "/overview?history=true", "/views", "/health")
    for path in (*paths, "/dead-letters"):
        assert SECRET not in str(place.ask("reader", "GET", path)), path
    assert SECRET in str(place.ask("admin", "GET", "/sources/office"))
    assert place.ask("reader", "GET", "/sources/office")[1]["error"]["code"] == "source.bad_record"
    assert place.ask("reader", "GET", "/health")[1]["reasons"] == []
    statement = "SELECT code, error, hint FROM tidemark.source_status WHERE name = 'office'"
    place.database.execute(f"GRANT USAGE ON SCHEMA tidemark TO {place.role}")
    assert as_role(place.database, place.role, statement) == []
    place.database.execute(f"GRANT SELECT ON pay TO {place.role}")
    # The catalog has a status within a second of the service's own.
    seen = lambda: as_role(place.database, place.role, statement)  # noqa: E731
    place.service.await_so(lambda: seen() and seen()[0][0] is not None)
    assert seen() == [("source.bad_record", None, None)]
    assert place.ask("admin", "POST", "/sources/office/grants", {"role": place.role})[0] == 200
    assert SECRET in str(place.ask("reader", "GET", "/sources/office"))
    assert SECRET in str(as_role(place.database, place.role, statement))
