"""Oracle: PostgreSQL's rights. Mallory does to views' tables, to the schema that they lie in, and
to the sessions that run her functions, what she may; nobody's rows and rights become hers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import httpx
import pytest

from connectors.postgres.evaluation.query_role import QUERY_ROLE
from tests.harness import http
from tests.security.hostile.ground import TREASURE, Ground

SHARED = "SELECT id, a FROM public.shared"
# Types that an owner may give a column of her view's table, and what gives the old one back.
TYPES = {
    "another of PostgreSQL's": ("ALTER TABLE m.v ALTER a TYPE bigint", ""),
    "text": ("ALTER TABLE m.v ALTER a TYPE text", ""),
    "an enum of hers": (
        "CREATE TYPE m.colour AS ENUM ('0', '1', '2', '3');"
        "ALTER TABLE m.v ALTER a TYPE m.colour USING (a % 3)::text::m.colour",
        "DROP TYPE m.colour",
    ),
    "a domain of hers": (
        "CREATE DOMAIN m.number AS int CHECK (m.is_fine(VALUE));"
        "ALTER TABLE m.v ALTER a TYPE m.number",
        "DROP DOMAIN m.number",
    ),
    "a row of hers": (
        "CREATE TYPE m.one AS (x int); ALTER TABLE m.v ALTER a TYPE m.one USING ROW(a)::m.one",
        "DROP TYPE m.one",
    ),
}
# Done by a function of hers, which PostgreSQL takes for immutable, in whatever session runs it.
LEFT_BEHIND = (
    "PREPARE evil AS SELECT m.steal(1)",
    "DECLARE evil CURSOR WITH HOLD FOR SELECT m.steal(1)",
    "LISTEN evil",
    "SET search_path = m, pg_catalog",
    "SET ROLE NONE",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
    "CREATE TEMP TABLE pg_class (oid oid, relname name)",
    "CREATE FUNCTION pg_temp.format_type(oid, integer) RETURNS text LANGUAGE sql AS"
    " ''SELECT m.steal(''''x'''')''",
    "SET DateStyle = ''German''",
    "SET client_encoding = ''LATIN1''",
    "SET statement_timeout = 0",
)


@pytest.fixture
def view(ground: Ground) -> Iterator[str]:
    assert ground.call("create_view", "m.v", SHARED) == ""
    yield "m.v"
    assert ground.call("drop_view", "m.v") == ""


def _change(ground: Ground) -> None:
    ground.database.execute("UPDATE public.shared SET a = (a + 1) % 3 WHERE id < 5")
    ground.settle()


def _changes(ground: Ground, name: str, who: str) -> str:
    """What a stream of changes tells at first."""
    assert ground.service is not None
    headers = {"Authorization": f"Bearer {ground.tokens[who]}"} if who in ground.tokens else {}
    url, found = f"{ground.service.url}/views/{name}/changes?snapshot=true", b""
    with (
        suppress(httpx.ReadTimeout),
        http.stream("GET", url, headers=headers, timeout=1) as answer,
    ):
        for part in answer.iter_raw():
            found += part
    return found.decode()


@pytest.mark.parametrize("what", TYPES)
def test_a_column_of_another_type(ground: Ground, view: str, what: str) -> None:
    put, take = TYPES[what]
    is_on = ground.tries(put) == ""
    answer = ground.ask("GET", f"/views/{view}/rows")
    assert answer.status_code < 500, answer.text
    if is_on:
        assert answer.json()["code"] == "sink.foreign_object", answer.text
    _change(ground)
    if is_on:
        ground.await_status(view, "failed")
    assert ground.call("rebuild_view", view) == "", ground.service and ground.service.log_tail()
    ground.await_status(view, "live")
    assert ground.tries(take or "SELECT 1") in ("", "42704")
    assert ground.ask("GET", f"/views/{view}/rows").status_code == 200
    ground.require_unharmed()


def test_an_added_column_of_a_type_of_hers(ground: Ground, view: str) -> None:
    """Its CHECK would be asked for every row that is written, also for one without a value."""
    put = "CREATE DOMAIN m.odd AS int CHECK (m.is_fine(VALUE)); ALTER TABLE m.v ADD b m.odd"
    is_on = ground.tries(put) == ""
    _change(ground)
    if is_on:
        ground.await_status(view, "failed")
    assert ground.call("rebuild_view", view) == "", ground.service and ground.service.log_tail()
    ground.await_status(view, "live")
    assert ground.tries("DROP DOMAIN m.odd") in ("", "42704")
    ground.require_unharmed()


def test_an_object_in_place_of_a_view_gives_no_right_to_the_view(ground: Ground) -> None:
    """A schema's owner may drop what lies in it, and have a table of her own there."""
    ground.database.execute(
        f"CREATE TABLE vault.gold AS SELECT * FROM vault.secret; ALTER TABLE vault.gold OWNER TO"
        f" {ground.login}; ALTER TABLE vault.gold ADD PRIMARY KEY (id);"
        f"GRANT USAGE ON SCHEMA vault TO {QUERY_ROLE}"
    )
    body = {"name": "m.hidden", "query": "SELECT id, s FROM vault.gold"}
    made = ground.ask("POST", "/views?wait_s=60", body)
    assert made.json().get("status") == "live", made.text
    try:
        ground.attack(
            "DROP TABLE m.hidden; CREATE TABLE m.hidden (id int PRIMARY KEY, s text);"
            "GRANT ALL ON m.hidden TO PUBLIC"
        )
        told: list[str] = []
        for who in {"mallory", "spy"} & set(ground.tokens):
            for path in ("", "/rows", "/errors", "/plan", "/wait?position=0/1"):
                told.append(ground.ask("GET", f"/views/m.hidden{path}", who=who).text)
            told.append(_changes(ground, "m.hidden", who))
            query = {"query": "SELECT id, s FROM m.hidden"}
            told.append(ground.ask("POST", "/query", query, who).text)
            copy = {"name": "m.copy", **query}
            told.append(ground.ask("POST", "/views?wait_s=20", copy, who).text)
            told.append(ground.ask("GET", "/views/m.copy/rows", who=who).text)
        told.append(ground.call("create_view", "m.copied", "SELECT id, s FROM m.hidden"))
        told += [str(ground.attack("SELECT * FROM tidemark.status"))]
        for name in ("copy", "copied"):
            if ground.database.rows("SELECT to_regclass(%s) IS NOT NULL", (f"m.{name}",))[0][0]:
                told.append(str(ground.attack(f"SELECT * FROM m.{name}")))
        assert not [text for text in told if "vault" in text]
        # The one that it was made for is told what has happened, before and after a change.
        # It has failed already if the service has looked for its table meanwhile.
        rows = ground.ask("GET", "/views/m.hidden/rows").json()
        assert rows["code"] in ("sink.foreign_object", "view.not_live"), rows
        ground.database.execute("UPDATE vault.gold SET s = s || '' WHERE id = 1")
        ground.await_status("m.hidden", "failed")
        failed = ground.ask("GET", "/views/m.hidden").json()
        assert failed["error"]["code"] == "sink.table_missing", failed
        ground.require_unharmed(*told)
    finally:
        for name in ("copied", "copy", "hidden"):
            ground.ask("DELETE", f"/views/m.{name}")
        ground.tries("DROP TABLE IF EXISTS m.hidden")
        ground.database.execute(
            f"REVOKE USAGE ON SCHEMA vault FROM {QUERY_ROLE}; DROP TABLE vault.gold"
        )


def test_a_schema_of_the_same_name(ground: Ground, view: str) -> None:
    """Who may create schemas may put another in the place of hers."""
    database, mallory = ground.database, ground.mallory
    database.execute(f"GRANT CREATE ON DATABASE {database.name} TO {mallory}")
    trap = (
        "ALTER SCHEMA m RENAME TO away; CREATE SCHEMA m; GRANT ALL ON SCHEMA m TO PUBLIC;"
        "CREATE TABLE m.v (id int PRIMARY KEY, a int);"
        "INSERT INTO m.v SELECT id, a FROM away.v;"
        "CREATE TRIGGER evil BEFORE INSERT OR UPDATE OR DELETE ON m.v FOR EACH ROW"
        " EXECUTE FUNCTION away.fires(); GRANT ALL ON m.v TO PUBLIC"
    )
    back = "DROP SCHEMA IF EXISTS m CASCADE; ALTER SCHEMA away RENAME TO m"
    try:
        assert ground.tries(trap) == ""
        ground.ask("GET", f"/views/{view}/rows")
        _change(ground)
        ground.call("rebuild_view", view)
        _change(ground)
        ground.require_unharmed()
    finally:
        ground.tries(back)
        database.execute(f"REVOKE CREATE ON DATABASE {database.name} FROM {mallory}")


def test_event_triggers_with_code_of_hers(ground: Ground, view: str) -> None:
    """Only a superuser can make one, and then the service changes nothing in that database."""
    ground.attack(
        "CREATE FUNCTION m.on_event() RETURNS event_trigger LANGUAGE plpgsql AS"
        " $f$BEGIN PERFORM m.note('event'); END$f$"
    )
    try:
        for event in ("ddl_command_start", "ddl_command_end", "sql_drop", "table_rewrite"):
            ground.database.execute(
                f"CREATE EVENT TRIGGER evil ON {event} EXECUTE FUNCTION m.on_event()"
            )
            ground.notes()
            for operation, *arguments in (
                ("create_view", "m.w", SHARED),
                ("replace_view", view, "SELECT id, b FROM public.shared"),
                ("rebuild_view", view),
                ("drop_view", view),
            ):
                code = ground.call(operation, *arguments)
                assert code in ("source.event_trigger", "sink.event_trigger"), (operation, code)
            _change(ground)
            harm = ground.harmed()
            ground.database.execute("DROP EVENT TRIGGER evil")
            ground.notes()
            assert harm == []
    finally:
        ground.database.execute("DROP EVENT TRIGGER IF EXISTS evil")
    ground.attack("DROP FUNCTION m.on_event")
    ground.await_status(view, "live")
    ground.require_unharmed()


@pytest.mark.whole
def test_what_functions_leave_in_a_session(ground: Ground) -> None:
    steps = "".join(
        f"BEGIN EXECUTE '{statement}'; EXCEPTION WHEN OTHERS THEN NULL; END;"
        for statement in LEFT_BEHIND
    )
    for kind in ("STABLE", "IMMUTABLE"):
        ground.attack(
            f"CREATE FUNCTION m.leaves_{kind}(x int) RETURNS int LANGUAGE plpgsql {kind} AS"
            f" $f$BEGIN {steps} RETURN x; END$f$;"
            f"CREATE FUNCTION m.does_{kind}(x int) RETURNS int LANGUAGE plpgsql VOLATILE AS"
            f" $f$BEGIN {steps} RETURN x; END$f$;"
            f"CREATE FUNCTION m.calls_{kind}(x int) RETURNS int LANGUAGE plpgsql {kind} AS"
            f" $f$BEGIN RETURN m.does_{kind}(x); END$f$"
        )
    names = [f"m.{does}_{kind}" for kind in ("STABLE", "IMMUTABLE") for does in ("leaves", "calls")]
    told: list[str] = []
    try:
        for name in names:
            asked = f"SELECT id, {name}(a) AS v FROM public.shared"
            for who in {"operator", "mallory"} & set(ground.tokens):
                for query in (asked, f"SELECT {name}(1) AS v"):
                    told.append(ground.ask("POST", "/query", {"query": query}, who).text)
                told.append(ground.ask("POST", "/views/validate", {"query": asked}, who).text)
            refused = ground.call("create_view", "m.w", asked)
            told.append(refused)
            if not refused:
                _change(ground)
                ground.call("verify_view", "m.w")
                ground.call("drop_view", "m.w")
            # Whoever has the session next.
            answer = ground.ask(
                "POST", "/query", {"query": "SELECT date '2024-01-02' AS d"}, "operator"
            )
            assert "2024-01-02" in answer.text, answer.text
        rows = ground.ask("GET", "/views/public.watch/rows")
        assert rows.status_code == 200 and TREASURE not in rows.text
        ground.require_unharmed(*told)
    finally:
        for name in names:
            ground.tries(f"DROP FUNCTION {name}")
        for kind in ("STABLE", "IMMUTABLE"):
            ground.tries(f"DROP FUNCTION m.does_{kind}")


def test_what_reads_a_spoilt_table(ground: Ground, view: str) -> None:
    """A subscription from the first rows on, and views of views."""
    assert ground.call("create_view", "m.w", f"SELECT id, a + 1 AS a FROM {view}") == ""
    try:
        is_on = ground.tries(
            f"ALTER TABLE {view} ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;"
            f"CREATE POLICY evil ON {view} USING (m.is_fine(a));"
            f"CREATE STATISTICS m.evil ON (m.steal(1) + id), a FROM {view}"
        )
        told = [
            ground.ask("GET", f"/views/{name}{path}").text
            for name in (view, "m.w")
            for path in ("/rows", "/errors")
        ]
        told += [_changes(ground, name, "admin") for name in (view, "m.w")]
        told.append(ground.call("create_view", "m.x", f"SELECT a, count(*) FROM {view} GROUP BY a"))
        _change(ground)
        told += [ground.call("rebuild_view", name) for name in ("m.w", view)]
        assert is_on == "" or ground.status("m.w") == "live"
        ground.require_unharmed(*told)
    finally:
        for name in ("m.x", "m.w"):
            ground.call("drop_view", name)
