"""Oracle: docs/ERRORS.md: the meaning of each code, brought about at a real server, gives it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from connectors.clickhouse import source as clickhouse
from connectors.feed_source import Connector
from connectors.http import source as http
from connectors.loopback import free_port
from connectors.postgres.embedded.server import EmbeddedPostgres
from connectors.stream import source as stream
from dataflow.errors import SourceError, TidemarkError
from tests.connectors.feed_mirror import make_source
from tests.connectors.http.server import Reply, Server
from tests.connectors.stream.servers import EventServer
from tests.harness.clickhouse import ClickHouse, found_program

COLUMNS = [{"name": "id", "type": "bigint"}]
KEYED = {"key": ["id"], "columns": COLUMNS}


def _code(connector: Connector, options: Mapping[str, Any]) -> str:
    """Of the error of a check."""
    with pytest.raises(TidemarkError) as caught:
        make_source(connector, options).check()
    return caught.value.code


def test_of_http() -> None:
    """Its errors name the port: a host may have several services."""
    relation = {"path": "/v1", "pagination": {"type": "link"}, **KEYED}
    gone = {"url": f"http://127.0.0.1:{free_port()}", "relations": {"t": relation}}
    with Server().running() as server:
        options = {**gone, "url": server.url}
        next_page = f'<http://127.0.0.1:{free_port()}/v1?page=2>; rel="next"'
        server.answer = lambda _: Reply([{"id": 1}], headers={"Link": next_page})
        assert _code(http, options) == "http.other_host"
        server.answer = lambda _: Reply({}, 404)
        with pytest.raises(SourceError) as caught:
            make_source(http, options).check()
        assert (caught.value.code, server.url in caught.value.what) == ("http.refused", True)
    assert _code(http, gone) == "http.unreachable"


def test_of_streams() -> None:
    with EventServer().running() as server:
        options = {"url": server.url, "relations": {"t": {"columns": COLUMNS}}}
        server.status = 401
        assert _code(stream, options) == "stream.login"
        server.status = 404
        assert _code(stream, options) == "stream.refused"


def test_of_clickhouse() -> None:
    if found_program() is None:
        pytest.skip("Debian's clickhouse-server is not installed")
    with ClickHouse() as server:
        server.execute(
            "CREATE TABLE sums (id Int64, s AggregateFunction(sum, Int64)) "
            "ENGINE = AggregatingMergeTree ORDER BY id"
        )
        columns = [*COLUMNS, {"name": "s", "type": "text"}]
        relation = {"table": "sums", "key": ["id"], "columns": columns}
        options = {"url": server.url, "relations": {"t": relation}}
        assert _code(clickhouse, options) == "clickhouse.type"
        settings = {"max_memory_usage": "100000"}
        query = (
            "SELECT number AS id FROM (SELECT number FROM system.numbers LIMIT 9000000) GROUP BY id"
        )
        heavy = {"url": server.url, "settings": settings}
        heavy |= {"relations": {"t": {"query": query, **KEYED}}}
        assert _code(clickhouse, heavy) == "clickhouse.unavailable"


def test_of_a_server_that_was_not_started() -> None:
    with pytest.raises(SourceError) as caught:
        _ = EmbeddedPostgres().directory
    assert caught.value.code == "postgres.not_started"
