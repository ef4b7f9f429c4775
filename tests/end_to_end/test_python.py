"""Oracle: what the service itself answers over REST; the Python face adds and loses nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest

import tidemark
from connectors.loopback import free_port
from dataflow.errors import Position
from tests.harness.postgres import Database
from tests.harness.service import RunningService

ORDERS = """
CREATE TABLE orders (id int PRIMARY KEY, region text NOT NULL, amount numeric(10,2) NOT NULL);
INSERT INTO orders SELECT i, 'r' || i % 3, i FROM generate_series(1, 90) i;
CREATE TABLE loose (a int);
"""
QUERY = "SELECT region, sum(amount) AS total FROM orders GROUP BY region"


@pytest.fixture
def service(database: Database, tmp_path: Path) -> Iterator[RunningService]:
    database.execute(ORDERS)
    with RunningService(database.dsn, tmp_path) as running:
        yield running


@pytest.mark.whole
def test_errors_have_the_code_and_position_of_the_service(
    service: RunningService, database: Database
) -> None:
    client = tidemark.connect(service.url)
    with pytest.raises(tidemark.TidemarkError) as caught:
        client.create("wrong", "SELECT id,\n nothing FROM orders")
    assert caught.value.code == "sql.undefined_column"
    assert caught.value.position == Position(2, 2)
    with pytest.raises(tidemark.TidemarkError) as caught:
        client.create("loose_ones", "SELECT a FROM loose")
    assert caught.value.code == "source.no_identity"
    assert "REPLICA IDENTITY FULL" in caught.value.hint
    nowhere = client.view("nowhere")
    for call in (nowhere.state, nowhere.plan, nowhere.drop):
        with pytest.raises(tidemark.TidemarkError) as caught:
            call()
        assert caught.value.code == "view.not_found"
        assert not caught.value.is_temporary
    with pytest.raises(tidemark.TidemarkError) as caught:
        client.create("spelt", QUERY, backfill="locally")
    assert caught.value.code == "request.invalid"
    assert "backfill" in caught.value.detail
    view = client.create("by_region", QUERY, backfill="local")
    with pytest.raises(tidemark.TidemarkError) as caught:
        client.create("by_region", QUERY)
    assert caught.value.code == "view.name_taken"
    with pytest.raises(tidemark.TidemarkError) as caught:
        view.wait("FFFF/0", timeout_s=0.1)
    assert caught.value.code == "view.wait_timeout"
    client.close()
    assert len(client.views()) == 1, "a closed client connects again"
    client.close()


@pytest.mark.whole
def test_the_commands_use_it(service: RunningService) -> None:
    def run(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "service.cli.main", *words, "--url", service.url]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    made = run("create", "by_region", "-", "--backfill", "local", text=QUERY)
    assert made.returncode == 0, made.stderr
    assert "public.by_region" in made.stdout
    assert "live" in run("list").stdout
    assert "keyed" in run("show", "by_region").stdout
    assert '"waited_ms"' in run("wait", "by_region", "0/1").stdout
    assert '"estimated_source_rows"' in run("validate", "--json", QUERY).stdout
    assert "state about" in run("validate", "-e", QUERY).stdout
    refused = run("validate", "SELECT id FROM orders\nFOR UPDATE")
    assert refused.returncode == 1
    assert "[sql.not_maintained]" in refused.stderr
    assert "(line 2, column 1)" in refused.stderr
    assert "dropped by_region" in run("drop", "by_region").stdout


@contextmanager
def something_else() -> Iterator[str]:
    """An HTTP server that is no Tidemark; its URL."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_error(404, "not here")

        def log_message(self, *_: object) -> None:
            return None

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_missing_service_is_reported_by_a_code() -> None:
    with pytest.raises(tidemark.TemporaryError) as caught:
        tidemark.connect(f"http://127.0.0.1:{free_port()}").views()
    assert caught.value.code == "service.unreachable"
    assert caught.value.is_temporary
    with pytest.raises(tidemark.TidemarkError) as caught, something_else() as url:
        tidemark.connect(url).views()
    assert caught.value.code == "service.not_tidemark"
