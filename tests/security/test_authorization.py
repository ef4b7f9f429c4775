"""Oracle: docs/SECURITY.md, as one table: what each route and each procedure needs of a caller's
API role and of its database role. All of them are asked for, of views of each kind of owner."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import psycopg2
import pytest
import typer.main

from connectors.postgres.embedded.server import EmbeddedPostgres
from service.access import operations
from service.access.operations import STREAMS
from service.api.app import ROUTERS
from service.cli.main import app as commands
from tests.harness import http
from tests.harness.postgres import Database, new_database
from tests.harness.psql import as_role, roles
from tests.harness.service import RunningService

NOBODY, READER, OPERATOR, ADMIN = "", "reader", "operator", "admin"
LEVELS = (NOBODY, READER, OPERATOR, ADMIN)

# The views, as one database role sees them: its own, one of another role, one of the service,
# and one of the service's from which it may SELECT.
SUBJECTS = ("own", "others", "services", "granted")
EVERY, NONE = frozenset(SUBJECTS), frozenset[str]()
OWNED, VISIBLE = frozenset({"own"}), frozenset({"own", "granted"})

# (method, path) -> the least API role, and the views on which a database role may do it.
ROUTES: dict[tuple[str, str], tuple[str, frozenset[str]]] = {
    ("GET", "/health"): (NOBODY, EVERY),
    ("GET", "/health/live"): (NOBODY, EVERY),
    ("GET", "/"): (NOBODY, EVERY),
    ("GET", "/docs"): (NOBODY, EVERY),
    ("GET", "/assets/{name}"): (NOBODY, EVERY),
    ("GET", "/openapi.json"): (READER, EVERY),
    ("GET", "/metrics"): (READER, EVERY),
    ("GET", "/overview"): (READER, EVERY),
    ("GET", "/tables"): (READER, EVERY),
    ("POST", "/query"): (READER, EVERY),
    ("GET", "/views"): (READER, EVERY),
    ("POST", "/views"): (OPERATOR, EVERY),
    ("POST", "/views/validate"): (READER, EVERY),
    ("GET", "/views/{name}"): (READER, VISIBLE),
    ("DELETE", "/views/{name}"): (OPERATOR, OWNED),
    ("GET", "/views/{name}/wait"): (READER, VISIBLE),
    ("GET", "/views/{name}/plan"): (READER, VISIBLE),
    ("GET", "/views/{name}/dataflow"): (READER, VISIBLE),
    ("GET", "/views/{name}/rows"): (READER, VISIBLE),
    ("GET", "/views/{name}/diff"): (READER, VISIBLE),
    ("GET", "/views/{name}/changes"): (READER, VISIBLE),
    ("GET", "/views/{name}/stream"): (READER, VISIBLE),
    ("GET", "/views/{view}/subscriptions"): (READER, VISIBLE),
    ("POST", "/views/{view}/subscriptions"): (READER, VISIBLE),
    ("GET", "/views/{view}/subscriptions/{subscription}"): (READER, VISIBLE),
    ("POST", "/views/{view}/subscriptions/{subscription}/acknowledge"): (READER, VISIBLE),
    ("DELETE", "/views/{view}/subscriptions/{subscription}"): (READER, VISIBLE),
    ("GET", "/views/{name}/errors"): (READER, VISIBLE),
    ("POST", "/views/{name}/verify"): (READER, VISIBLE),
    ("POST", "/views/{name}/replace"): (OPERATOR, OWNED),
    ("DELETE", "/views/{name}/replace"): (OPERATOR, OWNED),
    ("POST", "/views/{name}/rebuild"): (OPERATOR, OWNED),
    ("POST", "/views/{name}/pause"): (OPERATOR, OWNED),
    ("POST", "/views/{name}/resume"): (OPERATOR, OWNED),
    ("POST", "/views/{name}/rename"): (OPERATOR, OWNED),
    ("POST", "/views/{name}/move"): (OPERATOR, OWNED),
    ("POST", "/views/{name}/runtime"): (OPERATOR, OWNED),
    ("GET", "/views/{view}/sinks"): (READER, VISIBLE),
    ("POST", "/views/{view}/sinks"): (OPERATOR, OWNED),
    ("GET", "/views/{view}/sinks/{sink}"): (READER, VISIBLE),
    ("DELETE", "/views/{view}/sinks/{sink}"): (OPERATOR, OWNED),
    ("GET", "/sources"): (READER, EVERY),
    ("POST", "/sources"): (OPERATOR, NONE),
    ("POST", "/sources/discover"): (OPERATOR, NONE),
    ("GET", "/sources/{name}"): (READER, EVERY),
    ("PUT", "/sources/{name}"): (OPERATOR, NONE),
    ("DELETE", "/sources/{name}"): (OPERATOR, NONE),
    ("POST", "/sources/{name}/retry"): (OPERATOR, NONE),
    ("POST", "/sources/{name}/reset"): (OPERATOR, NONE),
    ("POST", "/sources/{name}/grants"): (OPERATOR, NONE),
    ("DELETE", "/sources/{name}/grants"): (OPERATOR, NONE),
    ("GET", "/dead-letters"): (READER, EVERY),
    ("POST", "/dead-letters/retry"): (OPERATOR, NONE),
    ("POST", "/dead-letters/drop"): (OPERATOR, NONE),
    ("GET", "/tokens"): (ADMIN, NONE),
    ("POST", "/tokens"): (ADMIN, NONE),
    ("DELETE", "/tokens/{name}"): (ADMIN, NONE),
}
# Asked in its own test: a WebSocket is refused after it was opened.
SOCKETS = {"/views/{name}/changes/ws"}
# Of each procedure the views on which a role may CALL it that may create views.
PROCEDURES = {
    "create_view": EVERY,
    "drop_view": OWNED,
    "replace_view": OWNED,
    "rebuild_view": OWNED,
    "pause_view": OWNED,
    "resume_view": OWNED,
    "rename_view": OWNED,
    "move_view": OWNED,
    "change_runtime": OWNED,
    "cancel_change": OWNED,
    "verify_view": OWNED,
    "create_source": NONE,
    "drop_source": NONE,
    "retry_source": NONE,
    "grant_source": NONE,
    "revoke_source": NONE,
}

# What is asked stops at something else than rights, so that nothing is changed by the asking.
BODIES: dict[str, Any] = {
    "/query": {"query": "SELECT 1 AS x"},
    "/views": {"name": "nosuch", "query": "SELECT nosuch"},
    "/views/validate": {"query": "SELECT id FROM orders"},
    "/views/{name}/replace": {"query": "SELECT nosuch"},
    "/views/{name}/rename": {"name": "own"},
    "/views/{name}/move": {"schema": "nosuch"},
    "/views/{name}/runtime": {"runtime": "local"},
    "/views/{view}/sinks": {"name": "s", "type": "kafka", "options": {"nosuch": 1}},
    "/views/{view}/subscriptions": {"name": "s"},
    "/views/{view}/subscriptions/{subscription}/acknowledge": {"epoch": 1},
    "/sources": {"name": "s", "type": "files", "options": {"nosuch": 1}},
    "/sources/discover": {"type": "files", "options": {"nosuch": 1}},
    "/sources/{name}": {"options": {"nosuch": 1}},
    "/sources/{name}/reset": {"relation": "nosuch", "start": "earliest"},
    "/sources/{name}/grants": {"role": "nosuch"},
    "/dead-letters/retry": {"source": "nosuch"},
    "/dead-letters/drop": {"source": "nosuch"},
    "/tokens": {"name": "a b", "role": "reader"},
}
QUERIES = {
    "/views/{name}/wait": "?position=0/1",
    "/views/{name}/diff": "?from=1",
    "/sources/{name}/grants": "?role=nosuch",
}
CALLS = {
    "create_view": ("'nosuch'", "'SELECT nosuch'"),
    "replace_view": ("'{}'", "'SELECT nosuch'"),
    "rename_view": ("'{}'", "'own'"),
    "move_view": ("'{}'", "'nosuch'"),
    "change_runtime": ("'{}'", "'local'"),
    "create_source": ("'s'", "'files'"),
    "drop_source": ("'s'",),
    "retry_source": ("'s'",),
    "grant_source": ("'s'", "'nosuch'"),
    "revoke_source": ("'s'", "'nosuch'"),
}
REFUSALS = ("auth.rights", "view.not_owner", "auth.db_role", "auth.role")
INSUFFICIENT_PRIVILEGE = "42501"


@dataclass
class Place:
    """A service with views of three owners. tokens: by (API role, whether it has a database
    role)."""

    database: Database
    service: RunningService
    role: str
    other: str
    tokens: dict[tuple[str, bool], str] = field(default_factory=dict)

    def make_token(self, name: str, level: str, db_role: str | None, by: str = "") -> str:
        headers = {"Authorization": f"Bearer {by}"} if by else {}
        body = {"name": name, "role": level, "db_role": db_role}
        made = http.post(f"{self.service.url}/tokens", json=body, headers=headers, timeout=60)
        assert made.status_code == 201, made.text
        return made.json()["token"]

    def ask(self, token: str, method: str, path: str, body: Any = None) -> tuple[int, str]:
        """(status, code) of an answer; of a stream only its begin."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        client = self.service.client
        with client.stream(method, path, json=body, headers=headers, timeout=60) as answer:
            if answer.status_code == 200 and path.endswith(STREAMS):
                return 200, ""
            told = answer.read()
            is_problem = "problem" in answer.headers.get("content-type", "")
            code = httpx.Response(200, content=told).json()["code"] if is_problem else ""
            return answer.status_code, code


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with new_database(postgres) as database:
        role, other = f"mallory_{database.name}", f"ann_{database.name}"
        folder = tmp_path_factory.mktemp("authorization")
        with roles(database, role, other), RunningService(database.dsn, folder) as service:
            database.execute(
                "CREATE TABLE orders (id int PRIMARY KEY, amount int NOT NULL);"
                "INSERT INTO orders VALUES (1, 10), (2, 20);"
                f"GRANT SELECT ON orders TO {role}, {other};"
                f"GRANT CREATE ON SCHEMA public TO {role}, {other}"
            )
            made = Place(database, service, role, other)
            _fill(made)
            yield made


def _fill(place: Place) -> None:
    """Tokens of every kind, and views of every owner with a reader each, so that none of them is
    dropped or paused by the asking."""
    service = place.service
    admin = place.make_token("admin", ADMIN, None)
    place.tokens[ADMIN, False] = admin
    for level in (READER, OPERATOR):
        place.tokens[level, False] = place.make_token(level, level, None, admin)
    for level in (READER, OPERATOR, ADMIN):
        name = f"{level}_as_role"
        place.tokens[level, True] = place.make_token(name, level, place.role, admin)
    others = place.make_token("other", OPERATOR, place.other, admin)
    owners = {"own": place.tokens[OPERATOR, True], "others": others}
    for name in SUBJECTS:
        token = owners.get(name, admin)
        queries = {
            name: "SELECT id, amount FROM orders",
            f"{name}_sum": f"SELECT sum(id) FROM {name}",
        }
        for title, query in queries.items():
            body = {"name": title, "query": query, "options": {"backfill": "local"}}
            headers = {"Authorization": f"Bearer {token}"}
            url = f"{service.url}/views?wait_s=60"
            answer = http.post(url, json=body, headers=headers, timeout=90)
            assert answer.json()["status"] == "live", answer.text
    place.database.execute(f"GRANT SELECT ON granted TO {place.role}")
    place.database.execute(
        f"GRANT USAGE ON SCHEMA tidemark TO {place.role};"
        + ";".join(
            f"GRANT EXECUTE ON PROCEDURE tidemark.{name} TO {place.role}"
            for name in PROCEDURES
            if not name.endswith("_source")
        )
    )


def _routes(found: Any) -> Iterator[tuple[str, str]]:
    for route in found:
        for method in sorted(getattr(route, "methods", None) or {"WS"}):
            yield method, re.sub(r":\w+}", "}", route.path)


def test_every_route_and_procedure_is_in_both_tables(place: Place) -> None:
    """What is added is refused, and missing here, until somebody says what it needs."""
    served = {entry for router in ROUTERS for entry in _routes(router.routes)}
    served = {entry for entry in served if entry[0] != "HEAD"} | {("GET", "/openapi.json")}
    sockets = {path for method, path in served if method == "WS"}
    assert sockets == SOCKETS
    known = set(ROUTES) | {("GET", path) for path in SOCKETS}
    assert {("GET" if m == "WS" else m, path) for m, path in served} == known
    assert set(operations.ROUTES) == known
    procedures = place.database.rows(
        "SELECT proname FROM pg_proc WHERE pronamespace = 'tidemark'::regnamespace"
        " AND prokind = 'p' AND proname <> 'request'"
    )
    assert {name for (name,) in procedures} == set(PROCEDURES) == set(operations.PROCEDURES)
    assert set(operations.ROUTES.values()) | set(operations.PROCEDURES.values()) == set(
        operations.OPERATIONS
    )


def test_every_command_that_asks_no_service_is_known() -> None:
    """All others have --url, and are whom their token makes them."""

    def walked(group: Any, before: str = "") -> Iterator[tuple[str, set[str]]]:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from walked(command, f"{before}{name} ")
            else:
                yield f"{before}{name}", {p.name for p in command.params}

    found = set()
    for name, options in walked(typer.main.get_command(commands)):
        if "url" not in options:
            found.add(name)
        if "direct" in options:
            found.add(f"{name} --direct")
    assert found == operations.COMMANDS


def _asked(place: Place, subject: str, method: str, path: str) -> tuple[str, str, Any]:
    filled = path.replace("{view}", subject).replace("{sink}", "nosuch")
    filled = filled.replace("{subscription}", "nosuch")
    is_view = path.startswith("/views/")
    filled = filled.replace("{name}", subject if is_view else "nosuch")
    body = BODIES.get(path) if method in ("POST", "PUT") else None
    return method, filled + ("" if body else QUERIES.get(path, "")), body


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_route_as_every_caller(place: Place, subject: str) -> None:
    faults = []
    for (method, path), (least, allowed) in ROUTES.items():
        asked = _asked(place, subject, method, path)
        for level in LEVELS:
            for has_role in (False, True) if level else (False,):
                status, code = place.ask(place.tokens.get((level, has_role), ""), *asked)
                may = LEVELS.index(level) >= LEVELS.index(least)
                may = may and (not has_role or subject in allowed)
                is_let_in = status not in (401, 403)
                is_reported = is_let_in or status == 401 or code in REFUSALS
                if is_let_in != may or not is_reported:
                    who = f"{level or 'nobody'}{' with a role' if has_role else ''}"
                    faults.append(f"{method} {path} of {subject} as {who}: {status} {code}")
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("subject", SUBJECTS)
def test_every_procedure_as_every_caller(place: Place, subject: str) -> None:
    faults = []
    for name, allowed in PROCEDURES.items():
        arguments = ", ".join(CALLS.get(name, ("'{}'",))).format(subject)
        for role in (place.role, "postgres"):
            state = ""
            try:
                as_role(place.database, role, f"CALL tidemark.{name}({arguments})")
            except psycopg2.Error as error:
                state = error.pgcode or ""
            may = role == "postgres" or subject in allowed
            if (state != INSUFFICIENT_PRIVILEGE) != may:
                faults.append(f"{name} of {subject} as {role}: {state}")
    assert not faults, "\n".join(faults)


def test_lists_hold_what_a_role_owns_or_may_read(place: Place) -> None:
    def titles(level: str, has_role: bool, path: str) -> set[str]:
        headers = {"Authorization": f"Bearer {place.tokens[level, has_role]}"}
        told = http.get(f"{place.service.url}{path}", headers=headers, timeout=60).json()
        return {view["name"] for view in told["views"]}

    own = {"own", "own_sum", "granted"}
    for path in ("/views", "/overview"):
        assert titles(READER, True, path) == own, path
        assert titles(READER, False, path) > own | {"others", "services"}, path


def test_a_cascade_needs_every_reader(place: Place) -> None:
    """A view of another role that reads one's own is not paused along with it."""
    place.database.execute(f"GRANT SELECT ON own TO {place.other}")
    token = place.make_token("other_again", OPERATOR, place.other, place.tokens[ADMIN, False])
    headers = {"Authorization": f"Bearer {token}"}
    body = {"name": "over", "query": "SELECT max(id) FROM own", "options": {"backfill": "local"}}
    url = f"{place.service.url}/views?wait_s=60"
    made = http.post(url, json=body, headers=headers, timeout=90)
    assert made.json()["status"] == "live", made.text
    mine = place.tokens[OPERATOR, True]
    assert place.ask(mine, "POST", "/views/own/pause?cascade=true") == (403, "view.not_owner")
    assert place.ask(token, "DELETE", "/views/over") == (204, "")


def test_a_name_is_taken_where_the_role_may_create(place: Place) -> None:
    """As PostgreSQL has it: ALTER TABLE ... RENAME and SET SCHEMA need CREATE on the schema."""
    place.database.execute("CREATE SCHEMA shut")
    mine = place.tokens[OPERATOR, True]
    refused = (422, "sink.privilege")
    assert place.ask(mine, "POST", "/views/own/move", {"schema": "shut"}) == refused
    body = {"name": "shut.v", "query": "SELECT id FROM orders"}
    assert place.ask(mine, "POST", "/views", body) == refused
    place.database.execute(f"REVOKE CREATE ON SCHEMA public FROM {place.role}")
    try:
        assert place.ask(mine, "POST", "/views/own_sum/rename", {"name": "x"}) == refused
    finally:
        place.database.execute(f"GRANT CREATE ON SCHEMA public TO {place.role}")
