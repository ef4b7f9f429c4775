"""Oracle: REST's own answers and the view's table: every call of the Python client says what REST
says, and its rows are the table's, synchronously and not."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import pytest

import tidemark
from connectors.kafka.embedded import EmbeddedKafka
from service.client.calls import call, call_for_view
from service.client.service_calls import ServiceCalls
from service.client.view_calls import ViewCalls
from tests.harness.broker import unique_name
from tests.harness.client_faces import Face, next_of
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tidemark import TidemarkError, col

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, region text NOT NULL, amount numeric(10,2), note text);
INSERT INTO orders SELECT i, 'r' || i % 5, i, CASE WHEN i % 3 > 0 THEN 'n' || i % 4 END
    FROM generate_series(1, 200) i;
CREATE TABLE ticks (n int PRIMARY KEY);
CREATE TABLE doubtful (id int PRIMARY KEY, d int);
INSERT INTO doubtful VALUES (1, 2), (2, 0);
CREATE SCHEMA reports;
"""
REGIONS = "SELECT region, count(*) AS n, sum(amount) AS total FROM orders GROUP BY region"
NOTES = "SELECT region, note FROM orders"
KILLS = 4


@pytest.fixture(scope="module")
def service(place: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with (
        RunningService(
            place.dsn,
            tmp_path_factory.mktemp("client"),
            allow_folders=tmp_path_factory.getbasetemp(),
        ) as running,
        pytest.MonkeyPatch.context() as monkeypatch,
    ):
        admin = running.call("POST", "/tokens", {"name": "tests", "role": "admin"}).json()
        monkeypatch.setenv("TIDEMARK_TOKEN", admin["token"])
        running._client.headers["Authorization"] = f"Bearer {admin['token']}"
        running.create("regions", REGIONS, backfill="local")
        running.create("notes", NOTES, backfill="local")
        yield running


# --- every call ----------------------------------------------------------------------------------

CASES: dict[str, tuple[tuple[str, ...], Callable[[Face], None]]] = {}


def case(*names: str) -> Callable[[Callable[[Face], None]], Callable[[Face], None]]:
    """A test of some calls, for both kinds."""

    def add(test: Callable[[Face], None]) -> Callable[[Face], None]:
        CASES["-".join(names)] = (names, test)
        return test

    return add


@case("views", "state", "plan", "dataflow", "health", "metrics", "errors")
def _looks(face: Face) -> None:
    rest = face.service.call
    views = face.ask(face.client.views())
    assert [v.name for v in views] == ["notes", "regions"]
    state = face.ask(face.view("Public.REGIONS").state())
    assert (state.name, state.schema, state.status) == ("regions", "public", "live")
    assert state.is_live and state.key == ("region",) and state.kind == "keyed"
    assert state.told.keys() == rest("GET", "/views/regions").json().keys()
    assert isinstance(state.created_at, datetime) and state.created_at.tzinfo is not None
    assert [f.name for f in state.fields] == ["region", "n", "total"]
    assert face.view(state.path).name == '"public"."regions"'
    plan = face.same_as_rest(face.view("regions").plan, "/views/regions/plan")
    assert "aggregate" in plan.text
    nodes = face.ask(face.view("regions").dataflow()).nodes
    assert nodes[-1].id in {n.id for n in nodes} and nodes[0].inputs == ()
    health = face.ask(face.client.health())
    assert health.status == "ok" and health.versions
    assert "tidemark_view_rows" in face.ask(face.client.metrics())
    assert face.ask(face.view("regions").errors()).errors == ()
    assert face.refused(face.view("nowhere").state) == "view.not_found"


@case("validate", "query", "wait", "verify")
def _answers(face: Face) -> None:
    found = face.ask(face.client.validate(NOTES))
    assert found.kind == "multiset" and found.why_no_key and found.estimate.source_rows >= 0
    # The earlier names are in answers and in the client for one release.
    assert found.why_bag == found.why_no_key == found.told["why_bag"]
    assert found.estimate.road == found.estimate.engine == found.estimate.told["road"]
    assert found.told["reads"] and found.told["asks"] == found.told["reads"]
    assert all(effect.rows_out >= 0 for effect in found.estimate.amplification.values())
    sql = "SELECT region, total FROM regions JOIN orders USING (region) WHERE id = 7"
    answer = face.ask(face.client.query(sql))
    assert [type(row.total) for row in answer] == [Decimal] and not answer.has_more
    assert answer.dicts()[0]["region"] == "r2" and answer.views["default"]["epoch"] > 0
    face.place.execute("UPDATE orders SET amount = amount + 1 WHERE id = 7")
    position = face.place.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    assert face.ask(face.view("regions").wait(position)).waited_ms >= 0
    assert face.refused(lambda: face.view("regions").wait("FFFF/0", timeout_s=0)) == (
        "view.wait_timeout"
    )
    result = face.ask(face.view("regions").verify(limit=3))
    assert result.is_equal and result.rows == 5 and result.examples == ()
    with pytest.raises(TidemarkError) as caught:
        face.ask(face.client.validate("SELECT id,\n nothing FROM orders"))
    assert caught.value.position == tidemark.Position(2, 2)


@case(
    *("create", "replace", "cancel", "rebuild", "pause", "resume", "rename", "move", "drop"),
    "change_runtime",
)
def _life(face: Face) -> None:
    query = "SELECT id, amount FROM orders WHERE id <= 3"
    name = '"Some Orders"'
    view = face.ask(
        face.client.create(name, query, backfill="local", idempotency_key=f"{face.folder}")
    )
    assert view.name == '"public"."Some Orders"' and type(view) is type(face.view("x"))
    again = face.ask(
        face.client.create(name, query, backfill="local", idempotency_key=f"{face.folder}")
    )
    assert again.name == view.name
    state = face.ask(view.replace(query.replace("3", "4"), changes_retention_s=60))
    assert state.version == 1 and state.options["changes_retention_s"] == 60
    assert len(face.collect(view.rows())) == 4
    assert face.refused(view.cancel) == "view.no_change"
    assert face.ask(view.rebuild()).version == 2
    assert face.ask(view.pause()).status == "paused"
    assert face.refused(lambda: next_of(view.changes())) == "view.not_live"
    assert face.ask(view.resume(cascade=True)).is_live
    assert face.ask(view.rename("few")).name == "few" and view.name == '"public"."few"'
    assert face.ask(view.move("reports")).schema == "reports"
    assert face.ask(view.change_runtime("local")).options["runtime"] == "local"
    assert face.refused(lambda: view.change_runtime("spark")) == "spark.off"
    assert len(face.collect(view.rows())) == 4
    assert face.ask(view.drop()) is True
    assert face.refused(view.state) == "view.not_found"


@case(
    *("create_source", "discover_source", "sources", "source", "change_source", "drop_source"),
    *("retry_source", "reset_source", "dead_letters", "retry_dead_letters", "drop_dead_letters"),
    *("grant_source", "revoke_source"),
)
def _sources(face: Face) -> None:
    (face.folder / "a.csv").write_text("id,price\n1,2.50\n2,many\n")
    relation = {"path": f"{face.folder}/*.csv"}
    found = face.ask(face.client.discover_source("files", {"relations": {"prices": relation}}))
    assert [c["name"] for c in found["relations"]["prices"]["columns"]] == ["id", "price"]
    relation["columns"] = [{"name": "id", "type": "bigint"}, {"name": "price", "type": "numeric"}]
    options = {"relations": {"prices": {**relation, "on_error": "dead_letter"}}}
    source = face.ask(face.client.create_source("shop", "files", options))
    assert (source.type, [r.name for r in source.relations]) == ("files", ["prices"])
    view = face.ask(
        face.client.create("prices", "SELECT id, price FROM shop.prices", backfill="local")
    )
    assert [tuple(row) for row in face.collect(view.rows())] == [(1, Decimal("2.50"))]
    (letter,) = face.ask(face.client.dead_letters("shop"))
    assert letter.relation == "prices" and "many" in letter.value
    assert face.ask(face.client.retry_dead_letters("shop", "prices", [letter.position])) == 1
    assert face.ask(face.client.drop_dead_letters("shop")) in (0, 1)
    assert face.ask(face.client.change_source("shop", options)).name == "shop"
    assert face.ask(face.client.source("shop")).relations[0].views == ("public.prices",)
    assert [s.name for s in face.ask(face.client.sources())] == ["shop"]
    assert face.ask(face.client.retry_source("shop")).status == "running"
    granted = face.ask(face.client.grant_source("shop", "public", relation="prices"))
    assert [(g.relation, g.role) for g in granted.grants] == [("prices", "public")]
    assert granted.declared_by is None
    revoke = lambda: face.client.revoke_source("shop", "public", relation="prices")  # noqa: E731
    assert face.ask(revoke()).grants == () and face.refused(revoke) == "source.grant_missing"
    assert face.refused(lambda: face.client.grant_source("shop", "nobody")) == "source.no_role"
    reset = lambda: face.client.reset_source("shop", "prices", "earliest")  # noqa: E731
    assert face.refused(reset) == "source.no_start"
    assert face.refused(lambda: face.client.drop_source("shop")) == "source.in_use"
    assert face.ask(view.drop())
    assert face.ask(face.client.drop_source("shop")) is True


@case("create_token", "tokens", "revoke_token")
def _tokens(face: Face) -> None:
    name = f"reader-{face.folder.name}"
    made = face.ask(face.client.create_token(name, "reader", expires_days=1))
    assert made.token not in repr(made) and made.facts.role == "reader"
    assert made.facts.expires_at > made.facts.created_at
    with tidemark.connect(face.service.url, made.token) as reader:
        assert reader.views()
        with pytest.raises(TidemarkError) as caught:
            reader.create("mine", REGIONS)
        assert caught.value.code == "auth.role"
    assert face.ask(face.client.revoke_token(name)) is True
    (facts,) = (t for t in face.ask(face.client.tokens()) if t.name == name)
    assert facts.revoked_at is not None and facts.last_used_at is not None


@case("create_sink", "sinks", "sink", "drop_sink")
def _sinks(face: Face) -> None:
    view = face.view("notes")
    assert face.ask(view.sinks()) == []
    options = {"bootstrap_servers": "127.0.0.1:1", "nosuch": True}
    assert face.refused(lambda: view.create_sink("out", options)) == "sink.bad_option"
    assert face.refused(lambda: view.sink("out")) == "sink.not_found"
    assert face.refused(lambda: view.drop_sink("out")) == "sink.not_found"


@case("diff", "subscribe", "subscriptions", "acknowledge", "unsubscribe")
def _past(face: Face) -> None:
    view = face.ask(face.client.create("past", REGIONS, backfill="local", history="1 day"))
    made = face.ask(view.subscribe("billing"))
    assert (made.name, made.status, made.epoch) == ("billing", "ready", made.newest_epoch)
    assert face.refused(lambda: view.subscribe("billing")) == "subscription.exists"
    page = face.ask(view.diff(str(made.epoch)))
    assert list(page) == [] and page.weights == []
    assert face.refused(lambda: view.diff("nothing")) == "history.bad_point"
    assert face.ask(view.acknowledge("billing", made.epoch)).epoch == made.epoch
    assert [s.name for s in face.ask(view.subscriptions())] == ["billing"]
    assert face.ask(view.unsubscribe("billing")) is None
    assert face.refused(lambda: view.unsubscribe("billing")) == "subscription.not_found"
    face.ask(view.drop())
    assert face.refused(lambda: face.view("notes").subscribe("x")) == "history.none"


@pytest.mark.parametrize("name", CASES)
def test_every_call_says_what_rest_says(name: str, face: Face) -> None:
    CASES[name][1](face)


def test_no_call_is_forgotten() -> None:
    told = {name for names, _ in CASES.values() for name in names}
    known = {
        name
        for kind in (ServiceCalls, ViewCalls)
        for name, value in vars(kind).items()
        if isinstance(value, call | call_for_view)
    }
    assert told == known
    for kind in (tidemark.Client, tidemark.View):
        for name in known & set(dir(kind)):
            assert getattr(kind, name).__doc__, name


def test_sinks_are_made_and_dropped(face: Face, broker: EmbeddedKafka) -> None:
    view, topic = face.view("regions"), unique_name("client")
    options = {"bootstrap_servers": broker.bootstrap, "topic": topic}
    sink = face.ask(view.create_sink("out", options, idempotency_key=topic))
    assert (sink.name, sink.status, sink.type) == ("out", "live", "kafka")
    assert [s.name for s in face.ask(view.sinks())] == ["out"]
    assert face.ask(view.sink("out")).options["topic"] == topic
    assert face.ask(view.drop_sink("out", drop_data=True)) is True
    assert face.ask(view.sinks()) == []


# --- rows ----------------------------------------------------------------------------------------


@dataclass
class Note:
    region: str
    note: str | None


def test_rows_over_all_pages(face: Face) -> None:
    expected = face.place.rows("SELECT region, note FROM orders ORDER BY region, note NULLS FIRST")
    order = ["region", col("note").asc(nulls_first=True)]
    rows = face.view("notes").rows(order=order, page_rows=7)
    found = face.collect(rows)
    assert found == expected
    assert (found[0].region, found[0]["note"], found[0]._asdict()["note"]) == ("r0", None, None)
    assert [d["region"] for d in face.collect(rows.dicts())] == [r for r, _ in expected]
    assert face.collect(rows.into(Note))[0] == Note("r0", None)
    pages = face.collect(rows.pages())
    assert [len(p) for p in pages] == [7] * 28 + [4] and "source" in pages[0].positions
    assert face.ask(rows.to_arrow()).num_rows == 200
    assert face.ask(rows.first()) == expected[0]
    assert len(face.ask(face.view("notes").rows(limit=9, page_rows=7).to_list())) == 9
    assert face.ask(face.view("notes").rows(where={"region": "none"}).first()) is None


def test_conditions_and_their_errors(face: Face) -> None:
    def ids(where: Any) -> list[str]:
        return [r.region for r in face.collect(face.view("regions").rows(where=where))]

    assert ids([col("n") >= 40, col("region") > "r1", col("region") != "r3"]) == ["r2", "r4"]
    assert ids({"region": ["r0", 'x"\\y', "r3"]}) == ["r0", "r3"]
    assert ids(~col("region").like("%3")) == ["r0", "r1", "r2", "r4"]
    assert ids(col("total") == None) == []  # noqa: E711
    assert ids(col("total") != None) == ids(None)  # noqa: E711
    assert face.refused(lambda: face.view("regions").rows(where={"no": 1}).first()) == (
        "rows.unknown_column"
    )
    assert face.refused(lambda: face.view("regions").rows(where={"n": "x"}).first()) == (
        "rows.bad_value"
    )
    with pytest.raises(TypeError):
        col("n") > None  # noqa: B015
    with pytest.raises(TypeError):
        (col("n") > 1) and (col("n") < 3)  # type: ignore[operator]


# --- around it -----------------------------------------------------------------------------------


def test_importing_it_loads_no_engine() -> None:
    script = "import sys, tidemark; print(sorted({m.split('.')[0] for m in sys.modules}))"
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    heavy = {
        "numpy",
        "pandas",
        "pyarrow",
        "pyspark",
        "tidemark_native",
        "rocksdict",
        "storage",
        "connectors",
    }
    heavy |= {"psycopg2", "pydantic", "fastapi", "sqlglot", "kafka", "confluent_kafka"}
    assert not heavy & set(ast.literal_eval(told.stdout))
