"""Oracle: what the test has written to the server, a model of MongoDB's change streams."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from bson import ObjectId

from connectors.mongodb import change_stream
from connectors.mongodb import source as connector
from connectors.polled import schedule
from connectors.source import SourceBatch
from dataflow.changes import Changes
from dataflow.errors import SourceError
from tests.connectors.feed_mirror import make_source
from tests.connectors.mongodb.replica_set import ReplicaSet
from tests.connectors.polled_mirror import PolledMirror
from tests.harness.proxy import CUT, Fault, Proxy

COLUMNS = [
    {"name": "_id", "type": "text"},
    {"name": "price", "type": "numeric(12,2)"},
    {"name": "city", "type": "text", "path": "$.address.city"},
]


class StreamMirror(PolledMirror):
    """As the engine takes it: an equal row is no fault, nor is the removal of none; TRUNCATE."""

    is_patient = True

    def change(self, rows: dict[tuple, tuple], kind: int, key: tuple, row: tuple) -> None:
        """See PolledMirror."""
        if kind == Changes.TRUNCATE:
            rows.clear()
        elif kind == Changes.UPSERT:
            rows[key] = row
        else:
            assert kind == Changes.REMOVE
            rows.pop(key, None)


@pytest.fixture
def server() -> Iterator[ReplicaSet]:
    with ReplicaSet().running() as found:
        yield found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "FIRST_S", 0.05)
    monkeypatch.setattr(change_stream, "AWAIT_MS", 100)


def options(port: int, relation: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    own = {"columns": COLUMNS, "collection": "things", **(relation or {})}
    servers = {"servers": [f"127.0.0.1:{port}"], "database": "shop", "changes": "stream"}
    return {**servers, "timeout_ms": 5000, "relations": {"t": own}, **more}


def begun(given: dict[str, Any]) -> StreamMirror:
    mirror = StreamMirror(make_source(connector, given))
    mirror.begin()
    mirror.open()
    return mirror


def held(mirror: PolledMirror) -> set[tuple]:
    return set(mirror.rows["t"].values())


def test_documents_come_change_and_go(server: ReplicaSet) -> None:
    """Over cuts, small batches and other processes; only ids are asked for of the events."""
    pick, expected = random.Random(9), dict[str, tuple]()
    server.batch = 3

    def change(count: int) -> None:
        for _ in range(count):
            id = f"k{pick.randrange(20)}"
            if id in expected and pick.random() < 0.3:
                server.remove("things", id)
                del expected[id]
            else:
                price, city = pick.randrange(100), pick.choice(["Rome", "Oslo"])
                kind = pick.choice(["", "update"]) if id in expected else ""
                document = {"_id": id, "price": price, "address": {"city": city}, "more": [1]}
                server.put("things", document, kind)
                expected[id] = (id, f"{price}.00", city)
            server.put("others", {"_id": 1})

    change(30)
    with Proxy(server.port) as proxy:
        mirror = begun(options(proxy.port))
        assert held(mirror) == set(expected.values())
        for step in range(8):
            change(25)
            if step % 2:
                proxy.begin(Fault(CUT))
                proxy.heal()
            if step % 3 == 2:
                mirror.source = make_source(connector, options(proxy.port))
                mirror.open()
            mirror.follow(lambda m: held(m) == set(expected.values()))
        mirror.close()
    assert server.pipelines[-1][1] == {"$project": {"operationType": 1, "documentKey._id": 1}}


def test_what_changes_while_the_snapshot_is_read(server: ReplicaSet) -> None:
    """The position is older than the rows; the events since then change nothing wrongly."""
    source = make_source(connector, options(server.port))
    mirror = StreamMirror(source)
    server.put("things", {"_id": "a", "price": 1})
    server.put("things", {"_id": "b", "price": 2})
    [relation] = source.relations()
    start = source.start_position(relation)
    server.put("things", {"_id": "a", "price": 3})
    server.remove("things", "b")
    server.put("things", {"_id": "c", "price": 4})
    mirror.positions = {"t": start.position}
    [part] = source.open_snapshot([relation], mirror.positions, {}).parts(relation, [0, 1, 2], 3)
    [delta] = part.read()
    assert len(delta) == 2
    mirror.open()
    server.put("things", {"_id": "d", "price": 5})
    mirror.follow(lambda m: ("d", "5.00", None) in held(m))
    assert held(mirror) == {("a", "3.00", None), ("c", "4.00", None), ("d", "5.00", None)}
    mirror.close()


def test_documents_that_leave_the_filter(server: ReplicaSet) -> None:
    server.put("things", {"_id": "a", "price": 5})
    server.put("things", {"_id": "b", "price": 0})
    mirror = begun(options(server.port, {"filter": {"price": {"$gt": 1}}}))
    assert held(mirror) == {("a", "5.00", None)}
    server.put("things", {"_id": "a", "price": 1})
    server.put("things", {"_id": "b", "price": 2})
    mirror.follow(lambda m: held(m) == {("b", "2.00", None)})
    mirror.close()


@pytest.mark.parametrize("what", ["drop", "rename", "history"])
def test_what_ends_a_stream(server: ReplicaSet, what: str) -> None:
    """The collection is read again, and what is gone leaves; then the stream goes on."""
    for number in range(5):
        server.put("things", {"_id": f"k{number}", "price": number})
    mirror = begun(options(server.port))
    if what == "drop":
        server.drop("things")
    elif what == "rename":
        server.rename("things", "archive")
    else:
        mirror.close()
        for number in range(4):
            server.remove("things", f"k{number}")
        server.forget_history()
        mirror.open()
    server.put("things", {"_id": "new", "price": 1})
    expected = {("new", "1.00", None)} | ({("k4", "4.00", None)} if what == "history" else set())
    mirror.follow(lambda m: held(m) == expected)
    server.put("things", {"_id": "newer", "price": 1})
    mirror.follow(lambda m: len(held(m)) == len(expected) + 1)
    mirror.close()


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_documents_that_do_not_fit(server: ReplicaSet, policy: str) -> None:
    """One that does not fit any more has no row, as if it were gone."""
    server.put("things", {"_id": "a", "price": 1})
    mirror = begun(options(server.port, {"on_error": policy}))
    server.put("things", {"_id": "a", "price": "much"})
    server.put("things", {"_id": "b", "price": 2})
    if policy == "skip":
        mirror.follow(lambda m: held(m) == {("b", "2.00", None)})
        mirror.close()
        return
    with pytest.raises(SourceError, match=r"source\.bad_record"):
        mirror.follow(lambda m: len(held(m)) == 2)
    server.put("things", {"_id": "a", "price": 3})
    schedule_of(mirror)
    mirror.open()
    mirror.follow(lambda m: held(m) == {("a", "3.00", None), ("b", "2.00", None)})
    mirror.close()


def schedule_of(mirror: PolledMirror) -> None:
    """A source made again is asked at once."""
    mirror.source = make_source(connector, options_of(mirror))


def options_of(mirror: PolledMirror) -> dict[str, Any]:
    source: Any = mirror.source
    [(_, port)] = source._options.servers
    return options(port)


def test_idle_positions_move(server: ReplicaSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a quiet collection's position stays in the log."""
    monkeypatch.setattr(change_stream, "IDLE_S", 0.0)
    mirror = begun(options(server.port))
    before = mirror.positions["t"]["at"]
    server.put("others", {"_id": 1})
    moved: list[SourceBatch] = []
    mirror.follow(lambda m: m.positions["t"]["at"] != before or bool(moved))
    mirror.close()
    assert held(mirror) == set()
    server.forget_history()
    mirror.open()
    server.put("things", {"_id": ObjectId("0123456789abcdef01234567"), "price": 1})
    mirror.follow(lambda m: len(held(m)) == 1)
    mirror.close()
    assert held(mirror) == {("0123456789abcdef01234567", "1.00", None)}


def test_a_server_without_change_streams() -> None:
    with ReplicaSet(is_replicated=False).running() as server:
        with pytest.raises(SourceError, match=r"mongodb\.no_change_streams"):
            make_source(connector, options(server.port)).check()
        plain = {**options(server.port), "changes": "poll"}
        make_source(connector, plain).check()


@pytest.mark.parametrize(
    ("relation", "named"),
    [
        ({"key": ["price"]}, "relations.t.key"),
        ({"columns": [{"name": "_id", "type": "text", "path": "$.x"}]}, "relations.t.key"),
        ({"on_error": "dead_letter"}, "relations.t.on_error"),
    ],
)
def test_options_that_are_wrong_are_named(relation: dict[str, Any], named: str) -> None:
    with pytest.raises(SourceError) as refused:
        connector.declare(options(27017, relation))
    assert refused.value.code == "source.bad_option" and f'"{named}"' in refused.value.what
