"""Oracle: the view's own rows, recorded with their epoch in one snapshot of the sink while they
change; and the renderings of one small time-varying table, written down by hand."""

from __future__ import annotations

import asyncio
import bisect
import itertools
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import aclosing
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode

import pytest

import tidemark
from tests.harness.change_stream import Fold, Refused, events
from tests.harness.postgres import Database
from tests.harness.service import RunningService

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, region text NOT NULL, amount numeric(12,2), note text);
INSERT INTO orders SELECT i, 'r' || i % 7, i, CASE WHEN i % 3 > 0 THEN 'n' || i % 5 END
    FROM generate_series(1, 200) i;
CREATE TABLE user_scores (id serial PRIMARY KEY, name text NOT NULL, score int NOT NULL, time text);
"""
QUERIES = {
    "regions": "SELECT region, count(*) AS n, sum(amount) AS total FROM orders GROUP BY region",
    "notes": "SELECT region, note FROM orders",
}
SCORES = "SELECT name, sum(score) AS total, max(time) AS time FROM user_scores GROUP BY name"
RETENTION_S = 2
# Transactions, what the table shows after each of them (from before the first), and what each
# changes.
STEPS = [
    [("Julie", 7, "12:01")],
    [("Frank", 3, "12:03"), ("Julie", 1, "12:03")],
    [("Julie", 4, "12:07")],
]
VERSIONS = [
    [],
    [("Julie", 7, "12:01")],
    [("Frank", 3, "12:03"), ("Julie", 8, "12:03")],
    [("Frank", 3, "12:03"), ("Julie", 12, "12:07")],
]
STREAM = [
    [(1, "Julie", 7, "12:01")],
    [(-1, "Julie", 7, "12:01"), (1, "Frank", 3, "12:03"), (1, "Julie", 8, "12:03")],
    [(-1, "Julie", 8, "12:03"), (1, "Julie", 12, "12:07")],
]


@pytest.fixture(scope="module")
def service(place: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("history")
    with RunningService(place.dsn, folder, changes_retention_s=RETENTION_S) as running:
        for name, query in QUERIES.items():
            running.create(name, query, backfill="local", history="1 hour")
        yield running


def call(service: RunningService, path: str, **parameters: Any) -> dict[str, Any]:
    answer = service.call("GET", f"{path}?{urlencode(parameters)}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def refusal(service: RunningService, path: str, **parameters: Any) -> tuple[int, str]:
    answer = service.call("GET", f"{path}?{urlencode(parameters)}")
    return answer.status_code, answer.json()["code"]


def rows_at(service: RunningService, view: str, point: object) -> Counter[str]:
    """All rows of a view at a point, page by page."""
    found: Counter[str] = Counter()
    after: dict[str, str] = {}
    while True:
        page = call(service, f"/views/{view}/rows", as_of=point, limit=90, **after)
        found.update(json.dumps(row, sort_keys=True) for row in page["rows"])
        if not page["next"]:
            return found
        after = {"after": page["next"]}


def difference(service: RunningService, view: str, begin: object, end: object) -> Counter[str]:
    found: Counter[str] = Counter()
    after: dict[str, str] = {}
    while True:
        page = call(service, f"/views/{view}/diff", **{"from": begin, "to": end}, limit=50, **after)
        for row, weight in zip(page["rows"], page["weights"], strict=True):
            found[json.dumps(row, sort_keys=True)] += weight
        if not page["next"]:
            return found
        after = {"after": page["next"]}


class Recorder:
    """Notes the rows of both views with their epoch, and the clock, while `changing` runs."""

    def __init__(self, place: Database) -> None:
        self._place = place
        self.shown: dict[int, dict[str, Counter[str]]] = {}
        self.positions: dict[int, str] = {}

    def note(self) -> int:
        connection = self._place.connect()
        connection.autocommit = False
        connection.set_session(isolation_level="REPEATABLE READ")
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT epoch, '0/0'::pg_lsn + (positions->>'source')::numeric "
                "FROM tidemark.progress"
            )
            epoch, position = cursor.fetchone() or (0, "")
            self.positions[epoch] = position
            found = {}
            for view in QUERIES:
                cursor.execute(f"SELECT * FROM {view}")
                names = [column.name for column in cursor.description or ()]
                found[view] = Counter(
                    json.dumps(
                        {
                            n: v if isinstance(v, int | None) else str(v)
                            for n, v in zip(names, row, strict=True)
                        },
                        sort_keys=True,
                    )
                    for row in cursor.fetchall()
                )
            self.shown[epoch] = found
        connection.close()
        return epoch


def change(place: Database, draw: random.Random) -> None:
    """One transaction of several changes."""
    with place.connect() as connection, connection.cursor() as cursor:
        for _ in range(draw.choice([1, 1, 3, 20])):
            key = draw.randint(1, 300)
            if draw.random() < 0.3:
                cursor.execute("DELETE FROM orders WHERE id = %s", (key,))
            else:
                cursor.execute(
                    "INSERT INTO orders VALUES (%s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET "
                    "region = excluded.region, amount = excluded.amount, note = excluded.note",
                    (key, f"r{draw.randint(0, 6)}", draw.randint(0, 999), draw.choice("ab")),
                )
        connection.commit()


def visible(service: RunningService, place: Database, view: str = "regions") -> None:
    service.wait(view, place.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0])


@pytest.mark.whole
def test_the_past_while_the_pipeline_is_killed(service: RunningService, place: Database) -> None:
    draw, recorder = random.Random(5), Recorder(place)
    is_over = threading.Event()

    def writing() -> None:
        while not is_over.is_set():
            change(place, draw)
            time.sleep(0.01)

    writer = threading.Thread(target=writing)
    writer.start()
    try:
        for round_ in range(60):
            recorder.note()
            if round_ in (20, 40):
                assert service.kill_child("pipeline")
            time.sleep(0.05)
        # A rebuild with the same columns changes nothing that was shown.
        answer = service.call("POST", "/views/regions/rebuild?wait_s=60")
        assert answer.status_code == 200, answer.text
        for _ in range(10):
            recorder.note()
            time.sleep(0.05)
    finally:
        is_over.set()
        writer.join()
    visible(service, place)
    recorder.note()
    assert len(recorder.shown) > 10
    epochs = sorted(recorder.shown)
    for view in QUERIES:
        for epoch in epochs:
            expected = recorder.shown[epoch][view]
            assert rows_at(service, view, epoch) == expected, (view, epoch)
        for epoch in draw.sample(epochs, 5):
            position = recorder.positions[epoch]
            assert rows_at(service, view, position) == recorder.shown[epoch][view]
            begin = draw.choice([e for e in epochs if e <= epoch])
            moved = Counter(recorder.shown[begin][view])
            moved.update(difference(service, view, begin, epoch))
            assert +moved == recorder.shown[epoch][view]
    found = call(service, "/views/regions/diff", **{"from": epochs[0]})
    assert found["from"]["committed_at"] < found["to"]["committed_at"]
    # Between two of its epochs, the older one; and what is shown by SQL is the same.
    at = found["from"]["committed_at"]
    page = call(service, "/views/regions/rows", as_of=at)
    assert page["epoch"] <= epochs[0]
    sql = place.rows(f"SELECT count(*) FROM tidemark.as_of(NULL::notes, '{epochs[0]}')")
    assert sql == [(sum(recorder.shown[epochs[0]]["notes"].values()),)]


def test_a_position_after_a_wait_is_reached_at_once(
    service: RunningService, place: Database
) -> None:
    """Though nothing that moves the view was committed before it."""
    change(place, random.Random(3))
    visible(service, place)
    place.execute("SELECT pg_logical_emit_message(false, 'tests', 'WAL that moves nothing')")
    after = place.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]
    newest = call(service, "/views/regions/rows", limit=1)["epoch"]
    assert rows_at(service, "regions", after) == rows_at(service, "regions", newest)


def test_points_that_cannot_be_read(service: RunningService, place: Database) -> None:
    path = "/views/regions/rows"
    assert refusal(service, path, as_of="1999-01-01") == (410, "history.too_old")
    assert refusal(service, path, as_of="0") == (410, "history.too_old")
    assert refusal(service, path, as_of="9" * 15) == (409, "history.not_reached")
    assert refusal(service, path, as_of="2999-01-01") == (409, "history.not_reached")
    assert refusal(service, path, as_of="FFFF/0") == (409, "history.not_reached")
    assert refusal(service, path, as_of="soon") == (400, "history.bad_point")
    answer = service.call("GET", f"{path}?as_of=1999-01-01").json()
    oldest = call(service, "/views/regions")["history"]["oldest_epoch"]
    assert f"epoch {oldest}, at 2" in answer["detail"], answer
    newest = call(service, path)["epoch"]
    reverse = {"from": newest, "to": oldest}
    assert refusal(service, "/views/regions/diff", **reverse) == (400, "history.bad_point")
    token = {"from": oldest, "after": "x"}
    assert refusal(service, "/views/regions/diff", **token) == (400, "rows.bad_page")
    service.create("plain", "SELECT id FROM orders", backfill="local")
    assert refusal(service, "/views/plain/rows", as_of="1") == (409, "history.none")
    assert call(service, "/views/plain")["history"] is None
    body = {"name": "bad", "query": "SELECT 1 AS a", "options": {"history": "7 months"}}
    assert service.call("POST", "/views", body).status_code == 422
    place.execute("CREATE TABLE plain_history (theirs int)")
    taken = {"query": "SELECT id FROM orders", "options": {"history": "1 day"}}
    answer = service.call("POST", "/views/plain/replace", taken)
    assert (answer.status_code, answer.json()["code"]) == (409, "sink.name_taken"), answer.text
    place.execute("DROP TABLE plain_history")
    service.drop("plain")


def test_replaces_and_the_option(service: RunningService, place: Database) -> None:
    query = "SELECT region, count(*) AS n FROM orders GROUP BY region"
    service.create("life", query, backfill="local")
    body = {"query": query, "options": {"history": "2 days"}}
    answer = service.call("POST", "/views/life/replace?wait_s=60", body)
    assert answer.status_code == 200, answer.text
    view = call(service, "/views/life")
    assert view["history"]["retained_s"] == 2 * 86_400
    assert view["history"]["table"] == "public.life_history"
    begun = view["history"]["begun_epoch"]
    first = rows_at(service, "life", begun)
    # The same columns: the difference is one epoch of the same history.
    filtered = {"query": query.replace("GROUP", "WHERE id % 2 = 0 GROUP")}
    answer = service.call("POST", "/views/life/replace?wait_s=60", filtered)
    assert answer.status_code == 200, answer.text
    assert call(service, "/views/life")["history"]["begun_epoch"] == begun
    assert rows_at(service, "life", begun) == first
    newest = call(service, "/views/life/rows")["epoch"]
    moved = Counter(first)
    moved.update(difference(service, "life", begun, newest))
    assert +moved == rows_at(service, "life", newest) != first
    # Other columns: another history.
    other = {"query": "SELECT region, max(id) AS newest FROM orders GROUP BY region"}
    answer = service.call("POST", "/views/life/replace?wait_s=60", other)
    assert answer.status_code == 200, answer.text
    assert call(service, "/views/life")["history"]["begun_epoch"] > begun
    assert refusal(service, "/views/life/rows", as_of=begun) == (410, "history.too_old")
    answer = service.call("POST", "/views/life/rename?wait_s=60", {"name": "lives"})
    assert answer.status_code == 200, answer.text
    assert call(service, "/views/lives")["history"]["table"] == "public.lives_history"
    assert place.rows("SELECT DISTINCT to_epoch FROM lives_history") == [(None,)]
    service.drop("lives")
    left = "SELECT count(*) FROM pg_class WHERE relname LIKE 'li_es%%history'"
    assert place.rows(left) == [(0,)]


Change = tuple[bool, Any, int, tuple[Any, ...]]


def assert_streams(
    service: RunningService,
    place: Database,
    view: str,
    expected: list[Change],
    since: object = None,
    until: object = None,
    *,
    retractions: bool = True,
) -> None:
    """Psql, REST and both clients show these changes, in this order of epochs and of undo."""
    sql = (
        f"SELECT undo, committed_at, epoch, s.position, (s.row).* FROM "
        f"tidemark.stream(NULL::{view}, %s::text, %s::text, %s) AS s"
    )
    points = [None if point is None else str(point) for point in (since, until)]
    shown = place.rows(sql, (*points, retractions))
    found = [(undo, at, epoch, plain(row)) for undo, at, epoch, _, *row in shown]
    assert_changes(found, expected)
    positions = {epoch: position for _, _, epoch, position, *_ in shown}
    end = str(max(epoch for _, _, epoch, _ in expected)) if until is None else str(until)
    options = {"retractions": retractions}
    since_point = "" if since is None else str(since)
    with tidemark.connect(service.url) as client:
        from_client = list(client.view(view).stream(since_point, end, **options))
        # Without an end it stays open, until nothing comes.
        open_end = list(client.view(view).stream(since_point, timeout_ms=500, **options))
    for changes in (from_client, open_end if until is None else from_client):
        found = [(c.undo, c.committed_at, c.epoch, plain(c.row)) for c in changes]
        assert_changes(found, expected)
        assert {c.epoch: c.positions["source"] for c in changes} == positions
    assert asyncio.run(async_stream(service, view, since_point, end, options)) == from_client


async def async_stream(
    service: RunningService, view: str, since: str, until: str, options: dict[str, Any]
) -> list[tidemark.Change]:
    async with tidemark.connect_async(service.url) as client:
        return [c async for c in client.view(view).stream(since, until, **options)]


def plain(row: Any) -> tuple[Any, ...]:
    return tuple(int(v) if isinstance(v, int | Decimal) else v for v in row)


def assert_changes(found: list[Change], expected: list[Change]) -> None:
    order = [(epoch, not undo) for undo, _, epoch, _ in found]
    assert order == sorted(order), "retractions first, by epoch"
    assert Counter(map(repr, found)) == Counter(map(repr, expected))


def assert_streams_of_scores(
    service: RunningService, place: Database, points: list[int], clocks: list[str]
) -> None:
    """The whole stream and parts of it, by every interface."""
    epochs = place.rows("SELECT DISTINCT from_epoch FROM scores_history ORDER BY 1")
    clock_of = dict(
        place.rows("SELECT epoch, committed_at FROM tidemark.history_epochs WHERE name = 'scores'")
    )
    expected = [
        (weight < 0, clock_of[epoch], epoch, (name, total, at))
        for (epoch,), changes in zip(epochs, STREAM, strict=True)
        for weight, name, total, at in sorted(changes)
    ]
    assert_streams(service, place, "scores", expected, since=points[0])
    assert_streams(service, place, "scores", expected[1:], since=points[1])
    assert_streams(service, place, "scores", expected[1:4], since=clocks[0], until=clocks[1])
    # The history begins with no rows, so the stream from its begin is all there was.
    assert_streams(service, place, "scores", expected)
    kept = [change for change in expected if not change[0]]
    assert_streams(service, place, "scores", kept, retractions=False)


def test_tables_and_streams_of_scores(service: RunningService, place: Database) -> None:
    """A relation over time, as tables, as a stream with undo, and as of a time."""
    service.create("scores", SCORES, backfill="local", history="1 hour")
    points = [call(service, "/views/scores/rows")["epoch"]]
    clocks = []
    for step in STEPS:
        with place.connect() as connection, connection.cursor() as cursor:
            for row in step:
                cursor.execute(
                    "INSERT INTO user_scores (name, score, time) VALUES (%s, %s, %s)", row
                )
            connection.commit()
        visible(service, place, "scores")
        points.append(call(service, "/views/scores/rows")["epoch"])
        clocks.append(place.rows("SELECT clock_timestamp()::text")[0][0])

    def table(point: object) -> list[tuple]:
        page = call(service, "/views/scores/rows", as_of=point)
        return [(r["name"], r["total"], r["time"]) for r in page["rows"]]

    # TABLE, at each of its versions; AS OF a time between them.
    assert [table(point) for point in points] == VERSIONS
    assert [table(clock) for clock in clocks] == VERSIONS[1:]
    # STREAM: each version less the one before, what it undoes first.
    for (begin, end), expected in zip(itertools.pairwise(points), STREAM, strict=True):
        page = call(service, "/views/scores/diff", **{"from": begin, "to": end})
        found = [
            (weight, row["name"], row["total"], row["time"])
            for row, weight in zip(page["rows"], page["weights"], strict=True)
        ]
        assert sorted(found) == sorted(expected)
    # The whole stream at once has only what is left of it.
    page = call(service, "/views/scores/diff", **{"from": points[0], "to": points[-1]})
    assert page["weights"] == [1, 1]
    # The same by SQL: each row with its period, which is the table over time.
    periods = place.rows(
        "SELECT name, total, time, from_epoch, to_epoch FROM scores_history ORDER BY 4, 1"
    )

    assert_streams_of_scores(service, place, points, clocks)

    def step(epoch: int | None) -> int | None:
        return None if epoch is None else bisect.bisect_left(points, epoch)

    assert [(n, int(t), m, step(f), step(e)) for n, t, m, f, e in periods] == [
        ("Julie", 7, "12:01", 1, 2),
        ("Frank", 3, "12:03", 2, None),
        ("Julie", 8, "12:03", 2, 3),
        ("Julie", 12, "12:07", 3, None),
    ]
    service.drop("scores")


def test_a_stream_adds_up_to_the_table(service: RunningService, place: Database) -> None:
    """From its begin on, keyed and multiset; live too; and by REST it ends where it shall."""
    draw = random.Random(11)
    with tidemark.connect(service.url) as client:
        streams = {view: client.view(view).stream(timeout_ms=20_000) for view in QUERIES}
        sums: dict[str, Counter[str]] = {view: Counter() for view in QUERIES}
        for _ in range(12):
            change(place, draw)
            for view in QUERIES:
                visible(service, place, view)
        newest = {view: newest_change(place, view) for view in QUERIES}
        for view, stream in streams.items():
            for found in stream:
                sums[view][repr(tuple(found.row))] += -1 if found.undo else 1
                assert sums[view][repr(tuple(found.row))] >= 0, "undone before it was there"
                if found.epoch == newest[view]:
                    break
            # The rest of the last epoch.
            for found in client.view(view).stream(str(newest[view] - 1), str(newest[view])):
                assert found.epoch == newest[view]
            rows = Counter(repr(tuple(row)) for row in client.view(view).rows(page_rows=1_000))
            whole = Counter[str]()
            for found in client.view(view).stream(until=str(newest[view])):
                whole[repr(tuple(found.row))] += -1 if found.undo else 1
            assert +whole == rows
            by_sql = place.rows(
                f"SELECT sum(CASE WHEN undo THEN -1 ELSE 1 END) FROM tidemark.stream(NULL::{view})"
            )
            assert by_sql == [(sum(rows.values()),)]


def newest_change(place: Database, view: str) -> int:
    return place.rows(f"SELECT max(epoch) FROM tidemark.stream(NULL::{view})")[0][0]


def test_a_stream_by_rest(service: RunningService, place: Database) -> None:
    async def read(query: str) -> list[tuple[str, dict[str, Any], str]]:
        async with asyncio.timeout(60):
            return [e async for e in events(service.url, "regions", query=query, path="stream")]

    newest = newest_change(place, "regions")
    found = asyncio.run(read(f"since={newest - 1}&until={newest}"))
    assert [name for name, _, _ in found][:2] == ["begin", "progress"]
    assert found[-1][:2] == ("end", {})
    name, marker, identity = found[-2]
    assert (name, marker["epoch"], identity) == ("progress", newest, str(newest))
    changes = [body for name, body, _ in found if name == "changes"]
    assert all(len(body["undo"]) == len(body["rows"]) for body in changes)
    assert {body["committed_at"] for body in changes} == {marker["committed_at"]}
    # A browser that lost its connection continues behind the newest marker.
    resumed = asyncio.run(read(f"since={newest}&until={newest}"))
    assert [name for name, _, _ in resumed] == ["begin", "progress", "end"]
    path = "/views/regions/stream"
    assert refusal(service, path, since="1999-01-01") == (410, "history.too_old")
    assert refusal(service, path, until="soon") == (400, "history.bad_point")
    assert refusal(service, path, since=newest, until=newest - 1) == (400, "history.bad_point")
    assert refusal(service, path, sinc=newest)[0] == 422
    assert refusal(service, "/views/missing/stream") == (404, "view.not_found")
    with pytest.raises(Exception, match="since"):
        place.rows(f"SELECT * FROM tidemark.stream(NULL::regions, '{newest}', '{newest - 1}')")
    with pytest.raises(Exception, match="no history that you may read"):
        place.rows("SELECT * FROM tidemark.stream(NULL::orders)")
    timed = "SELECT count(*) FROM tidemark.stream(NULL::regions, now() - interval '1 ms', now())"
    assert place.rows(timed) == [(0,)]


def fold_until(service: RunningService, view: str, fold: Fold, epoch: int, query: str) -> Fold:
    """Read changes until an epoch is complete."""

    async def read() -> None:
        async with asyncio.timeout(60):
            stream = events(service.url, view, query=query, token=fold.token)
            async with aclosing(stream) as found:
                async for name, body, _ in found:
                    assert name != "error", body
                    fold.take(name, body)
                    if fold.epoch >= epoch:
                        return

    asyncio.run(read())
    return fold


def as_fold(rows: Counter[str], epoch: int) -> Fold:
    return Fold(rows=Counter(rows), epoch=epoch)


@pytest.mark.whole
def test_a_named_reader_outlives_the_log(service: RunningService, place: Database) -> None:
    draw = random.Random(8)
    path = "/views/notes/subscriptions"
    answer = service.call("POST", path, {"name": "billing"})
    assert answer.status_code == 201, answer.text
    start = answer.json()["epoch"]
    assert (answer.json()["status"], answer.json()["created_by"]) == ("ready", "local")
    folded = as_fold(rows_at(service, "notes", start), start)
    for _ in range(20):
        change(place, draw)
        visible(service, place, "notes")
    # Longer than the log of changes retains anything.
    time.sleep(RETENTION_S + 2)
    change(place, draw)
    visible(service, place, "notes")
    newest = call(service, "/views/notes/rows")["epoch"]
    fold_until(service, "notes", folded, newest, "subscription=billing")
    assert folded.rows == rows_at(service, "notes", folded.epoch)
    assert folded.epochs > 10
    # Live from there on, and again after a lost connection; the API may be killed.
    folded.token = ""
    moved = f"{path}/billing/acknowledge"
    found = service.call("POST", moved, {"epoch": folded.epoch}).json()
    assert found["epoch"] == folded.epoch
    assert service.call("POST", moved, {"epoch": start}).json()["epoch"] == folded.epoch
    assert service.call("POST", moved, {"epoch": 10**9}).json()["code"] == "history.not_reached"
    assert service.kill_child("api")
    service.await_so(lambda: service.call("GET", path).status_code == 200)
    for _ in range(5):
        change(place, draw)
    visible(service, place, "notes")
    newest = call(service, "/views/notes/rows")["epoch"]
    fold_until(service, "notes", folded, newest, "subscription=billing")
    assert folded.rows == rows_at(service, "notes", folded.epoch)
    [listed] = call(service, path)["subscriptions"]
    assert (listed["name"], listed["view"], listed["status"]) == (
        "billing",
        "public.notes",
        "ready",
    )
    assert service.call("DELETE", f"{path}/billing").status_code == 204


def test_a_reader_beyond_the_history(service: RunningService, place: Database) -> None:
    """There is an error, not a gap."""
    path = "/views/notes/subscriptions"
    assert service.call("POST", path, {"name": "billing"}).status_code == 201
    draw = random.Random(9)
    for _ in range(5):
        change(place, draw)
    visible(service, place, "notes")
    newest = call(service, "/views/notes/rows")["epoch"]
    place.execute(
        "UPDATE tidemark.histories SET oldest_epoch = (SELECT max(epoch) FROM tidemark.epochs) "
        "WHERE name = 'notes'"
    )
    with pytest.raises(Refused) as caught:
        fold_until(service, "notes", as_fold(Counter(), 0), newest, "subscription=billing")
    assert (caught.value.status, caught.value.problem["code"]) == (410, "history.too_old")
    assert call(service, f"{path}/billing")["status"] == "expired"
    shown = "SELECT subscription, status FROM tidemark.subscription_status"
    assert place.rows(shown) == [("billing", "expired")]
    for body, code in (
        ({"name": "billing"}, "subscription.exists"),
        ({"name": "x", "start": "1999-01-01"}, "history.too_old"),
    ):
        assert service.call("POST", path, body).json()["code"] == code
    assert service.call("DELETE", f"{path}/billing").status_code == 204
    assert service.call("DELETE", f"{path}/billing").json()["code"] == "subscription.not_found"
    with pytest.raises(Refused) as caught:
        fold_until(service, "notes", as_fold(Counter(), 0), newest, "subscription=billing")
    assert caught.value.status == 404
