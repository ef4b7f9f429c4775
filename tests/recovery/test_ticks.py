"""Oracle: PostgreSQL's answer with now() at the clock of the epoch, wherever that clock is set.

The service's wall clock is set by a file; its views tick only when something is due.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres
from dataflow.operators.tables.table import FreedRows
from storage.failpoints import CLOCK, REACHED
from storage.rocks import RocksStore
from tests.harness.postgres import Database, new_database
from tests.harness.service import RunningService

NOW = datetime(2027, 3, 12, 12, 0, tzinfo=UTC)
ZONES = {
    "new_york": "America/New_York",
    "berlin": "Europe/Berlin",
    "lord_howe": "Australia/Lord_Howe",
    "kolkata": "Asia/Kolkata",
    "utc": "UTC",
}
QUERY = (
    "SELECT id, at > now() - interval '1 day' AS is_new, at::date = CURRENT_DATE AS is_of_today, "
    "at > date_trunc('month', now()) AS is_of_month FROM events "
    "WHERE at > now() - interval '1 month' OR kind = 'a' AND at < now()"
)
# The clocks of America, Europe and Australia change; a month ends; a leap day begins and ends.
MOMENTS = (
    *("2027-03-14 07:00+00", "2027-03-28 01:00+00", "2027-03-31 00:00+00", "2027-04-03 15:00+00"),
    *("2027-10-31 01:00+00", "2027-11-07 06:00+00", "2028-02-29 00:00+00", "2028-02-29 18:30+00"),
)
STEPS_S = (-1500, 600, 1200, 3000)
KILLS = ("epoch.step.after", "epoch.commit.after", "sink.commit.before", "sink.commit.after")


class Scene:
    """A service whose clock is set, and its database."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.points = folder / "points"
        self.points.mkdir()
        self.set_clock(NOW)
        self.service = RunningService(
            database.dsn, folder / "service", failpoints_folder=self.points
        )
        self.service.start()

    def set_clock(self, at: datetime) -> None:
        """The service's wall clock from now on."""
        draft = self.points / "draft"
        draft.write_text(str(at.timestamp() - time.time()))
        draft.rename(self.points / CLOCK)

    def clock(self) -> int:
        """The clock that the sink's rows show, in microseconds."""
        [(positions,)] = self.database.rows(
            "SELECT positions FROM tidemark.progress WHERE positions ? 'clock'"
        )
        return positions["clock"]["now"]["us"]

    def epoch(self) -> int:
        """The newest epoch in the sink."""
        [(epoch,)] = self.database.rows(
            "SELECT epoch FROM tidemark.progress WHERE positions ? 'clock'"
        )
        return epoch

    def freed_rows(self) -> int:
        """How many rows of its tables the state does without; the service stops for a moment."""
        self.service.stop()
        store = RocksStore(self.service.state / "store")
        try:
            own = [name for name in store.names() if name.endswith("freed count")]
            return sum(FreedRows(store, n.removesuffix("freed count")).count for n in own)
        finally:
            store.close()
            self.service.start()

    def verify(self, names: list[str]) -> None:
        """Every view is PostgreSQL's answer at its clock."""
        for name in names:
            found = self.service.call("POST", f"/views/{name}/verify").json()
            assert found.get("result") == "equal", (name, found)


@pytest.fixture
def scene(postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[Scene]:
    with new_database(postgres) as database:
        database.execute(
            "CREATE TABLE events (id integer PRIMARY KEY, kind text, at timestamptz NOT NULL)"
        )
        made = Scene(database, tmp_path)
        try:
            yield made
        finally:
            made.service.stop()


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_what_was_due_leaves_at_once_after_a_week(scene: Scene) -> None:
    scene.database.execute(
        "INSERT INTO events SELECT i, 'b', timestamptz '2027-03-12 11:00+00'"
        " + i * interval '1 hour' FROM generate_series(1, 100) i"
    )
    query = "SELECT id FROM events WHERE at > now() AND at < now() + interval '5 days'"
    scene.service.create("soon", query, time_zone="America/New_York")
    # Of 100 hours the first one is over in an hour: nothing is due, and nothing happens.
    scene.service.await_so(lambda: len(scene.database.rows("SELECT 1 FROM soon")) == 99)
    clock, epoch = scene.clock(), scene.epoch()
    time.sleep(3)
    assert (scene.clock(), scene.epoch()) == (clock, epoch)
    scene.service.kill()
    scene.set_clock(datetime(2027, 3, 15, 12, 0, tzinfo=UTC))
    seen = set()

    def is_done() -> bool:
        [found] = scene.database.rows(
            "SELECT epoch, (SELECT count(*) FROM soon) FROM tidemark.progress"
            " WHERE positions ? 'clock'"
        )
        seen.add(found[1])
        return found[1] == 100 - 73

    scene.service.start()
    scene.service.await_so(is_done)
    assert seen <= {99, 27}, "rows left in several epochs"
    scene.verify(["soon"])
    assert scene.clock() >= datetime(2027, 3, 15, 12, 0, tzinfo=UTC).timestamp() * 1e6


@pytest.mark.whole
@pytest.mark.timeout(900)
def test_a_kill_between_a_tick_and_its_commit(scene: Scene) -> None:
    scene.database.execute(
        "INSERT INTO events SELECT i, 'b', timestamptz '2027-03-12 12:00+00'"
        " + i * interval '1 day' FROM generate_series(1, 40) i"
    )
    scene.service.create("later", "SELECT id FROM events WHERE at > now()")
    scene.service.create("flagged", "SELECT id, at < now() AS is_past FROM events")
    last = scene.clock()
    for day, point in enumerate(KILLS, 1):
        (scene.points / point).write_text("kill")
        scene.set_clock(datetime(2027, 3, 12 + day, 12, 1, tzinfo=UTC))
        scene.service.await_so(lambda p=point: (scene.points / f"{p}{REACHED}").exists())
        scene.service.await_so(
            lambda n=day: scene.database.rows("SELECT count(*) FROM later") == [(40 - n,)]
        )
        assert scene.clock() > last
        last = scene.clock()
        scene.verify(["later", "flagged"])


@pytest.mark.whole
@pytest.mark.timeout(600)
def test_a_kill_between_a_tick_that_frees_rows_and_its_commit(scene: Scene) -> None:
    """Expired rows may be changed later, whether the kill lost the epoch that freed them or not."""
    scene.database.execute(
        "INSERT INTO events SELECT i, 'b', timestamptz '2027-03-13 12:00+00'"
        " + CASE WHEN i <= 500 THEN '0' WHEN i <= 700 THEN '1 day' ELSE '90 days' END::interval"
        " FROM generate_series(1, 800) i"
    )
    scene.service.create("coming", "SELECT id, kind FROM events WHERE at > now()")
    for day, point in enumerate(("epoch.step.after", "epoch.commit.after"), 1):
        (scene.points / point).write_text("kill")
        scene.set_clock(datetime(2027, 3, 12 + day, 12, 1, tzinfo=UTC))
        scene.service.await_so(lambda p=point: (scene.points / f"{p}{REACHED}").exists())
        noon = datetime(2027, 3, 12 + day, 12, tzinfo=UTC).timestamp() * 1e6
        scene.service.await_so(lambda at=noon: scene.clock() >= at)
        # Enough of the table has expired on the first day: all of that is freed at once.
        assert scene.freed_rows() == 500 if day == 1 else scene.freed_rows() > 0
        scene.database.execute(
            f"UPDATE events SET kind = 'c{day}' WHERE id % 7 = {day};"
            f"UPDATE events SET at = '2027-08-01 00:00+00' WHERE id % 11 = {day};"
            f"DELETE FROM events WHERE id % 5 = {day};"
            f"UPDATE events SET id = id + {day}000 WHERE id % 13 = {day};"
            f"INSERT INTO events SELECT i, 'd', '2027-03-01 00:00+00'"
            f" FROM generate_series({day}, 800, 10) i ON CONFLICT (id) DO UPDATE SET kind = 'd'"
        )
        scene.verify(["coming"])
        expected = (
            "SELECT id, kind FROM events WHERE at > timestamptz 'epoch'"
            f" + {scene.clock()} * interval '1 us' ORDER BY id"
        )
        assert scene.database.rows("SELECT id, kind FROM coming ORDER BY id") == (
            scene.database.rows(expected)
        )


@pytest.mark.whole
@pytest.mark.timeout(3000)
def test_every_change_of_a_clock(scene: Scene) -> None:
    for number, moment in enumerate(MOMENTS):
        scene.database.execute(
            f"INSERT INTO events SELECT {number * 1000} + row_number() OVER (), "
            f"chr(97 + i % 2), timestamptz '{moment}' + by + i * interval '23 minutes' "
            "FROM generate_series(-6, 6) i, unnest(ARRAY['0', '-1 day', '-1 month', '1 hour', "
            "'-30 days']::interval[]) by"
        )
    for name, zone in ZONES.items():
        scene.service.create(name, QUERY, time_zone=zone)
    for moment in MOMENTS:
        at = datetime.fromisoformat(moment).timestamp()
        for step in STEPS_S:
            aim = datetime.fromtimestamp(at + step, UTC)
            before = scene.clock()
            scene.set_clock(aim)
            scene.service.await_so(lambda b=before: scene.clock() > b)
            scene.verify(list(ZONES))
    scene.service.kill_child("pipeline")
    scene.verify(list(ZONES))
