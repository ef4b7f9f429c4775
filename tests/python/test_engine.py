"""Oracle: Python itself. What functions gave last, counted in Python, is what their tables, the
queries and the views over them must show."""

from __future__ import annotations

import datetime
import math
import os
import pickle
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC
from decimal import Decimal
from functools import partial
from threading import Thread
from typing import Any

import pytest

import tidemark
from connectors.postgres.embedded.function_tables import SCHEMA
from tests.harness.waiting import wait_until

SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "7"))


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(tidemark.TidemarkError) as caught:
        call()
    return caught.value.code


def rows_of(view: tidemark.View) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in view.rows())


# --- refreshing -------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [(), "id", ("id", "name")], ids=["bag", "key", "two columns"])
def test_a_view_follows_every_refresh(engine: tidemark.Engine, key: Any) -> None:
    rng = random.Random(SEED)
    rows: list[tuple[int, str, float | None]] = []
    engine.register(
        "followed",
        lambda: rows,
        columns={"id": "bigint", "name": "text", "size": "float8"},
        key=key,
    )
    name = f"follows_{len(key)}"
    view = engine.view("SELECT name, size FROM followed", name, replace=True)
    for _ in range(8):
        for _ in range(rng.randrange(12)):
            row = (rng.randrange(20), rng.choice("abc"), rng.choice([None, 0.0, 1.5]))
            if rows and rng.random() < 0.4:
                rows.remove(rng.choice(rows))
            elif not key or all(r[0] != row[0] for r in rows):
                rows.append(row)
        if rows and rng.random() < 0.5:
            i = rng.randrange(len(rows))
            rows[i] = (rows[i][0] + 100, *rows[i][1:])
        rng.shuffle(rows)
        done = engine.refresh("followed")["followed"]
        assert done.rows == len(rows)
        engine.wait()
        assert rows_of(view) == Counter((n, s) for _, n, s in rows), f"TIDEMARK_TEST_SEED={SEED}"
    view.drop()
    engine.unregister("followed")


def test_what_has_not_changed_is_not_written(engine: tidemark.Engine) -> None:
    rows = [{"id": i, "v": i % 7, "f": math.nan} for i in range(1000)]
    positions = f"SELECT array_agg(ctid::text || xmin::text ORDER BY id) FROM {SCHEMA}."
    for key in ("id", ()):
        engine.register("still", lambda: rows, key=key)
        before = engine.execute(positions + "still")
        for again in (rows, list(reversed(rows))):
            # Registering again forgets the digest of the last reading: the tables are compared.
            engine.register("still", lambda again=again: again, key=key)
            done = engine.refresh("still")["still"]
            assert (done.rows, done.is_changed) == (1000, False)
        assert engine.execute(positions + "still")[0] == before[0]
        rows[5]["v"] += 1
        done = engine.refresh("still")["still"]
        assert (done.inserted, done.updated, done.deleted) == ((0, 1, 0) if key else (1, 0, 1))
    engine.unregister("still")


def test_a_function_is_refreshed_by_itself(engine: tidemark.Engine) -> None:
    calls = []

    @engine.register("ticks", refresh_every_s=0.1)
    def ticks() -> Iterator[dict[str, int]]:
        calls.append(1)
        if len(calls) == 3:
            raise ValueError("the third time")
        yield {"n": len(calls)}

    view = engine.view("SELECT max(n) AS n FROM ticks", "last_tick")
    wait_until(lambda: any(row.n >= 6 for row in view.rows()))
    view.drop()
    engine.unregister("ticks")
    count = len(calls)
    time.sleep(0.3)
    assert len(calls) <= count + 1


def test_a_refresh_that_has_waited_takes_the_newest_function(engine: tidemark.Engine) -> None:
    given = iter((1, 3))
    engine.register("renewed", lambda: [{"id": next(given)}], key="id")
    waiting = Thread(target=engine.refresh, args=("renewed",))
    with engine._functions.of("renewed").lock:
        waiting.start()
        time.sleep(0.2)
        engine.register("renewed", [{"id": 2}], key="id")
    waiting.join()
    assert [tuple(r) for r in engine.execute("SELECT id FROM renewed")] == [(2,)]
    engine.unregister("renewed")


# --- what goes wrong --------------------------------------------------------------------------


def _fails_after(n: int) -> Iterator[dict[str, int]]:
    for i in range(n):
        yield {"id": i}
    raise RuntimeError("the network is down")


BAD: dict[str, tuple[Callable[[], Any], str, str]] = {
    "it fails": (lambda: _fails_after(3), "function.failed", "after row 3"),
    "a value": (lambda: [{"id": 1}, {"id": "x"}], "function.bad_value", "row 2"),
    "a large value": (lambda: [{"id": 1}, {"id": 2**70}], "function.bad_value", "row 2"),
    "an object": (lambda: [{"id": object()}], "function.bad_value", "row 1"),
    "a NUL": (lambda: [{"id": 1}, {"id": "\0"}], "function.bad_value", "row 2"),
    "a surrogate": (lambda: [{"id": 1}, {"id": "\ud800"}], "function.bad_value", "row 2"),
    "a key twice": (lambda: [{"id": i} for i in (5, 6, 5)], "function.duplicate_key", "row 3"),
    "no key": (lambda: [{"id": 1}, {"id": None}], "function.null_key", "row 2"),
    "another column": (lambda: [{"id": 1}, {"ids": 2}], "function.bad_row", "row 1"),
    "another width": (lambda: [(1,), (2, 3)], "function.bad_row", "row 2"),
    "no rows": (lambda: 5, "function.bad_row", "does not return rows"),
    "no row": (lambda: [5], "function.bad_row", "row 1"),
}


def test_a_reading_that_fails_changes_nothing(engine: tidemark.Engine) -> None:
    given: list[Callable[[], Any]] = [lambda: [{"id": 1}, {"id": 2}]]
    other = [{"id": 1}]
    engine.register("fragile", lambda: given[0](), key="id")
    engine.register("solid", lambda: other, key="id")
    query = "SELECT 'f' AS of, id FROM fragile UNION ALL SELECT 's', id FROM solid"
    view = engine.view(query, "fragile_and_solid")
    expected = Counter({("f", 1): 1, ("f", 2): 1, ("s", 1): 1})
    other.append({"id": 7})
    for why, (source, code, words) in BAD.items():
        given[0] = source
        with pytest.raises(tidemark.TidemarkError) as caught:
            engine.refresh("solid", "fragile")
        assert caught.value.code == code, why
        assert words in caught.value.what, why
        assert isinstance(caught.value.__cause__, RuntimeError) == (code == "function.failed")
        assert engine.functions()["fragile"].error is caught.value
        engine.wait()
        assert rows_of(view) == expected, why
    given[0] = lambda: [{"id": 2}]
    engine.refresh("solid", "fragile")
    engine.wait()
    assert rows_of(view) == Counter({("f", 2): 1, ("s", 1): 1, ("s", 7): 1})
    assert engine.functions()["fragile"].error is None


def test_refusals_have_their_codes(engine: tidemark.Engine) -> None:
    engine.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    spent = iter([{"id": 1}])
    engine.register("spent", spent)
    assert engine.query("SELECT id FROM spent").rows == [(1,)]
    engine.register("read", [{"id": 1}])
    engine.view("SELECT count(*) FROM read", "reads_it")
    refused: dict[str, Callable[[], object]] = {
        "function.spent": lambda: engine.refresh("spent"),
        "function.unknown": lambda: engine.refresh("nowhere"),
        "function.in_use": lambda: engine.unregister("read"),
        "function.name_taken": lambda: engine.register("orders", [{"id": 1}]),
        "function.bad_name": lambda: engine.register("f" * 64, [{"id": 1}]),
        "function.bad_signature": lambda: engine.register("f", lambda needed: []),
        "function.bad_key": lambda: engine.register("f", [{"id": 1}], key="ids"),
        "function.bad_interval": lambda: engine.register("f", list, refresh_every_s=0),
        "function.no_columns": lambda: engine.register("f", []),
        "function.mixed_types": lambda: engine.register("f", [{"a": 1}, {"a": "x"}]),
        "function.failed": lambda: engine.register("f", lambda: _fails_after(0)),
        "sql.bad_type": lambda: engine.register("f", [], columns={"a": "int); DROP TABLE x"}),
        "sql.undefined_column": lambda: engine.query("SELECT nothing FROM read"),
        "sql.many_statements": lambda: engine.query("SELECT 1; DELETE FROM orders"),
        "view.name_taken": lambda: engine.view("SELECT id FROM read", "reads_it"),
        "sql.object_not_in_prerequisite_state": lambda: engine.execute(
            f"DELETE FROM {SCHEMA}.read"
        ),
    }
    assert {code: code_of(call) for code, call in refused.items()} == {c: c for c in refused}
    assert "f" not in engine.functions()
    assert code_of(lambda: engine.view("SELECT 1 AS a", "read")) == "function.name_taken"
    assert code_of(lambda: engine.register("f", [{5: 1}])) == "function.bad_name"


def test_a_misuse_says_what_was_passed(engine: tidemark.Engine) -> None:
    anything: Any = None
    invalid: list[tuple[str, Callable[[], object]]] = [
        ("the query is not a text", lambda: engine.query(anything)),
        ("the query is not a text", lambda: engine.view(anything)),
        ("the name is not a text", lambda: engine.view("SELECT 1 AS a", 5)),  # type: ignore[arg-type]
        ("the statement is not a text", lambda: engine.execute(anything)),
    ]
    for sql, parameters in (("%s, %s", [1]), ("%s", [1, 2]), ("%s", 1), ("%(a)s", {}), ("%", [1])):
        for call in (engine.query, engine.execute):
            misfit = partial(call, f"SELECT {sql}", parameters)
            invalid.append(("the parameters do not fit the query", misfit))
    invalid.append(
        ("the parameters do not fit the query", lambda: engine.query("SELECT %s", [object()]))
    )
    for what, call in invalid:
        with pytest.raises(tidemark.TidemarkError) as caught:
            call()
        assert (caught.value.code, caught.value.what) == ("request.invalid", what)
    # Without parameters a percent sign is one.
    assert engine.query("SELECT 5 % 3 AS a").rows == engine.execute("SELECT 5 % 3 AS a").rows
    assert code_of(lambda: engine.register("f", [{"a": 1}], columns={"a": "integr"})) == (
        "sql.bad_type"
    )
    with pytest.raises(TypeError, match="another process"):
        pickle.dumps(engine)


# --- narrow functions ---------------------------------------------------------------------------

WIDE = [
    {"id": i, "c": f"c{i % 3}", "n": Decimal(i) / 4, "on": i % 2 == 0, "big": "x" * i, "at": None}
    for i in range(60)
]


def test_what_is_read_is_pushed_into_the_function(engine: tidemark.Engine) -> None:
    asked: list[tuple[Any, Any]] = []

    def wide(dynamic_columns: Any, dynamic_where: Any) -> Iterator[Any]:
        asked.append((dynamic_columns, [tuple(c) for c in dynamic_where]))
        for row in WIDE:
            if all(c.holds(row[c.column]) for c in dynamic_where):
                yield row if dynamic_columns is None else tuple(row[c] for c in dynamic_columns)

    def told() -> tuple[Any, Any]:
        (found,) = asked
        asked.clear()
        return found

    columns = {"id": "int", "c": "text", "n": "numeric", "on": "bool", "big": "text"}
    engine.register("wide", wide, columns={**columns, "at": "timestamptz"}, key="id")
    assert asked == [], "nobody reads it yet"

    found = engine.query("SELECT sum(n) FROM wide WHERE c IN ('c1', 'c2') AND 5 <= id AND \"on\"")
    assert found.rows == [(sum(r["n"] for r in WIDE if r["id"] >= 5 and r["id"] % 3 and r["on"]),)]
    columns_told, where = told()
    assert columns_told == ["id", "c", "n", "on"]
    assert set(where) == {("c", "in", ("c1", "c2")), ("id", ">=", 5), ("on", "=", True)}

    low = engine.view('SELECT c, sum(n) AS n FROM wide WHERE id < 9 AND "on" GROUP BY c', "low")
    expected = Counter[Any]()
    for row in WIDE[:9]:
        expected[row["c"]] += row["n"] * row["on"]
    assert told() == (["id", "c", "n", "on"], [("id", "<", 9), ("on", "=", True)])
    assert {row.c: row.n for row in low.rows()} == dict(expected)

    # What both agree on, and every column of either.
    also = engine.view("SELECT id, length(big) AS n FROM wide WHERE id < 9 AND c <> 'c0'", "also")
    assert told() == (["id", "c", "n", "on", "big"], [("id", "<", 9)])
    assert rows_of(also) == Counter((r["id"], r["id"]) for r in WIDE[:9] if r["id"] % 3)
    assert {row.c: row.n for row in low.rows()} == dict(expected)

    # A query that reads a view and the function sees one reading of it.
    both = "SELECT (SELECT count(*) FROM wide WHERE id > 50), (SELECT count(*) FROM also)"
    assert engine.query(both).rows == [(9, 6)]
    assert told() == (["id", "c", "n", "on", "big"], [])

    engine.execute("CREATE VIEW ordinary AS SELECT id, c FROM wide WHERE c = 'c2'")
    assert engine.query("SELECT max(id) FROM ordinary WHERE id > 3").rows == [(59,)]
    assert told() == (["id", "c"], [("c", "=", "c2"), ("id", ">", 3)])
    # No view can have this one, so nothing is known of what it reads.
    assert engine.query("SELECT count(*) FROM wide WHERE random() >= 0").rows == [(60,)]
    assert told() == (None, [])

    # Made elsewhere, it is seen and served by itself.
    engine.refresh("wide")
    assert told() == (["id", "c", "n", "on", "big"], [("id", "<", 9)])
    elsewhere = engine.client.create("elsewhere", "SELECT count(*) FROM wide", backfill="local")
    wait_until(lambda: rows_of(elsewhere) == Counter({(60,): 1}))
    assert asked[-1][1] == []


@pytest.mark.whole
def test_conditions_hold_as_in_postgresql(engine: tidemark.Engine) -> None:
    values = [None, math.nan, -math.inf, 0.0, 1.5, math.inf]
    seen: list[Any] = []

    def narrow(dynamic_where: Any) -> Iterator[dict[str, Any]]:
        seen[:] = dynamic_where
        for i, value in enumerate(values):
            if all(c.holds(value) for c in dynamic_where):
                yield {"i": i, "v": value}

    engine.register("floats", narrow, columns={"i": "int", "v": "float8"})
    engine.register("whole", lambda: [{"i": i, "v": v} for i, v in enumerate(values)])
    for condition in (
        *("v > 1.0::float8", "v >= 'NaN'", "v < 'NaN'", "v <> 1.5::float8", "v = 'NaN'"),
        *("v IS NULL", "v IS NOT NULL", "NOT v IS NULL", "NOT v > 1.0::float8"),
    ):
        narrowed = engine.query(f"SELECT i FROM floats WHERE {condition} ORDER BY i").rows
        assert len(seen) == 1, condition
        assert narrowed == engine.query(f"SELECT i FROM whole WHERE {condition} ORDER BY i").rows


QUERIES = (
    "SELECT a.id, b.c FROM {f} a LEFT JOIN {f} b ON b.id = a.id + 1 AND b.c = 'c1' WHERE a.id < 9",
    "SELECT a.id, b.id FROM {f} a FULL JOIN {f} b ON a.id = b.id AND a.id < 3 WHERE b.c = 'c0'",
    "SELECT id FROM {f} WHERE id < 40 AND id NOT IN (SELECT id FROM {f} WHERE c = 'c2')",
    "SELECT id FROM {f} a WHERE EXISTS (SELECT FROM {f} b WHERE b.id > 55 AND b.c = a.c)",
    "SELECT id, (SELECT count(*) FROM {f} b WHERE b.id < a.id AND b.on) FROM {f} a WHERE id < 5",
    "SELECT c, count(*) FROM {f} WHERE id > 9 GROUP BY c HAVING c <> 'c1' AND count(*) > 3",
    "SELECT c, max(id) FILTER (WHERE n > 3) FROM {f} WHERE NOT (id >= 30) GROUP BY ROLLUP (c)",
    "SELECT id, rank() OVER (PARTITION BY c ORDER BY n DESC) FROM {f} WHERE id BETWEEN 5 AND 20",
    "SELECT * FROM (SELECT id, lag(id) OVER (PARTITION BY c ORDER BY id) FROM {f}) x WHERE id > 57",
    "SELECT id FROM {f} WHERE id < 5 OR c = 'c1' AND n < 3",
    "SELECT id FROM {f} WHERE c = 'c1' UNION SELECT id + 1 FROM {f} WHERE id > 50",
    "SELECT c FROM {f} WHERE id > 50 EXCEPT SELECT c FROM {f} WHERE id > 57",
    "SELECT DISTINCT ON (c) c, id FROM {f} WHERE n >= 2.25 ORDER BY c, id DESC",
    "SELECT id FROM {f} WHERE c = 'c0' ORDER BY n DESC NULLS LAST, id LIMIT 3 OFFSET 1",
    "SELECT count(*) FROM {f} WHERE NOT \"on\" AND at IS NULL AND c IN ('c0', 'c1') AND c <> 'c0'",
    "SELECT count(f), min(f::text) FROM {f} f WHERE id = 7 AND n = 1.75",
    "SELECT id FROM {f} WHERE n > 14::float8 AND c < 'c2' AND big LIKE 'x%' AND length(big) > 3",
    "WITH w AS MATERIALIZED (SELECT * FROM {f}) "
    "SELECT a.id FROM w a, w b WHERE a.id < 3 AND b.id = 59",
    "WITH RECURSIVE r AS (SELECT id FROM {f} WHERE id = 1 UNION SELECT f.id FROM {f} f, r "
    "WHERE f.id = r.id * 2 AND f.id < 33) SELECT * FROM r",
)


@pytest.mark.whole
def test_a_function_that_reads_less_answers_the_same(engine: tidemark.Engine) -> None:
    told = []

    def less(dynamic_columns: Any, dynamic_where: Any) -> Iterator[dict[str, Any]]:
        told.append(dynamic_where)
        for row in WIDE:
            if all(c.holds(row[c.column]) for c in dynamic_where):
                yield {c: row[c] for c in dynamic_columns or row}

    columns = {"id": "int", "c": "text", "n": "numeric", "on": "bool", "big": "text", "at": "date"}
    engine.register("less", less, columns=columns)
    engine.register("all_of_it", lambda: WIDE, columns=columns)
    for query in QUERIES:
        query = query.replace(".on", '."on"')
        found = engine.query(query.format(f="less"))
        assert Counter(found) == Counter(engine.query(query.format(f="all_of_it"))), query
    assert len(told) == len(QUERIES)
    assert sum(map(bool, told)) == 7


# --- views and queries --------------------------------------------------------------------------


def test_views_are_made_once_and_replaced_on_demand(engine: tidemark.Engine) -> None:
    rows = [{"id": 1, "v": 2}]
    engine.register("base", lambda: rows)
    unnamed = engine.view("SELECT v FROM base;")
    assert engine.view("SELECT v FROM base").name == unnamed.name
    named = engine.view("SELECT v FROM base", "named")
    same = engine.view("SELECT id, v FROM base", "named", replace=True)
    assert rows_of(same) == rows_of(named) == Counter({(1, 2): 1})
    above = engine.view("SELECT count(*) AS n FROM named", "above")
    rows.append({"id": 3, "v": 4})
    assert engine.query("SELECT n FROM above").rows == [(2,)], "it is read anew for the query"
    assert rows_of(above) == Counter({(2,): 1})


def test_a_view_of_an_engine_takes_every_option(engine: tidemark.Engine) -> None:
    engine.register("opted", [{"id": 1, "at": datetime.datetime(2024, 1, 1, 23, tzinfo=UTC)}])
    query = "SELECT id, at::date AS day FROM opted"
    view = engine.view(query, "opts", time_zone="Europe/Berlin", history="1 days", max_rows=1000)
    assert list(view.rows()) == [(1, datetime.date(2024, 1, 2))]
    options = view.state().options
    assert (options["history"], options["max_rows"]) == ("1 days", 1000)
    # The same again is the same view; another option is not ignored.
    assert engine.view(query, "opts", time_zone="Europe/Berlin").name == view.state().path
    with pytest.raises(tidemark.TidemarkError) as caught:
        engine.view(query, "opts", history="2 days")
    assert caught.value.code == "view.name_taken"
    assert caught.value.detail == "history is '1 days', not '2 days'"
    engine.view(query, "opts", replace=True, history="2 days")
    assert view.state().options["history"] == "2 days"
    assert list(view.rows()) == [(1, datetime.date(2024, 1, 2))]
    unknown: dict[str, Any] = {"timezone": "UTC"}
    with pytest.raises(tidemark.TidemarkError) as caught:
        engine.view(query, "unmade", **unknown)
    assert caught.value.code == "request.invalid" and caught.value.option == "options.timezone"
    assert 'did you mean "time_zone"?' in caught.value.detail
    view.drop()
    engine.unregister("opted")


def test_answers_of_an_engine_are_tables(engine: tidemark.Engine) -> None:
    rows = [{"id": n, "n": Decimal(n) / 4, "big": None if n else 2**62} for n in range(30)]
    engine.register("tabled", rows, key="id")
    answer = engine.query("SELECT id, n, big, n::numeric(9,2) AS m FROM tabled ORDER BY id")
    view = engine.view("SELECT id, n, big FROM tabled")
    for table in (answer, view.rows(order="id"), view.snapshot()):
        frame = table.to_pandas().sort_values("id")
        assert frame["n"].sum() == sum(row["n"] for row in rows)
        assert str(frame["big"].dtype) == "Int64" and frame["big"].sum() == 2**62
        assert "2 rows" not in table._repr_html_() and "first 20 " in table._repr_html_()
    assert str(answer.to_arrow().schema.field("m").type) == "decimal128(9, 2)"
    assert len(answer) == 30 and str(answer).endswith("\n...")
    lazy = view.rows()
    with pytest.raises(TypeError, match="to_list"):
        len(lazy)
    assert lazy and len(list(lazy)) == 30
    view.drop()
    engine.unregister("tabled")


def test_tables_and_parameters(engine: tidemark.Engine) -> None:
    assert engine.execute("CREATE TABLE stock (id int PRIMARY KEY, n numeric)") == -1
    assert engine.execute("INSERT INTO stock VALUES (%s, %s), (2, NULL)", (1, Decimal("1.10"))) == 2
    engine.register("names", [{"id": 1, "name": "it's"}], key="id")
    query = "SELECT name, n FROM stock JOIN names USING (id) WHERE name = %(name)s"
    (row,) = engine.query(query, {"name": "it's"})
    assert (row.name, str(row.n)) == ("it's", "1.10")
    view = engine.view("SELECT name, n FROM stock LEFT JOIN names USING (id)", "joined")
    with engine.connection() as session, session.cursor() as cursor:
        cursor.execute("UPDATE stock SET n = 5")
    session.close()
    engine.wait()
    assert rows_of(view) == Counter({("it's", Decimal(5)): 1, (None, Decimal(5)): 1})
