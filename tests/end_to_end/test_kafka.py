"""Oracle: what was produced, summed up by Python; a count and a sum that name their prefix."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import pytest

from connectors.kafka.embedded import EmbeddedKafka
from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.connectors.kafka.test_debezium import options_of
from tests.connectors.kafka.test_transactions import Shop
from tests.harness.broker import (
    drop_topic,
    new_topic,
    producer_of,
    send,
    topic_names,
    unique_name,
)
from tests.harness.change_stream import events
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService
from tests.harness.sinks import add_sink, await_sink, sink_of
from tests.harness.tiers import is_fast
from tests.harness.topic_reader import TopicReader, canonical
from tests.harness.waiting import wait_until

TIMEOUT_S = 60.0
KILLS = 4


@pytest.fixture(scope="module")
def place(postgres: EmbeddedPostgres) -> Iterator[Database]:
    with new_database(postgres) as made:
        yield made


@pytest.fixture(scope="module")
def running(place: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(place.dsn, tmp_path_factory.mktemp("kafka")) as started:
        yield started


@pytest.fixture
def database(place: Database) -> Database:
    """The module's, with the table of before."""
    place.execute("DROP TABLE IF EXISTS users")
    place.execute("CREATE TABLE users (id integer PRIMARY KEY, region text NOT NULL)")
    place.execute("INSERT INTO users SELECT n, 'r' || n % 3 FROM generate_series(0, 9) n")
    return place


@pytest.fixture
def service(database: Database, running: RunningService) -> Iterator[RunningService]:
    """The module's, with no view and no source."""
    yield running
    running.clear()


def _declare(
    service: RunningService,
    broker: EmbeddedKafka,
    topics: dict[str, Any],
    name: str = "shop",
    **more: Any,
) -> None:
    options = {"bootstrap_servers": broker.bootstrap, "check_ms": 100, "topics": topics, **more}
    body = {"name": name, "type": "kafka", "options": options}
    answer = service.call("POST", "/sources", body)
    assert answer.status_code == 201, answer.text


def _clicks(topic: str) -> dict[str, Any]:
    # In an order that is no other one: not by name, nor by length.
    columns = {"person": "int4", "n": "int8", "_partition": "int4", "_offset": "int8"}
    return {"topic": topic, "format": "json", "columns": columns}


def _await(is_done: Callable[[], object], service: RunningService) -> None:
    service.await_so(is_done, TIMEOUT_S)


def _click(n: int) -> bytes:
    return json.dumps({"n": n, "person": n % 10}).encode()


def test_topics_joined_with_a_table(
    broker: EmbeddedKafka, service: RunningService, database: Database
) -> None:
    """Records before and after the views' creation, rows of the table before and after; an
    upsert topic of prices beside them."""
    clicks, prices = new_topic(broker, partitions=3), new_topic(broker, partitions=2)
    send(broker, clicks, [(n % 3, None, _click(n)) for n in range(300)])
    send(broker, prices, [(k % 2, b"%d" % k, b'{"price": 1}') for k in range(4)])
    columns = [
        {"name": "id", "type": "int8", "in": "key", "path": "$"},
        {"name": "price", "type": "numeric(10,2)"},
    ]
    upsert = {"mode": "upsert", "key": ["id"], "key_format": "json", "columns": columns}
    _declare(
        service,
        broker,
        {"clicks": _clicks(clicks), "prices": {"topic": prices, "format": "json", **upsert}},
    )
    query = (
        "SELECT u.region, count(*) AS clicks, sum(c.n * p.price) AS total FROM shop.clicks c "
        "JOIN users u ON u.id = c.person JOIN shop.prices p ON p.id = c.n % 4 GROUP BY u.region"
    )
    service.create("totals", query, backfill="local")
    regions, price, sent = {n: f"r{n % 3}" for n in range(10)}, dict.fromkeys(range(4), 1), 300

    def is_equal() -> bool:
        found = database.rows("SELECT region, clicks, total::int FROM totals ORDER BY 1")
        expected: dict[str, list[int]] = {}
        for n in range(sent):
            if n % 4 in price:
                counts = expected.setdefault(regions[n % 10], [0, 0])
                counts[0] += 1
                counts[1] += n * price[n % 4]
        return found == [(r, *c) for r, c in sorted(expected.items())]

    _await(is_equal, service)
    send(broker, clicks, [(n % 3, None, _click(n)) for n in range(300, 500)])
    sent = 500
    _await(is_equal, service)
    database.execute("UPDATE users SET region = 'moved' WHERE id < 5")
    regions.update(dict.fromkeys(range(5), "moved"))
    send(broker, prices, [(1, b"1", b'{"price": 7}'), (0, b"2", None)])
    price = {0: 1, 1: 7, 3: 1}
    _await(is_equal, service)
    service.kill_child("pipeline")
    send(broker, prices, [(0, b"2", b'{"price": 3}')])
    price[2] = 3
    _await(is_equal, service)
    service.create("recent", "SELECT max(n) AS newest FROM shop.clicks", backfill="local")
    assert database.rows("SELECT newest FROM recent") == [(499,)]
    facts = service.call("GET", "/views/totals").json()
    assert set(facts["positions"]) == {"source", "shop"}


@pytest.mark.whole
def test_kills_lose_and_double_nothing(
    broker: EmbeddedKafka, service: RunningService, database: Database
) -> None:
    """One partition is written to all the while: each state that is seen is a prefix of it."""
    topic = new_topic(broker)
    send(broker, topic, [(0, None, _click(0))])
    _declare(service, broker, {"clicks": _clicks(topic)})
    query = "SELECT 1 AS one, count(*) AS n, max(n) AS newest, sum(n) AS total FROM shop.clicks"
    service.create("prefix", query, backfill="local")
    is_over, random, sent = threading.Event(), Random(7), 1

    def write() -> None:
        nonlocal sent
        with producer_of(broker, linger_ms=2) as producer:
            while not is_over.is_set():
                for _ in range(50):
                    producer.send(topic, partition=0, value=_click(sent))
                    sent += 1
                producer.flush(timeout=30)
                is_over.wait(0.02)

    def check() -> int:
        ((count, newest, total),) = database.rows("SELECT n, newest, total::int FROM prefix")
        assert (newest, total) == (count - 1, count * (count - 1) // 2)
        return count

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(KILLS):
            reached = check()
            _await(lambda seen=reached: check() > seen, service)
            time.sleep(random.uniform(0, 0.4))
            assert service.kill_child("pipeline")
    finally:
        is_over.set()
        writer.join()
    _await(lambda: check() == sent, service)


@pytest.mark.whole
def test_a_broker_that_is_away_holds_up_nobody_else(
    own_broker: EmbeddedKafka, service: RunningService, database: Database
) -> None:
    topic = new_topic(own_broker)
    send(own_broker, topic, [(0, None, _click(1))])
    _declare(service, own_broker, {"clicks": _clicks(topic)})
    service.create("clicks", "SELECT count(*) AS n FROM shop.clicks", backfill="local")
    service.create("people", "SELECT count(*) AS n FROM users", backfill="local")
    own_broker.kill()
    database.execute("INSERT INTO users VALUES (10, 'new')")
    _await(lambda: database.rows("SELECT n FROM people") == [(11,)], service)
    _await(lambda: service.call("GET", "/sources/shop").json()["status"] == "retrying", service)
    own_broker.restart()
    send(own_broker, topic, [(0, None, _click(2))])
    _await(lambda: database.rows("SELECT n FROM clicks") == [(2,)], service)
    _await(lambda: service.call("GET", "/sources/shop").json()["status"] == "running", service)


def test_a_poison_record_stops_its_source_until_it_may_be_left_out(
    broker: EmbeddedKafka, service: RunningService, database: Database
) -> None:
    topic = new_topic(broker)
    send(broker, topic, [(0, None, _click(1))])
    _declare(service, broker, {"clicks": _clicks(topic)})
    service.create("clicks", "SELECT count(*) AS n FROM shop.clicks", backfill="local")
    send(broker, topic, [(0, None, b"poison"), (0, None, _click(2))])
    _await(lambda: service.call("GET", "/sources/shop").json()["status"] == "stopped", service)
    shown = service.call("GET", "/sources/shop").json()
    assert shown["error"]["code"] == "source.bad_record"
    assert database.rows("SELECT n FROM clicks") == [(1,)]
    topics = {"clicks": {**_clicks(topic), "on_error": "dead_letter"}}
    options = {"bootstrap_servers": broker.bootstrap, "check_ms": 100, "topics": topics}
    changed = service.call("PUT", "/sources/shop", {"options": options})
    assert changed.status_code == 200, changed.text
    _await(lambda: database.rows("SELECT n FROM clicks") == [(2,)], service)
    (letter,) = service.call("GET", "/dead-letters?source=shop").json()["dead_letters"]
    assert (letter["position"], letter["value"]) == ("0:1", "poison")


@pytest.mark.whole
def test_a_join_of_two_topics_never_shows_half_a_transaction(
    broker: EmbeddedKafka, service: RunningService, database: Database
) -> None:
    """Each transaction has an order and two items of its name, in three partitions; kills amid."""
    shop = Shop(broker)
    shop.whole("t0", 0)
    topics = {one: options_of(shop.topics[one]) for one in ("orders", "items")}
    _declare(service, broker, topics, transactions=shop.marks, transaction_wait_s=3)
    service.create("people", "SELECT region, count(*) AS n FROM users GROUP BY region")
    query = (
        "SELECT coalesce(o.name, i.name) AS name, count(DISTINCT o.id) AS o, count(i.id) AS i "
        "FROM shop.orders o FULL JOIN shop.items i ON i.name = o.name "
        "GROUP BY coalesce(o.name, i.name)"
    )
    service.create("bought", query, backfill="local")

    def shown() -> set[str]:
        rows = database.rows("SELECT name, o, i FROM bought WHERE name LIKE 't%'")
        assert all(counts == [1, 2] for _, *counts in rows), rows
        return {name for name, *_ in rows}

    beside = "SELECT o FROM bought WHERE name = 'alone'"
    for number in range(1, 4):
        id, row = f"t{number}", number * 10
        shop.begin(id)
        shop.put("orders", id, 1, row)
        shop.put("items", id, 2, row, 1)
        shop.put("items", None, 0, 100 + number, 1)
        shop.put("orders", None, 0, 100 + number, 1)
        _await(lambda n=number: shown() and database.rows(beside) == [(n,)], service)
        if number % 2:
            service.kill_child("pipeline")
        shop.put("items", id, 3, row + 1)
        shop.end(id, orders=1, items=2)
        _await(lambda id=id: id in shown(), service)
    assert shown() == {f"t{n}" for n in range(4)}
    _hold_back(shop, service, shown)
    # A transaction topic that is not the one that was read stops the source; all begin again.
    drop_topic(broker, shop.marks)
    wait_until(lambda: shop.marks not in topic_names(broker))
    new_topic(broker, name=shop.marks)
    _await(lambda: service.call("GET", "/sources/shop").json()["status"] == "stopped", service)
    shop.whole("t9", 90)
    for change, status in (("pause", "paused"), ("resume", "live")):
        answer = service.call("POST", f"/views/bought/{change}?wait_s=60")
        assert answer.status_code == 200, answer.text
        service.await_status("bought", status)
    _await(lambda: "t9" in shown(), service)
    shop.whole("t10", 100)
    _await(lambda: "t10" in shown(), service)


def _hold_back(shop: Shop, service: RunningService, shown: Callable[[], set[str]]) -> None:
    """A transaction without its END is an error by name, until the END is there."""

    def problems() -> set[str | None]:
        answers = [service.call("GET", path).json() for path in ("/sources/shop", "/views/bought")]
        return {(one["error"] or {}).get("code") for one in answers}

    shop.begin("t4")
    shop.put("orders", "t4", 1, 40)
    shop.put("items", "t4", 2, 40)
    shop.put("items", "t4", 3, 41)
    _await(lambda: problems() == {"source.transaction_incomplete"}, service)
    assert service.call("GET", "/sources/shop").json()["status"] == "stopped"
    assert service.call("GET", "/views/bought").json()["status"] == "degraded"
    assert service.call("GET", "/views/people").json()["status"] == "live"
    assert "t4" not in shown()
    shop.end("t4", orders=1, items=2)
    _await(lambda: "t4" in shown() and problems() == {None}, service)


def test_a_relation_is_read_from_another_start(
    broker: EmbeddedKafka, service: RunningService, database: Database
) -> None:
    """Each start a user can choose; readers in two groups, one with a reader of its own."""
    topic = new_topic(broker, partitions=1)
    send(broker, topic, [(0, None, _click(n)) for n in range(6)])
    # A name of its own: figures of an earlier source are shown for a second.
    _declare(service, broker, {"clicks": _clicks(topic)}, "again")
    service.create("numbers", "SELECT n FROM again.clicks", backfill="local")
    service.create("largest", "SELECT max(n) AS n FROM numbers", backfill="local")
    service.create("counted", "SELECT count(*) AS c FROM again.clicks", group="own")

    def shows(*numbers: int) -> bool:
        found = database.rows("SELECT n FROM numbers ORDER BY 1")
        others = database.rows("SELECT c, (SELECT n FROM largest) FROM counted")
        expected = [(len(numbers), max(numbers, default=None))]
        return found == [(n,) for n in numbers] and others == expected

    def reset(start: Any) -> None:
        body = {"relation": "clicks", "start": start}
        answer = service.call("POST", "/sources/again/reset?wait_s=60", body)
        assert answer.status_code == 200, answer.text
        assert answer.json() == {"views": ["public.counted", "public.numbers"], "waits_for": []}

    _await(lambda: shows(*range(6)), service)
    reset("latest")
    _await(lambda: shows(), service)
    send(broker, topic, [(0, None, _click(n)) for n in (6, 7)])
    _await(lambda: shows(6, 7), service)
    if not is_fast():
        reset({"offsets": {"0": 3}})
        _await(lambda: shows(*range(3, 8)), service)
    # The call ends before its readers are paused: repeated, it goes on.
    body = {"relation": "clicks", "start": "earliest"}
    answer = service.call("POST", "/sources/again/reset?wait_s=0", body)
    assert answer.status_code == 202 and answer.json()["waits_for"], answer.text
    if not is_fast():
        service.kill()
        service.start()
    reset("earliest")
    _await(lambda: shows(*range(8)), service)
    for relation, start, code in (
        ("clicks", "yesterday", "source.bad_option"),
        ("nothing", "earliest", "source.no_relation"),
    ):
        answer = service.call(
            "POST", "/sources/again/reset", {"relation": relation, "start": start}
        )
        assert answer.json()["code"] == code, answer.text
    send(broker, topic, [(0, None, _click(8))])
    _await(lambda: shows(*range(9)), service)


def test_additional_sinks_go_along_when_a_relation_is_read_from_another_start(
    broker: EmbeddedKafka, service: RunningService, database: Database
) -> None:
    """They get the difference as changes, in two groups, of views on views, through a kill while
    the views are paused; what would write closed windows again is refused by name."""
    topic = new_topic(broker, partitions=1)
    send(broker, topic, [(0, None, _click(n)) for n in range(20)])
    columns = {**_clicks(topic)["columns"], "_timestamp": "timestamptz"}
    _declare(service, broker, {"clicks": {**_clicks(topic), "columns": columns}}, "again")
    queries = {
        "numbers": "SELECT n, person FROM again.clicks",
        "people": "SELECT person, count(*) AS c FROM numbers GROUP BY person",
        "counted": "SELECT person % 3 AS p, sum(n)::int8 AS s FROM again.clicks GROUP BY 1",
    }
    for view, query in queries.items():
        service.create(
            view, query, backfill="local", group="own" if view == "counted" else "default"
        )
    readers = {}
    for view in queries:
        add_sink(service, view, bootstrap_servers=broker.bootstrap, topic=unique_name(view))
        own = sink_of(service, view)["options"]["topic"]
        readers[view] = TopicReader(broker, own)

    def agree(first: int, last: int) -> None:
        numbers = [(n, n % 10) for n in range(first, last)]
        _await(lambda: _shown(database, "numbers", "n, person") == numbers, service)
        for view, reader in readers.items():
            _await(partial(_is_told, reader, database, view), service)
            await_sink(service, view, status="live", error=None)

    def reset(start: Any, wait_s: int) -> tuple[int, dict[str, Any]]:
        body = {"relation": "clicks", "start": start}
        answer = service.call("POST", f"/sources/again/reset?wait_s={wait_s}", body)
        return answer.status_code, answer.json()

    agree(0, 20)
    assert reset({"offsets": {"0": 5}}, 60)[0] == 200
    agree(5, 20)
    if not is_fast():
        status, answer = reset({"offsets": {"0": 2}}, 0)
        assert status == 202 and answer["waits_for"], answer
        for view in queries:
            service.await_status(view, "paused")
            _await(partial(_awaits_its_view, service, view), service)
        send(broker, topic, [(0, None, _click(20))])
        service.kill()
        service.start()
        assert reset({"offsets": {"0": 2}}, 60)[0] == 200
        agree(2, 21)
        send(broker, topic, [(0, None, _click(21))])
        agree(2, 22)
    _refuse_final_rows(broker, service)


def _refuse_final_rows(broker: EmbeddedKafka, service: RunningService) -> None:
    query = "SELECT date_bin('1 minute', _timestamp, 'epoch') AS minute, count(*) AS c"
    options = {"lateness": {"again.clicks._timestamp": "1 second"}, "emit": "final"}
    options |= {"window": {"minute": "1 minute"}}
    service.create("minutes", f"{query} FROM again.clicks GROUP BY 1", **options)
    add_sink(service, "minutes", bootstrap_servers=broker.bootstrap, topic=unique_name("minutes"))
    body = {"relation": "clicks", "start": "earliest"}
    refused = service.call("POST", "/sources/again/reset?wait_s=60", body).json()
    assert refused["code"] == "view.has_sinks" and "minutes" in refused["title"], refused
    assert "closed windows" in refused["detail"] and "events" in refused["detail"], refused
    assert {v["status"] for v in service.call("GET", "/views").json()["views"]} == {"live"}


def _shown(database: Database, view: str, columns: str) -> list[Any]:
    return database.rows(f"SELECT {columns} FROM {view} ORDER BY 1")


def _awaits_its_view(service: RunningService, view: str) -> bool:
    sink = sink_of(service, view)
    return sink["status"] == "live" and (sink["error"] or {}).get("code") == "view.paused"


def _is_told(reader: TopicReader, database: Database, view: str) -> bool:
    """Whether a topic's rows are those of the view's table."""
    for _ in reader.epochs(until=lambda: True):
        pass
    rows = database.rows(f"SELECT to_jsonb(v) FROM {view} v")
    return reader.rows() == Counter(canonical(row) for (row,) in rows)


def test_sinks_and_subscribers_get_the_positions_of_what_their_view_reads(
    broker: EmbeddedKafka, service: RunningService, database: Database
) -> None:
    """Of one of several sources, through a view, with a table; also after a restart."""
    topics = {name: new_topic(broker, partitions=1) for name in ("a", "b", "c")}
    for topic in topics.values():
        send(broker, topic, [(0, None, _click(1))])
    _declare(service, broker, {n: _clicks(topics[n]) for n in "ab"}, "one")
    _declare(service, broker, {"c": _clicks(topics["c"])}, "two")
    expected: dict[str, dict[str, set[str]]] = {
        "own": {"one": {"a"}},
        "above": {"one": {"a"}},
        "joined": {"one": {"a"}, "source": set()},
        "rest": {"one": {"b"}, "two": {"c"}},
    }
    service.create("own", "SELECT n FROM one.a", backfill="local")
    service.create("above", "SELECT max(n) AS n FROM own", backfill="local")
    query = "SELECT u.region, a.n FROM one.a a JOIN users u ON u.id = a.person"
    service.create("joined", query, backfill="local")
    query = "SELECT b.n, c.n AS m FROM one.b b JOIN two.c c ON b.n = c.n"
    service.create("rest", query, backfill="local")
    copies = {view: unique_name(view) for view in expected}
    for view, topic in copies.items():
        add_sink(service, view, "copy", bootstrap_servers=broker.bootstrap, topic=topic)

    def told(positions: dict[str, Any]) -> dict[str, set[str]]:
        return {
            source: set(found) if isinstance(found, dict) else set()
            for source, found in positions.items()
        }

    def agree(number: int) -> None:
        for topic in topics.values():
            send(broker, topic, [(0, None, _click(number))])
        for view, topic in copies.items():
            reader = TopicReader(broker, topic)
            for epoch in reader.epochs(until=partial(_has_number, reader, number)):
                assert told(epoch.position) == expected[view], view
            reader.close()

    agree(11)
    service.kill_child("pipeline")
    agree(21)
    for view, positions in expected.items():
        assert told(asyncio.run(_first_positions(service, view))) == positions, view
        shown = service.call("GET", f"/views/{view}/sinks/copy").json()["positions"]
        assert told(shown) == positions, view


def _has_number(reader: TopicReader, number: int) -> bool:
    return any(str(number) in row for row in reader.rows())


async def _first_positions(service: RunningService, view: str) -> dict[str, Any]:
    async for name, body, _ in events(service.url, view):
        if name == "progress":
            return body["positions"]
    raise AssertionError("the stream has ended")
