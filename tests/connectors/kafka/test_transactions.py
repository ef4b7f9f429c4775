"""Oracle: the transactions as they were written, of which no batch may show a part."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from connectors.feed_source import problem_of
from connectors.formats.debezium import transaction_id
from connectors.kafka.embedded import EmbeddedKafka
from connectors.kafka.options import read_options
from connectors.kafka.topic_source import KafkaSource
from connectors.kafka.transactions import Lane, Transactions
from connectors.source import SourceBatch
from dataflow.errors import SourceError, TidemarkError
from tests.connectors.kafka.reading import (
    SourceSubscriptions,
    TransactionBuffer,
    snapshot,
    snapshot_offsets,
    source_of,
)
from tests.connectors.kafka.test_debezium import options_of
from tests.harness.broker import drop_topic, new_topic, send, unique_name

TABLES = ("orders", "items", "audit")
# What each connector writes as the id of a transaction by its number, in a record at an LSN.
_GTID = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
_LSID = '{"id": {"$binary": "ZGVi", "$type": "04"}, "uid": {"$binary": "emlv", "$type": "00"}}'
IDS: dict[str, Callable[[int, int], str]] = {
    "postgresql": lambda n, lsn: f"{570 + n}:{53195829 + lsn}",
    "mysql": lambda n, _: f"{_GTID}:{n}",
    "mysql tagged": lambda n, _: f"{_GTID}:nightly:{n}",
    "mysql without gtid": lambda n, _: f"file=mysql-bin.000003,pos={154 + n * 31}",
    "mariadb": lambda n, _: f"0-1-{n}",
    "mongodb": lambda n, _: f"{_LSID}:{n}",
    "sqlserver": lambda n, _: f"00000025:00000{n:03x}:0025",
    "oracle": lambda n, _: f"0a0014{n:010x}",
}


class Shop:
    """Three tables of two partitions each, of which two are read, and the transaction topic.

    It writes the ids of PostgreSQL's connector: no two records of a transaction have the same.
    """

    def __init__(
        self, broker: EmbeddedKafka, connector: str = "postgresql", mark_partitions: int = 1
    ) -> None:
        self.broker = broker
        stem = unique_name("db")
        self.topics = {one: new_topic(broker, 2, name=f"{stem}.public.{one}") for one in TABLES}
        self.marks = new_topic(broker, mark_partitions, name=f"{stem}.transaction")
        self.lsn = 0
        self._id_of = IDS[connector]
        self._numbers: dict[str, int] = {}

    def source(self, followed: Iterable[str] = TABLES[:2], **more: Any) -> KafkaSource:
        topics = {one: options_of(self.topics[one]) for one in followed}
        return source_of(self.broker, topics, **{"transactions": self.marks, **more})

    def written(self, id: str) -> str:
        """The id that the next record of a transaction has."""
        number = self._numbers.setdefault(id, len(self._numbers) + 1)
        self.lsn += 1
        return self._id_of(number, self.lsn)

    def begin(self, id: str, partition: int = 0) -> None:
        self.mark({"status": "BEGIN", "id": self.written(id)}, partition)

    def end(self, id: str, partition: int = 0, **counts: int) -> None:
        told = [{"data_collection": f"public.{t}", "event_count": n} for t, n in counts.items()]
        marker = {"status": "END", "id": self.written(id), "event_count": sum(counts.values())}
        self.mark({**marker, "data_collections": told}, partition)

    def mark(self, marker: dict[str, Any], partition: int = 0) -> None:
        send(self.broker, self.marks, [(partition, None, json.dumps(marker).encode())])

    def put(self, table: str, id: str | None, place: int, row: int, partition: int = 0) -> None:
        """A row of which the name is the transaction."""
        self.lsn += 10
        value = {
            "op": "c",
            "after": {"id": row, "name": id or "alone"},
            "source": {"lsn": self.lsn, "sequence": json.dumps([str(self.lsn - 1), str(self.lsn)])},
        }
        if id is not None:
            written = self.written(id)
            value["transaction"] = {
                "id": written,
                "total_order": place,
                "data_collection_order": place,
            }
        send(self.broker, self.topics[table], [(partition, b"k", json.dumps(value).encode())])

    def whole(self, id: str, rows: int) -> None:
        """A transaction over all three tables."""
        self.begin(id)
        self.put("orders", id, 1, rows)
        self.put("items", id, 2, rows, 1)
        self.put("items", id, 3, rows + 1)
        self.put("audit", id, 4, rows)
        self.end(id, orders=1, items=2, audit=1)


def told(batch: SourceBatch | None) -> list[tuple[str, int, str]]:
    """(table, id, transaction) of all that a batch tells."""
    found = []
    for change in [] if batch is None else batch.whole():
        ids, names = (column.to_list() for column in change.columns)
        found += [
            (change.relation.name.name, i, n.decode()) for i, n in zip(ids, names, strict=True)
        ]
    return sorted(found)


def kept(notes: dict[str, bytes], batch: SourceBatch) -> None:
    notes.update({key: text for key, text in batch.notes.items() if text is not None})


def next_told(
    feed: SourceSubscriptions, notes: dict[str, bytes], **more: Any
) -> list[tuple[str, int, str]]:
    """What the next batch with rows tells."""
    for _ in range(100):
        batch = feed.step(**more)
        if batch is not None:
            kept(notes, batch)
            found = told(batch)
            if found:
                return found
    raise AssertionError("nothing was told")


@pytest.fixture
def shop(broker: EmbeddedKafka) -> Shop:
    return Shop(broker)


def test_a_transaction_is_reported_in_one_batch(shop: Shop) -> None:
    source = shop.source()
    positions, notes = snapshot_offsets(source)
    with SourceSubscriptions(source, TransactionBuffer(positions=positions), notes) as feed:
        shop.begin("t1")
        shop.put("orders", None, 0, 90)
        shop.put("orders", "t1", 1, 1)
        shop.put("orders", None, 0, 91)
        assert next_told(feed, notes) == [("orders", 90, "alone")]
        shop.put("items", "t1", 2, 2, 1)
        shop.put("items", None, 0, 92)
        assert next_told(feed, notes) == [("items", 92, "alone")]
        # The END is there before the last event, and counts a table that nobody reads.
        shop.end("t1", orders=1, items=2, audit=7)
        shop.put("orders", None, 0, 93, 1)
        assert next_told(feed, notes) == [("orders", 93, "alone")]
        shop.put("items", "t1", 3, 3)
        assert next_told(feed, notes) == [
            ("items", 2, "t1"), ("items", 3, "t1"), ("orders", 1, "t1"), ("orders", 91, "alone"),
        ]  # fmt: skip
        assert feed.held.positions["orders"]["next"] == {"0": 3, "1": 1}


def test_an_interrupted_feed_continues_with_what_was_held(shop: Shop) -> None:
    source = shop.source()
    positions, notes = snapshot_offsets(source)
    held = TransactionBuffer(positions=positions)
    shop.whole("t1", 1)
    shop.begin("t2")
    shop.put("orders", "t2", 1, 5)
    shop.end("t2", orders=1, items=1)
    shop.put("orders", None, 0, 90, 1)
    seen: list[tuple[str, int, str]] = []
    states = [(json.loads(json.dumps(positions)), dict(notes))]
    while len(seen) < 4:
        with SourceSubscriptions(source, held, notes) as feed:
            seen += next_told(feed, notes, max_rows=1)
            states.append((json.loads(json.dumps(feed.held.positions)), dict(notes)))
            held = feed.held
    assert held.positions["orders"]["next"]["0"] == 1
    with SourceSubscriptions(source, held, notes) as feed:
        shop.put("items", "t2", 2, 6)
        seen += next_told(feed, notes)
        end = json.loads(json.dumps(feed.held.positions))
    assert sorted(seen) == sorted(set(seen)) and len(seen) == 6
    # From every state that was: the same places are reached, and nothing beyond them.
    shop.whole("t3", 10)
    for positions, notes in states:
        with SourceSubscriptions(
            source, TransactionBuffer(positions=dict(positions)), dict(notes)
        ) as feed:
            feed.until(lambda held: held.positions == end, positions=end)
            assert feed.step(until=end) is None
            again = {(n, *k) for n, rows in feed.held.keyed.items() for k in rows}
            assert next_told(feed, notes) == [
                ("items", 10, "t3"), ("items", 11, "t3"), ("orders", 10, "t3"),
            ]  # fmt: skip
        assert again <= {(name, id) for name, id, _ in seen}


@pytest.mark.parametrize("is_late", [pytest.param(False, marks=pytest.mark.whole), True])
def test_a_start_position_amid_a_transaction_loses_and_doubles_nothing(
    shop: Shop, is_late: bool
) -> None:
    source = shop.source()
    if not is_late:
        shop.begin("t1")
    shop.put("orders", "t1", 1, 1)
    shop.put("items", "t1", 2, 1)
    positions, notes = snapshot_offsets(source)
    held = snapshot(source, positions, notes)
    assert set(held.keyed["orders"]) == {(1,)}
    if is_late:
        shop.begin("t1")
    shop.put("orders", "t1", 3, 2)
    shop.end("t1", orders=3, items=1)
    shop.whole("t2", 5)
    with SourceSubscriptions(source, held, notes) as feed:
        seen = next_told(feed, notes)
        shop.put("orders", "t1", 4, 3, 1)
        while len(seen) < 5:
            seen += next_told(feed, notes)
    t2 = [("items", 5, "t2"), ("items", 6, "t2"), ("orders", 5, "t2")]
    assert sorted(seen) == sorted([("orders", 2, "t1"), ("orders", 3, "t1"), *t2])


def test_redelivered_events_are_reported_once_and_buffer_nothing(shop: Shop) -> None:
    source = shop.source()
    positions, notes = snapshot_offsets(source)
    shop.whole("t1", 1)
    with SourceSubscriptions(source, TransactionBuffer(positions=positions), notes) as feed:
        assert len(next_told(feed, notes)) == 3
        held = feed.held
    shop.lsn = 0
    shop.whole("t1", 1)
    shop.whole("t2", 5)
    with SourceSubscriptions(source, held, notes) as feed:
        assert {id for _, _, id in next_told(feed, notes)} == {"t2"}
        assert feed.held.positions["orders"]["next"]["0"] == 3


def test_a_transaction_that_does_not_fit_is_refused(shop: Shop) -> None:
    source = shop.source(transaction_buffer_bytes=2000)
    positions, notes = snapshot_offsets(source)
    shop.begin("big")
    for row in range(10):
        shop.put("orders", "big", row + 1, row)
    with SourceSubscriptions(source, TransactionBuffer(positions=positions), notes) as feed:
        failure = feed.failure()
    assert failure.code == "source.transaction_too_large" and "571" in failure.detail


def test_a_bad_record_stops_before_its_transaction(shop: Shop) -> None:
    source = shop.source()
    positions, notes = snapshot_offsets(source)
    shop.whole("t1", 1)
    shop.begin("t2")
    shop.put("orders", "t2", 1, 5)
    send(shop.broker, shop.topics["items"], [(0, b"k", b"{")])
    shop.end("t2", orders=1, items=1)
    with SourceSubscriptions(source, TransactionBuffer(positions=positions), notes) as feed:
        assert {id for _, _, id in next_told(feed, notes)} == {"t1"}
        assert feed.failure().code == "source.bad_record"
        assert feed.held.positions["orders"]["next"]["0"] == 1
        assert feed.held.positions["items"]["next"]["0"] == 1


def test_a_transaction_topic_that_is_gone_or_another_is_refused(shop: Shop) -> None:
    source = shop.source()
    positions, notes = snapshot_offsets(source)
    drop_topic(shop.broker, shop.marks)
    with pytest.raises(SourceError, match=r"source\.topic_missing"):
        source.check()
    with SourceSubscriptions(source, TransactionBuffer(positions=positions), notes) as feed:
        assert feed.failure().code == "source.topic_missing"
    new_topic(shop.broker, name=shop.marks)
    with SourceSubscriptions(source, TransactionBuffer(positions=positions), notes) as feed:
        assert feed.failure().code == "source.topic_recreated"


def test_a_table_by_another_name_is_refused(shop: Shop) -> None:
    topics = {"orders": options_of(shop.topics["orders"], collection="shop.orders")}
    source = source_of(shop.broker, topics, transactions=shop.marks)
    positions, notes = snapshot_offsets(source)
    shop.whole("t1", 1)
    with SourceSubscriptions(source, TransactionBuffer(positions=positions), notes) as feed:
        assert feed.failure().code == "source.transaction_collection"
    late = Transactions({"a": "shop.a"}, {})
    late.add_marker(0, 0, {"id": "t", "status": "END", "data_collections": []})
    with pytest.raises(SourceError, match=r"source\.transaction_collection"):
        late.add_event(("a", 0), "t", 1)
    with pytest.raises(SourceError, match=r"record\.malformed"):
        Transactions({}, {}).add_marker(0, 0, {"id": "t"})


@pytest.mark.parametrize(
    "more",
    [
        {"transactions": "t"},
        {"transactions": 1},
        {"transactions": "m", "topics": {"t": {**options_of("t"), "format": "json"}}},
        {"transactions": "m", "transaction_buffer_bytes": 1},
        {"transactions": "m", "transaction_wait_s": 0},
    ],
)
def test_options_that_do_not_do(more: dict[str, Any]) -> None:
    given = {"bootstrap_servers": "h:1", "topics": {"t": options_of("t")}, **more}
    with pytest.raises(SourceError, match=r"source\.bad_option"):
        read_options(given)


@pytest.mark.parametrize("connector", IDS)
@pytest.mark.parametrize("seed", range(6))
def test_any_order_and_any_restart_keeps_transactions_whole(seed: int, connector: str) -> None:
    """Each lane and each partition of the markers keeps its order; all else is chance.

    So are the order of the two, BEGINs that are lost, copies of markers, and where it stops.
    """
    draw = random.Random(seed)
    names = ("a", "b", "unread")
    lanes: dict[Lane, list[tuple[str, str, int]]] = {(n, p): [] for n in "ab" for p in (0, 1)}
    markers: dict[int, list[dict[str, Any]]] = {0: [], 1: []}
    size: dict[str, int] = {}
    lsn = 0

    def written(number: int) -> str:
        nonlocal lsn
        lsn += 1
        return IDS[connector](number, lsn)

    for number in range(30):
        counts = dict.fromkeys(names, 0)
        if draw.random() < 0.8:
            markers[draw.randrange(2)].append({"id": written(number), "status": "BEGIN"})
        for place in range(draw.randrange(6)):
            name = draw.choice(names)
            counts[name] += 1
            if name != "unread":
                lanes[name, draw.randrange(2)].append((f"t{number}", written(number), place))
        size[f"t{number}"] = counts["a"] + counts["b"]
        listed = [{"data_collection": n, "event_count": c} for n, c in counts.items() if c]
        end = {"id": written(number), "status": "END", "data_collections": listed}
        markers[draw.randrange(2)] += [end] * draw.choice((1, 1, 2))
    tables, bounds = {"a": "a", "b": "b"}, {"a": {0: 0, 1: 0}, "b": {0: 0, 1: 0}}
    kept = Transactions(tables, bounds)
    read, told, marked = dict.fromkeys(lanes, 0), dict.fromkeys(lanes, 0), [0, 0]
    while any(told[lane] < len(events) for lane, events in lanes.items()):
        lane = draw.choice([*lanes, 0, 1])
        if isinstance(lane, int):
            if marked[lane] < len(markers[lane]):
                kept.add_marker(lane, marked[lane], markers[lane][marked[lane]])
                marked[lane] += 1
        elif read[lane] < len(lanes[lane]):
            _, id, place = lanes[lane][read[lane]]
            kept.add_event(lane, transaction_id(id), place)
            read[lane] += 1
        cut = kept.cut()
        kept.drop(cut)
        batch = [e for at, n in cut.items() for e in lanes[at][told[at] : told[at] + n]]
        told = {at: told[at] + cut.get(at, 0) for at in told}
        for name in {name for name, *_ in batch}:
            assert sum(1 for one, *_ in batch if one == name) == size[name]
        is_all_read = marked == [len(one) for one in markers.values()] and read == {
            at: len(events) for at, events in lanes.items()
        }
        if is_all_read:
            assert not kept.lacking()
        if draw.random() < 0.05:
            kept = Transactions(tables, bounds, json.loads(json.dumps(kept.state())))
            read = dict(told)
    assert not kept.buffered()


@pytest.mark.parametrize("connector", ["postgresql", "mongodb"])
def test_each_connectors_ids_and_orders_of_the_end(broker: EmbeddedKafka, connector: str) -> None:
    """END first, last, amid; BEGIN last, in another partition of the topic, and never."""
    shop = Shop(broker, connector, mark_partitions=3)
    source = shop.source()
    positions, notes = snapshot_offsets(source)
    steps: list[Callable[[str, int], None]] = [
        lambda id, row: shop.put("orders", id, 1, row),
        lambda id, row: shop.put("items", id, 2, row, 1),
        lambda id, row: shop.put("items", id, 3, row + 1),
        lambda id, _: shop.end(id, 2, orders=1, items=2, audit=1),
        lambda id, _: shop.begin(id, 1),
    ]
    orders = ((4, 0, 1, 2, 3), (3, 4, 0, 1, 2), (0, 3, 1, 4, 2), (0, 1, 2, 3, 4), (0, 3, 1, 2))
    with SourceSubscriptions(source, TransactionBuffer(positions=positions), notes) as feed:
        for number, order in enumerate(orders):
            for step in order:
                steps[step](f"t{number}", number * 10)
            row, id = number * 10, f"t{number}"
            whole = [("items", row, id), ("items", row + 1, id), ("orders", row, id)]
            assert next_told(feed, notes) == whole


def test_a_transaction_that_stays_incomplete_is_an_error_by_name(shop: Shop) -> None:
    source = shop.source(transaction_wait_s=1)
    positions, notes = snapshot_offsets(source)
    with SourceSubscriptions(source, TransactionBuffer(positions=positions), notes) as feed:
        shop.begin("t1")
        shop.put("orders", "t1", 1, 1)
        problem = _await_problem(feed)
        assert problem.code == "source.transaction_incomplete"
        assert "transaction 571" in problem.detail and "for its END" in problem.detail
        # The others go on, and so does this one once its END is there; or once its events are.
        shop.put("items", None, 0, 90)
        assert next_told(feed, notes) == [("items", 90, "alone")]
        assert problem_of(feed.feed) is problem
        shop.end("t1", orders=1, items=1)
        until = time.monotonic() + 60
        while "1 of its events of items" not in _await_problem(feed).detail:
            assert time.monotonic() < until
        shop.put("items", "t1", 2, 2)
        assert next_told(feed, notes) == [("items", 2, "t1"), ("orders", 1, "t1")]
        assert problem_of(feed.feed) is None


def _await_problem(feed: SourceSubscriptions) -> TidemarkError:
    for _ in range(200):
        feed.step()
        problem = problem_of(feed.feed)
        if problem is not None:
            return problem
    raise AssertionError("no problem is reported")


def test_tables_by_the_names_that_connectors_give_them() -> None:
    """SQL Server, MongoDB and Oracle name a table otherwise than its topic's last two parts."""
    named = {
        "sqlserver": ("eu.shop.dbo.items", "shop.dbo.items"),
        "mongodb": ("eu.shop.items.old", "shop.items.old"),
        "oracle": ("eu.SHOP.ITEMS", "ORCLPDB1.SHOP.ITEMS"),
        "routed": ("public.items", "public.items"),
    }
    topics = {name: options_of(topic) for name, (topic, _) in named.items()}
    given = {"bootstrap_servers": "h:1", "topics": topics, "transactions": "eu.transaction"}
    found = {one.relation: one.collection for one in read_options(given).topics}
    transactions = Transactions(found, {name: {0: 0} for name in named})
    for name in named:
        transactions.add_event((name, 0), "t", 1)
    assert set(transactions.lacking()) == {"t"}
    counts = [{"data_collection": table, "event_count": 1} for _, table in named.values()]
    transactions.add_marker(0, 0, {"id": "t", "status": "END", "data_collections": counts})
    assert transactions.cut() == {(name, 0): 1 for name in named}
    transactions.drop(transactions.cut())
    # A name that two tables end with is none of them.
    other = Transactions({"a": "x.t"}, {})
    other.add_event(("a", 0), "t", 1)
    counts = [{"data_collection": f"{one}.x.t", "event_count": 1} for one in ("p", "q")]
    other.add_marker(0, 0, {"id": "t", "status": "END", "data_collections": counts})
    with pytest.raises(SourceError, match=r"source\.transaction_collection"):
        other.drop(other.cut())
