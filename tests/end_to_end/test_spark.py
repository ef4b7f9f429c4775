"""Oracle: PostgreSQL's own answer, for views backfilled by Spark under a changing source."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from tests.end_to_end.test_views import CHANGES, QUERIES, SHOP, assert_equal, flush_position
from tests.harness.postgres import Database
from tests.harness.service import RunningService


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
            for name, query in QUERIES.items():
                view = service.create(name, query, wait_s=300, backfill="spark")
                assert view["options"]["backfill"] == "spark"
        finally:
            stopping.set()
            traffic.join()
        for change in ["SELECT 1", *CHANGES]:
            database.execute(change)
            position = flush_position(database)
            for name, query in QUERIES.items():
                service.wait(name, position)
                assert_equal(database, name, query)
