"""Oracle: what the test itself has done to the rows of a history, and that nothing else is found.

A history must be found right while it is written to, and each kind of damage where there is one.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.harness.postgres import Database
from tests.harness.psql import call, refusal
from tests.harness.service import RunningService

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, region text NOT NULL, amount numeric, weight float8);
INSERT INTO orders SELECT i, 'r' || i % 7, i / 2.0, i / 3.0 FROM generate_series(1, 200) i;
"""
# A key of texts, one of a narrow type, and a multiset.
QUERIES = {
    "regions": "SELECT region, count(*) AS n, sum(amount) AS total FROM orders GROUP BY region",
    "single": "SELECT id, amount, weight FROM orders",
    "bare": "SELECT region, amount % 3 AS is_wrong FROM orders",
}
# By the field of a count, the kind of its examples.
KINDS = {kind: kind for kind in ("missing", "surplus", "different")}
KINDS |= {"periods": "period", "overlaps": "overlap"}
OPEN = 2**63 - 1


@pytest.fixture(scope="module")
def service(place: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("history")
    with RunningService(place.dsn, folder) as running:
        for name, query in QUERIES.items():
            running.create(name, query, backfill="local", history="1 hour")
        running.create("plain", QUERIES["single"], backfill="local")
        yield running


def verified(service: RunningService, name: str, limit: int = 20) -> dict[str, Any]:
    answer = service.call("POST", f"/views/{name}/verify?limit={limit}")
    assert answer.status_code == 200, f"{answer.text}\n{service.log_tail()}"
    return answer.json()


def command(service: RunningService, *words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "service.cli.main", *words, "--url", service.url]
    return subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)


def table_of(place: Database, name: str) -> str:
    sql = "SELECT table_oid::regclass::text FROM tidemark.histories WHERE name = %s"
    return place.rows(sql, (name,))[0][0]


@contextmanager
def written_to(place: Database) -> Iterator[None]:
    """Changes of all kinds, many a second."""
    stopping = threading.Event()

    def write() -> None:
        draw, connection = random.Random(1), place.connect()
        with connection.cursor() as cursor:
            while not stopping.is_set():
                key = draw.randint(1, 250)
                cursor.execute(
                    draw.choice(
                        [
                            f"UPDATE orders SET amount = amount + 1 WHERE id = {key}",
                            f"UPDATE orders SET region = 'r{key % 9}' WHERE id = {key}",
                            f"DELETE FROM orders WHERE id = {key}",
                            f"INSERT INTO orders VALUES ({key}, 'r{key % 7}', {key}.50, 0.1) "
                            "ON CONFLICT (id) DO UPDATE SET amount = orders.amount * 1.0",
                        ]
                    )
                )
        connection.close()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        stopping.set()
        writer.join()


def test_a_history_is_right_while_it_is_written_to(
    service: RunningService, place: Database
) -> None:
    with written_to(place):
        for number in range(9):
            found = verified(service, list(QUERIES)[number % len(QUERIES)])
            assert found["result"] == "equal", found
            assert found["history"]["examples"] == []
    for name in QUERIES:
        past = verified(service, name)["history"]
        rows = place.rows(f"SELECT count(*) FROM {table_of(place, name)}")[0][0]
        shown = place.rows(f"SELECT count(*) FROM {name}")[0][0]
        assert past["rows"] == rows > shown, "the view hardly has a past"
        assert not any(past[kind] for kind in KINDS)
    assert verified(service, "plain")["history"] is None


def first(condition: str) -> str:
    return f"ctid = (SELECT min(ctid) FROM {{h}} WHERE {condition})"


CURRENT, PAST = f"to_epoch = {OPEN}", f"to_epoch < {OPEN}"
PERIOD = "from_epoch, to_epoch, valid_from, valid_to"
ANOTHER = (
    f"INSERT INTO {{h}} SELECT -1, amount, weight, {PERIOD} FROM {{h}} WHERE {CURRENT} LIMIT 1"
)
REPEATED = f"INSERT INTO {{h}} SELECT * FROM {{h}} WHERE {first(PAST)}"
# Rows that ended at once after the beginning may expire meanwhile.
EARLY = f"{PAST} AND from_epoch > 0"
# Of each view a statement, with how many rows of which kind are found. {h}: the history's table.
DAMAGE = [
    ("regions", f"DELETE FROM {{h}} WHERE {CURRENT} AND region = 'r1'", {"missing": 1}),
    ("regions", f"UPDATE {{h}} SET n = n + 1 WHERE {first(CURRENT)}", {"different": 1}),
    # Equal in value, but not in form; and nearly equal.
    ("regions", f"UPDATE {{h}} SET total = total * 1.0 WHERE {first(CURRENT)}",
     {"different": 1}),
    ("single", f"UPDATE {{h}} SET weight = weight * (1 + 1e-12) WHERE {first(CURRENT)}",
     {"different": 1}),
    ("single", ANOTHER, {"surplus": 1}),
    ("bare", f"UPDATE {{h}} SET __n = __n + 2 WHERE {first(CURRENT)}", {"surplus": 2}),
    ("single", f"UPDATE {{h}} SET to_epoch = from_epoch WHERE {first(EARLY)}", {"periods": 1}),
    ("regions", f"UPDATE {{h}} SET valid_to = valid_from - interval '1 s' WHERE {first(EARLY)}",
     {"periods": 1}),
    ("regions", f"UPDATE {{h}} SET valid_to = 'infinity' WHERE {first(PAST)}", {"periods": 1}),
    ("regions", REPEATED, {"overlaps": 1}),
    ("single", REPEATED, {"overlaps": 1}),
    ("bare", REPEATED, {"overlaps": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "sql", "expected"), DAMAGE, ids=range(len(DAMAGE)))
def test_each_kind_of_damage_is_found(
    service: RunningService, place: Database, name: str, sql: str, expected: dict[str, int]
) -> None:
    history = table_of(place, name)
    place.execute(f"CREATE TABLE saved AS TABLE {history}")
    try:
        place.execute(sql.replace("{h}", history))
        found = verified(service, name)
        past = found["history"]
        assert found["result"] == "different"
        assert found["missing"] == found["surplus"] == found["different"] == 0
        assert {kind: past[kind] for kind in KINDS if past[kind]} == expected
        ((kind, count),) = expected.items()
        assert [e["kind"] for e in past["examples"]] == [KINDS[kind]] * count
        assert (past["examples"][0]["key"] != {}) == (name != "bare")
        assert verified(service, name, limit=0)["history"]["examples"] == []
    finally:
        place.execute(f"DELETE FROM {history}; INSERT INTO {history} TABLE saved; DROP TABLE saved")
    assert verified(service, name)["result"] == "equal"


@pytest.mark.whole
def test_each_face_shows_what_is_wrong_with_a_history(
    service: RunningService, place: Database
) -> None:
    history = table_of(place, "single")
    place.execute(f"CREATE TABLE saved AS TABLE {history}")
    row = f"SELECT min(ctid) FROM {history} WHERE to_epoch = {OPEN}"
    lost = place.rows(f"DELETE FROM {history} WHERE ctid = ({row}) RETURNING id")[0][0]
    shown = command(service, "verify", "single")
    assert shown.returncode == 1, shown.stderr
    assert re.search(r"history: [\d,]+ rows, 1 missing\n", shown.stdout), shown.stdout
    assert f"- id={lost}" in shown.stdout
    raw = command(service, "verify", "single", "--json")
    assert json.loads(raw.stdout)["history"]["missing"] == 1
    stored = place.rows("SELECT verification FROM tidemark.views WHERE name = 'single'")[0][0]
    assert stored["history"]["missing"] == 1
    assert "examples" not in stored["history"]
    metrics = service.call("GET", "/metrics").text
    assert 'tidemark_view_differing_rows{view="public.single"} 1.0' in metrics
    error = refusal(lambda: call(place, "CALL tidemark.verify_view('single')"))
    assert 'the history of view "public.single" is wrong: 1 missing' in str(error)
    assert "code: verify.different" in error.diag.message_detail
    place.execute(f"DELETE FROM {history}; INSERT INTO {history} TABLE saved; DROP TABLE saved")
    good = command(service, "verify", "single")
    assert (good.returncode, "all right" in good.stdout) == (0, True), good.stdout


def test_a_history_that_is_gone_is_found(service: RunningService, place: Database) -> None:
    is_here = "WHERE name = 'single' AND NOT is_staged"
    place.execute(f"CREATE TABLE saved AS SELECT * FROM tidemark.histories {is_here}")
    try:
        place.execute(f"DELETE FROM tidemark.histories {is_here}")
        found = verified(service, "single", limit=3)
        rows = place.rows("SELECT count(*) FROM single")[0][0]
        assert found["result"] == "different" and found["missing"] == 0
        assert (found["history"]["missing"], found["history"]["rows"]) == (rows, 0)
        assert [e["kind"] for e in found["history"]["examples"]] == ["missing"] * 3
    finally:
        place.execute("INSERT INTO tidemark.histories SELECT * FROM saved; DROP TABLE saved")
    assert verified(service, "single")["result"] == "equal"
