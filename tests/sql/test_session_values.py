"""Oracle: a plain session of the service's login; what the analyzing session is shows nowhere."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from connectors.postgres.evaluation.evaluator import PostgresEvaluator
from dataflow.delta import Column
from dataflow.errors import SqlError
from dataflow.expressions.ir import Literal
from dataflow.plan.nodes import Project
from dataflow.types import BOOL, INT4, TEXT, sql_type
from tests.harness.postgres import Database, new_database
from tests.sql.planning import plan, refusal

pytestmark = pytest.mark.versions

SETUP = """
CREATE TABLE t (id int PRIMARY KEY);
CREATE SCHEMA "My, ""s"; CREATE SCHEMA postgres; CREATE SCHEMA empty;
"""
PATHS = [
    *('"$user", public', "public", "PUBLIC", "nowhere", "''", "pg_catalog, public"),
    *("public, pg_catalog", 'nowhere, "My, ""s", public, "My, ""s"', "empty, public"),
]
VALUES = (
    "current_schema AS a, current_schema() AS b, upper(current_schema) AS c, "
    "current_schemas(true)::text AS d, current_schemas(false)::text AS e, current_user AS f, "
    "'current_schemas(true)' AS g, current_schemas(NULL)::text AS h"
)
OF_SESSIONS = [
    *("txid_current()", "txid_current_if_assigned()", "txid_current_snapshot()"),
    *("pg_current_snapshot()", "pg_current_xact_id_if_assigned()", "pg_backend_pid()"),
    *("pg_my_temp_schema()", "pg_is_other_temp_schema(1)", "getpgusername()"),
    *("inet_client_addr()", "pg_trigger_depth()", "current_setting('search_path')"),
    *("current_setting('role', true)", "pg_conf_load_time()", "pg_listening_channels()"),
    *("pg_table_is_visible(1)", "has_table_privilege('customers', 'select')"),
]


@pytest.fixture
def pathed(every_postgres) -> Iterator[Database]:
    with new_database(every_postgres) as database:
        database.execute(SETUP)
        yield database


@pytest.mark.parametrize("call", OF_SESSIONS)
def test_functions_of_the_session_are_refused(shop: Database, call: str) -> None:
    error = refusal(shop, f"SELECT id, {call} AS a FROM customers")
    assert isinstance(error, SqlError) and error.code == "sql.session_function" and error.hint


def test_schemas_are_those_of_the_login(pathed: Database) -> None:
    for path in PATHS:
        pathed.execute(f"ALTER DATABASE {pathed.name} SET search_path = {path}")
        (expected,) = pathed.rows(f"SELECT {VALUES}")
        root = plan(pathed, f"SELECT {VALUES}, id FROM public.t").root
        assert isinstance(root, Project)
        got = tuple(e.text for e in root.expressions[:-1] if isinstance(e, Literal))
        assert got == expected, path


def test_schemas_over_columns_are_those_of_the_login(pathed: Database) -> None:
    pathed.execute(f"ALTER DATABASE {pathed.name} SET search_path = empty, public")
    evaluator = PostgresEvaluator(pathed.dsn)
    given = [Column.of("i", [1, -1]), Column.of("s", [b")", None])]
    sql = "(current_schemas(($1 > 0) AND ($2 <> ''::text)))[1] || CURRENT_SCHEMA"
    try:
        found, errors = evaluator.evaluate(sql, [INT4, TEXT], given, 2, TEXT)
        assert not errors.by_row
        assert found.texts() == ["pg_catalogempty", "emptyempty"]
        shown = "current_schemas($1 > 0)"
        found, _ = evaluator.evaluate(shown, [INT4], given[:1], 2, sql_type("name[]", 1003, -1))
        assert found.texts() == ["{pg_catalog,empty,public}", "{empty,public}"]
        found, _ = evaluator.evaluate("CURRENT_USER = SESSION_USER", [], [], 2, BOOL)
        assert found.to_list() == [True, True]
    finally:
        evaluator.close()
