"""Oracle: the local engine over the same rows, as in test_backfill.py; here Spark runs outside
of this process, shares no folder with it, and has our packages from us alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyarrow import fs

import connectors
from connectors.shuffle_storage import ObjectExchange, open_exchange
from connectors.spark.session import LazySession
from dataflow.delta import Delta
from dataflow.errors import TidemarkError
from tests.connectors.spark.clusters import HOST, connect_server, standalone
from tests.connectors.spark.test_backfill import PLANS, check, parts_of, run_spark
from tests.connectors.spark.views import DrawnPart
from tests.harness.object_store import object_store

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None, reason="no Java on this machine, Spark needs it"
)
# The driver is this process; executors are the workers', small, and come back to loopback.
SETTINGS = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.executor.memory": "512m",
}


@dataclass(frozen=True)
class SentPart(DrawnPart):
    """Refuses to be read by packages that were not sent."""

    def read(self) -> Iterator[Delta]:
        """Chunks of the needed columns."""
        if ".zip" not in connectors.__file__:
            raise TidemarkError("test.not_sent", "these packages were found, not sent")
        yield from super().read()


def sent_parts(name: str) -> dict:
    return {
        relation: [SentPart(p.relation, p.columns, p.keys, p.chunk) for p in parts]
        for relation, parts in parts_of(PLANS[name]).items()
    }


def run_elsewhere(master: str, settings: dict[str, str], folder: Path, bucket: str) -> None:
    """Two views, one after the other; nothing of them is left in the bucket."""
    session = LazySession(master, settings)
    try:
        for name in ("grouped join", "failing rows"):
            exchange = open_exchange(bucket).below(name.replace(" ", "-"))
            assert isinstance(exchange, ObjectExchange)
            work = folder / name
            (work / "work").mkdir(parents=True)
            parts = sent_parts(name)
            result = run_spark(session, PLANS[name], work, 3, parts=parts, exchange=exchange)
            assert exchange.below("run").sizes("") == {}
            check(PLANS[name], result, work / "state")
            exchange.remove()
            files, base = fs.FileSystem.from_uri(exchange.url)
            selector = fs.FileSelector(base, recursive=True, allow_not_found=True)
            assert [f for f in files.get_file_info(selector) if f.is_file] == []
    finally:
        session.stop()


@pytest.mark.whole
@pytest.mark.timeout(400)
def test_a_connect_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with object_store(monkeypatch) as bucket, connect_server(tmp_path) as url:
        run_elsewhere(url, {}, tmp_path, bucket)


@pytest.mark.whole
@pytest.mark.timeout(400)
def test_a_standalone_master(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with object_store(monkeypatch) as bucket, standalone(tmp_path) as url:
        run_elsewhere(url, SETTINGS, tmp_path, bucket)
