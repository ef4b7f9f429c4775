"""Oracle: docs/SECURITY.md: a token stands in no log, however it is sent and whatever it meets,
with the log as talkative as it gets."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import websockets

from tests.harness import http
from tests.harness.postgres import Database
from tests.harness.service import RunningService

WRONG = "tdm_0123456789ab_" + "w" * 43


def test_a_token_in_a_query_stands_in_no_log(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    with RunningService(database.dsn, tmp_path, log_level="debug") as service:
        service.create("v", "SELECT id FROM t", backfill="local")
        made = http.post(f"{service.url}/tokens", json={"name": "a", "role": "admin"}, timeout=60)
        token = made.json()["token"]
        accept = {"Accept": "text/event-stream"}
        statuses = []
        for given in (token, WRONG):
            for path in ("v/changes", "nosuch/changes", "v/rows", "v", "v/changes/ws"):
                url = f"{service.url}/views/{path}?x%=1&access_token={given}&resume=%00"
                for query in (f"?access_token={given}", url.partition(path)[2]):
                    asked = f"{service.url}/views/{path}{query}"
                    with http.stream("GET", asked, headers=accept, timeout=30) as answer:
                        statuses.append(answer.status_code)
            asyncio.run(_sockets(service, given))
        assert {200, 401, 404} <= set(statuses)
        written = service.log_path.read_text()
    for given in (token, WRONG, token.split("_", 2)[2]):
        assert given not in written
    assert "access_token" not in written


async def _sockets(service: RunningService, token: str) -> None:
    address = service.url.replace("http", "ws")
    for name in ("v", "nosuch"):
        url = f"{address}/views/{name}/changes/ws?access_token={token}"
        with contextlib.suppress(websockets.InvalidStatus, websockets.ConnectionClosed):
            async with websockets.connect(url) as connection:
                await connection.recv()
