"""Oracle: PostgreSQL's rules for GRANT, as a table. Whatever face is used and whatever is done with
a relation of a declared source, a database role needs a right to it, and gets along with one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from typer.testing import CliRunner

from connectors.postgres.embedded.server import EmbeddedPostgres
from service.cli.main import app
from tests.harness.postgres import Database, new_database
from tests.harness.psql import as_role, roles
from tests.harness.service import RunningService
from tests.harness.waiting import wait_until

COLUMNS = [{"name": "id", "type": "bigint"}, {"name": "price", "type": "numeric(10,2)"}]
READS = "SELECT id, price FROM shop.prices"
LOCAL = {"backfill": "local"}
REFUSED = "source.no_grant"
OVER = "/views/over/rebuild?wait_s=60"
COMING_BACK = ("view.not_live", "view.busy")
PROCEDURES = ("create_view", "drop_view", "replace_view", "rebuild_view", "cancel_change")


@dataclass
class Place:
    """A service with source "shop" of the role `declarer`, and a reader, who is a member of team.

    Of a reader's right depends: what it does with shop.prices.
    """

    database: Database
    service: RunningService
    names: dict[str, str]
    tokens: dict[str, str]

    def ask(self, who: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """(status, body)."""
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        client = self.service.client
        answer = client.request(method, path, json=body, headers=headers, timeout=90)
        return answer.status_code, answer.json() if answer.content else {}

    def code(self, who: str, method: str, path: str, body: Any = None) -> str:
        """The code of a refusal, "" if there is none."""
        status, found = self.ask(who, method, path, body)
        return found["code"] if status >= 400 else ""

    def call(self, who: str, statement: str) -> str:
        """The code of a refusal in psql, "" if there is none."""
        try:
            as_role(self.database, self.names[who], f"CALL tidemark.{statement}")
        except psycopg2.Error as error:
            detail = error.diag.message_detail or ""
            assert error.pgcode == "42501" or REFUSED not in detail, detail
            found = [x for x in detail.splitlines() if x.startswith("code: ")]
            return found[0].removeprefix("code: ") if found else str(error)
        return ""

    def run(self, who: str, *words: str) -> str:
        """The code of a refusal by command, "" if there is none."""
        token = {"TIDEMARK_TOKEN": self.tokens[who]}
        done = CliRunner().invoke(
            app, [*words, "--url", self.service.url], env={**os.environ, **token}
        )
        if done.exit_code == 0:
            return ""
        words_found = (done.output + done.stderr).replace("[", " ").replace("]", " ").split()
        return next((w for w in words_found if w.startswith(("source.", "auth."))), done.output)


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("readers")
    with new_database(postgres) as database:
        words = ("declarer", "team", "reader", "other")
        names = {word: f"{word}_{database.name}" for word in words} | {"service": "postgres"}
        with (
            roles(database, *(names[word] for word in words)),
            RunningService(database.dsn, folder / "service", allow_folders=folder) as service,
        ):
            everyone = ", ".join(names[word] for word in words)
            database.execute(
                "CREATE TABLE own (id bigint PRIMARY KEY, price numeric(10,2));"
                f"GRANT {names['team']} TO {names['reader']};"
                f"GRANT SELECT ON own TO {everyone};"
                f"GRANT CREATE ON SCHEMA public TO {everyone};"
            )
            made = Place(database, service, names, {})
            _make_tokens(made)
            sources = ("create_source", "grant_source", "revoke_source")
            database.execute(
                f"GRANT USAGE ON SCHEMA tidemark TO {everyone};"
                + "".join(
                    f"GRANT EXECUTE ON PROCEDURE tidemark.{name} TO {to};"
                    for procedures, to in (
                        (PROCEDURES, everyone),
                        (sources, f"{names['declarer']}, {names['other']}"),
                    )
                    for name in procedures
                )
            )
            assert made.code("declarer", "POST", "/sources", _shop(folder)) == ""
            own = {"name": "mine", "query": "SELECT id, price FROM own", "options": LOCAL}
            assert made.code("reader", "POST", "/views?wait_s=60", own) == ""
            with _granted(made, "reader"):
                over = {"name": "over", "query": READS, "options": LOCAL}
                assert made.code("reader", "POST", "/views?wait_s=60", over) == ""
            services = {"name": "services", "query": "SELECT id FROM shop.wages", "options": LOCAL}
            assert made.code("operator", "POST", "/views?wait_s=60", services) == ""
            letters = lambda: made.ask("admin", "GET", "/dead-letters")[1]["dead_letters"]  # noqa: E731
            wait_until(lambda: {"prices", "wages"} == {x["relation"] for x in letters()})
            yield made


def _shop(folder: Path) -> dict[str, Any]:
    relations = {}
    for name in ("prices", "wages"):
        (folder / name).mkdir()
        (folder / name / "a.csv").write_text("id,price\n1,2.50\n2,many\n")
        path = f"{folder / name}/*.csv"
        relations[name] = {"path": path, "columns": COLUMNS, "on_error": "dead_letter"}
    return {"name": "shop", "type": "files", "options": {"relations": relations}}


def _make_tokens(place: Place) -> None:
    for who, level, role in (
        ("admin", "admin", None),
        ("operator", "operator", None),
        ("plain", "reader", None),
        *((word, "operator", place.names[word]) for word in ("declarer", "reader", "other")),
    ):
        headers = {"Authorization": f"Bearer {place.tokens.get('admin', '')}"}
        body = {"name": who, "role": level, "db_role": role}
        made = place.service.client.post(
            "/tokens", json=body, headers=headers if place.tokens else {}, timeout=60
        )
        assert made.status_code == 201, made.text
        place.tokens[who] = made.json()["token"]


# --- ways of giving a right, by each face ---------------------------------------------------------


def _by_rest(place: Place, is_grant: bool, title: str, role: str) -> str:
    source, _, relation = title.partition(".")
    path = f"/sources/{source}/grants"
    if is_grant:
        return place.code("declarer", "POST", path, {"role": role, "relation": relation})
    return place.code("declarer", "DELETE", f"{path}?role={role}&relation={relation}")


def _by_call(place: Place, is_grant: bool, title: str, role: str) -> str:
    return place.call(
        "declarer", f"{'grant' if is_grant else 'revoke'}_source('{title}', '{role}')"
    )


def _by_command(place: Place, is_grant: bool, title: str, role: str) -> str:
    """With the preposition of SQL or without."""
    if "." in title:
        words = ("grant", title, "TO", role) if is_grant else ("revoke", title, "from", role)
    else:
        words = ("grant" if is_grant else "revoke", title, role)
    return place.run("declarer", "sources", *words)


FACES: dict[str, Callable[[Place, bool, str, str], str]] = {
    "rest": _by_rest,
    "psql": _by_call,
    "cli": _by_command,
}


@contextmanager
def _granted(
    place: Place, who: str, title: str = "shop.prices", face: str = "rest"
) -> Iterator[None]:
    role = place.names.get(who, who)
    assert FACES[face](place, True, title, role) == ""
    try:
        yield
    finally:
        assert FACES[face](place, False, title, role) == ""


@contextmanager
def _joined(place: Place) -> Iterator[None]:
    """The reader is a member of the declarer."""
    pair = place.names["declarer"], place.names["reader"]
    place.database.execute("GRANT {} TO {}".format(*pair))
    try:
        yield
    finally:
        place.database.execute("REVOKE {} FROM {}".format(*pair))


@contextmanager
def _nothing(place: Place) -> Iterator[None]:
    yield


# Of each state: how it comes about, and whether the reader then reads shop.prices.
STATES: dict[str, tuple[Callable[[Place], Any], bool]] = {
    "no grant": (_nothing, False),
    "another relation": (lambda p: _granted(p, "reader", "shop.wages"), False),
    "another role": (lambda p: _granted(p, "other"), False),
    "the relation": (lambda p: _granted(p, "reader"), True),
    "the source": (lambda p: _granted(p, "reader", "shop", "psql"), True),
    "its group": (lambda p: _granted(p, "team", "shop.prices", "cli"), True),
    "public": (lambda p: _granted(p, "public", "shop", "cli"), True),
    "the declarer's group": (_joined, True),
}


# --- ways of reading ------------------------------------------------------------------------------


def _validates(place: Place) -> str:
    return place.code("reader", "POST", "/views/validate", {"query": READS})


def _validates_unused(place: Place) -> str:
    """A relation that the plan leaves out is named, which needs a right in PostgreSQL too."""
    query = "SELECT id FROM own WHERE false AND EXISTS (SELECT FROM shop.prices)"
    return place.code("reader", "POST", "/views/validate", {"query": query})


def _creates(place: Place) -> str:
    body = {"name": "made", "query": f"WITH p AS ({READS}) SELECT * FROM p", "options": LOCAL}
    found = place.code("reader", "POST", "/views?wait_s=60", body)
    if not found:
        assert place.code("reader", "DELETE", "/views/made?wait_s=60") == ""
    return found


def _creates_by_call(place: Place) -> str:
    found = place.call("reader", f"create_view('called', '{READS}', '{json.dumps(LOCAL)}')")
    if not found:
        assert place.call("reader", "drop_view('called')") == ""
    return found


def _creates_by_command(place: Place) -> str:
    found = place.run("reader", "create", "typed", READS)
    if not found:
        assert place.run("reader", "drop", "typed") == ""
    return found


def _replaces(place: Place) -> str:
    found = place.code("reader", "POST", "/views/mine/replace?wait_s=60", {"query": READS})
    if not found:
        back = {"query": "SELECT id, price FROM own"}
        assert place.code("reader", "POST", "/views/mine/replace?wait_s=60", back) == ""
    return found


def _replaces_by_call(place: Place) -> str:
    found = place.call("reader", f"replace_view('mine', '{READS}')")
    if not found:
        back = "SELECT id, price FROM own"
        assert place.call("reader", f"replace_view('mine', '{back}')") == ""
    return found


def _rebuilds(place: Place) -> str:
    return _rebuilt(place, lambda: place.code("reader", "POST", OVER, {}))


def _rebuilds_by_call(place: Place) -> str:
    return _rebuilt(place, lambda: place.call("reader", "rebuild_view('over')"))


def _rebuilds_for_its_creator(place: Place) -> str:
    """The service may read it; the view is the reader's."""
    return _rebuilt(place, lambda: place.code("operator", "POST", OVER, {}))


def _rebuilt(place: Place, rebuild: Callable[[], str]) -> str:
    """Without the right the view has stopped, or does soon; with it the view comes back."""
    found: list[str] = []
    if not _validates(place):
        wait_until(lambda: found.append(rebuild()) or found[-1] not in COMING_BACK)
        return found[-1]
    code = rebuild()
    if code not in COMING_BACK:
        return code
    problem = place.ask("admin", "GET", "/views/over")[1]["error"]
    assert problem["code"] in ("view.rights_revoked", REFUSED)
    return REFUSED


def _lists_tables(place: Place) -> str:
    tables = place.ask("reader", "GET", "/tables")[1]["tables"]
    names = {(t["schema"], t["name"]) for t in tables}
    assert ("public", "own") in names
    return "" if ("shop", "prices") in names else REFUSED


def _reads_dead_letters(place: Place) -> str:
    letters = place.ask("reader", "GET", "/dead-letters")[1]["dead_letters"]
    is_shown = any(letter["relation"] == "prices" for letter in letters)
    path = "/dead-letters?source=shop&relation=prices"
    assert (place.code("reader", "GET", path) == "auth.rights") is not is_shown
    return "" if is_shown else REFUSED


WAYS = (
    _validates,
    _validates_unused,
    _lists_tables,
    _reads_dead_letters,
    _creates,
    _creates_by_call,
    _creates_by_command,
    _replaces,
    _replaces_by_call,
    _rebuilds,
    _rebuilds_by_call,
    _rebuilds_for_its_creator,
)
# In the fast tier the slow ways are tried in these states alone.
BOTH_SIDES = ("no grant", "the relation", "public")
SLOW = WAYS[4:]


@pytest.mark.parametrize("state", STATES)
def test_every_way_of_reading_needs_a_right(place: Place, state: str) -> None:
    given, may_read = STATES[state]
    ways = WAYS if state in BOTH_SIDES else [way for way in WAYS if way not in SLOW]
    with given(place):
        found = {way.__name__: way(place) for way in ways}
    assert found == dict.fromkeys(found, "" if may_read else REFUSED)


@pytest.mark.whole
@pytest.mark.parametrize("state", [state for state in STATES if state not in BOTH_SIDES])
def test_every_slow_way_of_reading_needs_a_right(place: Place, state: str) -> None:
    given, may_read = STATES[state]
    with given(place):
        found = {way.__name__: way(place) for way in SLOW}
    assert found == dict.fromkeys(found, "" if may_read else REFUSED)


@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("title", ["shop", "shop.prices"])
def test_every_face_grants_and_revokes(place: Place, face: str, title: str) -> None:
    role = place.names["reader"]
    assert _validates(place) == REFUSED
    with _granted(place, "reader", title, face):
        assert _validates(place) == ""
        grants = place.ask("plain", "GET", "/sources/shop")[1]["grants"]
        assert [(g["relation"], g["role"]) for g in grants] == [
            (title.partition(".")[2] or None, role)
        ]
        assert grants[0]["granted_by"] == place.names["declarer"]
        listed = as_role(place.database, role, "SELECT source, role FROM tidemark.source_grants")
        assert listed == [("shop", role)]
        # Granting once more changes nothing.
        assert FACES[face](place, True, title, role) == ""
    assert _validates(place) == REFUSED
    assert FACES[face](place, False, title, role) == "source.grant_missing"
    assert FACES[face](place, True, title, "nosuch") == "source.no_role"
    assert FACES[face](place, True, "shop.nosuch", role) == "source.no_relation"
    assert FACES[face](place, True, "nosuch", role) == "source.not_found"


def test_the_error_names_the_command_that_helps(place: Place) -> None:
    status, problem = place.ask("reader", "POST", "/views/validate", {"query": READS})
    role = place.names["reader"]
    assert (status, problem["code"]) == (403, REFUSED)
    assert f"tidemark sources grant shop.prices TO {role}" in problem["hint"]
    call = f"grant_source('shop.prices', '{role}')"
    assert f"CALL tidemark.{call};" in problem["hint"]
    assert problem["position"] == {"line": 1, "column": READS.index("prices") + 1}
    assert place.call("declarer", call) == ""
    try:
        assert _validates(place) == ""
    finally:
        assert place.call("declarer", call.replace("grant_", "revoke_", 1)) == ""


def test_only_the_declarer_and_the_service_grant(place: Place) -> None:
    """A role that may declare sources may not give away those of others; a reader, not its own
    right."""
    body = {"role": place.names["other"]}
    with _granted(place, "reader", "shop"):
        for who, code in (("other", "source.not_owner"), ("reader", "auth.rights")):
            assert place.code(who, "POST", "/sources/shop/grants", body) == code
            path = f"/sources/shop/grants?role={place.names['reader']}"
            assert place.code(who, "DELETE", path) == code
        assert place.code("plain", "POST", "/sources/shop/grants", body) == "auth.role"
        statement = f"grant_source('shop', '{place.names['other']}')"
        assert place.call("other", statement) == "source.not_owner"
        assert "permission denied" in place.call("reader", statement)
    for who in ("declarer", "operator", "admin"):
        assert place.code(who, "POST", "/sources/shop/grants", body) == ""
        path = f"/sources/shop/grants?role={body['role']}"
        assert place.code(who, "DELETE", path) == ""
    assert place.call("service", statement) == ""
    assert place.call("service", statement.replace("grant_", "revoke_", 1)) == ""


def test_who_declares_by_call_is_the_declarer(place: Place) -> None:
    options = json.dumps(place.ask("declarer", "GET", "/sources/shop")[1]["options"])
    body = {"query": "SELECT id FROM called.prices"}
    assert place.call("other", f"create_source('called', 'files', $o${options}$o$)") == ""
    try:
        found = place.ask("plain", "GET", "/sources/called")[1]
        assert (found["declared_by"], found["grants"]) == (place.names["other"], [])
        assert place.code("other", "POST", "/views/validate", body) == ""
        assert place.code("declarer", "POST", "/views/validate", body) == REFUSED
        statement = f"grant_source('called', '{place.names['declarer']}')"
        assert place.call("declarer", statement) == "source.not_owner"
        assert place.call("other", statement) == ""
        assert place.code("declarer", "POST", "/views/validate", body) == ""
    finally:
        assert place.code("operator", "DELETE", "/sources/called") == ""


def test_tokens_without_a_database_role(place: Place) -> None:
    """An operator acts as the service and reads everything; a reader reads views, whatever is
    granted to PUBLIC."""
    body = {"query": READS}
    with _granted(place, "public", "shop"):
        assert place.code("operator", "POST", "/views/validate", body) == ""
        assert place.code("plain", "POST", "/views/validate", body) == REFUSED
        own = {"query": "SELECT id FROM own"}
        assert place.code("plain", "POST", "/views/validate", own) == ""
        kinds = {
            who: {t["kind"] for t in place.ask(who, "GET", "/tables")[1]["tables"]}
            for who in ("plain", "operator")
        }
        assert kinds == {"plain": {"view"}, "operator": {"table", "view", "source"}}
        letters = place.ask("plain", "GET", "/dead-letters")
        assert letters == (200, {"dead_letters": []})
        positions = lambda who: place.ask(who, "GET", "/sources/shop")[1]["positions"]  # noqa: E731
        assert positions("operator") != {}
        assert positions("plain") == {}


def test_the_moving_clock_is_for_everybody(place: Place) -> None:
    query = "SELECT id FROM own WHERE now() < '2100-01-01'"
    body = {"query": query, "options": {"now": "moving"}}
    for _ in range(2):
        assert place.code("reader", "POST", "/views/validate", body) == ""
        assert place.code("plain", "POST", "/views/validate", body) == ""
        made = {"name": "clocked", "options": {**LOCAL, "now": "moving"}, "query": query}
        assert place.code("operator", "POST", "/views?wait_s=60", made) in ("", "view.name_taken")
    assert place.code("operator", "DELETE", "/views/clocked?wait_s=60") == ""


def test_a_view_is_read_with_its_own_rights(place: Place) -> None:
    """As in PostgreSQL: SELECT on a view of a relation needs no right to the relation."""
    made = {"name": "shown", "query": READS, "options": LOCAL}
    assert place.code("declarer", "POST", "/views?wait_s=60", made) == ""
    above = {"name": "above", "query": "SELECT sum(id) FROM shown", "options": LOCAL}
    try:
        assert place.code("reader", "POST", "/views", above) == "source.privilege"
        place.database.execute(f"GRANT SELECT ON shown TO {place.names['reader']}")
        assert place.code("reader", "POST", "/views?wait_s=60", above) == ""
        assert place.code("reader", "POST", "/views/above/rebuild?wait_s=60", {}) == ""
        assert _reads_dead_letters(place) == REFUSED
        assert place.code("reader", "DELETE", "/views/above?wait_s=60") == ""
    finally:
        assert place.code("declarer", "DELETE", "/views/shown?wait_s=60") == ""


def test_grants_stay_with_the_relation_and_not_with_the_name_of_the_role(place: Place) -> None:
    name = f"again_{place.database.name}"
    database = place.database
    schema = f"GRANT USAGE ON SCHEMA tidemark TO {name};"
    may_create = f"GRANT EXECUTE ON PROCEDURE tidemark.create_view TO {name}"
    place.names["again"] = name
    creates = f"create_view('again', '{READS}', '{json.dumps(LOCAL)}')"
    database.execute(f"CREATE ROLE {name} LOGIN; {schema} {may_create}")
    try:
        assert place.call("declarer", f"grant_source('shop.prices', '{name}')") == ""
        # It may read the source, and not write to the schema.
        assert place.call("again", creates) == "sink.privilege"
        options = place.ask("declarer", "GET", "/sources/shop")[1]["options"]
        assert place.code("operator", "PUT", "/sources/shop", {"options": options}) == ""
        assert place.call("again", creates) == "sink.privilege"
        database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}; CREATE ROLE {name} LOGIN")
        database.execute(schema + may_create)
        assert place.call("again", creates) == REFUSED
        assert place.ask("operator", "GET", "/sources/shop")[1]["grants"] == []
    finally:
        database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


# Texts that name both relations, prices granted and wages not, so that each needs a right to both.
BOTH = (
    "SELECT p.id FROM shop.prices AS p JOIN shop.wages AS w USING (id)",
    "SELECT id FROM shop.prices WHERE id IN (SELECT id FROM shop.wages)",
    "SELECT id, (SELECT max(w.id) FROM shop.wages AS w WHERE w.id = p.id) FROM shop.prices AS p",
    "SELECT id FROM shop.prices UNION ALL SELECT id FROM wages",
    "WITH w AS (SELECT count(*) AS n FROM shop.wages) SELECT p.id, w.n FROM shop.prices p, w",
    'SELECT p.id FROM "shop"."prices" AS p LEFT JOIN "shop" . "wages" AS prices USING (id)',
    "SELECT prices.id FROM shop.wages AS prices, own WHERE own.id = prices.id",
    "TABLE shop.wages",
    "SELECT count(w) AS n FROM shop.wages AS w",
    "SELECT id FROM own WHERE EXISTS (SELECT FROM shop.wages)",
    "SELECT id FROM own, LATERAL (SELECT 1 FROM shop.wages AS w WHERE w.id = own.id) AS x",
)


@pytest.mark.parametrize("query", BOTH)
def test_every_relation_that_a_query_names_needs_a_right(place: Place, query: str) -> None:
    body = {"query": query}
    with _granted(place, "reader", "shop.prices"):
        status, problem = place.ask("reader", "POST", "/views/validate", body)
        assert (status, problem["code"]) == (403, REFUSED)
        assert '"shop.wages"' in problem["title"]
        with _granted(place, "reader", "shop.wages"):
            assert place.code("reader", "POST", "/views/validate", body) == ""


def test_a_relation_of_the_same_name_gives_no_right(place: Place) -> None:
    options = place.ask("declarer", "GET", "/sources/shop")[1]["options"]
    same = {"name": "depot", "type": "files", "options": options}
    assert place.code("other", "POST", "/sources", same) == ""
    try:
        with _granted(place, "reader", "shop"):
            for query, code in (
                ("SELECT id FROM shop.prices", ""),
                ("SELECT id FROM depot.prices", REFUSED),
                ("SELECT a.id FROM shop.prices AS a JOIN depot.prices AS b USING (id)", REFUSED),
                ("SELECT a.id FROM depot.prices AS a JOIN shop.prices AS b USING (id)", REFUSED),
            ):
                found = place.code("reader", "POST", "/views/validate", {"query": query})
                assert found == code, query
    finally:
        assert place.code("operator", "DELETE", "/sources/depot") == ""


def test_hostile_names_of_roles_and_relations_are_texts(place: Place) -> None:
    odd = f"odd\"'; --$ {place.database.name}"
    quoted = '"' + odd.replace('"', '""') + '"'
    path = "/sources/shop/grants"
    place.database.execute(f"CREATE ROLE {quoted}")
    try:
        assert place.code("declarer", "POST", path, {"role": odd}) == ""
        assert place.database.rows("SELECT grantee FROM tidemark.source_readers") == [(quoted,)]
        answer = place.service.client.delete(
            path,
            params={"role": odd},
            headers={"Authorization": f"Bearer {place.tokens['declarer']}"},
        )
        assert answer.status_code == 200 and answer.json()["grants"] == []
    finally:
        place.database.execute(f"DROP ROLE {quoted}")
    for name in ("'", "a\\b", "é" * 100, "x" * 10_000, "-", "0", "16384", "public "):
        assert place.code("declarer", "POST", path, {"role": name}) == "source.no_role", name
        body = {"role": place.names["reader"], "relation": name}
        assert place.code("declarer", "POST", path, body) == "source.no_relation", name
    for name in ("", "\0"):
        assert place.code("declarer", "POST", path, {"role": name}) == "request.invalid"
    assert place.database.rows("SELECT FROM tidemark.source_readers") == []


def test_a_view_whose_creator_lost_the_right_is_not_built_again(place: Place) -> None:
    made = {"name": "lost", "query": READS, "options": LOCAL}
    with _granted(place, "reader"):
        assert place.code("reader", "POST", "/views?wait_s=60", made) == ""
        assert place.code("reader", "POST", "/views/lost/pause?wait_s=60", {}) == ""
    try:
        for who in ("reader", "operator"):
            assert place.code(who, "POST", "/views/lost/resume?wait_s=60", {}) == REFUSED
        assert place.ask("reader", "GET", "/views/lost")[1]["status"] == "paused"
        with _granted(place, "reader"):
            assert place.code("reader", "POST", "/views/lost/resume?wait_s=60", {}) == ""
            assert place.ask("reader", "GET", "/views/lost")[1]["status"] == "live"
    finally:
        assert place.code("reader", "DELETE", "/views/lost?wait_s=60") == ""


@pytest.mark.whole
def test_roles_are_those_of_the_sink_where_it_is_another_database(
    postgres: EmbeddedPostgres, tmp_path: Path
) -> None:
    with new_database(postgres) as source, new_database(postgres) as sink:
        names = {word: f"{word}_{sink.name}" for word in ("declarer", "reader", "other")}
        with (
            roles(sink, *names.values()),
            RunningService(
                source.dsn, tmp_path / "service", sink.dsn, allow_folders=tmp_path
            ) as service,
        ):
            place = Place(sink, service, names, {})
            _make_tokens(place)
            source.execute("CREATE TABLE own (id bigint PRIMARY KEY)")
            everyone = ", ".join(names.values())
            sink.execute(f"GRANT USAGE, CREATE ON SCHEMA public TO {everyone}")
            for name in ("create_source", "grant_source", "revoke_source"):
                sink.execute(f"GRANT EXECUTE ON PROCEDURE tidemark.{name} TO {names['declarer']}")
            assert place.code("declarer", "POST", "/sources", _shop(tmp_path)) == ""
            assert _validates(place) == _creates(place) == REFUSED
            with _granted(place, "reader"):
                assert _validates(place) == _creates(place) == ""
            assert _validates(place) == REFUSED
