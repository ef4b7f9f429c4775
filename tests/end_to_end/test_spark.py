"""Oracle: PostgreSQL's own answer, for views backfilled by Spark under a changing source."""

from __future__ import annotations

import pickle
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from connectors.shuffle_storage import open_exchange
from tests.connectors.spark.test_records import Trap
from tests.end_to_end.test_views import CHANGES, QUERIES, SHOP, assert_equal, flush_position
from tests.harness.object_store import object_store
from tests.harness.postgres import Database
from tests.harness.service import RunningService
from tests.harness.tiers import is_fast

# A group; all of them in the whole suite.
VIEWS = {n: q for n, q in QUERIES.items() if not is_fast() or n == "by_region"}


@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("java") is None, reason="no Java on this machine, Spark needs it")
def test_spark_backfill_under_changes(database: Database, tmp_path: Path) -> None:
    database.execute(SHOP)
    stopping = threading.Event()

    def keep_changing() -> None:
        number = 50_000
        while not stopping.wait(0.02):
            number += 1
            database.execute(
                "INSERT INTO orders VALUES (%s, %s, 3.5, 'busy');"
                "UPDATE orders SET amount = amount + 1 WHERE id = %s",
                (number, number % 210, number % 3000),
            )

    traffic = threading.Thread(target=keep_changing)
    with RunningService(database.dsn, tmp_path) as service:
        traffic.start()
        try:
            for name, query in VIEWS.items():
                view = service.create(name, query, wait_s=300, backfill="spark")
                assert view["options"]["backfill"] == "spark"
        finally:
            stopping.set()
            traffic.join()
        builds = builds_of(service)
        assert {b["engine"] for b in builds} == {"spark"}
        assert all(b["why"].startswith("the view's option; local about") for b in builds)
        # The second one finds the session.
        assert is_fast() or builds[0]["spark_s"] > builds[1]["spark_s"]
        for change in ["SELECT 1", *CHANGES]:
            database.execute(change)
            position = flush_position(database)
            for name, query in VIEWS.items():
                service.wait(name, position)
                assert_equal(database, name, query)


@pytest.mark.whole
@pytest.mark.timeout(600)
@pytest.mark.skipif(shutil.which("java") is None, reason="no Java on this machine, Spark needs it")
def test_whoever_can_write_to_the_bucket_delays_a_view_and_no_more(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records in the bucket are exchanged for pickles until the service has refused one."""
    database.execute(SHOP)
    name, query = next(iter(QUERIES.items()))
    marker, is_live = tmp_path / "ran", threading.Event()
    with (
        object_store(monkeypatch) as bucket,
        RunningService(database.dsn, tmp_path, spark_exchange=bucket) as service,
    ):

        def tamper() -> None:
            base = open_exchange(bucket).below("tidemark")
            while not (is_live.is_set() or is_refused(service)):
                for view in base.folders():
                    for run in base.below(f"{view}/run").folders():
                        done = base.below(f"{view}/run/{run}")
                        for record in done.sizes("done"):
                            done.put(f"done/{record}", pickle.dumps(Trap(marker)))

        attack = threading.Thread(target=tamper)
        attack.start()
        try:
            service.create(name, query, wait_s=300, backfill="spark")
        finally:
            is_live.set()
            attack.join()
        assert_equal(database, name, query)
        assert is_refused(service)
    assert not marker.exists()


@pytest.mark.whole
def test_the_choice_of_the_engine_is_shown(database: Database, tmp_path: Path) -> None:
    database.execute(SHOP)
    name, query = next(iter(VIEWS.items()))
    with RunningService(database.dsn, tmp_path / "auto") as service:
        found = validated(service, query)
        estimate = found["estimate"]
        assert found["backfill"] == estimate["engine"] == "local"
        assert estimate["engine_s"]["local"] == estimate["backfill_s"]
        assert estimate["engine_s"]["local"] < estimate["engine_s"]["spark"]
        assert "local about" in estimate["engine_reason"]
        assert validated(service, query, backfill="spark")["estimate"]["engine"] == "spark"
        service.create(name, query)
        [build] = builds_of(service)
        assert build["engine"] == "local" and build["local_s"] > 0
        assert not {"why", "spark_s"} & build.keys()
    with RunningService(database.dsn, tmp_path / "rows", spark_rows=0) as service:
        estimate = validated(service, query)["estimate"]
        assert estimate["engine"] == "spark"
        assert estimate["engine_reason"].startswith("by TIDEMARK_SPARK_ROWS")
    with RunningService(database.dsn, tmp_path / "far", spark_master="spark://no:1") as service:
        # Far too small to go there.
        assert validated(service, query)["estimate"]["engine"] == "local"


def validated(service: RunningService, query: str, **options: str) -> dict[str, Any]:
    return service.call("POST", "/views/validate", {"query": query, "options": options}).json()


def builds_of(service: RunningService) -> list[dict[str, Any]]:
    return [e for e in service.events() if e["event"] == "build.started"]


def is_refused(service: RunningService) -> bool:
    return "backfill.unauthentic" in service.log_tail(1_000_000)
