"""Oracle: the view's table and the transactions that were written: who adds up the epochs has
exactly them, each once, however often the API was killed or a connection fell silent."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemark
from service.client import course
from tests.harness.client_faces import Face, next_of
from tests.harness.postgres import Database
from tests.harness.proxy import DOWN, HALF_OPEN, Fault, Proxy
from tests.harness.service import RunningService
from tidemark import Epoch

TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, region text NOT NULL, amount numeric(10,2));
INSERT INTO orders SELECT i, 'r' || i % 5, i FROM generate_series(1, 200) i;
CREATE TABLE ticks (n int PRIMARY KEY);
CREATE TABLE bag (id int PRIMARY KEY, x numeric, d json);
INSERT INTO bag SELECT i, i % 3, '{"a": 1.0}' FROM generate_series(1, 9) i;
"""
VIEWS = {
    "regions": "SELECT region, count(*) AS n, sum(amount) AS total FROM orders GROUP BY region",
    "ticking": "SELECT n FROM ticks",
    "bags": "SELECT x, d FROM bag",
}
KILLS = 4
ROOT = Path(__file__).resolve().parents[2]
URL = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def service(place: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    with RunningService(place.dsn, tmp_path_factory.mktemp("client")) as running:
        for name, query in VIEWS.items():
            running.create(name, query, backfill="local")
        yield running


def test_changes_end_in_silence_and_continue(face: Face) -> None:
    view, place = face.view("regions"), face.place
    changes = view.changes(timeout_ms=400)
    began = time.monotonic()
    (first,) = face.collect(changes)
    assert time.monotonic() - began >= 0.4
    assert first.is_snapshot and first.key == ("region",) and len(first) == 5
    assert first.resume == changes.resume
    place.execute("INSERT INTO orders VALUES (1000, 'r0', 1)")
    found: list[Epoch] = []
    while not found:
        found = face.collect(changes, 1)
    (second,) = found
    old, new = second.rows
    assert second.weights == [-1, 1] and (second.deleted, second.inserted) == ([old], [new])
    assert new.total == old.total + 1 and second.number > first.number
    assert second.to_arrow().column("_weight").to_pylist() == [-1, 1]
    place.execute("DELETE FROM orders WHERE id = 1000")
    (third,) = face.collect(view.changes(resume=second.resume, timeout_ms=20_000), 1)
    assert third.inserted == [old] and third.deleted == [new]
    (none,) = face.collect(view.changes(snapshot=False, progress=True), 1)
    assert none.number >= third.number and len(none) == 0 and none


def test_changes_are_refused_with_codes(face: Face) -> None:
    view = face.view("regions")
    for token, code in (("x", "changes.bad_token"), (f"{'0' * 16}.1", "changes.expired")):
        assert face.refused(lambda t=token: next_of(view.changes(resume=t))) == code
    assert face.refused(lambda: next_of(face.view("no").changes())) == "view.not_found"
    lost = view.changes(resume=f"{'0' * 16}.1", on_gap="snapshot")
    assert face.ask(next_of(lost)).is_snapshot


class Kills(threading.Thread):
    """Ticks of one row a transaction, and between them kill -9 of the API process."""

    def __init__(self, place: Database, service: RunningService) -> None:
        super().__init__(daemon=True)
        self._place = place
        self._service = service
        self.kills = 0
        self.last = 0

    def run(self) -> None:
        for number in range(1, 40 * KILLS + 1):
            self._place.execute("INSERT INTO ticks VALUES (%s)", (number,))
            self.last = number
            if number % 40 == 20:
                while not self._service.kill_child("api"):
                    time.sleep(0.05)
                self.kills += 1
            time.sleep(0.02)


@pytest.mark.whole
def test_no_epoch_is_lost_or_doubled_when_the_api_is_killed(
    service: RunningService, place: Database
) -> None:
    last = 40 * KILLS

    async def read_later() -> list[Epoch]:
        found: list[Epoch] = []
        async with (
            tidemark.connect_async(service.url) as client,
            client.view("ticking").changes(heartbeat_s=0.5) as changes,
        ):
            async for epoch in changes:
                found.append(epoch)
                if any(row.n == last for row in epoch.rows):
                    return found
        raise AssertionError("the stream has ended")

    later: list[Epoch] = []
    reader = threading.Thread(target=lambda: later.extend(asyncio.run(read_later())), daemon=True)
    kills = Kills(place, service)
    with tidemark.connect(service.url) as client:
        changes = client.view("ticking").changes(heartbeat_s=0.5)
        epochs = [next(changes)]
        reader.start()
        kills.start()
        for epoch in changes:
            epochs.append(epoch)
            if any(row.n == last for row in epoch.rows):
                break
        changes.close()
    kills.join()
    reader.join(60)
    assert kills.kills == KILLS
    for found in (epochs, later):
        assert found[0].is_snapshot and not any(e.is_snapshot for e in found[1:])
        numbers = [e.number for e in found]
        assert numbers == sorted(set(numbers)) and len(found) > 10
        counted = Counter(row.n for e in found for row in e.inserted)
        assert counted == Counter(range(1, last + 1)), "each tick once"
        assert [n for e in found for (n,) in sorted(e.rows)] == sorted(counted)


def test_a_replica_is_the_table(service: RunningService, place: Database) -> None:
    """Rows come more than once in this view, and go in another form than they came in."""
    with tidemark.connect(service.url) as client:
        replicas = client.view("bags").follow(timeout_ms=20_000)
        assert len(next(replicas)) == 9
        for change in (
            "UPDATE bag SET x = 1.0 WHERE id = 1",
            "UPDATE bag SET d = '{\"a\": 1.00}' WHERE id < 5",
            "DELETE FROM bag WHERE id IN (2, 5, 7)",
        ):
            place.execute(change)
            replica = next(replicas)
            wanted = Counter((str(x),) for (x,) in place.rows("SELECT x FROM bag"))
            assert Counter((str(row.x),) for row in replica) == wanted, change
        with pytest.raises(ValueError, match="no primary key"):
            replica.by_key()
        keyed = next(client.view("regions").follow())
        assert keyed.by_key()["r1"].n == 40


def test_a_silent_connection_is_given_up(face: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gets nothing more from some moment on, and does not hear of its end."""
    monkeypatch.setattr(course, "DEAD_S", 0.5)
    with Proxy(face.service.port) as proxy:
        view = face.through(f"http://127.0.0.1:{proxy.port}").view("regions")
        changes = view.changes(heartbeat_s=0.1)
        first = face.ask(next_of(changes))
        proxy.begin(Fault(HALF_OPEN, (DOWN,), is_one=True))
        face.place.execute("UPDATE orders SET amount = amount + 1 WHERE id = 9")
        second = face.ask(next_of(changes))
        assert second.number > first.number and proxy.links_total >= 2
        proxy.heal()
        quiet = view.changes(timeout_ms=300, resume=second.resume, heartbeat_s=60)
        assert face.collect(quiet) == []
        proxy.begin(Fault(HALF_OPEN, (DOWN,)))
        assert face.collect(quiet) == []


def test_rows_that_take_long_are_waited_for(
    face: Face, place: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view's table is locked for longer than a connection may be silent."""
    monkeypatch.setattr(course, "DEAD_S", 0.5)
    session = place.connect()
    session.autocommit = False
    with Proxy(face.service.port) as proxy:
        view = face.through(f"http://127.0.0.1:{proxy.port}").view("bags")
        with session.cursor() as cursor:
            cursor.execute("LOCK TABLE _bags IN ACCESS EXCLUSIVE MODE")
        threading.Timer(2, session.rollback).start()
        began = time.monotonic()
        found = face.collect(view.changes(heartbeat_s=0.1, timeout_ms=200))
        assert time.monotonic() - began > 1.5
        assert [e.is_snapshot for e in found] == [True] and proxy.links_total == 1
    session.close()


# --- what the pages and the examples say ---------------------------------------------------------


def blocks_of(page: str) -> list[str]:
    """The Python of a page, in order."""
    text = (ROOT / "docs" / page).read_text()
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_page_of_the_client_runs(
    service: RunningService, place: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    place.execute("INSERT INTO orders VALUES (900, 'north', 7), (901, 'north', 5)")
    place.execute("DELETE FROM orders WHERE id > 1000")
    blocks = blocks_of("PYTHON.md")
    assert len(blocks) > 6
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block.replace(URL, service.url), "PYTHON.md", "exec"), names)
    told = capsys.readouterr().out
    assert "north 12.00" in told and "sql.undefined_column 1 8" in told
    assert told.count("True") == 1 and names["table"].num_rows == 6
    names["client"].close()
    service.drop("revenue")
    exec(blocks_of("OPERATING.md")[-1].replace(URL, service.url).replace("0/1A2B3C", "0/1"), {})


def test_the_reader_of_subscriptions_follows(service: RunningService, place: Database) -> None:
    (reader,) = blocks_of("SUBSCRIPTIONS.md")
    names: dict[str, Any] = {}
    exec(compile(reader, "SUBSCRIPTIONS.md", "exec"), names)
    place.execute("INSERT INTO orders VALUES (950, E'a\\u2028\\u0085b', 1)")
    follow = names["follow"](service.url, "regions")
    _, rows = next(follow)
    assert sum("u2028" in row for row in rows) == 1
    place.execute("DELETE FROM orders WHERE id = 950")
    while any("u2028" in row for row in rows):
        _, rows = next(follow)
    assert rows.total() == place.rows("SELECT count(*) FROM regions")[0][0]


def test_the_examples_run(service: RunningService) -> None:
    def run(name: str, *words: str) -> str:
        command = [sys.executable, str(ROOT / "examples" / name), *words]
        command += ["--url", service.url, "--timeout-ms", "500"]
        told = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        assert told.returncode == 0, told.stderr
        return told.stdout

    assert "+1  region=r0" in run("follow_view.py", "regions")
    alerts = run("alerts.py", "regions", "n", "39")
    assert "('r1',): n is above 39" in alerts
