"""Oracle: the numbers that were produced in good records; which records are bad, and which schema
each was written with, is known to the test."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer

from connectors.formats.registry import wire_header
from connectors.kafka.embedded import EmbeddedKafka
from tests.harness.broker import new_topic, send
from tests.harness.postgres import Database
from tests.harness.registry import Registry
from tests.harness.service import RunningService

TIMEOUT_S = 60.0
PROTOBUF = 'syntax = "proto3"; message Row { int64 n = 1; }'
AVRO = {"type": "record", "name": "Row", "fields": [{"name": "n", "type": "long"}]}
NEW_IDS = {"avro": 3, "protobuf": 4}  # those that the registry gives the second schemas


@pytest.fixture
def service(database: Database, tmp_path: Path) -> Iterator[RunningService]:
    database.execute("CREATE TABLE t (n int PRIMARY KEY)")
    with RunningService(database.dsn, tmp_path / "service") as running:
        yield running


@pytest.fixture
def registry() -> Iterator[Registry]:
    made = Registry()
    yield made
    made.stop()


def avro(schema: dict[str, Any], id: int, row: dict[str, Any]) -> bytes:
    """A record in the registry's wire format."""
    out = BytesIO()
    schemaless_writer(out, parse_schema(schema), row)
    return wire_header(id) + out.getvalue()


def protobuf(id: int, n: int) -> bytes:
    """A Row whose n is less than 128, in the registry's wire format."""
    return wire_header(id) + bytes([0, 0x08, n])


GOOD: dict[str, Callable[[int], bytes]] = {
    "json": lambda n: b'{"n": %d}' % n,
    "csv": lambda n: b"%d" % n,
    "text": lambda n: b"%d" % n,
    "avro": lambda n: avro(AVRO, 1, {"n": n}),
    "protobuf": lambda n: protobuf(2, n),
    "debezium": lambda n: b'{"op": "c", "before": null, "after": {"n": %d}}' % n,
}
BAD: dict[str, bytes] = {
    "json": b"{",
    "csv": b'"7',
    "text": b"seven",
    "avro": avro(AVRO, NEW_IDS["avro"], {"n": 7}),
    "protobuf": protobuf(NEW_IDS["protobuf"], 7),
    "debezium": b'{"op": "c", "after": {"n": "seven"}}',
}


def options_of(
    broker: EmbeddedKafka, registry: Registry, topics: dict[str, str], on_error: str
) -> dict[str, Any]:
    """A source with a relation for each format."""
    found: dict[str, Any] = {}
    for name, topic in topics.items():
        format_options: dict[str, Any] = {"format": name}
        if name in NEW_IDS:
            format_options["registry"] = {"url": registry.url}
        if name == "debezium":
            format_options["format"] = "debezium-json"
        found[name] = {"topic": topic, "format": format_options, "columns": {"n": "int8"}}
    servers = broker.bootstrap
    return {"bootstrap_servers": servers, "check_ms": 100, "on_error": on_error, "topics": found}


def declare(service: RunningService, name: str, options: dict[str, Any]) -> None:
    answer = service.call("POST", "/sources", {"name": name, "type": "kafka", "options": options})
    assert answer.status_code == 201, answer.text


def source_of(service: RunningService, name: str) -> dict[str, Any]:
    return service.call("GET", f"/sources/{name}").json()


def letters_of(service: RunningService) -> list[dict[str, Any]]:
    return service.call("GET", "/dead-letters?source=letters").json()["dead_letters"]


def of_all(numbers: dict[str, list[int]]) -> Counter[tuple[str, int]]:
    """The rows of a view over all formats."""
    return Counter((name, n) for name, found in numbers.items() for n in found)


@pytest.mark.whole
def test_a_poison_record_of_each_format(
    broker: EmbeddedKafka, registry: Registry, service: RunningService, database: Database
) -> None:
    """Each bad record under each policy; then the registry and the options are repaired."""
    registry._route(["subjects", "avro", "versions"], {"schema": json.dumps(AVRO)})
    registry._route(
        ["subjects", "protobuf", "versions"], {"schema": PROTOBUF, "schemaType": "PROTOBUF"}
    )
    topics = {name: new_topic(broker) for name in GOOD}
    for name, topic in topics.items():
        send(broker, topic, [(0, None, GOOD[name](0))])
    declare(service, "letters", options_of(broker, registry, topics, "dead_letter"))
    declare(service, "skips", options_of(broker, registry, topics, "skip"))
    for name, topic in topics.items():
        declare(service, f"fail_{name}", options_of(broker, registry, {name: topic}, "fail"))
    for view in ("letters", "skips", "fails"):
        sources = {name: f"fail_{name}" if view == "fails" else view for name in topics}
        query = " UNION ALL ".join(
            f"SELECT '{name}' AS format, n FROM {source}.{name}" for name, source in sources.items()
        )
        service.create(f"of_{view}", query, backfill="local")

    def shows(view: str, numbers: dict[str, list[int]]) -> Callable[[], bool]:
        rows = f"SELECT format, n FROM of_{view}"
        return lambda: Counter(database.rows(rows)) == of_all(numbers)

    for name, topic in topics.items():
        send(broker, topic, [(0, None, v) for v in (GOOD[name](1), BAD[name], GOOD[name](2))])
    passed = {name: [0, 1, 2] for name in topics}
    service.await_so(shows("letters", passed), TIMEOUT_S)
    service.await_so(shows("skips", passed), TIMEOUT_S)
    service.await_so(shows("fails", {name: [0, 1] for name in topics}), TIMEOUT_S)
    for name in topics:
        service.await_so(
            lambda n=name: source_of(service, f"fail_{n}")["status"] == "stopped", TIMEOUT_S
        )
        assert source_of(service, f"fail_{name}")["error"]["code"] == "source.bad_record"
    service.kill_child("pipeline")
    service.await_so(lambda: len(letters_of(service)) == len(topics), TIMEOUT_S)
    assert {x["relation"]: x["position"] for x in letters_of(service)} == dict.fromkeys(
        topics, "0:2"
    )
    registry._route(["subjects", "avro2", "versions"], {"schema": json.dumps({**AVRO, "doc": "2"})})
    again = {"schema": PROTOBUF + " ", "schemaType": "PROTOBUF"}
    registry._route(["subjects", "protobuf2", "versions"], again)
    assert len(registry.schemas) == 4
    chosen = service.call("POST", "/dead-letters/retry", {"source": "letters"})
    assert chosen.json() == {"count": len(topics)}
    repaired = {name: [0, 1, 2, *([7] if name in NEW_IDS else [])] for name in topics}
    service.await_so(shows("letters", repaired), TIMEOUT_S)
    service.await_so(lambda: not any(x["desired"] for x in letters_of(service)), TIMEOUT_S)
    assert {x["relation"] for x in letters_of(service)} == topics.keys() - NEW_IDS.keys()
    for name, topic in topics.items():
        on_error = "fail" if name in NEW_IDS else "skip"
        options = {**options_of(broker, registry, {name: topic}, on_error), "check_ms": 90}
        answer = service.call("PUT", f"/sources/fail_{name}", {"options": options})
        assert answer.status_code == 200, answer.text
    service.await_so(shows("fails", repaired), TIMEOUT_S)
    assert shows("skips", passed)()


@pytest.mark.whole
def test_a_registry_that_goes_away_and_schemas_that_change(
    broker: EmbeddedKafka, registry: Registry, service: RunningService, database: Database
) -> None:
    """By each record's own schema a field that it lacks is NULL; by one schema for all it has its
    default, and a field may have another name."""
    field, word = {"name": "n", "type": "long"}, {"name": "word", "type": "string"}
    grade = {"name": "grade", "type": "int", "default": 5}
    text = {"name": "text", "type": "string", "aliases": ["word"]}
    schemas = [
        {"type": "record", "name": "Row", "fields": fields}
        for fields in ([field, word], [field, word, grade], [field, grade, text])
    ]
    topic = new_topic(broker)

    def register(version: int) -> None:
        body = {"schema": json.dumps(schemas[version - 1])}
        assert registry._route(["subjects", topic, "versions"], body) == (200, {"id": version})

    def write(version: int, row: dict[str, Any]) -> None:
        send(broker, topic, [(0, None, avro(schemas[version - 1], version, row))])

    register(1)
    write(1, {"n": 1, "word": "one"})
    registry.stop()
    _read_twice(broker, registry, service, topic, schemas[2])
    service.create("others", "SELECT count(*) AS n FROM t", backfill="local")
    service.await_so(lambda: _goes_on(service, database), TIMEOUT_S)
    assert service.call("GET", "/views/by_own").json()["status"] != "live"
    registry.start()
    service.await_status("by_own")
    service.await_status("by_last")
    registry.stop()
    write(2, {"n": 2, "word": "two", "grade": 2})
    write(1, {"n": 3, "word": "three"})
    for name in ("own", "last"):
        service.await_so(lambda n=name: source_of(service, n)["status"] == "retrying", TIMEOUT_S)
        assert source_of(service, name)["error"]["code"] == "registry.unreachable"
    assert _goes_on(service, database)
    service.kill_child("pipeline")
    assert _goes_on(service, database)
    registry.start()
    register(2)
    rows = [(1, "one", None), (2, "two", 2), (3, "three", None)]
    service.await_so(lambda: sorted(database.rows("TABLE by_own")) == rows, TIMEOUT_S)
    register(3)
    write(3, {"n": 4, "text": "four", "grade": 4})
    service.await_so(lambda: database.rows("SELECT max(n) FROM by_own") == [(4,)], TIMEOUT_S)
    assert sorted(database.rows("SELECT n, word, grade FROM by_own")) == [*rows, (4, None, 4)]
    resolved = [(1, "one", 5), (2, "two", 2), (3, "three", 5), (4, "four", 4)]
    service.await_so(
        lambda: sorted(database.rows("SELECT n, text, grade FROM by_last")) == resolved, TIMEOUT_S
    )


def _read_twice(
    broker: EmbeddedKafka,
    registry: Registry,
    service: RunningService,
    topic: str,
    schema: dict[str, Any],
) -> None:
    """A view of each record by its own schema, and one of all by the schema."""
    chosen = {"format": "avro", "registry": {"url": registry.url}}
    by_last = {**chosen, "schema": json.dumps(schema)}
    for name, options, columns in (
        ("own", chosen, {"n": "int8", "word": "text", "grade": "int4"}),
        ("last", by_last, {"n": "int8", "text": "text", "grade": "int4"}),
    ):
        rows = {"topic": topic, "format": options, "columns": columns}
        given = {"bootstrap_servers": broker.bootstrap, "check_ms": 100, "topics": {"rows": rows}}
        declare(service, name, given)
        query = f"SELECT {', '.join(columns)} FROM {name}.rows"
        service.create(f"by_{name}", query, wait_s=0, backfill="local")


def _goes_on(service: RunningService, database: Database) -> bool:
    """A row more of a table, and a view shows it."""
    database.execute("INSERT INTO t SELECT count(*) FROM t")
    expected = database.rows("SELECT count(*) FROM t")
    service.await_so(lambda: database.rows("SELECT n FROM others") == expected, TIMEOUT_S)
    return True
