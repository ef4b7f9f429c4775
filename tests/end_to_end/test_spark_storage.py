"""Oracle: PostgreSQL's answer, for a view on Spark whose shared storage goes away, comes back, is
replaced, loses files or gets foreign ones.

Each fault is driven to its repair: the view and health say what is wrong, nothing is written beside
the storage, and the view goes on by itself.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest

from connectors.objects.object_storage import BucketStorage
from connectors.objects.storage_mark import NAME
from service.factory.spark_storage import FILE
from tests.connectors.spark.clusters import HOST, standalone
from tests.end_to_end.test_on_spark import (
    SETTINGS,
    SPENT,
    change,
    pipelines,
    pytestmark,
    require_equal,
    shop,
)
from tests.harness.object_store import object_store
from tests.harness.postgres import Database
from tests.harness.service import RunningService

__all__ = ["pytestmark", "shop"]

AWAY_S = 20.0
CLUSTER = {
    "spark.driver.host": HOST,
    "spark.driver.bindAddress": HOST,
    "spark.executor.memory": "512m",
}


@contextlib.contextmanager
def settings_of(master: str, folder: Path) -> Iterator[dict[str, Any]]:
    shared = folder / "disk" / "shared"
    shared.parent.mkdir()
    if master == "local":
        yield {**SETTINGS, "spark_storage": shared}
        return
    with standalone(folder) as url:
        conf = " ".join(f"{name}={value}" for name, value in CLUSTER.items())
        yield {**SETTINGS, "spark": url, "spark_storage": shared, "spark_conf": conf}


def change_for(seconds: float, shop: Database, draw: random.Random) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        change(shop, draw)
        time.sleep(1)


def await_waiting(service: RunningService, code: str) -> None:
    """The view and health say that it waits, and why."""

    def is_said() -> bool:
        view, health = (service.call("GET", path).json() for path in ("/views/spent", "/health"))
        error = (view.get("error") or {}).get("code")
        named = any(code in reason for reason in health.get("reasons", ()))
        return view["status"] == "degraded" and error == code and named

    service.await_so(is_said, within_s=180)
    assert service.call("GET", "/health").json()["status"] == "degraded"
    hint = service.call("GET", "/views/spent").json()["error"]["hint"]
    assert "TIDEMARK_SPARK_STORAGE" in hint


def await_equal(service: RunningService, shop: Database) -> None:
    service.await_so(
        lambda: service.call("GET", "/views/spent").json()["status"] == "live", within_s=300
    )
    require_equal(service, shop, "spent", SPENT, within_s=300)
    service.await_so(lambda: service.call("GET", "/health").json()["status"] == "ok", 60)


def builds(service: RunningService) -> int:
    return sum(event["event"] == "build.started" for event in service.events())


@pytest.mark.whole
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("master", ["local", "cluster"])
def test_a_folder_that_goes_away_and_comes_back(
    shop: Database, tmp_path: Path, master: str
) -> None:
    draw, shared = random.Random(31), tmp_path / "disk" / "shared"
    aside = shared.with_name("aside")
    with (
        settings_of(master, tmp_path) as settings,
        RunningService(shop.dsn, tmp_path, **settings) as service,
    ):
        service.create("spent", SPENT, wait_s=300, runtime="spark", backfill="local")
        change(shop, draw)
        require_equal(service, shop, "spent", SPENT, within_s=300)
        assert (shared / "tidemark" / NAME).exists()
        assert (service.state / FILE).exists()
        # While it is live and rows change: the folder is renamed, as by an unmount below it.
        shared.rename(aside)
        change_for(AWAY_S, shop, draw)
        await_waiting(service, "spark.storage_absent")
        assert not shared.exists(), "it was made again"
        aside.rename(shared)
        await_equal(service, shop)
        # An empty folder in its place, as where nothing is mounted; and the driver is killed.
        shared.rename(aside)
        shared.mkdir()
        for victim in list(pipelines(service)):
            victim.kill()
        change(shop, draw)
        await_waiting(service, "spark.storage_absent")
        assert not list(shared.iterdir()), "something was written beside it"
        shared.rmdir()
        aside.rename(shared)
        await_equal(service, shop)
        # The storage of another service.
        shared.rename(aside)
        (shared / "tidemark").mkdir(parents=True)
        foreign = b'{"id": "another", "mac": "00"}'
        (shared / "tidemark" / NAME).write_bytes(foreign)
        change(shop, draw)
        await_waiting(service, "spark.storage_other")
        assert [p.name for p in shared.rglob("*") if p.is_file()] == [NAME]
        assert (shared / "tidemark" / NAME).read_bytes() == foreign
        shutil.rmtree(shared)
        aside.rename(shared)
        await_equal(service, shop)
        # Away when the service starts; meanwhile a rebuild is requested.
        service.stop()
        shared.rename(aside)
        change(shop, draw)
        service.start()
        await_waiting(service, "spark.storage_absent")
        assert service.call("POST", "/views/spent/rebuild").status_code in (200, 202)
        assert not shared.exists()
        aside.rename(shared)
        service.await_so(
            lambda: not service.call("GET", "/views/spent").json().get("replacing"), within_s=300
        )
        await_equal(service, shop)
        assert builds(service) == 2, "only the request rebuilds it"


@pytest.mark.whole
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("master", ["local", "cluster"])
def test_files_that_are_deleted_or_forged_are_built_again(
    shop: Database, tmp_path: Path, master: str
) -> None:
    """The storage is there and the right one. Nobody has to ask for the rebuild."""
    draw, shared = random.Random(32), tmp_path / "disk" / "shared"
    with (
        settings_of(master, tmp_path) as settings,
        RunningService(shop.dsn, tmp_path, **settings) as service,
    ):
        service.create("spent", SPENT, wait_s=300, runtime="spark", backfill="local")
        change(shop, draw)
        require_equal(service, shop, "spent", SPENT, within_s=300)
        # What buckets are made from; the commits, forged; and all files. The driver ends first,
        # and its executors with it: those that have the state would not notice.
        for number, pattern in enumerate(("base/*/*/*", "manifest/*", "**/*"), start=2):
            group = service.call("GET", "/views/spent").json()["group"]
            # Folders of states that are gone are left without files.
            (own,) = {p.parents[1] for p in (shared / "tidemark" / group).glob("v*/*/manifest/*")}
            for victim in list(pipelines(service)):
                victim.suspend()
            for path in filter(Path.is_file, own.glob(pattern)):
                if pattern == "manifest/*":
                    path.write_bytes(b"forged" + path.read_bytes())
                else:
                    path.unlink()
            for victim in list(pipelines(service)):
                victim.kill()
            shutil.rmtree(service.state / "groups" / group / "bucket-caches", ignore_errors=True)
            for _ in range(3):
                change(shop, draw)
            service.await_so(lambda number=number: builds(service) == number, within_s=300)
            await_equal(service, shop)
            service.await_so(lambda own=own: not list(filter(Path.is_file, own.rglob("*"))))
        lost = [e for e in service.events() if e["event"] == "buckets.lost"]
        assert {e["code"] for e in lost} <= {"spark.state_lost", "spark.unauthentic"}
        assert len(lost) == 3
        assert service.call("POST", "/views/spent/rebuild?wait_s=120").status_code in (200, 202)
        service.await_so(lambda: builds(service) == 5, within_s=300)
        await_equal(service, shop)
        service.drop("spent")
        left = [p.name for p in shared.rglob("*") if p.is_file()]
        assert left == [NAME]


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_a_bucket_that_is_another_one(
    shop: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its objects are gone with its mark, then back; then the mark is another service's."""
    draw = random.Random(33)
    with object_store(monkeypatch) as url:
        settings = {**SETTINGS, "spark_storage": url}
        with RunningService(shop.dsn, tmp_path, **settings) as service:
            service.create("spent", SPENT, wait_s=300, runtime="spark", backfill="local")
            change(shop, draw)
            require_equal(service, shop, "spent", SPENT, within_s=300)
            storage = BucketStorage(url)
            held = {name: storage.get(name) for name in storage.names("")}
            store, base = storage.opened()
            for name in held:
                obstore.delete(store, base + name)
            change(shop, draw)
            await_waiting(service, "spark.storage_absent")
            assert storage.names("") == []
            for name, content in held.items():
                storage.put(name, content)
            await_equal(service, shop)
            mark = f"tidemark/{NAME}"
            storage.put(mark, b'{"id": "another", "mac": "00"}')
            before = storage.names("")
            change(shop, draw)
            await_waiting(service, "spark.storage_other")
            assert storage.names("") == before
            storage.put(mark, held[mark])
            await_equal(service, shop)
            assert builds(service) == 1
