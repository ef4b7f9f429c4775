"""Oracle: PostgreSQL's own answer to the view's query; an independent reader of its topics holds
the same rows at the last epoch of the view's table."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from connectors.kafka.embedded import EmbeddedKafka
from service.metrics.metrics import read_metrics
from tests.harness.broker import drop_topic, topic_names, unique_name
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.sinks import add_sink, await_sink, drop_sink, sink_of
from tests.harness.topic_reader import TopicReader, canonical
from tests.harness.waiting import wait_until

ORDERS = """
CREATE TABLE orders (id int PRIMARY KEY, region text NOT NULL, amount numeric(12,2), note text);
INSERT INTO orders SELECT i, 'r' || i % 7, i / 4.0, CASE WHEN i % 3 = 0 THEN 'x' END
FROM generate_series(1, 500) i;
"""
KEYED = "SELECT region, count(*) AS n, sum(amount) AS total FROM orders GROUP BY region"
BAG = "SELECT region, amount, note FROM orders WHERE id % 2 = 0"


def change(database: Database, step: int) -> None:
    database.execute("UPDATE orders SET amount = amount + 1 WHERE id %% 10 = %s", (step % 10,))
    database.execute("DELETE FROM orders WHERE id = %s", (step * 7,))
    database.execute("UPDATE orders SET region = 'new' WHERE id = %s", (step * 11,))


def position_of(database: Database) -> str:
    return database.rows("SELECT pg_current_wal_flush_lsn()::text")[0][0]


def answer(database: Database, query: str) -> Counter[str]:
    """PostgreSQL's rows as the topic writes them: numerics are texts."""
    sql = f"SELECT to_jsonb(q) FROM (SELECT * FROM ({query}) v) q"
    return Counter(canonical(_shown(row)) for (row,) in database.rows(sql))


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    return {k: _text(v) if k in ("total", "amount") else v for k, v in row.items()}


def _text(value: Any) -> Any:
    return None if value is None else f"{value:.2f}"


def settled(service: RunningService, database: Database, view: str) -> int:
    """The epoch of the view's table once it shows all that was committed."""
    service.wait(view, position_of(database))
    return database.rows("SELECT epoch FROM tidemark.progress")[0][0]


def is_waited_for(database: Database, table: str) -> bool:
    """Whether somebody waits for a lock on a table."""
    sql = "SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND relation = %s::regclass"
    return database.rows(sql, (table,))[0][0]


def read(reader: TopicReader, epoch: int) -> Counter[str]:
    """The view as the topic has it once it is at least at this epoch."""
    for _ in reader.epochs(until=lambda: reader.last_epoch >= epoch):
        continue
    return reader.rows()


@pytest.fixture
def shop(database: Database) -> Database:
    database.execute(ORDERS)
    return database


@pytest.mark.whole
def test_two_sinks_added_and_removed_while_it_runs(
    shop: Database, broker: EmbeddedKafka, tmp_path: Path
) -> None:
    changes, upserts = unique_name("changes"), unique_name("upserts")
    servers = {"bootstrap_servers": broker.bootstrap}
    with RunningService(shop.dsn, tmp_path) as service:
        service.create("totals", KEYED, backfill="local")
        change(shop, 1)
        sink = add_sink(service, "totals", topic=changes, partitions=2, **servers)
        assert sink["epoch"] >= 1 and sink["options"]["markers"] == f"{changes}.markers"
        change(shop, 2)
        add_sink(service, "totals", "latest", topic=upserts, mode="upsert", **servers)
        for step in range(3, 20):
            change(shop, step)
        epoch = settled(service, shop, "totals")
        for topic, is_upsert in ((changes, False), (upserts, True)):
            reader = TopicReader(broker, topic, is_upsert=is_upsert)
            assert read(reader, epoch) == answer(shop, KEYED), topic
            reader.close()
        names = [s["name"] for s in service.call("GET", "/views/totals/sinks").json()["sinks"]]
        assert names == ["events", "latest"]
        drop_sink(service, "totals", "latest")
        assert service.call("GET", "/views/totals/sinks/latest").status_code == 404
        assert upserts in topic_names(broker)
        with contextlib.closing(shop.connect(autocommit=False)) as other:
            other.cursor().execute("LOCK TABLE totals IN SHARE MODE")
            change(shop, 20)
            service.await_so(lambda: is_waited_for(shop, "totals"))
            # What the table has not got another service may still refuse it.
            for _ in range(20):
                shown = shop.rows("SELECT epoch FROM tidemark.progress")[0][0]
                assert sink_of(service, "totals")["epoch"] <= shown
                time.sleep(0.05)
        epoch = settled(service, shop, "totals")
        reader = TopicReader(broker, changes)
        assert read(reader, epoch) == answer(shop, KEYED)
        reader.close()
        drop_sink(service, "totals", query="?drop_data=true")
        assert not {changes, f"{changes}.markers"} & topic_names(broker)
        service.drop("totals")


@pytest.mark.whole
def test_a_multiset_from_its_changes_on(
    shop: Database, broker: EmbeddedKafka, tmp_path: Path
) -> None:
    """Without initial rows the topic holds what has changed since; with the view they go."""
    topic = unique_name("bag")
    with RunningService(shop.dsn, tmp_path) as service:
        service.create("even", BAG, backfill="local")
        before = answer(shop, BAG)
        chosen = {"bootstrap_servers": broker.bootstrap, "topic": topic}
        refused = {"name": "x", "options": {**chosen, "mode": "upsert"}}
        problem = service.call("POST", "/views/even/sinks", refused).json()
        assert problem["code"] == "sink.bad_option", problem
        add_sink(service, "even", initial="changes", **chosen)
        for step in range(10):
            shop.execute("INSERT INTO orders VALUES (%s, 'r', 1, NULL)", (1000 + 2 * step,))
        epoch = settled(service, shop, "even")
        reader = TopicReader(broker, topic)
        assert read(reader, epoch) == answer(shop, BAG) - before
        reader.close()
        service.call("DELETE", "/views/even?drop_data=true")
        wait_until(lambda: not {topic, f"{topic}.markers"} & topic_names(broker))
        assert shop.rows("SELECT count(*) FROM tidemark.views") == [(0,)]


@pytest.mark.whole
def test_a_large_epoch_and_what_is_refused(
    shop: Database, broker: EmbeddedKafka, tmp_path: Path
) -> None:
    topic = unique_name("large")
    chosen = {"bootstrap_servers": broker.bootstrap, "topic": topic}
    query = "SELECT id, region, amount FROM orders"
    with RunningService(shop.dsn, tmp_path, memory=400) as service:
        service.create("copy", query, backfill="local")
        add_sink(service, "copy", partitions=3, **chosen)
        taken = service.call("POST", "/views/copy/sinks", {"name": "events", "options": chosen})
        assert (taken.status_code, taken.json()["code"]) == (409, "sink.exists")
        again = service.call("POST", "/views/copy/sinks", {"name": "b", "options": chosen})
        assert again.json()["code"] == "sink.topic_not_empty"
        unknown = service.call("POST", "/views/copy/sinks", {"name": "b", "type": "fax"})
        assert unknown.json()["code"] == "sink.unknown_type"
        missing = service.call("POST", "/views/none/sinks", {"name": "b", "options": chosen})
        assert missing.status_code == 404
        shop.execute(
            "INSERT INTO orders SELECT i, repeat('region ', 20), 5 FROM "
            "generate_series(1000, 101000) i"
        )
        epoch = settled(service, shop, "copy")
        reader = TopicReader(broker, topic)
        assert read(reader, epoch) == answer(shop, query)
        reader.close()
        figures = read_metrics(service.state) or {}
        assert figures["sinks"]["public.copy/events"]["rows_total"] >= 100_000
        assert figures["epochs_in_parts_total"] > 0, "the epoch was small"


@pytest.mark.whole
def test_a_sink_that_is_away_holds_up_nothing(
    shop: Database, own_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    topic = unique_name("away")
    with RunningService(shop.dsn, tmp_path) as service:
        service.create("totals", KEYED, backfill="local")
        add_sink(service, "totals", bootstrap_servers=own_broker.bootstrap, topic=topic)
        own_broker.kill()
        for step in range(5):
            change(shop, step)
        settled(service, shop, "totals")
        away = await_sink(service, "totals", status="retrying")
        assert away["error"]["code"] == "sink.unreachable" and away["backlog_bytes"] > 0
        service.kill_child("pipeline")
        change(shop, 6)
        epoch = settled(service, shop, "totals")
        own_broker.start()
        reader = TopicReader(own_broker, topic)
        assert read(reader, epoch) == answer(shop, KEYED)
        reader.close()
        # The figures are told in their own time, after the topic has the epoch.
        wait_until(lambda: sink_of(service, "totals")["epoch"] >= epoch)
        await_sink(service, "totals", status="live", error=None)


@pytest.mark.whole
def test_a_sink_that_lags_too_far_is_failed_by_name(
    shop: Database, own_broker: EmbeddedKafka, tmp_path: Path
) -> None:
    topic = unique_name("behind")
    query = "SELECT id, region FROM orders"
    with RunningService(shop.dsn, tmp_path, sink_budget_mb=1) as service:
        service.create("copy", query, backfill="local")
        add_sink(service, "copy", bootstrap_servers=own_broker.bootstrap, topic=topic)
        own_broker.kill()
        shop.execute(
            "INSERT INTO orders SELECT i, repeat('r', 100) FROM generate_series(1000, 30000) i"
        )
        failed = await_sink(service, "copy", status="failed")
        assert failed["error"]["code"] == "sink.too_far_behind"
        settled(service, shop, "copy")
        own_broker.start()
        drop_sink(service, "copy", query="?drop_topic=true")
        add_sink(service, "copy", bootstrap_servers=own_broker.bootstrap, topic=topic)
        epoch = settled(service, shop, "copy")
        reader = TopicReader(own_broker, topic)
        assert read(reader, epoch) == answer(shop, query)
        reader.close()
        assert sink_of(service, "copy")["backlog_bytes"] < 1 << 20


@pytest.mark.whole
def test_what_is_gone_is_refused_by_name(
    shop: Database, broker: EmbeddedKafka, tmp_path: Path
) -> None:
    """A topic that someone deleted is not begun again in silence."""
    topic = unique_name("gone")
    with RunningService(shop.dsn, tmp_path) as service:
        service.create("totals", KEYED, backfill="local")
        add_sink(service, "totals", topic=topic, bootstrap_servers=broker.bootstrap)
        change(shop, 1)
        await_sink(service, "totals", epoch=settled(service, shop, "totals"))
        drop_topic(broker, topic)
        drop_topic(broker, f"{topic}.markers")
        service.kill_child("pipeline")
        failed = await_sink(service, "totals", status="failed")
        assert failed["error"]["code"] == "sink.lost"
        change(shop, 2)
        settled(service, shop, "totals")
        service.kill_child("pipeline")
        change(shop, 3)
        settled(service, shop, "totals")
        assert sink_of(service, "totals")["error"]["code"] == "sink.lost"
        service.drop("totals")
        assert shop.rows("SELECT count(*) FROM tidemark.sinks") == [(0,)]
