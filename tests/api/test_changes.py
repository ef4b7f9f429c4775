"""Oracle: the view's own rows in the sink: whoever folds snapshot and changes mark by mark has
exactly them, whatever was cut, killed or restarted between; and docs/SUBSCRIPTIONS.md for ends."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing

import psycopg2
import pytest
import websockets

from tests.harness.change_stream import Event, Fold, Refused, events, lsn, socket_events, until
from tests.harness.postgres import Database
from tests.harness.service import RunningService

READERS = 100
LOAD_S = 6.0
# The service has 5 s; a busy machine needs some to notice.
STOPPED_S = 10.0
# What a WebSocket may be closed with then (RFC 6455 and IANA's registry).
GOING_AWAY, RESTARTS = 1001, 1012
TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, region text NOT NULL, amount numeric(12,2), note text);
CREATE TABLE wide (id int PRIMARY KEY, v text NOT NULL);
INSERT INTO orders SELECT i, 'r' || i % 7, i, CASE WHEN i % 3 > 0 THEN E'n\\n"' || i % 5 END
    FROM generate_series(1, 300) i;
"""
KEYED = "SELECT region, count(*) AS n, sum(amount) AS total FROM orders GROUP BY region"
BEGIN = {
    "view": "public.regions",
    "fields": [
        {"name": "region", "type": "text", "nullable": False},
        {"name": "n", "type": "bigint", "nullable": False},
        {"name": "total", "type": "numeric", "nullable": True},
    ],
    "key": ["region"],
}
BAG = "SELECT region, note, id > 150 AS late FROM orders"


@pytest.fixture(scope="module")
def service(place: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    folder = tmp_path_factory.mktemp("changes")
    with RunningService(place.dsn, folder, changes_timeout_s=4) as running:
        running.create("regions", KEYED, backfill="local")
        running.create("notes", BAG, backfill="local")
        yield running


def position_of(place: Database) -> int:
    return lsn(place.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0])


def rows_of(place: Database, view: str) -> Counter[str]:
    """The view's rows as JSON: PostgreSQL's own, with what JSON would round as text."""
    shown = {
        "regions": "region, n, total::text AS total",
        "notes": "region, note, late",
        "lines": "id, v",
    }
    sql = f"SELECT row_to_json(t) FROM (SELECT {shown[view]} FROM {view}) t"
    return Counter(json.dumps(row, sort_keys=True) for (row,) in place.rows(sql))


class Load(threading.Thread):
    """Inserts, updates and deletes, some of them many rows, until it is stopped."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._session = psycopg2.connect(dsn)
        self._stopping = threading.Event()
        self.transactions = 0

    def run(self) -> None:
        pick = random.Random(5)
        while not self._stopping.is_set():
            with self._session, self._session.cursor() as cursor:
                key = pick.randrange(1, 400)
                match pick.randrange(5):
                    case 0:
                        values = (key, f"r{key % 9}", pick.randrange(1000))
                        insert = "INSERT INTO orders VALUES (%s, %s, %s) ON CONFLICT DO NOTHING"
                        cursor.execute(insert, values)
                    case 1:
                        cursor.execute("DELETE FROM orders WHERE id = %s", (key,))
                    case 2:
                        cursor.execute(
                            "UPDATE orders SET amount = amount + 1 WHERE id < %s", (key,)
                        )
                    case _:
                        region = f"r{pick.randrange(9)}"
                        sql = "UPDATE orders SET region = %s, note = NULL WHERE id = %s"
                        cursor.execute(sql, (region, key))
            self.transactions += 1
            time.sleep(0.005)

    def stop(self) -> None:
        self._stopping.set()
        self.join()
        self._session.close()


async def _read_in_pieces(stream: AsyncIterator[Event], fold: Fold, pick: random.Random) -> None:
    """Take some events and hang up, wherever that is."""
    left = pick.randrange(1, 80)
    async with aclosing(stream) as open_stream:
        async for name, body, _ in open_stream:
            assert name != "error" or body["status"] == 503, body
            fold.take(name, body)
            left -= 1
            if not left:
                return


async def _follow(service: RunningService, number: int, until_at: float) -> tuple[str, Fold]:
    pick, fold = random.Random(number), Fold()
    view = "notes" if number % 3 == 0 else "regions"
    # A busy machine may tell few epochs in that time.
    while (now := time.monotonic()) < until_at or (fold.epochs < 7 and now < until_at + 90):
        try:
            if number % 4 == 0:
                stream = socket_events(service.url, view, token=fold.token)
            else:
                is_header = number % 2 == 0
                stream = events(service.url, view, token=fold.token, header=is_header)
            await _read_in_pieces(stream, fold, pick)
        except (OSError, EOFError, websockets.WebSocketException):
            await asyncio.sleep(0.05)  # the API is being started again
        fold.lose()
        await asyncio.sleep(pick.random() * 0.3)
    return view, fold


async def _finish(service: RunningService, view: str, fold: Fold, position: int) -> None:
    fold.lose()
    stream = events(service.url, view, token=fold.token)
    try:
        # The service has just begun again, and all readers come at once.
        await until(fold, stream, position, timeout_s=200)
    except TimeoutError as error:
        shown = f"epoch {fold.epoch}, {fold.position} of {position}"
        raise AssertionError(f"{shown}: {service.log_tail()}") from error


@pytest.mark.whole
@pytest.mark.timeout(300)
def test_a_hundred_readers_under_fire_each_have_the_view(
    service: RunningService, place: Database
) -> None:
    async def follow() -> list[tuple[str, Fold]]:
        until_at = time.monotonic() + LOAD_S
        readers = [asyncio.create_task(_follow(service, n, until_at)) for n in range(READERS)]
        for name in ("pipeline", "api"):
            await asyncio.sleep(LOAD_S / 4)
            await asyncio.to_thread(service.kill_child, name)
        return await asyncio.gather(*readers)

    async def finish(found: list[tuple[str, Fold]], position: int) -> None:
        await asyncio.gather(*(_finish(service, v, fold, position) for v, fold in found))

    load = Load(place.dsn)
    load.start()
    try:
        found = asyncio.run(follow())
    finally:
        load.stop()
    service.call("GET", "/health")
    position = position_of(place)
    asyncio.run(finish(found, position))
    for view in ("regions", "notes"):
        wanted = rows_of(place, view)
        for name, fold in found:
            assert name != view or fold.rows == wanted
    assert load.transactions > 50
    assert sum(fold.epochs for _, fold in found) > 5 * READERS


def test_changes_only_begin_with_a_mark(service: RunningService, place: Database) -> None:
    async def read() -> list[Event]:
        found = []
        stream = events(service.url, "regions", query="snapshot=false&heartbeat_s=0.2")
        async with asyncio.timeout(30), aclosing(stream) as open_stream:
            async for event in open_stream:
                if event[0] == "heartbeat" and len(found) == 1:
                    # The rows' session takes longer than a heartbeat to open.
                    continue
                found.append(event)
                if event[0] == "progress" and len(found) == 2:
                    place.execute("INSERT INTO orders VALUES (1000, 'new', 0.50, '')")
                if {"changes", "heartbeat"} <= {name for name, _, _ in found}:
                    return found
        raise AssertionError("the stream has ended")

    found = asyncio.run(read())
    assert found[0][:2] == ("begin", BEGIN)
    del found[0]
    assert found[0][0] == "progress" and found[0][1]["resume"] == found[0][2]
    changes = [body for name, body, _ in found if name == "changes"]
    assert changes[0]["rows"] == [{"region": "new", "n": 1, "total": "0.50"}]
    assert changes[0]["weights"] == [1] and changes[0]["epoch"] > found[0][1]["epoch"]
    assert ("heartbeat", {}, "") in found


def _refusal(service: RunningService, view: str, **options: str) -> tuple[int, str]:
    async def read() -> None:
        async for _ in events(service.url, view, **options):
            raise AssertionError("it was not refused")

    with pytest.raises(Refused) as found:
        asyncio.run(read())
    return found.value.status, found.value.problem["code"]


def _socket_refusal(service: RunningService, view: str, token: str = "") -> tuple[int, str]:
    async def read() -> tuple[int, str]:
        try:
            async for name, body, _ in socket_events(service.url, view, token=token):
                assert name == "error", body
                code = body["code"]
        except websockets.ConnectionClosedError as error:
            assert error.rcvd is not None and error.rcvd.reason == code
            return error.rcvd.code, code
        raise AssertionError("it was not closed with an error")

    return asyncio.run(read())


def test_refusals_come_before_the_stream(service: RunningService) -> None:
    unknown = "0" * 16 + ".7"
    assert _refusal(service, "nosuch") == (404, "view.not_found")
    assert _refusal(service, "regions", token="x") == (400, "changes.bad_token")
    assert _refusal(service, "regions", token=unknown) == (410, "changes.expired")
    assert _refusal(service, "regions", query="heartbeat_s=0") == (422, "request.invalid")
    assert _socket_refusal(service, "nosuch") == (4404, "view.not_found")
    assert _socket_refusal(service, "regions", unknown) == (4410, "changes.expired")


def test_after_the_retention_a_token_is_refused(service: RunningService, place: Database) -> None:
    """The view's changes are kept without readers, by its option, but for one second."""
    query = "SELECT id, amount FROM orders"
    body = {"name": "brief", "query": query, "options": {"changes_retention_s": 1}}
    service.call("POST", "/views?wait_s=60", body)

    async def token() -> str:
        fold = Fold()
        await until(fold, events(service.url, "brief"), 0)
        return fold.token

    async def resume(token: str) -> None:
        """Open a stream behind the same mark as before, which only grows older."""
        stream = events(service.url, "brief", token=token)
        async with asyncio.timeout(10), aclosing(stream) as open_stream:
            await anext(open_stream)

    first = asyncio.run(token())
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        place.execute("UPDATE orders SET amount = amount + 1 WHERE id = 1")
        time.sleep(0.2)
        try:
            asyncio.run(resume(first))
        except Refused as error:
            assert (error.status, error.problem["code"]) == (410, "changes.expired")
            assert error.problem["hint"]
            break
    else:
        raise AssertionError("nothing has expired")
    service.drop("brief")


@pytest.mark.whole
def test_who_takes_nothing_is_let_go_with_a_code(service: RunningService, place: Database) -> None:
    service.create("lines", "SELECT id, v FROM wide", backfill="local")

    async def read() -> tuple[str, Fold]:
        slow, quick = Fold(), Fold()
        stream = events(service.url, "lines", buffer=4096)
        async with asyncio.timeout(60):
            assert (await anext(stream))[0] == "begin"
            assert (await anext(stream))[0] == "snapshot"
            fill = (
                "INSERT INTO wide SELECT i, repeat(md5(i::text), 40) FROM generate_series(1, %s) i"
            )
            await asyncio.to_thread(place.execute, fill, (12_000,))
            await until(quick, events(service.url, "lines"), position_of(place))
            # More than the sockets hold waits for it; it wakes up after the time limit.
            while "changes.too_slow" not in service.log_tail():
                await asyncio.sleep(0.05)
            async for name, body, _ in stream:
                if name == "error":
                    return body["code"], quick
                slow.take(name, body)
        raise AssertionError("it was not let go")

    code, quick = asyncio.run(read())
    assert code == "changes.too_slow"
    assert quick.rows == rows_of(place, "lines")
    service.drop("lines")


@pytest.mark.parametrize(
    ("ends", "code"),
    [("drop", "changes.view_dropped"), ("fail", "changes.view_failed")],
)
def test_a_view_that_ends_says_so(
    service: RunningService, place: Database, ends: str, code: str
) -> None:
    place.execute(
        "CREATE TABLE passing (id int PRIMARY KEY, v int); INSERT INTO passing VALUES (1)"
    )
    service.create("passing_by", "SELECT id, v FROM passing", backfill="local")

    async def read() -> list[Event]:
        found = []
        async with asyncio.timeout(60):
            async for event in events(service.url, "passing_by"):
                found.append(event)
                if event[0] == "progress" and len(found) == 3:
                    if ends == "drop":
                        await asyncio.to_thread(service.drop, "passing_by")
                    else:
                        await asyncio.to_thread(
                            place.execute,
                            "ALTER TABLE passing DROP COLUMN v; INSERT INTO passing VALUES (2)",
                        )
        return found

    name, problem, _ = asyncio.run(read())[-1]
    assert (name, problem["code"]) == ("error", code)
    assert _refusal(service, "passing_by")[1] in ("view.not_found", "view.not_live")
    if ends == "fail":
        service.drop("passing_by")
    place.execute("DROP TABLE passing")


async def _until_the_end(stream: AsyncIterator[Event], fold: Fold) -> int:
    """Fold until the stream ends by itself; with which code, 0 for one that has none."""
    try:
        async for name, body, _ in stream:
            assert name != "error", body
            fold.take(name, body)
    except websockets.ConnectionClosed as closed:
        assert closed.rcvd is not None
        return closed.rcvd.code
    return 0


def test_a_service_that_stops_ends_its_streams_and_readers_continue(
    service: RunningService, place: Database
) -> None:
    """In 5 s, with a load: each has whole epochs, and by its token what came meanwhile."""
    folds = [Fold() for _ in range(20)]

    async def read() -> tuple[list[int], float]:
        tasks = []
        for number, fold in enumerate(folds):
            way = socket_events if number % 2 else events
            stream = way(service.url, "regions")
            tasks.append(asyncio.create_task(_until_the_end(stream, fold)))
        async with asyncio.timeout(60):
            while not all(fold.epochs > 2 for fold in folds):
                await asyncio.sleep(0.05)
        began = time.monotonic()
        assert await asyncio.to_thread(service.stop) == 0
        elapsed = time.monotonic() - began
        return await asyncio.gather(*tasks), elapsed

    load = Load(place.dsn)
    load.start()
    try:
        ends, elapsed = asyncio.run(read())
    finally:
        load.stop()
    assert elapsed < STOPPED_S, service.log_tail()
    assert ends[::2] == [0] * 10
    assert set(ends[1::2]) <= {GOING_AWAY, RESTARTS}
    place.execute("UPDATE orders SET amount = amount + 7 WHERE id < 50")
    service.start()
    position = position_of(place)

    async def finish() -> None:
        await asyncio.gather(*(_finish(service, "regions", fold, position) for fold in folds))

    asyncio.run(finish())
    wanted = rows_of(place, "regions")
    assert all(fold.rows == wanted for fold in folds)
