"""Oracle: the workers that the tests start, and what Spark gives an application there."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from connectors.postgres.embedded.server import free_port
from connectors.spark.cluster import free_cores
from connectors.spark.session import LazySession
from service.backfill.engine_choice import LOCAL, SPARK, Machine, SparkTarget, Work, choose
from service.factory.service_factory import ServiceFactory
from service.runtime.settings import Settings
from tests.connectors.spark.clusters import HOST, program, worker
from tests.harness.waiting import wait_until

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None, reason="no Java on this machine, Spark needs it"
)
ROOMY = Machine(cores=2, memory_bytes=1e15, disk_bytes=1e15)
# On eight cores it would end sooner than here, on two it does not.
WORK = Work(1.5e7, 4.5e7)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A master with two workers of one core and 768 MB each; its URL, and its page's port."""
    folder = tmp_path_factory.mktemp("cluster")
    port, page = free_port(), free_port()
    at = ["--host", HOST, "--port", str(port), "--webui-port", str(page)]
    url = f"spark://{HOST}:{port}"
    kind = "org.apache.spark.deploy.master.Master"
    with (
        program(folder, "master", kind, *at, port=port),
        worker(folder, "one", url),
        worker(folder, "two", url),
    ):
        yield url, str(page)


def test_the_master_says_how_many_cores_are_free(cluster: tuple[str, str]) -> None:
    url, page = cluster
    settings = {"spark.master.ui.port": page, "spark.executor.memory": "512m"}
    wait_until(lambda: free_cores(url, settings) == 2)
    assert free_cores(url, {**settings, "spark.executor.memory": "1g"}) == 0
    taken = {"spark.cores.max": "1", "spark.executor.memory": "512m", "spark.app.name": "others"}
    other = LazySession(url, taken)
    try:
        other.get()
        wait_until(lambda: free_cores(url, settings) == 1)
        # To the application of that name the core is not lost.
        assert free_cores(url, {**settings, "spark.app.name": "others"}) == 2
    finally:
        other.stop()
    wait_until(lambda: free_cores(url, settings) == 2)


def test_a_small_cluster_is_not_taken_for_a_large_one(
    cluster: tuple[str, str], tmp_path: Path
) -> None:
    url, page = cluster
    assert choose(WORK, ROOMY, SparkTarget(url, 8)).engine == SPARK
    wait_until(
        lambda: (
            free_cores(url, {"spark.master.ui.port": page, "spark.executor.memory": "512m"}) == 2
        )
    )
    for memory, words in (("512m", "(2 cores of spark"), ("2g", "no core and memory")):
        conf = f"spark.master.ui.port={page} spark.executor.memory={memory}"
        settings = Settings.model_validate(
            {"source": "dbname=x", "state": tmp_path, "spark_master": url, "spark_conf": conf}
        )
        found = ServiceFactory(settings).choose_engine(WORK, "auto")
        assert (found.engine, words in found.reason) == (LOCAL, True), found.reason


@pytest.mark.parametrize(
    "answer",
    [
        b"{}",
        b"[1]",
        b"not JSON",
        b'{"url": "spark://other:1", "status": "ALIVE", "workers": [], "activeapps": []}',
        b'{"url": "spark://127.0.0.1:1", "status": "STANDBY", "workers": [], "activeapps": []}',
        b'{"url": "spark://127.0.0.1:1", "status": "ALIVE", "workers": 3, "activeapps": []}',
    ],
)
def test_whoever_else_answers_decides_nothing(answer: bytes) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            """Nothing is printed."""

    server = ThreadingHTTPServer((HOST, 0), Other)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        page = {"spark.master.ui.port": str(server.server_address[1])}
        assert free_cores(f"spark://{HOST}:1", page) is None
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert free_cores(f"spark://{HOST}:1", {"spark.master.ui.port": "none"}) is None
    assert free_cores("yarn", {}) is None
