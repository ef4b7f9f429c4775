"""Oracle: what the test has written to the server."""

from __future__ import annotations

import datetime
import socket
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from bson import Binary, Decimal128, Int64, ObjectId
from pymongo import MongoClient

from connectors import netguard
from connectors.loopback import free_port
from connectors.mongodb import source as connector
from connectors.mongodb.documents import plain
from connectors.netguard import Guard
from connectors.polled import schedule
from dataflow.errors import SourceError, TemporaryError
from tests.connectors.feed_mirror import make_source
from tests.connectors.mongodb.server import ferretdb
from tests.connectors.polled_mirror import PolledMirror

COLUMNS = [
    {"name": "_id", "type": "text"},
    {"name": "price", "type": "numeric(12,2)"},
    {"name": "city", "type": "text", "path": "$.address.city"},
]


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with ferretdb(tmp_path_factory.mktemp("ferretdb")) as found:
        yield found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "FIRST_S", 0.05)


def options(port: int, relation: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    own = {"columns": COLUMNS, "collection": "things", **(relation or {})}
    servers = {"servers": [f"127.0.0.1:{port}"], "database": "shop", "poll_interval_ms": 20}
    return {**servers, "relations": {"t": own}, **more}


def begun(given: dict[str, Any]) -> PolledMirror:
    mirror = PolledMirror(make_source(connector, given))
    mirror.begin()
    return mirror


@pytest.mark.whole
def test_documents_come_change_and_go(port: int) -> None:
    ids = [ObjectId() for _ in range(3)]
    with MongoClient("127.0.0.1", port) as client:
        things = client.shop.things
        things.drop()
        things.insert_many(
            [
                {"_id": ids[0], "price": 1.5, "address": {"city": "Rome"}, "more": [1, {}]},
                {"_id": ids[1], "price": Int64(7)},
            ]
        )
        mirror = begun(options(port))
        wanted = {(str(ids[0]), "1.50", "Rome"), (str(ids[1]), "7.00", None)}
        assert set(mirror.rows["t"].values()) == wanted
        mirror.open()
        things.update_one({"_id": ids[0]}, {"$set": {"address.city": "Oslo"}})
        things.delete_one({"_id": ids[1]})
        things.insert_one({"_id": ids[2], "price": 0})
        wanted = {(str(ids[0]), "1.50", "Oslo"), (str(ids[2]), "0.00", None)}
        mirror.follow(lambda m: set(m.rows["t"].values()) == wanted)
        mirror.close()
        assert mirror.changed == 3
        found = begun(options(port, {"filter": {"price": {"$gt": 1}}}))
        assert [row[0] for row in found.rows["t"].values()] == [str(ids[0])]
        whole = [{"name": "_id", "type": "text"}, {"name": "d", "type": "jsonb", "path": "$"}]
        documents = begun(options(port, {"columns": whole})).rows["t"]
        assert '"more": [1, {}]' in str(documents[(str(ids[0]),)][1])
        with pytest.raises(SourceError, match=r"mongodb\.too_many_rows"):
            begun(options(port, max_rows=1))
        given = options(port)
        del given["relations"]["t"]["columns"]
        proposed = connector.discover(given)["relations"]["t"]["columns"]
        assert {"_id", "price"} <= {column["name"] for column in proposed}
        with pytest.raises(SourceError, match=r"mongodb\.refused"):
            begun(options(port, {"filter": {"$nonsense": 1}}))


def test_a_server_that_is_away_is_temporary(monkeypatch: pytest.MonkeyPatch) -> None:
    given = options(free_port(), timeout_ms=200)
    with pytest.raises(TemporaryError, match=r"mongodb\.unreachable"):
        begun(given)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        given = options(silent.getsockname()[1], timeout_ms=300)
        with pytest.raises(TemporaryError, match=r"mongodb\.unreachable"):
            begun(given)
    monkeypatch.setattr(netguard, "_guard", Guard(is_local=False))
    with pytest.raises(SourceError, match=r"host\.forbidden"):
        begun(given)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"servers": []}, "servers"),
        ({"servers": ["mongodb://me:pw@x"]}, "servers"),
        ({"servers": ["x:99999"]}, "servers"),
        ({"user": "me"}, "user"),
        ({"database": ""}, "relations.t.database"),
        ({"relations": {}}, "relations"),
        ({"colour": 1}, "colour"),
    ],
)
def test_options_that_are_wrong_are_named(change: dict[str, Any], named: str) -> None:
    with pytest.raises(SourceError) as refused:
        connector.declare({**options(27017), **change})
    assert refused.value.code == "source.bad_option" and f'"{named}"' in refused.value.what


def test_a_password_is_a_reference() -> None:
    with pytest.raises(SourceError, match=r"secret\.plain") as refused:
        connector.declare(options(27017, user="me", password="hunter2"))
    assert "hunter2" not in str(refused.value)


def test_values_keep_what_they_are() -> None:
    number = uuid.UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11")
    moment = datetime.datetime(2024, 2, 29, 12, 0, 0, 1000, tzinfo=datetime.UTC)
    document = {
        "id": ObjectId("0123456789abcdef01234567"),
        "exact": Decimal128("12345678901234567890.10"),
        "long": Int64(2**62),
        "double": float("inf"),
        "at": moment,
        "uuid": Binary.from_uuid(number),
        "bytes": b"\x00\xff",
        "list": [Int64(1), {"deep": Decimal128("0.1")}],
    }
    assert plain(document) == {
        "id": "0123456789abcdef01234567",
        "exact": "12345678901234567890.10",
        "long": 2**62,
        "double": "inf",
        "at": "2024-02-29T12:00:00.001000+00:00",
        "uuid": str(number),
        "bytes": "\\x00ff",
        "list": [1, {"deep": "0.1"}],
    }
