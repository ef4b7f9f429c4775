"""Oracle: dictionaries over the records that were written, and the same view whose driver reads.

A view of two topics at a real broker, read by tasks: in this process, and by Spark's own.
"""

from __future__ import annotations

import io
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import fastavro
import pytest
from kafka import TopicPartition

from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.topic_source import KafkaSource
from connectors.objects.folder_storage import FolderStorage
from connectors.source import SourceBatch
from connectors.spark.maintained import driver as driver_module
from connectors.spark.maintained.driver import Batch, Driver
from connectors.spark.maintained.layout import MaintainedView
from connectors.spark.maintained.scheduler import InProcessScheduler, Scheduler
from connectors.spark.maintained.spark_scheduler import SETTINGS, SparkScheduler
from connectors.spark.maintained.tasks import STATES
from connectors.spark.session import LazySession
from dataflow.errors import SourceError
from dataflow.expressions.evaluator import NoEvaluator
from dataflow.expressions.ir import ColumnRef
from dataflow.graph import needed_columns
from dataflow.plan.nodes import Aggregate, AggregateCall, Join, Scan
from dataflow.schema import Field
from dataflow.sql.lower.lowering import lower
from dataflow.types import INT8, NUMERIC
from storage.failpoints import FOLDER_VARIABLE, REACHED, set_failpoints
from tests.connectors.kafka.reading import source_of
from tests.connectors.spark.clusters import standalone
from tests.connectors.spark.maintained.test_spark_scheduler import CLUSTER
from tests.harness.broker import Sent, admin_of, drop_topic, new_topic, send
from tests.harness.buckets import TableSink
from tests.harness.registry import Registry

needs_java = pytest.mark.skipif(
    shutil.which("java") is None, reason="no Java on this machine, Spark needs it"
)
SCHEMA = {
    "type": "record",
    "name": "Sale",
    "fields": [{"name": "id", "type": "long"}, {"name": "qty", "type": "long"}],
}
PRICES = {
    "format": "json",
    "mode": "upsert",
    "key": ["id"],
    "key_format": "json",
    "columns": [
        {"name": "id", "type": "int8", "in": "key", "path": "$"},
        {"name": "price", "type": "int8"},
    ],
}
SALES = {"columns": {"id": "int8", "qty": "int8"}}


class Shop:
    """Topics of sales and prices, what was sent to them, and the view over both."""

    def __init__(self, broker: EmbeddedKafka, registry: Registry | None = None) -> None:
        self.broker = broker
        self.random = Random(7)
        self.topics = {"sales": new_topic(broker, 3), "prices": new_topic(broker, 2)}
        self.schema_id = 0
        if registry is not None:
            registry.schemas.append({"schema": json.dumps(SCHEMA)})
            self.schema_id = len(registry.schemas)
        avro = {"format": "avro", "registry": {"url": registry.url}} if registry else None
        given = {
            "sales": {"topic": self.topics["sales"], "format": avro or "json", **SALES},
            "prices": {"topic": self.topics["prices"], **PRICES},
        }
        self.source = source_of(broker, given, on_error="dead_letter")
        self.sold: list[tuple[int, int]] = []
        self.held: dict[int, int] = {}
        self.bad = 0
        self.view = view_of(self.source)

    def write(self, count: int) -> None:
        """So many records of each topic; some are malformed, some remove a price."""
        draw = self.random
        sales: list[Sent] = []
        prices: list[Sent] = []
        for n in range(count):
            id, price, qty = draw.randrange(50), draw.randrange(90), draw.randrange(9)
            if n % 17 == 3:
                sales.append((n % 3, None, b"no row"))
                self.bad += 1
            else:
                sales.append((n % 3, None, self._sale(id, qty)))
                self.sold.append((id, qty))
            if draw.random() < 0.2:
                self.held.pop(id, None)
                prices.append((id % 2, b"%d" % id, None))
            else:
                self.held[id] = price
                prices.append((id % 2, b"%d" % id, json.dumps({"price": price}).encode()))
        send(self.broker, self.topics["sales"], sales)
        send(self.broker, self.topics["prices"], prices)

    def _sale(self, id: int, qty: int) -> bytes:
        if not self.schema_id:
            return json.dumps({"id": id, "qty": qty}).encode()
        out = io.BytesIO()
        fastavro.schemaless_writer(out, fastavro.parse_schema(SCHEMA), {"id": id, "qty": qty})
        return b"\0" + self.schema_id.to_bytes(4, "big") + out.getvalue()

    def answer(self) -> Counter[tuple[Any, ...]]:
        """(id, sales, sum of prices over them), for what has a price."""
        sales = Counter(id for id, _ in self.sold)
        return Counter(
            (id, n, str(n * self.held[id]).encode()) for id, n in sales.items() if id in self.held
        )


def view_of(source: KafkaSource) -> MaintainedView:
    """SELECT s.id, count(*), sum(p.price) FROM sales s JOIN prices p ON p.id = s.id GROUP BY 1."""
    sales, prices = (Scan(r, (0, 1), r.fields) for r in source.relations())
    keys = (ColumnRef(0, INT8),), (ColumnRef(0, INT8),)
    joined = Join("inner", sales, prices, *keys, None, sales.fields + prices.fields)
    calls = (
        AggregateCall("count", None, False, None, Field("n", INT8)),
        AggregateCall("sum", ColumnRef(3, INT8), False, None, Field("total", NUMERIC)),
    )
    fields = (sales.fields[0], *(call.field for call in calls))
    nodes = lower(Aggregate(joined, (ColumnRef(0, INT8),), calls, fields))
    relations = tuple(source.relations())
    return MaintainedView("shop", nodes, "v1", relations, needed_columns(nodes), NoEvaluator)


class Following:
    """A driver of the view, and where it is in the topics."""

    def __init__(self, shop: Shop, folder: Path, scheduler: Scheduler) -> None:
        self.shop = shop
        self.sink = TableSink()
        self.rejected = 0
        self.scheduler = scheduler
        self.storage = FolderStorage(folder)
        self.notes: dict[str, bytes | None] = {}
        self.positions: dict[str, Any] = {}
        for relation in shop.source.relations():
            start = shop.source.first_position(relation)
            self.positions[relation.name.name] = start.position
        self.driver = self.taken_over()

    def taken_over(self) -> Driver:
        """Another driver."""
        driver = Driver(self.shop.view, self.storage, self.scheduler, self.sink, buckets=4)
        driver.start()
        return driver

    def read(self, max_rows: int = 100_000) -> Iterator[SourceBatch]:
        """What tasks read up to the ends of now; each batch is stepped before the next is read."""
        source = self.shop.source
        end = source.current_end(source.relations())
        notes = {name: note for name, note in self.notes.items() if note is not None}
        planner = source.open_ranges(
            source.relations(), dict(self.positions), notes, lambda: None, end
        )
        while (batch := self.driver.read(planner, max_rows)) is not None:
            yield batch
            self.step(batch)
        planner.close()

    def read_here(self) -> None:
        """The same by the driver."""
        source = self.shop.source
        end = source.current_end(source.relations())
        at = dict(self.positions), dict[str, bytes]()
        for batch in source.read_until(source.relations(), *at, end, 1000):
            self.step(batch)

    def step(self, batch: SourceBatch) -> None:
        """One epoch."""
        self.positions.update(batch.positions or {})
        self.notes.update(batch.notes)
        self.rejected += 0 if batch.rejected is None else len(batch.rejected)
        sent = json.loads(json.dumps(self.positions))
        assert self.driver.step(Batch(sent, batch.whole(), stored=batch.stored)) == sent

    def check(self) -> None:
        """Everything that was sent is in the view."""
        assert self.sink.rows == self.shop.answer()
        assert self.rejected == self.shop.bad


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for all; however few records there are, tasks read them."""
    monkeypatch.setattr(driver_module, "FEW_RECORDS", 0)
    yield tmp_path
    STATES.close()
    set_failpoints("")


@pytest.mark.parametrize("is_avro", [False, True])
def test_tasks_read_what_the_driver_reads(
    broker: EmbeddedKafka, folder: Path, is_avro: bool
) -> None:
    registry = Registry() if is_avro else None
    try:
        shop = Shop(broker, registry)
        ways = [
            Following(shop, folder / f"shared-{way}", InProcessScheduler(str(folder / way), 2))
            for way in ("tasks", "driver")
        ]
        for round_ in range(3):
            shop.write(120)
            for _ in ways[0].read((7, 40, 100_000)[round_]):
                pass
            ways[1].read_here()
            for way in ways:
                way.check()
        assert ways[0].positions == ways[1].positions
        assert ways[0].driver.epoch > 6
    finally:
        if registry is not None:
            registry.stop()


@pytest.mark.parametrize("point", ["spark.range.read", "spark.epoch.read", "spark.epoch.fixed"])
def test_a_driver_that_stops_is_continued(broker: EmbeddedKafka, folder: Path, point: str) -> None:
    """Before the epoch is fixed it is read again; after it, the broker is not needed."""
    shop = Shop(broker)
    following = Following(shop, folder / "shared", InProcessScheduler(str(folder / "one"), 2))
    shop.write(60)
    for _ in following.read():
        pass
    before = following.driver.epoch
    shop.write(60)
    set_failpoints(f"{point}=error@1")
    with pytest.raises(OSError, match="failpoint"):
        for _ in following.read():
            pass
    set_failpoints("")
    following.driver = following.taken_over()
    if point == "spark.epoch.fixed":
        assert following.driver.epoch == before + 1
        following.positions = dict(following.driver.positions)
    else:
        assert following.driver.epoch == before
    for _ in following.read():
        pass
    following.check()


@pytest.mark.whole
def test_records_that_are_gone_before_they_are_read_are_named(
    broker: EmbeddedKafka, folder: Path
) -> None:
    """No epoch is fixed, and what the view shows stays; a state needs no records of before."""
    shop = Shop(broker)
    following = Following(shop, folder / "shared", InProcessScheduler(str(folder / "one"), 2))
    shop.write(60)
    for _ in following.read():
        pass
    following.check()
    shown, epoch = Counter(following.sink.rows), following.driver.epoch
    shop.write(60)
    with admin_of(broker) as admin:
        admin.delete_records({TopicPartition(shop.topics["sales"], 0): 30})
    with pytest.raises(SourceError, match=r"source\.offsets_gone") as refused:
        for _ in following.read():
            pass
    assert str(refused.value.relation) == "shop.sales"
    assert (following.driver.epoch, following.sink.rows) == (epoch, shown)
    # Buckets that are lost are made again from what was stored.
    drop_topic(broker, shop.topics["sales"])
    following.scheduler = InProcessScheduler(str(folder / "other"), 2)
    following.driver = following.taken_over()
    following.driver.step(Batch(following.driver.positions))
    following.driver.split(2)
    assert following.sink.rows == shown
    with pytest.raises(SourceError, match=r"source\.topic_missing"):
        for _ in following.read():
            pass


@contextmanager
def on_spark(shop: Shop, master: str, folder: Path, arm: Path) -> Iterator[Following]:
    settings = SETTINGS if master.startswith("local") else CLUSTER
    armed = {f"spark.executorEnv.{FOLDER_VARIABLE}": str(arm)}
    session = LazySession(master, {**settings, **armed})
    try:
        yield Following(shop, folder / "shared", SparkScheduler(session, str(folder)))
    finally:
        session.stop()


def follow_and_kill(shop: Shop, following: Following, arm: Path) -> None:
    """Three rounds; in each a task is killed when it has read, and another one in the epoch."""
    for points in ((), ("spark.range.read",), ("spark.bucket.after",)):
        shop.write(2000)
        for point in points:
            (arm / point).write_text("kill")
        for _ in following.read(1000):
            pass
        for point in points:
            assert (arm / f"{point}{REACHED}").exists(), point
        following.check()


@needs_java
@pytest.mark.whole
@pytest.mark.timeout(400)
def test_a_local_master(
    broker: EmbeddedKafka, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = folder / "arm"
    arm.mkdir()
    monkeypatch.setenv(FOLDER_VARIABLE, str(arm))
    shop = Shop(broker)
    with on_spark(shop, "local[2]", folder, arm) as following:
        follow_and_kill(shop, following, arm)
        # Processes of a local master find their buckets although they have read in between.
        shop.write(2000)
        for _ in following.read():
            pass
        assert sum(f.restored for f in following.driver.figures) == 0


@needs_java
@pytest.mark.whole
@pytest.mark.timeout(600)
def test_a_standalone_master(broker: EmbeddedKafka, folder: Path) -> None:
    arm = folder / "arm"
    arm.mkdir()
    shop = Shop(broker)
    with (
        standalone(folder) as url,
        on_spark(shop, url, folder, arm) as following,
    ):
        follow_and_kill(shop, following, arm)
