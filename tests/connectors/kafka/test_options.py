"""Oracle: what a user may write, as docs/KAFKA.md says it."""

from __future__ import annotations

from typing import Any

import pytest

from connectors.feed_source import DeclaredRelation
from connectors.kafka import source
from connectors.kafka.options import read_options
from connectors.kafka.records import Records
from connectors.kafka.rows import RowReader
from connectors.kafka.topic_source import KafkaSource
from dataflow.errors import SourceError
from tests.connectors.kafka.reading import relations_of, topic_options, upsert_options

SERVERS = {"bootstrap_servers": "localhost:9092"}


def options(**more: Any) -> dict[str, Any]:
    return {**SERVERS, "topics": {"clicks": topic_options("page-views", **more)}}


def test_topics_are_declared_relations() -> None:
    upsert = upsert_options("customers")
    given = {**SERVERS, "topics": {"clicks": topic_options("page-views"), "customers": upsert}}
    assert source.declare(given) == [
        DeclaredRelation(
            "clicks",
            (("_partition", "int4"), ("_offset", "int8"), ("id", "int8"), ("name", "text")),
            ("_partition", "_offset"),
            is_append=True,
        ),
        DeclaredRelation("customers", (("id", "int8"), ("name", "text")), ("id",)),
    ]
    assert source.declare(options(columns={"id": "int8", "_offset": "int8"}))[0].key == ()


def test_the_service_makes_sources_of_options() -> None:
    given = options()
    made = source.make("shop", given, relations_of(read_options(given)))
    assert [relation.name.name for relation in made.relations()] == ["clicks"]
    assert made.name == "shop"


@pytest.mark.parametrize(
    "more, named",
    [
        ({"mode": "update"}, "topics.clicks.mode"),
        ({"mode": "upsert"}, "topics.clicks.key"),
        ({"mode": "upsert", "key": ["nothing"]}, "topics.clicks.key"),
        ({"mode": "upsert", "key": ["_offset"]}, "topics.clicks.key"),
        ({"key": ["id"]}, "topics.clicks.key"),
        ({"columns": {}}, "topics.clicks.columns"),
        ({"columns": None}, "topics.clicks.columns"),
        ({"columns": [{"name": "id"}]}, "topics.clicks.columns"),
        ({"columns": {"id": 8}}, "topics.clicks.columns"),
        ({"columns": [{"name": "id", "type": "int8"}] * 2}, "topics.clicks.columns"),
        ({"columns": {"_offset": "int4"}}, "topics.clicks.columns"),
        ({"format": None}, "topics.clicks.format"),
        ({"format": 1}, "topics.clicks.format"),
        ({"key_format": 1}, "topics.clicks.key_format"),
        ({"start": "sometime"}, "topics.clicks.start"),
        ({"start": {}}, "topics.clicks.start"),
        ({"start": {"timestamp": "noon"}}, "topics.clicks.start.timestamp"),
        ({"start": {"offsets": {"0": -1}}}, "topics.clicks.start.offsets"),
        ({"start": {"offsets": {"a": 1}}}, "topics.clicks.start.offsets"),
        ({"on_error": "ignore"}, "topics.clicks.on_error"),
        ({"topics": 1}, "topics.clicks.topics"),
    ],
)
def test_topic_options_that_are_refused(more: dict[str, Any], named: str) -> None:
    with pytest.raises(SourceError, match=r"source\.bad_option") as caught:
        source.declare(options(**more))
    assert f'"{named}"' in caught.value.what


@pytest.mark.parametrize(
    "more, named",
    [
        ({"topics": {}}, "topics"),
        ({"topics": None}, "topics"),
        ({"topics": {"a" * 64: {}}}, "a" * 64),
        ({"topics": {name: topic_options("same") for name in "ab"}}, "topics.b.topic"),
        ({"on_error": "ignore"}, "on_error"),
        ({"check_ms": 1}, "check_ms"),
        ({"buffer_bytes": "many"}, "buffer_bytes"),
        ({"group": "mine"}, "group"),
    ],
)
def test_source_options_that_are_refused(more: dict[str, Any], named: str) -> None:
    with pytest.raises(SourceError, match=r"source\.bad_option") as caught:
        source.declare({**options(), **more})
    assert named in caught.value.what


@pytest.mark.parametrize("type_name", ["numeric", "float8", "jsonb", "char(4)", "int4[]"])
def test_keys_whose_equal_values_differ_in_bytes_are_refused(type_name: str) -> None:
    columns = [{"name": "id", "type": type_name}]
    given = {**SERVERS, "topics": {"clicks": upsert_options("t", columns=columns)}}
    read = read_options(given)
    with pytest.raises(SourceError, match=r"source\.bad_option"):
        KafkaSource("shop", read, relations_of(read))


def test_columns_are_found_in_the_order_of_the_relation() -> None:
    given = options(columns={"name": "text", "id": "int8"})
    [relation] = relations_of(read_options(given))
    turned = read_options(options(columns={"id": "int8", "name": "text"}))
    reader = RowReader(relation, turned.topics[0])
    rows = reader.read(Records([0], [5], [None], [b'{"id": 1, "name": "a"}']))
    assert [column.to_list() for column in rows.columns] == [[b"a"], [1]]


def test_formats_refuse_before_anything_is_read() -> None:
    given = read_options(options(format="morse"))
    with pytest.raises(SourceError, match=r"format\.unknown"):
        KafkaSource("shop", given, relations_of(given))
