"""Oracle: PostgreSQL's own view of the same query, made beside each view before anything changes.

What a query rests on besides tables is changed: ordinary views, functions, types, operators, casts,
collations, expressions of generated columns. After each statement and a changed row, the maintained
view shows what PostgreSQL's own shows, or has failed by name where PostgreSQL has none any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.end_to_end.test_files import reach
from tests.end_to_end.test_views import flush_position
from tests.harness.definitions import (
    CHANGES,
    ENUM,
    FUNCTION,
    HARMLESS,
    KINDS,
    OF_F,
    RENAMED,
    REPLACED,
    Kind,
    kinds_of,
    make,
    run,
)
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService

Case = tuple[RunningService, Database]


# The view cannot be what PostgreSQL's own would be, or there is none any more.
GONE = {
    "view_dropped": (
        Kind(
            "CREATE VIEW {n}_v AS SELECT id, v FROM {t}",
            "SELECT id, v FROM {n}_v",
            "DROP VIEW {n}_v CASCADE",
        ),
        'view "public.view_dropped_v", which the query uses, was dropped',
    ),
    "function_dropped": (
        Kind(FUNCTION, OF_F, "DROP FUNCTION {n}_f(int) CASCADE"),
        "was dropped",
    ),
    "function_renamed": (
        Kind(
            FUNCTION,
            OF_F,
            "ALTER FUNCTION {n}_f(int) RENAME TO {n}_g; " + FUNCTION.replace("* 2", "* 9"),
        ),
        'is now called "public.function_renamed_g(integer)"',
    ),
    "cast_replaced": (
        Kind(
            "CREATE TYPE {n}_t AS (x int);"
            " CREATE FUNCTION {n}_f(int) RETURNS {n}_t LANGUAGE sql IMMUTABLE"
            " AS 'SELECT ROW($1)::public.{n}_t';"
            " CREATE FUNCTION {n}_g(int) RETURNS {n}_t LANGUAGE sql IMMUTABLE"
            " AS 'SELECT ROW($1 + 1)::public.{n}_t';"
            " CREATE CAST (int AS {n}_t) WITH FUNCTION {n}_f(int)",
            "SELECT id, (v::{n}_t)::text AS w FROM {t}",
            "DROP CAST (int AS {n}_t); CREATE CAST (int AS {n}_t) WITH FUNCTION {n}_g(int)",
        ),
        "cast",
    ),
    "another_type": (
        Kind(
            FUNCTION,
            OF_F,
            "DROP FUNCTION {n}_f(int) CASCADE; CREATE FUNCTION {n}_f(int) RETURNS text"
            " LANGUAGE sql IMMUTABLE AS 'SELECT 7::text'",
        ),
        "the columns of the view would be others",
    ),
    "function_of_a_generated_column": (
        Kind(
            FUNCTION + "; ALTER TABLE {t} ADD COLUMN g int GENERATED ALWAYS AS ({n}_f(v)) STORED",
            "SELECT id, g FROM {t}",
            REPLACED + "; INSERT INTO {t} VALUES (9, 5)",
        ),
        "values that its expression does not give",
    ),
    "row_constant": (
        Kind(
            ENUM + "CREATE TYPE {n}_c AS (x {n}_m, y int);"
            " ALTER TABLE {t} ADD COLUMN c {n}_c DEFAULT '(lo,1)'",
            "SELECT id FROM {t} WHERE c = '(lo,1)'::{n}_c",
            RENAMED,
        ),
        "may use an old value of enum",
    ),
}


FEW = ("view_below", "function_in_a_body", "domain_function", "attribute_renamed_below")
FEW += ("enum_constant",)
# The latter of an enum that is a column's own type.
CODES = {"source.definition_changed", "source.column_changed"}


@pytest.fixture(scope="module")
def case(postgres: EmbeddedPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp("service")
    with new_database(postgres) as database, RunningService(database.dsn, folder) as service:
        database.execute("CREATE SCHEMA oracle")
        yield service, database


def create(case: Case, kinds: Mapping[str, Kind]) -> None:
    service, database = case
    for name, kind in kinds.items():
        query = make(database, name, kind)
        database.execute(f"CREATE VIEW oracle.{name} AS {query}")
        service.create(name, query, backfill="local")


def execute(case: Case, kinds: Mapping[str, Kind], statements: str = "") -> None:
    for name, kind in kinds.items():
        run(case[1], name, statements or kind.ddl)
        if statements == CHANGES and kind.more:
            run(case[1], name, kind.more)


def check(case: Case, kinds: Mapping[str, Kind]) -> None:
    service, database = case
    position = flush_position(database)
    for name, kind in kinds.items():
        service.wait(name, position, 60)
        asked = kind.instead.format(t=f"{name}_t0", n=name) or f"TABLE oracle.{name}"
        rows = "SELECT (r.*)::text FROM ({}) AS r ORDER BY 1"
        assert database.rows(rows.format(f"TABLE {name}")) == database.rows(rows.format(asked)), (
            name
        )


def drop(case: Case, kinds: Mapping[str, Kind]) -> None:
    for name in kinds:
        case[0].drop(name)
        case[1].execute(f"DROP TABLE {name}_t0 CASCADE")


def degraded(service: RunningService) -> dict[str, str]:
    """The codes that views were degraded with, by view."""
    events = (e for e in service.events() if e["event"] == "view.degraded")
    return {e["view"]: e["code"] for e in events}


def follow(case: Case, kinds: Mapping[str, Kind]) -> None:
    kinds = kinds_of(case[1].server.version, kinds)
    create(case, kinds)
    for statements in ("", CHANGES, "DELETE FROM {t}"):
        execute(case, kinds, statements)
        check(case, kinds)
    codes = degraded(case[0])
    assert {codes.get(f"public.{n}") for n in kinds} <= CODES
    drop(case, kinds)


def test_definitions_are_followed(case: Case) -> None:
    follow(case, {name: KINDS[name] for name in FEW})


@pytest.mark.whole
def test_all_definitions_are_followed(case: Case) -> None:
    follow(case, {name: kind for name, kind in KINDS.items() if name not in FEW})


@pytest.mark.whole
def test_what_changes_no_answer_rebuilds_nothing(case: Case) -> None:
    service, _ = case
    create(case, HARMLESS)
    live_at = {n: service.call("GET", f"/views/{n}").json()["live_at"] for n in HARMLESS}
    for statements in ("", CHANGES):
        execute(case, HARMLESS, statements)
        check(case, HARMLESS)
    assert {n: service.call("GET", f"/views/{n}").json()["live_at"] for n in HARMLESS} == live_at
    drop(case, HARMLESS)


@pytest.mark.whole
def test_what_cannot_be_followed_fails_by_name(case: Case) -> None:
    service, _ = case
    kinds = {name: kind for name, (kind, _) in GONE.items()}
    create(case, kinds)
    execute(case, kinds)
    for name, (_, words) in GONE.items():
        view = service.await_status(name, "failed", 60)
        assert view["error"]["code"] == "source.definition_changed", view
        assert words in str(view["error"]), view
    name = "function_of_a_generated_column"
    refused = service.call("POST", f"/views/{name}/rebuild?wait_s=30").json()
    assert refused["code"] == "source.generated_column", refused
    run(case[1], name, "UPDATE {t} SET v = v")
    assert service.call("POST", f"/views/{name}/rebuild?wait_s=60").json()["status"] == "live"
    check(case, {name: kinds[name]})
    drop(case, kinds)


@pytest.mark.whole
def test_what_changed_while_the_service_was_down(case: Case) -> None:
    service, _ = case
    chosen = ("view_below", "plpgsql", "domain_function", "attribute_renamed_below")
    kinds = {f"{name}_down": KINDS[name] for name in chosen}
    create(case, kinds)
    service.kill()
    execute(case, kinds)
    execute(case, kinds, CHANGES)
    service.start()
    check(case, kinds)
    drop(case, kinds)


@pytest.mark.whole
def test_a_function_of_a_view_that_reads_no_table(database: Database, tmp_path: Path) -> None:
    """No stream has the catalog checked there."""
    run(database, "files", FUNCTION)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_text('{"v": 1}\n{"v": 2}\n')
    relation = {"path": f"{tmp_path}/in/*.jsonl", "columns": [{"name": "v", "type": "int4"}]}
    options = {"settle_ms": 50, "poll_interval_ms": 20, "relations": {"given": relation}}
    with RunningService(database.dsn, tmp_path / "state", allow_folders=tmp_path) as service:
        made = service.call(
            "POST", "/sources", {"name": "shop", "type": "files", "options": options}
        )
        assert made.status_code == 201, made.text
        service.create("tripled", "SELECT files_f(v) AS w FROM shop.given")
        reach(lambda: database.rows("SELECT w FROM tripled ORDER BY 1"), [(2,), (4,)])
        run(database, "files", REPLACED)
        reach(lambda: database.rows("SELECT w FROM tripled ORDER BY 1"), [(3,), (6,)])
        (tmp_path / "in" / "b.jsonl").write_text('{"v": 3}\n')
        reach(lambda: database.rows("SELECT w FROM tripled ORDER BY 1"), [(3,), (6,), (9,)])
