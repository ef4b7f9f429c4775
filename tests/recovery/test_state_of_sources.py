"""Oracle: counts and sums that name how much of each source they hold.

A view over a topic, one over the topic and a table, one over a folder: after the state directory
was set back to an older copy, or lost.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Container
from pathlib import Path

import pytest

from connectors.kafka.embedded import EmbeddedKafka
from tests.harness.broker import new_topic, send
from tests.harness.postgres import Database
from tests.harness.service import RunningService

pytestmark = pytest.mark.timeout(300)

VIEWS = {
    "clicks": "SELECT 1 AS one, count(*) AS n, sum(n) AS total FROM web.clicks",
    "by_region": "SELECT p.region, count(*) AS n FROM web.clicks c "
    "JOIN people p ON p.id = c.n % 3 GROUP BY p.region",
    "stock": "SELECT 1 AS one, count(*) AS n, sum(amount) AS total FROM shop.stock",
}


class World:
    """What there is to be read, and what the views must hold."""

    def __init__(
        self, broker: EmbeddedKafka, database: Database, folder: Path, views: Container[str]
    ) -> None:
        self.broker, self.database, self.folder = broker, database, folder
        self.views = views
        self.topic = new_topic(broker, partitions=2)
        self.clicks = self.files = 0
        folder.mkdir()
        database.execute("CREATE TABLE people (id integer PRIMARY KEY, region text NOT NULL)")
        database.execute("INSERT INTO people SELECT n, 'r' || n FROM generate_series(0, 2) n")

    def declare(self, service: RunningService) -> None:
        clicks = {"topic": self.topic, "format": "json", "columns": {"n": "bigint"}}
        stock = {
            "path": f"{self.folder}/*.csv",
            "columns": [{"name": "amount", "type": "bigint"}],
            "settle_ms": 20,
            "poll_interval_ms": 20,
        }
        kafka = {"bootstrap_servers": self.broker.bootstrap, "topics": {"clicks": clicks}}
        files = {"relations": {"stock": stock}}
        for name, kind, options in (("web", "kafka", kafka), ("shop", "files", files)):
            body = {"name": name, "type": kind, "options": options}
            answer = service.call("POST", "/sources", body)
            assert answer.status_code == 201, answer.text

    def go_on(self) -> None:
        """More clicks, one more file, another region."""
        numbers = range(self.clicks, self.clicks + 100)
        send(
            self.broker, self.topic, [(n % 2, None, json.dumps({"n": n}).encode()) for n in numbers]
        )
        self.clicks += 100
        part = self.folder / "part"
        part.write_text("amount\n" + "".join(f"{n}\n" for n in range(50)))
        part.rename(self.folder / f"{self.files}.csv")
        self.files += 1
        self.database.execute("UPDATE people SET region = region || 'x' WHERE id = 1")

    def is_shown(self) -> bool:
        """Whether the views hold all of it."""
        rows = self.database.rows
        n = self.clicks
        people = dict(rows("SELECT region, id FROM people"))
        regions = {region: len(range(id, n, 3)) for region, id in people.items()}
        return (
            rows("SELECT n, total::bigint FROM clicks") == [(n, n * (n - 1) // 2)]
            and dict(rows("SELECT region, n FROM by_region")) == regions
            and ("stock" not in self.views or self._is_stock_shown())
        )

    def _is_stock_shown(self) -> bool:
        found = self.database.rows("SELECT n, total::bigint FROM stock")
        return found == [(50 * self.files, 1225 * self.files)]


@pytest.mark.whole
@pytest.mark.parametrize("is_lost", [False, True], ids=["set back", "lost"])
def test_state_older_than_the_sink(
    broker: EmbeddedKafka, database: Database, tmp_path: Path, is_lost: bool
) -> None:
    """What the sink has is told again and not written again; what is lost is rebuilt. A folder
    cannot tell again what was there in between: what reads it is rebuilt, and nothing else."""
    views = VIEWS
    world = World(broker, database, tmp_path / "shop", views)
    world.go_on()
    # The database keeps its changes: a state that is set back may not be behind the slot.
    more = {"sync_interval_s": 3600, "allow_folders": world.folder}
    with RunningService(database.dsn, tmp_path / "service", **more) as service:
        world.declare(service)
        for name, query in views.items():
            service.create(name, query, backfill="local")
        world.go_on()
        service.await_so(world.is_shown)
        service.kill()
        older = tmp_path / "older"
        shutil.copytree(service.state, older)
        service.start()
        world.go_on()
        service.await_so(world.is_shown)
        service.kill()
        shutil.rmtree(service.state)
        if not is_lost:
            shutil.copytree(older, service.state)
        service.start()
        world.go_on()
        service.await_so(world.is_shown)
        log = service.log_tail(1_000_000)
        assert ("view.state_lost" if is_lost else "recover.replay") in log
        if not is_lost:
            lost = {line for line in log.splitlines() if "view.state_lost" in line}
            assert len(lost) == 1 and "public.stock" in lost.pop()
