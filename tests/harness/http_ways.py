"""Every way by which a connector asks a server by HTTP, as the service uses it: through the
boundary, once, with small time limits."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from connectors.formats.registry import SchemaRegistry
from connectors.outside.boundary import boundary
from connectors.sink import SinkTable
from connectors.stream.options import read_options as stream_options
from connectors.stream.source import transport_of
from dataflow.schema import Field
from dataflow.types import INT4
from service.factory.sink_types import sink_connector
from service.ingest.declared_sources import connector
from tests.connectors.feed_mirror import make_source
from tests.harness.hostile_server import Asked, answer

COLUMNS = [{"name": "id", "type": "bigint"}]
TABLE = SinkTable("public", "v", (Field("id", INT4, False),), (0,))
_LIST = b"<ListBucketResult><Name>b</Name><KeyCount>0</KeyCount></ListBucketResult>"


@dataclass(frozen=True)
class Way:
    """ask: asks the server at a URL once. good: what a right server answers.

    TidemarkError and nothing else is what `ask` may raise. is_bounded: it reads through the bounded
    reader, in Python.
    """

    ask: Callable[[str], Any]
    good: Callable[[Asked], bytes]
    is_bounded: bool = True


def _http(relation: dict[str, Any], **more: Any) -> Callable[[str], Any]:
    def ask(url: str) -> Any:
        own = {"key": ["id"], **relation}
        limits = {"timeout_ms": 100, "max_bytes": 1 << 20, **more}
        options = {"url": url, "relations": {"t": own}, **limits}
        return connector("http").discover(options)

    return ask


def _http_poll(url: str) -> None:
    own = {"key": ["id"], "columns": COLUMNS, "pagination": {"type": "link"}}
    limits = {"timeout_ms": 100, "max_bytes": 1 << 20}
    make_source(connector("http"), {"url": url, "relations": {"t": own}, **limits}).check()


def _webhook(url: str) -> None:
    options = {"url": f"{url}/hook", "secret": "${env:SECRET_HOOK}", "timeout_ms": 100}
    sink_connector("webhook").check(options, TABLE, "v/hook")


def _clickhouse(url: str) -> Any:
    options = {"url": url, "timeout_ms": 100, "relations": {"t": {"key": ["id"]}}}
    return connector("clickhouse").discover(options)


def _clickhouse_sink(url: str) -> Any:
    return sink_connector("clickhouse").check({"url": url}, TABLE, "v/ch")


def _registry(url: str) -> None:
    registry = SchemaRegistry({"url": url, "timeout_s": 0.1})
    with boundary("source", "r"), closing(registry):
        registry.by_id(1)


def _stream(scheme: str) -> Callable[[str], Any]:
    def ask(url: str) -> list[Any]:
        address = url.replace("http", scheme, 1)
        options = {"url": address, "timeout_ms": 100, "idle_ms": 300}
        (relation,) = stream_options({**options, "relations": {"t": {"columns": COLUMNS}}})
        with boundary("source", "s"), transport_of(relation).open("") as link:
            found = next(iter(link.messages()))
            return [found]

    return ask


def _bucket(url: str) -> Any:
    relation = {"path": "s3://bucket/*.csv", "endpoint": url}
    return connector("files").discover({"relations": {"r": {**relation, "format": "csv"}}})


def _parquet_sink(url: str) -> Any:
    options = {"path": "s3://bucket/p", "endpoint": url}
    return sink_connector("parquet").check(options, TABLE, "v/p")


def _delta_sink(url: str) -> Any:
    options = {"path": "s3://bucket/d", "endpoint": url}
    return sink_connector("delta").check(options, TABLE, "v/d")


def _accepted(asked: Asked) -> bytes:
    """The answer of a WebSocket's server, with one message."""
    key = asked.headers["sec-websocket-key"].encode() + b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    accept = base64.b64encode(hashlib.sha1(key).digest()).decode()
    head = "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    return f"{head}Sec-WebSocket-Accept: {accept}\r\n\r\n".encode() + b"\x81\x08" + b'{"id":1}'


def _of_clickhouse(asked: Asked) -> bytes:
    if "JSONCompact" in asked.body.decode():
        return answer(body=b'{"meta":[{"name":"id","type":"Int64"}],"data":[]}')
    return answer(body=b'{"version":"25.1.1.1"}\n' if "version" in asked.target else b"")


def _of_bucket(asked: Asked) -> bytes:
    body = (
        b"<DeleteResult><Deleted><Key>x</Key></Deleted></DeleteResult>"
        if asked.method == "POST"
        else _LIST
    )
    return answer(200, body, "application/xml", [("ETag", '"1"')])


_ROWS = answer(body=b'[{"id": 1}]')
WAYS: dict[str, Way] = {
    "http discover": Way(_http({}), lambda _: _ROWS),
    "http poll": Way(_http_poll, lambda _: _ROWS),
    "http cursor": Way(
        _http({"rows": "$.r", "pagination": {"type": "cursor", "parameter": "c", "from": "$.n"}}),
        lambda _: answer(body=b'{"r": [{"id": 1}], "n": null}'),
    ),
    "webhook": Way(_webhook, lambda _: answer()),
    "clickhouse": Way(_clickhouse, _of_clickhouse),
    "clickhouse sink": Way(_clickhouse_sink, _of_clickhouse),
    "registry": Way(_registry, lambda _: answer(body=b'{"schema": "\\"int\\""}')),
    "events": Way(_stream("http"), lambda _: answer(200, b"data: 1\n\n", "text/event-stream")),
    "websocket": Way(_stream("ws"), _accepted),
    "bucket": Way(_bucket, _of_bucket, is_bounded=False),
    "parquet sink": Way(_parquet_sink, _of_bucket, is_bounded=False),
    "delta sink": Way(_delta_sink, lambda _: answer(404), is_bounded=False),
}
IN_PYTHON = [name for name, way in WAYS.items() if way.is_bounded]
# Those whose library asks several times, with pauses.
IN_RUST = [name for name, way in WAYS.items() if not way.is_bounded]
