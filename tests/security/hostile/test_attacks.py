"""Oracle: PostgreSQL's rights. Mallory has the service run code of hers by every way in, and no
session of the service may run it with rights that are not hers, or show her what is not hers."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from tests.security.hostile.ground import TREASURE, Ground

# A function that PostgreSQL takes for stable, with what it does inside of it.
_ONCE = (
    "CREATE FUNCTION m.{name}() RETURNS text LANGUAGE plpgsql STABLE AS $f$BEGIN"
    " PERFORM m.note('{name}'); RETURN (SELECT s FROM vault.secret); END$f$;"
)
_TYPES = """
CREATE FUNCTION m.is_noted(x text) RETURNS boolean LANGUAGE plpgsql AS
    $f$BEGIN PERFORM m.note('domain'); RETURN true; END$f$;
CREATE DOMAIN m.da AS text CHECK (m.is_noted(VALUE));
CREATE DOMAIN m.outer_da AS m.da;
CREATE TYPE m.row_da AS (a int, b m.da);
CREATE TYPE m.deep AS (x m.row_da[]);
CREATE TYPE m.range_da AS RANGE (subtype = m.da);
CREATE DOMAIN m.array_da AS m.da[];
CREATE TABLE m.of_da (id int PRIMARY KEY, v m.da);
CREATE FUNCTION m.takes(x m.da) RETURNS text LANGUAGE sql IMMUTABLE AS 'SELECT ''fine''';
"""
LITERALS = {
    "the domain": "'a'::m.da",
    "a domain over it": "'a'::m.outer_da",
    "an array": "'{a}'::m.da[]",
    "a domain over an array": "'{a}'::m.array_da",
    "an array of those": """'{"{a}"}'::m.array_da[]""",
    "a row": "'(1,a)'::m.row_da",
    "an array of rows": """'{"(1,a)"}'::m.row_da[]""",
    "a row of arrays of rows": """'("{""(1,a)""}")'::m.deep""",
    "a range": "'[a,b]'::m.range_da",
    "a row of a table": "'(1,a)'::m.of_da",
    "an argument": "m.takes('a')",
    "a CASE": "CASE WHEN true THEN 'a'::m.da END",
    "an element": "('{a}'::m.da[])[1]",
    "VALUES": "(SELECT v FROM (VALUES ('a'::m.da)) AS x(v))",
    "json": """(SELECT b FROM json_to_record('{"b": "a"}') AS r(b m.da))""",
}
# What an owner may put on a view's table, and how it comes off again.
ON_TABLES = {
    "a row trigger": (
        "CREATE TRIGGER evil BEFORE INSERT OR UPDATE OR DELETE ON m.v FOR EACH ROW"
        " EXECUTE FUNCTION m.fires()",
        "DROP TRIGGER evil ON m.v",
    ),
    "a statement trigger": (
        "CREATE TRIGGER evil AFTER UPDATE OR INSERT ON m.v FOR EACH STATEMENT"
        " EXECUTE FUNCTION m.fires()",
        "DROP TRIGGER evil ON m.v",
    ),
    "a constraint trigger": (
        "CREATE CONSTRAINT TRIGGER evil AFTER INSERT OR UPDATE ON m.v DEFERRABLE INITIALLY"
        " DEFERRED FOR EACH ROW EXECUTE FUNCTION m.fires()",
        "DROP TRIGGER evil ON m.v",
    ),
    "a rule": (
        "CREATE RULE evil AS ON UPDATE TO m.v DO ALSO SELECT m.steal(1)",
        "DROP RULE evil ON m.v",
    ),
    "an index": ("CREATE INDEX evil ON m.v ((m.steal(a)))", "DROP INDEX m.evil"),
    "a partial index": ("CREATE INDEX evil ON m.v (a) WHERE m.is_fine(a)", "DROP INDEX m.evil"),
    "a check": (
        "ALTER TABLE m.v ADD CONSTRAINT evil CHECK (m.is_fine(a))",
        "ALTER TABLE m.v DROP CONSTRAINT evil",
    ),
    "a default": (
        "ALTER TABLE m.v ADD COLUMN evil int DEFAULT m.steal(1)",
        "ALTER TABLE m.v DROP COLUMN evil",
    ),
    "a policy": (
        "ALTER TABLE m.v ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;"
        " CREATE POLICY evil ON m.v USING (m.is_fine(a))",
        "DROP POLICY evil ON m.v; ALTER TABLE m.v DISABLE ROW LEVEL SECURITY",
    ),
    "a view in its place": (
        "ALTER TABLE m.v RENAME TO hidden; CREATE VIEW m.v AS SELECT id, m.steal(a) AS a FROM"
        " m.hidden; CREATE TRIGGER evil INSTEAD OF INSERT OR UPDATE OR DELETE ON m.v"
        " FOR EACH ROW EXECUTE FUNCTION m.fires(); GRANT ALL ON m.v TO PUBLIC",
        "DROP VIEW m.v; ALTER TABLE m.hidden RENAME TO v",
    ),
}


@pytest.fixture(scope="module", autouse=True)
def _types(ground: Ground) -> None:
    ground.attack(_TYPES)


def _answers(ground: Ground, query: str) -> list[str]:
    """What everybody who may ask is told of a query, by each way of asking."""
    found = []
    for who in ground.tokens:
        for path in ("/query", "/views/validate"):
            found.append(ground.ask("POST", path, {"query": query}, who).text)
    return found


@pytest.mark.parametrize("where", LITERALS)
def test_a_domain_s_condition_has_nobody_s_rights(ground: Ground, where: str) -> None:
    told = _answers(ground, f"SELECT id, {LITERALS[where]} AS v FROM public.shared")
    refused = ground.call("create_view", "m.v", f"SELECT id, {LITERALS[where]}::text AS v FROM m.t")
    if not refused:
        ground.call("verify_view", "m.v")
        ground.call("drop_view", "m.v")
    ground.require_unharmed(*told, refused)


def test_a_function_cannot_become_the_service(ground: Ground) -> None:
    ground.attack(_ONCE.format(name="once"))
    queries = [
        "SELECT m.once() AS v",
        "SELECT id, m.once() AS v FROM public.shared",
        "SELECT id FROM public.shared WHERE m.once() IS NOT NULL",
        "SELECT id FROM public.shared ORDER BY m.once() LIMIT 1",
        "SELECT max(m.steal(id)) AS v FROM public.shared",
    ]
    told = [text for query in queries for text in _answers(ground, query)]
    ground.attack("DROP FUNCTION m.once")
    ground.require_unharmed(*told)


def test_conditions_that_come_later(ground: Ground) -> None:
    """A domain that was harmless when the view was made."""
    ground.attack("CREATE DOMAIN m.later AS text; CREATE TABLE m.of_later (id int, v m.later)")
    query = "SELECT id, b::m.later AS v FROM public.shared"
    refused = ground.call("create_view", "m.v", query)
    if refused == "source.role":
        # A service that is no member of hers has nothing of her domain at all.
        ground.attack("DROP TABLE m.of_later; DROP DOMAIN m.later")
        return
    assert refused == ""
    types = "SELECT atttypid::regtype::text FROM pg_attribute WHERE attrelid = 'm.v'::regclass"
    assert ground.database.rows(f"{types} AND attname = 'v'") == [("text",)]
    ground.attack("ALTER DOMAIN m.later ADD CHECK (m.is_noted(VALUE)) NOT VALID")
    ground.database.execute("UPDATE public.shared SET b = b || 'x' WHERE id = 1")
    ground.settle()
    told = [ground.ask("GET", path).text for path in ("/views/m.v/rows", "/views/m.v")]
    ground.call("rebuild_view", "m.v")
    ground.call("drop_view", "m.v")
    ground.attack("DROP TABLE m.of_later; DROP DOMAIN m.later")
    ground.require_unharmed(*told)


@pytest.mark.parametrize("what", ON_TABLES)
def test_what_an_owner_puts_on_a_views_table(ground: Ground, what: str) -> None:
    put, take = ON_TABLES[what]
    query = "SELECT id, a FROM public.shared"
    assert ground.call("create_view", "m.v", query) == ""
    try:
        is_on = ground.tries(put) == ""
        ground.database.execute("UPDATE public.shared SET a = a + 1 WHERE id < 5")
        ground.settle()
        for path in ("/views/m.v/rows", "/views", "/views/m.v", "/overview"):
            ground.ask("GET", path)
        ground.call("verify_view", "m.v")
        if is_on:
            ground.await_status("m.v", "failed")
            assert ground.ask("GET", "/views/m.v").json()["error"]["code"].startswith("sink.")
            assert ground.tries(take) == ""
        assert ground.call("rebuild_view", "m.v") == ""
        ground.await_status("m.v", "live")
        ground.require_unharmed()
    finally:
        ground.tries(take)
        ground.call("drop_view", "m.v")


def test_stubs_are_never_called_by_the_service(ground: Ground) -> None:
    """Overloads of all functions and operators that our statements call, in schema public, with
    types that fit better than PostgreSQL's own."""
    ground.database.execute(f"GRANT CREATE ON SCHEMA public TO {ground.mallory}")
    make, drop = _stubs(ground)
    ground.attack(make)
    try:
        body = {
            "name": "public.w",
            "query": "SELECT a, count(*) AS n FROM public.shared GROUP BY a",
        }
        answer = ground.ask("POST", "/views?wait_s=60", body)
        assert answer.json().get("status") == "live", answer.text
        body = {"query": "SELECT a, count(*) AS n, max(b) AS b FROM public.shared GROUP BY a"}
        for method, path, sent in (
            ("GET", "/views/public.w/rows?a=gte.0&order=n.desc", None),
            ("POST", "/views/public.w/verify", None),
            ("POST", "/query", {"query": "SELECT a, n FROM public.w"}),
            ("POST", "/views/public.w/replace", body),
            ("GET", "/overview", None),
            ("GET", "/health", None),
            ("GET", "/sources", None),
            ("POST", "/views/public.w/pause", None),
            ("POST", "/views/public.w/resume", None),
            ("DELETE", "/views/public.w", None),
        ):
            assert ground.ask(method, path, sent).status_code < 500, path
        ground.require_unharmed()
    finally:
        ground.attack(drop)


# What a call of PostgreSQL's is given, and what its operators compare.
_GIVEN = (
    "text",
    "oid",
    "name",
    "regclass",
    "text, text",
    "oid, text",
    "name, text",
    "oid, integer",
)
_GIVEN += ("text, oid, text", "name, oid, text", "text, text, boolean", "anyelement, anyarray")
_SIDES = ("oid, bigint", "name, varchar", "regclass, oid", "oid, regclass", '"char", text')


def _stubs(ground: Ground) -> tuple[str, str]:
    """Statements that make and drop them."""
    texts = [p.read_text() for p in Path("connectors/postgres").rglob("*.py")]
    words = sorted({word for text in texts for word in re.findall(r"\b([a-z_]+)\(", text)})
    called = ground.database.rows(
        "SELECT DISTINCT proname::text FROM pg_proc WHERE proname = ANY (%s)"
        " AND pronamespace = 'pg_catalog'::regnamespace",
        (words,),
    )
    assert len(called) > 80
    make, drop = [], []
    for name, given in itertools.product([name for (name,) in called], _GIVEN):
        function = f'public."{name}"({given})'
        make.append(
            f"CREATE FUNCTION {function} RETURNS text LANGUAGE plpgsql AS"
            f" $f$BEGIN PERFORM m.note('shadow {name}'); RETURN NULL; END$f$;"
        )
        drop.append(f"DROP FUNCTION {function};")
    for number, sides in enumerate(_SIDES):
        left, right = sides.split(", ")
        make.append(
            f"CREATE FUNCTION public.compares{number}({sides}) RETURNS boolean LANGUAGE plpgsql AS"
            " $f$BEGIN PERFORM m.note('operator'); RETURN true; END$f$;"
        )
        for sign in ("=", "<>", "||", "~", "!~"):
            make.append(
                f"CREATE OPERATOR public.{sign} (LEFTARG = {left}, RIGHTARG = {right},"
                f" FUNCTION = public.compares{number});"
            )
        drop.append(f"DROP FUNCTION public.compares{number}({sides}) CASCADE;")
    return "".join(make), "".join(drop)


def test_status_shows_each_role_what_is_its_own(ground: Ground) -> None:
    """Asked under a path that answers its questions of rights."""
    ground.attack(
        "CREATE FUNCTION m.has_table_privilege(regclass, text) RETURNS boolean LANGUAGE sql AS"
        " 'SELECT true'; CREATE FUNCTION m.pg_has_role(oid, text) RETURNS boolean LANGUAGE sql AS"
        " 'SELECT true'"
    )
    seen = ground.attack(
        "SET search_path = m, pg_catalog; SELECT name FROM tidemark.status WHERE name = 'watch'"
    )
    asked = ground.attack(
        "SET search_path = m, pg_catalog; SELECT requested_by FROM tidemark.my_requests"
    )
    ground.attack("DROP FUNCTION m.has_table_privilege; DROP FUNCTION m.pg_has_role")
    assert seen == []
    assert {asker for (asker,) in asked} <= {ground.mallory}


def test_mallory_changes_nothing_of_others(ground: Ground) -> None:
    before = ground.ask("GET", "/views/public.watch").json()["query"]
    secret = "SELECT id, s AS a FROM vault.secret"
    for operation, *arguments in (
        ("drop_view", "public.watch"),
        ("replace_view", "public.watch", secret),
        ("rebuild_view", "public.watch"),
        ("pause_view", "public.watch"),
        ("rename_view", "public.watch", "mine"),
        ("move_view", "public.watch", "m"),
        ("change_runtime", "public.watch", "spark"),
    ):
        assert ground.call(operation, *arguments) in ("view.not_owner", "view.not_found"), operation
    assert ground.call("create_view", "m.v", secret).startswith(("source.", "sql."))
    told = _answers(ground, secret)
    assert ground.ask("GET", "/views/public.watch").json()["query"] == before
    ours = {"admin", "operator"}
    names = [who for who in ground.tokens for _ in range(2)]
    for who, text in zip(names, told, strict=True):
        assert who in ours or TREASURE not in text, who
    assert ground.harmed() == []
