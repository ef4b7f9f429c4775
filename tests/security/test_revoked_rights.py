"""Oracle: docs/SECURITY.md: a view stops when its owner may not read any more what it reads, shows
nobody its rows, and goes on exactly when the right is back."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from service.access.operations import OPERATIONS, ROUTES, Need
from tests.harness import http
from tests.harness.postgres import Database, new_database
from tests.harness.psql import as_role, give_query_role, roles
from tests.harness.service import RunningService

QUERY = "SELECT id, twice(amount) AS amount FROM shop.orders"
OPTIONS = {"backfill": "local", "history": "1 hour"}
REVOKED = "view.rights_revoked"


@dataclass
class Place:
    """A service that is no superuser, its own view, and views of two roles: one reads the other's.

    tokens: by name.
    """

    database: Database
    service: RunningService
    own: str
    ann: str
    bob: str
    group: str
    tokens: dict[str, str] = field(default_factory=dict)

    def ask(self, token: str, method: str, path: str, body: Any = None) -> Any:
        headers = {"Authorization": f"Bearer {self.tokens[token]}"} if self.tokens else {}
        return http.request(
            method, f"{self.service.url}{path}", json=body, headers=headers, timeout=90
        )

    def code(self, token: str, path: str, method: str = "GET", body: Any = None) -> str:
        """The code of a refusal, "" for an answer; of a stream only its begin."""
        headers = {"Authorization": f"Bearer {self.tokens[token]}"}
        url = f"{self.service.url}{path}"
        with http.stream(method, url, json=body, headers=headers, timeout=90) as answer:
            if answer.status_code < 400:
                return ""
            answer.read()
            return answer.json()["code"]

    def create(self, token: str, name: str, query: str) -> None:
        body = {"name": name, "query": query, "options": OPTIONS}
        made = self.ask(token, "POST", "/views?wait_s=60", body)
        assert made.json()["status"] == "live", made.text

    def state(self, name: str) -> tuple[str, str]:
        """(status, code of the error) of a view."""
        view = self.ask("admin", "GET", f"/views/{name}").json()
        return view["status"], (view["error"] or {}).get("code", "")

    def rows(self, name: str, token: str = "admin") -> list[dict[str, Any]]:
        found = self.ask(token, "GET", f"/views/{name}/rows?limit=1000").json()["rows"]
        return sorted(found, key=lambda row: row["id"])

    def grants(self) -> list[Any]:
        """Owners and rights of all views' relations."""
        return self.database.rows(
            "SELECT c.relname, pg_get_userbyid(c.relowner), (SELECT array_agg(x ORDER BY x) FROM"
            " unnest(coalesce(c.relacl, acldefault('r', c.relowner))) AS a, LATERAL (SELECT"
            " concat_ws(' ', pg_get_userbyid(e.grantee), e.privilege_type, e.is_grantable)"
            " FROM aclexplode(ARRAY[a]) AS e) AS g (x)), (SELECT array_agg(concat_ws(' ', attname,"
            " attacl)) FROM pg_attribute WHERE attrelid = c.oid AND attacl IS NOT NULL)"
            " FROM pg_class AS c WHERE relnamespace = 'public'::regnamespace AND relkind IN"
            " ('r', 'v') ORDER BY 1"
        )


def _until(is_so: Callable[[], bool], what: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def place(
    postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory, folder: Path
) -> Iterator[Place]:
    with new_database(postgres) as database:
        name = database.name
        own, ann, bob, group = (f"{role}_{name}" for role in ("svc", "ann", "bob", "staff"))
        with roles(database, own, ann, bob, group):
            database.execute(
                f"ALTER ROLE {own} REPLICATION; GRANT {ann}, {bob} TO {own};"
                f"GRANT CREATE, TEMPORARY ON DATABASE {name} TO {own};"
                f"GRANT CREATE ON SCHEMA public TO {own}, {ann}, {bob};"
                "CREATE SCHEMA shop; CREATE TABLE shop.orders (id int PRIMARY KEY, amount int);"
                "INSERT INTO shop.orders VALUES (1, 10);"
                "CREATE FUNCTION twice(int) RETURNS int IMMUTABLE LANGUAGE sql"
                " AS 'SELECT $1 * 2';"
                "REVOKE EXECUTE ON FUNCTION twice FROM PUBLIC;"
                f"ALTER TABLE shop.orders OWNER TO {own};"
                f"GRANT EXECUTE ON FUNCTION twice TO {ann}, {own};"
                f"GRANT USAGE ON SCHEMA shop TO {ann}, {own}; GRANT SELECT ON shop.orders TO {ann}"
            )
            give_query_role(database, own)
            database.execute("GRANT USAGE ON SCHEMA shop TO tidemark_query")
            dsn = f"{database.dsn} user={own}"
            with RunningService(
                dsn, tmp_path_factory.mktemp("revoked"), allow_folders=folder
            ) as service:
                made = Place(database, service, own, ann, bob, group)
                _fill(made)
                yield made


def _fill(place: Place) -> None:
    tokens = {}
    for name, role in (("admin", None), ("ann", place.ann), ("bob", place.bob)):
        level = "admin" if name == "admin" else "operator"
        body = {"name": name, "role": level, "db_role": role}
        tokens[name] = place.ask("admin", "POST", "/tokens", body).json()["token"]
        place.tokens = {"admin": tokens["admin"]}
    place.tokens = tokens
    place.create("ann", "mine", QUERY)
    place.create("admin", "services", "SELECT id FROM shop.orders")
    place.database.execute(
        f"GRANT SELECT ON mine TO {place.bob}, {place.group} WITH GRANT OPTION;"
        f"GRANT SELECT (id) ON mine_history TO {place.group}"
    )
    place.create("bob", "below", "SELECT id, amount FROM mine")


# What takes the right away, and what gives it back.
KINDS: dict[str, tuple[str, str]] = {
    "table": ("REVOKE SELECT ON shop.orders FROM {ann}", "GRANT SELECT ON shop.orders TO {ann}"),
    "columns": (
        "REVOKE SELECT ON shop.orders FROM {ann}; GRANT SELECT (id) ON shop.orders TO {ann}",
        "GRANT SELECT (amount) ON shop.orders TO {ann}",
    ),
    "schema": ("REVOKE USAGE ON SCHEMA shop FROM {ann}", "GRANT USAGE ON SCHEMA shop TO {ann}"),
    "function": (
        "REVOKE EXECUTE ON FUNCTION twice FROM {ann}",
        "GRANT EXECUTE ON FUNCTION twice TO {ann}",
    ),
    "membership": (
        "GRANT SELECT ON shop.orders TO {group}; GRANT {group} TO {ann};"
        "REVOKE SELECT ON shop.orders FROM {ann}; REVOKE {group} FROM {ann}",
        "GRANT {group} TO {ann}",
    ),
    "row security": (
        "ALTER TABLE shop.orders ENABLE ROW LEVEL SECURITY",
        "ALTER ROLE {ann} BYPASSRLS",
    ),
    "attribute of the role": ("ALTER ROLE {ann} NOBYPASSRLS", "ALTER ROLE {ann} BYPASSRLS"),
}


def _run(place: Place, sql: str) -> None:
    place.database.execute(sql.format(ann=place.ann, group=place.group))


@pytest.mark.parametrize(
    "kind",
    [
        k if k in ("table", "row security") else pytest.param(k, marks=pytest.mark.whole)
        for k in KINDS
    ],
)
def test_a_view_stops_with_the_right_and_goes_on_with_it(place: Place, kind: str) -> None:
    revoke, grant = KINDS[kind]
    before = place.grants()
    assert place.state("mine") == place.state("below") == ("live", "")
    _run(place, revoke)
    number = 100 + list(KINDS).index(kind)
    _until(
        lambda: place.state("mine") == place.state("below") == ("degraded", REVOKED),
        lambda: (place.state("mine"), place.state("below")),
    )
    _run(place, f"INSERT INTO shop.orders VALUES ({number}, {number})")

    # Nobody reads its rows: through us, or in the database.
    for token in ("admin", "ann", "bob"):
        assert place.code(token, "/views/mine/rows") in (REVOKED, "auth.rights")
        assert place.code(token, "/views/mine/changes") in (REVOKED, "auth.rights")
        assert place.code(token, "/views/mine/stream") in (REVOKED, "auth.rights")
        asked = place.code(token, "/query", "POST", {"query": "SELECT id FROM mine"})
        assert asked in (REVOKED, "auth.rights")
    for role in (place.ann, place.bob):
        for relation in ("mine", "mine_history"):
            with pytest.raises(Exception, match="permission denied"):
                as_role(place.database, role, f"SELECT * FROM {relation}")
    # A view of the service goes on.
    _until(lambda: {"id": number} in place.rows("services"), lambda: place.rows("services"))
    rows = place.database.rows("SELECT id FROM mine")
    assert (number,) not in rows and (1,) in rows

    _run(place, grant)
    wanted = [
        {"id": i, "amount": a}
        for i, a in place.database.rows("SELECT id, amount * 2 FROM shop.orders ORDER BY 1")
    ]
    for name, token in (("mine", "ann"), ("below", "bob")):
        _until(
            lambda name=name: place.state(name) == ("live", ""),
            lambda: (place.state("mine"), place.state("below"), place.service.log_tail()),
        )
        assert place.rows(name, token) == wanted
    assert place.grants() == before
    assert as_role(place.database, place.bob, f"SELECT amount FROM mine WHERE id = {number}")
    _run(place, f"UPDATE shop.orders SET amount = 0 WHERE id = {number}")
    later = {"id": number, "amount": 0}
    _until(lambda: later in place.rows("mine", "ann"), lambda: place.rows("mine"))


def test_a_grant_of_a_declared_source_is_a_right(place: Place, folder: Path) -> None:
    """The same for what a source of files has, in a view of a role that may read it by a grant."""
    (folder / "a.csv").write_text("id\n1\n")
    relation = {"path": f"{folder}/*.csv", "columns": [{"name": "id", "type": "bigint"}]}
    options = {"relations": {"prices": relation}}
    body = {"name": "files", "type": "files", "options": options}
    made = place.ask("admin", "POST", "/sources", body)
    assert made.status_code == 201, made.text
    grant = {"role": place.ann, "relation": "prices"}
    assert place.ask("admin", "POST", "/sources/files/grants", grant).status_code in (200, 201)
    place.create("ann", "prices", "SELECT id FROM files.prices")
    query = f"role={place.ann}&relation=prices"
    taken = place.ask("admin", "DELETE", f"/sources/files/grants?{query}")
    assert taken.status_code in (200, 204), taken.text
    _until(lambda: place.state("prices") == ("degraded", REVOKED), lambda: place.state("prices"))
    assert place.code("ann", "/views/prices/rows") in (REVOKED, "auth.rights")
    assert place.state("mine") == ("live", "")
    (folder / "b.csv").write_text("id\n2\n")
    assert place.ask("admin", "POST", "/sources/files/grants", grant).status_code in (200, 201)
    _until(lambda: place.state("prices") == ("live", ""), lambda: place.state("prices"))
    wanted = [{"id": 1}, {"id": 2}]
    _until(lambda: place.rows("prices", "ann") == wanted, lambda: place.rows("prices"))


def test_every_operation_that_reads_rows_is_refused(place: Place) -> None:
    """And none of them is refused while the right is there."""
    _until(lambda: place.state("mine") == ("live", ""), lambda: place.state("mine"))
    bodies = {"POST": {"name": "nosuch"}}
    paths = [
        (method, path.format(name="mine", view="mine", subscription="nosuch"))
        for (method, path), name in ROUTES.items()
        if OPERATIONS[name].need is Need.READ and not path.endswith("/ws")
    ]
    assert len(paths) > 8

    def codes() -> set[str]:
        return {place.code("admin", path, method, bodies.get(method)) for method, path in paths}

    assert REVOKED not in codes()
    _run(place, "REVOKE USAGE ON SCHEMA shop FROM {ann}")
    try:
        _until(lambda: place.state("mine") == ("degraded", REVOKED), lambda: place.state("mine"))
        assert codes() == {REVOKED}
    finally:
        _run(place, "GRANT USAGE ON SCHEMA shop TO {ann}")
    _until(lambda: place.state("below") == ("live", ""), lambda: place.state("below"))


@pytest.mark.parametrize("kind", ["paused", "failed"])
def test_a_view_at_rest_shows_nobody_its_rows(place: Place, kind: str) -> None:
    place.create("ann", kind, QUERY)
    if kind == "paused":
        assert place.ask("ann", "POST", f"/views/{kind}/pause?wait_s=60").status_code < 300
    else:
        # The view's own table may have no check of others.
        _run(place, f"ALTER TABLE {kind} ADD CHECK (id > 0)")
        _run(place, "INSERT INTO shop.orders VALUES (500, 5)")
    _until(lambda: place.state(kind)[0] == kind, lambda: place.state(kind))
    before, path = place.grants(), f"/views/{kind}/rows"
    rows = place.database.rows(f"SELECT * FROM {kind} ORDER BY id")
    assert rows and place.code("ann", path) != REVOKED
    assert as_role(place.database, place.ann, f"SELECT * FROM {kind} ORDER BY id") == rows

    def own(grants: list[Any]) -> list[Any]:
        return [one for one in grants if one[0].startswith(kind)]

    def is_closed() -> bool:
        is_taken = own(before) != own(place.grants())
        return place.code("admin", path) == REVOKED and is_taken

    _run(place, "REVOKE SELECT ON shop.orders FROM {ann}")
    _until(is_closed, lambda: (place.state(kind), place.service.log_tail()))
    assert place.state(kind)[0] == kind
    assert place.code("ann", path) in (REVOKED, "auth.rights")
    for relation in (kind, f"{kind}_history"):
        with pytest.raises(Exception, match="permission denied"):
            as_role(place.database, place.ann, f"SELECT * FROM {relation}")
    # Also for a service that starts while the right is gone.
    place.service.stop()
    place.service.start()
    assert place.code("admin", path) == REVOKED
    _run(place, "GRANT SELECT ON shop.orders TO {ann}")
    _until(
        lambda: place.code("ann", path) != REVOKED and own(place.grants()) == own(before),
        lambda: (place.state(kind), place.grants(), place.service.log_tail()),
    )
    assert place.state(kind)[0] == kind
    assert as_role(place.database, place.ann, f"SELECT * FROM {kind} ORDER BY id") == rows
    assert place.ask("ann", "DELETE", f"/views/{kind}").status_code < 300
    _run(place, "DELETE FROM shop.orders WHERE id = 500")
    for name in ("mine", "below"):
        _until(lambda name=name: place.state(name) == ("live", ""), lambda: place.state("mine"))


@pytest.mark.whole
def test_a_right_that_is_taken_while_no_service_runs(place: Place) -> None:
    place.service.stop()
    _run(place, "REVOKE USAGE ON SCHEMA shop FROM {ann}")
    place.service.start()
    _until(lambda: place.state("mine") == ("degraded", REVOKED), lambda: place.state("mine"))
    place.service.stop()
    _run(place, "GRANT USAGE ON SCHEMA shop TO {ann}")
    place.service.start()
    _until(lambda: place.state("mine") == ("live", ""), lambda: place.state("mine"))
    assert place.rows("mine", "ann")


@pytest.mark.whole
def test_a_right_that_comes_and_goes_while_a_view_is_built_again(place: Place) -> None:
    for pause_s in (0.5, 1.0, 1.5, 2.0, 2.5):
        _run(place, "REVOKE USAGE ON SCHEMA shop FROM {ann}")
        _until(lambda: place.state("mine") == ("degraded", REVOKED), lambda: place.state("mine"))
        _run(place, "GRANT USAGE ON SCHEMA shop TO {ann}")
        time.sleep(pause_s)
    _run(place, "REVOKE USAGE ON SCHEMA shop FROM {ann}")
    _until(lambda: place.state("mine") == ("degraded", REVOKED), lambda: place.state("mine"))
    assert place.code("ann", "/views/mine/rows") in (REVOKED, "auth.rights")
    _run(place, "GRANT USAGE ON SCHEMA shop TO {ann}")
    _until(lambda: place.state("below") == ("live", ""), lambda: place.state("below"))
    assert place.rows("mine", "ann") and place.rows("below", "bob")


@pytest.mark.whole
def test_another_query_that_the_owner_may_read(place: Place) -> None:
    place.database.execute(
        "CREATE TABLE hers (id int PRIMARY KEY, amount int); INSERT INTO hers VALUES (7, 7);"
        f"ALTER TABLE hers OWNER TO {place.own}; GRANT SELECT ON hers TO {place.ann}"
    )
    place.create("ann", "other", QUERY)
    _run(place, "REVOKE USAGE ON SCHEMA shop FROM {ann}")
    _until(lambda: place.state("other") == ("degraded", REVOKED), lambda: place.state("other"))
    path = "/views/other/replace?wait_s=60"
    refused = place.ask("ann", "POST", path, {"query": "SELECT id, amount FROM shop.orders"})
    assert refused.json()["code"] == "source.privilege"
    replaced = place.ask("ann", "POST", path, {"query": "SELECT id, amount FROM hers"})
    assert replaced.status_code < 300, replaced.text
    _until(lambda: place.code("ann", "/views/other/rows") == "", lambda: place.state("other"))
    assert place.rows("other", "ann") == [{"id": 7, "amount": 7}]
    assert as_role(place.database, place.ann, "SELECT * FROM other") == [(7, 7)]
    _run(place, "GRANT USAGE ON SCHEMA shop TO {ann}")
