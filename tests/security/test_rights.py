"""Oracle: PostgreSQL's privileges. Whatever a function tries, it has its view's creator's rights,
in analysis and evaluation, and nothing that it set outlives its call."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import psycopg2
import pytest

from connectors.postgres.analysis.analyzer import PostgresAnalyzer
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from connectors.sink import SinkTable
from dataflow.delta import KIND_BYTES, Column
from dataflow.errors import SourceError, SqlError, TidemarkError, ViewError
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.sql.planner import plan_view
from dataflow.types import INT4, TEXT, SqlType, TypeKind
from service.engine.engine import Engine, View, ViewDefinition
from storage.memory import MemoryStore
from tests.harness.postgres import Database, new_database
from tests.harness.psql import give_query_role

MOOD = SqlType("public.pair", 0, -1, TypeKind.OPAQUE)
# Each says whose rights it has; the odd ones first try to be somebody else.
BODIES = {
    "who": "RETURN current_user || x",
    "resets": "RESET ROLE; RETURN current_user",
    "sets": "PERFORM set_config('role', 'none', false); RETURN current_user",
    "authorizes": "RESET SESSION AUTHORIZATION; RETURN current_user",
    "swallows": "BEGIN RESET ROLE; EXCEPTION WHEN OTHERS THEN NULL; END; RETURN current_user",
    "peeks": "RETURN (SELECT s FROM public.secret)",
    "writes": "INSERT INTO public.open_to_all VALUES (x); RETURN 'written'",
    "prepares": "PERFORM set_config('default_transaction_read_only', 'off', false),"
    " set_config('search_path', 'public', false); RETURN 'done'",
    "setting": "RETURN current_setting('default_transaction_read_only')",
    "fails": "IF x = 2 THEN RAISE EXCEPTION 'no twos'; END IF; RETURN 'fine'",
}
HEAD = "(x integer) RETURNS text LANGUAGE plpgsql"
# What PostgreSQL forbids an immutable function it may do by way of a volatile one.
FUNCTIONS = "; ".join(
    f"CREATE FUNCTION really_{name}{HEAD} AS $f$BEGIN {body}; END$f$;"
    f"CREATE FUNCTION {name}{HEAD} IMMUTABLE AS 'BEGIN RETURN public.really_{name}(x); END'"
    for name, body in BODIES.items()
)
SCHEMA = """
CREATE TYPE pair AS (a integer, b text);
CREATE TABLE secret (s text); INSERT INTO secret VALUES ('treasure');
CREATE TABLE open_to_all (x integer); GRANT ALL ON open_to_all TO PUBLIC;
CREATE TABLE t (id integer PRIMARY KEY, a integer, hidden integer);
CREATE TABLE filtered (id integer PRIMARY KEY); ALTER TABLE filtered ENABLE ROW LEVEL SECURITY;
"""


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        roles = {name: f"{name}_{made.name}" for name in ("creator", "stranger", "plain")}
        made.execute(SCHEMA)
        for role in roles.values():
            made.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'")
        made.execute(
            f"GRANT {roles['creator']} TO {roles['plain']};"
            f"GRANT CREATE ON SCHEMA public TO {roles['creator']};"
            f"GRANT SELECT (id, a) ON t TO {roles['creator']};"
            f"GRANT SELECT ON filtered TO {roles['creator']};"
            f"GRANT SELECT ON t, secret TO {roles['plain']}"
        )
        give_query_role(made, roles["plain"])
        made.execute(f"SET ROLE {roles['creator']}; {FUNCTIONS}")
        yield made
        made.execute(
            "; ".join(f"DROP OWNED BY {role}; DROP ROLE {role}" for role in roles.values())
        )


def _role(place: Database, name: str) -> str:
    return f"{name}_{place.name}"


def _as_plain(place: Database) -> str:
    """A service that is no superuser, and a member of the creator."""
    return f"{place.dsn} user={_role(place, 'plain')} password=pw"


@pytest.fixture(scope="module", params=["superuser", "plain"])
def dsn(request: pytest.FixtureRequest, place: Database) -> str:
    return place.dsn if request.param == "superuser" else _as_plain(place)


def _evaluate(evaluator: PostgresEvaluator, sql: str, rows: list[int]) -> list[str | None]:
    column = Column.of("i", rows)
    found, errors = evaluator.evaluate(sql, [INT4], [column], len(rows), TEXT)
    if errors:
        raise AssertionError(errors.by_row)
    return [None if v is None else v.decode() for v in found.to_list()]


def test_a_function_has_its_views_creators_rights(place: Database, dsn: str) -> None:
    creator = _role(place, "creator")
    evaluator = pickle.loads(pickle.dumps(PostgresEvaluator(dsn, role=creator)))
    try:
        assert _evaluate(evaluator, "public.who($1)", [7, 8]) == [f"{creator}7", f"{creator}8"]
        assert _evaluate(evaluator, "public.swallows($1)", [1]) == [creator]
        for attempt in ("resets", "sets", "authorizes", "peeks"):
            with pytest.raises(ViewError) as refused:
                _evaluate(evaluator, f"public.{attempt}($1)", [1])
            assert refused.value.code == "source.privilege", attempt
        assert _evaluate(evaluator, "public.who($1)", [7]) == [f"{creator}7"]
    finally:
        evaluator.close()


def test_nothing_is_written_and_nothing_stays_set(place: Database, dsn: str) -> None:
    for role in ("", _role(place, "creator")):
        evaluator = PostgresEvaluator(dsn, role=role)
        try:
            assert _evaluate(evaluator, "public.prepares($1)", [1]) == ["done"]
            assert _evaluate(evaluator, "public.setting($1)", [1]) == ["on"]
            column = Column.of("i", [1])
            _, errors = evaluator.evaluate("public.writes($1)", [INT4], [column], 1, TEXT)
            assert errors.by_row[0][0] == "25006"
            found, errors = evaluator.evaluate(
                "public.fails($1)", [INT4], [Column.of("i", [1, 2, 3])], 3, TEXT
            )
            assert list(errors.by_row) == [1] and found.to_list()[::2] == [b"fine", b"fine"]
        finally:
            evaluator.close()
    assert place.rows("SELECT count(*) FROM open_to_all") == [(0,)]


def test_groups_ranks_and_composites_are_as_without_a_role(place: Database, dsn: str) -> None:
    answers = []
    for role in ("", _role(place, "creator")):
        evaluator = PostgresEvaluator(dsn, role=role)
        try:
            groups, columns, _ = evaluator.evaluate_groups(
                "SELECT g, string_agg($1::text, ',' ORDER BY $1) AS a FROM tidemark_row GROUP BY g",
                [INT4],
                [Column.of("i", [3, 1, 2])],
                Column.of("i", [5, 5, 6]).values,
                [TEXT],
            )
            ranks = evaluator.rank(TEXT, Column.of(KIND_BYTES, [b"b", b"a", b"b"]))
            pairs, _ = evaluator.evaluate(
                "ROW($1, 'x')::public.pair", [INT4], [Column.of("i", [1, 2])], 2, MOOD
            )
            shown = [c.to_list() for c in columns]
            answers.append((sorted(zip(groups.tolist(), *shown, strict=True)), ranks.tolist()))
            answers[-1] += (pairs.to_list(),)
        finally:
            evaluator.close()
    assert answers[0] == answers[1]
    assert answers[0][0] == [(5, b"1,3"), (6, b"2")]


def _plan(dsn: str, query: str, requester: str = "") -> str:
    with PostgresAnalyzer(dsn, "source", requester=requester) as analyzer:
        plan_view(query, analyzer)
        return analyzer.role


REFUSED = [
    ("SELECT hidden FROM t", "source.privilege"),
    ("SELECT id, hidden FROM t", "source.privilege"),
    ("SELECT s FROM secret", "source.privilege"),
    ("SELECT id FROM filtered", "source.privilege"),
]


def test_a_creator_reads_what_it_may(place: Database, dsn: str) -> None:
    creator = _role(place, "creator")
    assert _plan(dsn, "SELECT id, a FROM t", creator) == creator
    assert _plan(dsn, "SELECT id, who(a) AS w FROM t WHERE who(3) <> ''", creator) == creator
    for query, code in REFUSED:
        with pytest.raises(SourceError) as refused:
            _plan(dsn, query, creator)
        assert refused.value.code.startswith("source."), (query, code)
    # A constant is computed while the query is analyzed: what it tries fails there and then.
    for attempt in ("resets(1)", "sets(1)", "peeks(1)"):
        with pytest.raises(SourceError) as refused:
            _plan(dsn, f"SELECT id, {attempt} AS v FROM t", creator)
        assert refused.value.code == "source.privilege"
    _plan(dsn, "SELECT id, writes(1) AS v FROM t", creator)
    assert place.rows("SELECT count(*) FROM open_to_all") == [(0,)]


def test_who_cannot_be_acted_for_calls_nothing_that_depends_on_rights(place: Database) -> None:
    plain, stranger = _as_plain(place), _role(place, "stranger")
    place.execute(f"GRANT SELECT ON t TO {stranger}")
    assert _plan(plain, "SELECT id, upper(a::text) AS u FROM t", stranger) == ""
    for call in ("who(a)", "table_to_xml('secret', true, true, '')::text"):
        with pytest.raises(SourceError) as refused:
            _plan(plain, f"SELECT id, {call} AS v FROM t", stranger)
        assert refused.value.code == "source.role"
    with pytest.raises(SourceError) as refused:
        _plan(plain, "SELECT id FROM t", "nobody_at_all")
    assert refused.value.code in ("source.role", "source.role_missing")


def test_a_superuser_calls_superusers_functions_only(place: Database) -> None:
    for call in ("who(a)", "count(who(a))"):
        with pytest.raises(SqlError) as refused:
            _plan(place.dsn, f"SELECT {call} AS v FROM t")
        assert refused.value.code == "sql.untrusted_function"
    assert _plan(_as_plain(place), "SELECT id, who(a) AS w FROM t") == ""
    place.execute("CREATE FUNCTION ours(x integer) RETURNS integer IMMUTABLE RETURN x + 1")
    assert _plan(place.dsn, "SELECT id, ours(a) AS w FROM t") == ""


def test_a_domains_condition_is_nobodys_way_in(place: Database) -> None:
    creator = _role(place, "creator")
    place.execute(
        f"SET ROLE {creator}; CREATE DOMAIN trap AS integer CHECK (who(VALUE) <> '');"
        "CREATE DOMAIN inner_trap AS trap; CREATE DOMAIN fine AS integer CHECK (VALUE > 0);"
        "CREATE TABLE traps (id integer PRIMARY KEY, x inner_trap, y fine)"
    )
    for query in ("SELECT id, x FROM traps", "SELECT id, 1::trap AS v FROM traps"):
        for requester in ("", creator):
            with pytest.raises(SqlError) as refused:
                _plan(place.dsn, query, requester)
            assert refused.value.code == "sql.untrusted_function", query
    assert _plan(place.dsn, "SELECT id, y FROM traps", creator) == creator


def test_check_role(place: Database) -> None:
    from connectors.postgres.source import PostgresSource

    for dsn, role, is_fine in [
        (_as_plain(place), _role(place, "creator"), True),
        (_as_plain(place), _role(place, "stranger"), False),
        (place.dsn, _role(place, "stranger"), True),
        (place.dsn, "no_such_role", False),
        (place.dsn, psycopg2.extensions.parse_dsn(place.dsn).get("user", "postgres"), False),
    ]:
        try:
            PostgresSource(dsn).check_role(role)
            assert is_fine, role
        except TidemarkError as error:
            assert not is_fine and error.code == "source.role", (role, error)


def test_what_is_evaluated_is_shared_among_equal_rights_only(place: Database) -> None:
    creator = _role(place, "creator")
    with PostgresAnalyzer(place.dsn, "source", requester=creator) as analyzer:
        plan = plan_view("SELECT id, who(a) AS w FROM t WHERE a > 1", analyzer)
    store = MemoryStore()
    asked: list[str] = []

    def evaluator_of(role: str, time_zone: str) -> NoEvaluator:
        asked.append(role)
        return NoEvaluator()

    engine = Engine(store, NoEvaluator(), "source", evaluator_of=evaluator_of)
    for name, role in (("v0", "ann"), ("v1", "ann"), ("v2", "bob"), ("v3", "")):
        table = SinkTable("public", name, plan.root.fields, plan.key)
        engine.add(View(ViewDefinition(name, table, "", plan, role=role), store, NoEvaluator()))
    nodes = [view.nodes for view in engine.dataflow.views.values()]
    roots = [of[-1].number for of in nodes]
    # Answers of functions of one's own are kept for each view.
    assert len(set(roots)) == 4
    # The table's rows, and what is compared natively, are computed once for all.
    assert len({of[0].number for of in nodes}) == 1
    assert asked == ["ann", "bob"]
