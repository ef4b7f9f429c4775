"""Oracle: the contract of sources: whatever a server of MongoDB's protocol answers, its source has
rows, rejected records or an error with a code; what is well-formed beside it stays a row."""

from __future__ import annotations

import random
import struct
import time
from typing import Any

import bson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from connectors.mongodb import documents as mongo_documents
from connectors.mongodb import source as mongo_source
from dataflow.errors import TidemarkError
from service.ingest.declared_sources import connector
from tests.connectors.feed_mirror import make_source
from tests.harness.tiers import count
from tests.security.mongo_server import MongoServer
from tests.security.mutating_proxy import MutatingProxy

EXAMPLES = count("TIDEMARK_TEST_MUTATIONS", 6, 60)
FIRST = count("TIDEMARK_TEST_SEED", 1, 1)
GOOD = bson.encode({"_id": 1, "name": "good"})
# Of one use whose server sends nothing.
TIMEOUT_MS = 1500


def options(port: int, **more: Any) -> dict[str, Any]:
    """A source of one collection."""
    columns = [{"name": "_id", "type": "int8"}, {"name": "name", "type": "text", "nullable": True}]
    relation = {"collection": "c", "database": "db", "columns": columns, "on_error": "dead_letter"}
    return {
        "servers": [f"127.0.0.1:{port}"],
        "timeout_ms": TIMEOUT_MS,
        "relations": {"c": {**relation, **more}},
    }


def snapshot(source: Any) -> tuple[list[Any], list[Any]]:
    """The ids, and the reasons of the rejected records."""
    (relation,) = source.relations()
    start = source.start_position(relation)
    opened = source.open_snapshot([relation], {"c": start.position}, dict(start.notes))
    rows, rejected = [], []
    for part in opened.parts(relation, range(len(relation.fields)), 2):
        rows += [row[0] for delta in part.read() for row, _ in delta.rows()]
        rejected += [row[4] for row, _ in part.rejected().rows()]
    return rows, rejected


def element(kind: int, name: bytes, value: bytes) -> bytes:
    """A document of an id and one more element."""
    inner = b"\x10_id\0" + struct.pack("<i", 2) + bytes([kind]) + name + b"\0" + value
    return struct.pack("<i", len(inner) + 5) + inner + b"\0"


def text(value: bytes) -> bytes:
    return struct.pack("<i", len(value) + 1) + value + b"\0"


ODD = {
    "a NUL": (element(2, b"name", text(b"a\0b")), "rejected"),
    "a date far away": (element(9, b"name", struct.pack("<q", 1 << 58)), "row"),
    "a date of the year 20000": (
        element(9, b"name", struct.pack("<q", 569_000_000_000_000)),
        "row",
    ),
    "a timestamp far away": (element(17, b"name", struct.pack("<II", 1, (1 << 32) - 1)), "row"),
    "not a number": (element(1, b"name", struct.pack("<d", float("nan"))), "row"),
    "a decimal of 6144 digits": (element(19, b"name", bson.Decimal128("1E6144").bid), "row"),
    "nested 300 deep": (element(3, b"name", bson.encode({})), "row"),
    "a text that is none": (element(2, b"name", text(b"a\xff\xed\xa0\x80")), "rejected"),
    "a pattern": (element(11, b"name", b"(((\0\0"), "row"),
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_value_is_its_documents_own(name: str) -> None:
    document, outcome = ODD[name]
    if name == "nested 300 deep":
        inner: Any = 1
        for _ in range(300):
            inner = {"a": inner}
        document, outcome = bson.encode({"_id": 2, "name": inner}), "rejected"
    with MongoServer([GOOD, document]) as server:
        rows, rejected = snapshot(make_source(connector("mongodb"), options(server.port)))
    assert 1 in rows
    assert (2 in rows) == (outcome == "row"), rejected
    assert len(rejected) == (outcome == "rejected")
    for reason in rejected:
        assert b"\0" not in reason
        reason.decode()


@settings(
    max_examples=EXAMPLES * 4,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
@given(st.binary(max_size=80), st.integers(0, 255), st.integers(0, 1 << 32))
def test_any_bson_is_rows_or_refused(value: bytes, kind: int, seed: int) -> None:
    found = random.Random(seed)
    document = bytearray(element(kind, b"name", value))
    if found.random() < 0.5:
        document[found.randrange(len(document))] = found.randrange(256)
    with MongoServer([GOOD, bytes(document)]) as server:
        source = make_source(connector("mongodb"), options(server.port))
        try:
            rows, _ = snapshot(source)
            assert 1 in rows
        except TidemarkError as error:
            error.detail.encode()


def test_what_is_changed_on_the_way_is_refused() -> None:
    documents = [bson.encode({"_id": n, "name": "ä" * n}) for n in range(30)]
    with MongoServer(documents) as server:
        for seed in range(FIRST, FIRST + EXAMPLES):
            print(f"repeat: TIDEMARK_TEST_SEED={seed} TIDEMARK_TEST_MUTATIONS=1 pytest {__file__}")
            with MutatingProxy(server.port, seed, pass_bytes=3000) as proxy:
                source = make_source(connector("mongodb"), options(proxy.port))
                try:
                    snapshot(source)
                except TidemarkError as error:
                    error.detail.encode()
                try:
                    connector("mongodb").discover(options(proxy.port, columns=[]))
                except TidemarkError as error:
                    error.detail.encode()


def test_a_message_is_no_longer_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that announces two gigabytes, after a greeting that allows them."""

    def answer(name: str, command: dict[str, Any]) -> bytes | None:
        return bson.encode({"ok": 1.0, "filling": b"x" * 60_000_000}) if name == "find" else None

    with MongoServer([GOOD], answer) as server:
        server.greeting = {"maxMessageSizeBytes": (1 << 31) - 1, "maxBsonObjectSize": 1 << 30}
        source = make_source(connector("mongodb"), options(server.port))
        with pytest.raises(TidemarkError) as refused:
            source.check()
    assert "48000000" in refused.value.detail
    with MongoServer([GOOD]) as server:
        make_source(connector("mongodb"), options(server.port)).check()


def test_documents_have_a_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mongo_documents, "MOST_BYTES", 100_000)
    large = [bson.encode({"_id": n, "name": "x" * 10_000}) for n in range(20)]
    with MongoServer(large) as server:
        source = make_source(connector("mongodb"), options(server.port))
        with pytest.raises(TidemarkError) as refused:
            source.check()
        assert refused.value.code == "source.bad_answer"
        server.documents = large[:5]
        make_source(connector("mongodb"), options(server.port)).check()


def test_slow_documents_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mongo_source, "READ_S", 0.5)

    def answer(name: str, command: dict[str, Any]) -> bytes | None:
        if name in ("find", "getMore"):
            time.sleep(0.2)
            batch = "firstBatch" if name == "find" else "nextBatch"
            more = {batch: [{"_id": 1}], "id": bson.Int64(7), "ns": "db.c"}
            return bson.encode({"cursor": more, "ok": 1.0})
        return None

    with MongoServer([], answer) as server:
        source = make_source(connector("mongodb"), options(server.port))
        with pytest.raises(TidemarkError) as refused:
            source.check()
    assert refused.value.code == "source.bad_answer" and "0.5 s" in refused.value.detail
