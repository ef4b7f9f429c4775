"""Oracle: PostgreSQL's privileges: a token with a database role sees the rows that this role may
read, by whichever way they are asked for, and nobody else's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import websockets

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.harness import http
from tests.harness.postgres import Database, new_database
from tests.harness.psql import roles
from tests.harness.service import RunningService

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, amount int NOT NULL); INSERT INTO orders VALUES (1, 10);
"""
REFUSED = (403, "auth.rights")
ALL_SEE = (200, "")


@dataclass
class Place:
    """A service, its database, and a token for each of: nobody's role, a clerk's, a guest's."""

    database: Database
    service: RunningService
    clerk: str
    guest: str
    tokens: dict[str, str]

    def ask(self, who: str, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """(status, code) of an answer; of a stream only its begin."""
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        client = self.service.client
        with client.stream(method, path, json=body, headers=headers, timeout=60) as answer:
            if answer.status_code == 200:
                return ALL_SEE
            answer.read()
            return answer.status_code, answer.json()["code"]

    def ask_socket(self, who: str) -> tuple[int, str]:
        """The same of the changes by WebSocket: of its first event, and how it was closed."""

        async def ask() -> tuple[int, str]:
            url = f"{self.service.url.replace('http', 'ws')}/views/totals/changes/ws"
            headers = {"Authorization": f"Bearer {self.tokens[who]}"}
            async with websockets.connect(url, additional_headers=headers) as connection:
                told = json.loads(await connection.recv())
                if told["event"] != "error":
                    return ALL_SEE
                await connection.wait_closed()
                assert connection.close_code == 4000 + told["data"]["status"]
                return told["data"]["status"], told["data"]["code"]

        return asyncio.run(ask())


WAYS: dict[str, Callable[[Place, str], tuple[int, str]]] = {
    "rows": lambda p, who: p.ask(who, "GET", "/views/totals/rows"),
    "changes": lambda p, who: p.ask(who, "GET", "/views/totals/changes"),
    "socket": lambda p, who: p.ask_socket(who),
    "query": lambda p, who: p.ask(who, "POST", "/query", {"query": "SELECT total FROM totals"}),
    "verify": lambda p, who: p.ask(who, "POST", "/views/totals/verify"),
    "errors": lambda p, who: p.ask(who, "GET", "/views/totals/errors"),
}


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with new_database(postgres) as database:
        database.execute(TABLES)
        clerk, guest = f"clerk_{database.name}", f"guest_{database.name}"
        folder = tmp_path_factory.mktemp("roles")
        with roles(database, clerk, guest), RunningService(database.dsn, folder) as service:
            service.create("totals", "SELECT sum(amount) AS total FROM orders", backfill="local")
            query = "SELECT id, amount FROM orders"
            service.create("past", query, backfill="local", history="1 day")
            database.execute(f"GRANT SELECT ON totals TO {clerk}")
            tokens, headers = {}, {}
            for who, role in (("admin", None), ("plain", None), ("clerk", clerk), ("guest", guest)):
                level = "admin" if who == "admin" else "reader"
                body = {"name": who, "role": level, "db_role": role}
                url = f"{service.url}/tokens"
                made = http.post(url, json=body, headers=headers, timeout=60)
                assert made.status_code == 201, made.text
                tokens[who] = made.json()["token"]
                headers = {"Authorization": f"Bearer {tokens['admin']}"}
            yield Place(database, service, clerk, guest, tokens)


def test_a_role_sees_what_it_may_read_whichever_way(place: Place) -> None:
    found = {(way, who): ask(place, who) for way, ask in WAYS.items() for who in place.tokens}
    wanted = {key: REFUSED if key[1] == "guest" else ALL_SEE for key in found}
    assert found == wanted


def test_a_stream_needs_the_rights_of_the_past(place: Place) -> None:
    place.database.execute(f"GRANT SELECT ON past TO {place.clerk}")
    newest = place.database.rows("SELECT newest_epoch FROM tidemark.history WHERE name = 'past'")
    path = f"/views/past/stream?until={newest[0][0]}"
    for who, wanted in (("plain", ALL_SEE), ("clerk", REFUSED), ("guest", REFUSED)):
        assert place.ask(who, "GET", path) == wanted, who
    place.database.execute(f"GRANT SELECT ON past_history TO {place.clerk}")
    assert place.ask("clerk", "GET", path) == ALL_SEE


def test_a_grant_counts_at_once_and_so_does_its_end(place: Place) -> None:
    ask = WAYS["rows"]
    place.database.execute(f"GRANT SELECT ON totals TO {place.guest}")
    assert ask(place, "guest") == ALL_SEE
    place.database.execute(f"REVOKE USAGE ON SCHEMA public FROM PUBLIC, {place.guest}")
    assert ask(place, "guest") == REFUSED
    place.database.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")
    assert ask(place, "guest") == ALL_SEE
    place.database.execute(f"REVOKE SELECT ON totals FROM {place.guest}")
    assert ask(place, "guest") == REFUSED


def test_a_query_has_the_role_s_rights_on_tables_too(place: Place) -> None:
    for query in ("SELECT * FROM orders", "SELECT total FROM totals, orders"):
        assert place.ask("clerk", "POST", "/query", {"query": query}) == REFUSED
        # Without a role, a reader's token reads views alone.
        refused = place.ask("plain", "POST", "/query", {"query": query})
        assert refused == (403, "query.not_allowed")
    assert place.ask("plain", "POST", "/query", {"query": "SELECT total FROM totals"}) == ALL_SEE


def test_views_that_are_not_there_are_not_found_whoever_asks(place: Place) -> None:
    for who in ("guest", "plain"):
        assert place.ask(who, "GET", "/views/nosuch/rows") == (404, "view.not_found")
