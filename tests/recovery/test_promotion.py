"""Oracle: a plain-Python model of the writer's transactions; every state that the sink ever shows
must be the model's at the prefix which it names itself, before and after a standby took over."""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from connectors.postgres.embedded.server import EmbeddedPostgres, available_versions
from tests.harness import figures
from tests.harness.postgres import SERVER_SETTINGS, Database, new_database
from tests.harness.service import RunningService
from tests.harness.standby import SLOT, Either, Standby, alter_system
from tests.harness.verdicts import WrongStateError
from tests.recovery.prefix import SCHEMA, VIEWS, Checker, Writer

RUN = "pytest tests/recovery/test_promotion.py"
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "3"))
OURS = "tidemark_shop_source"
NEW, OLD = 18, 15
WITHIN_S = 60.0

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(NEW not in available_versions(), reason="no PostgreSQL 18 here"),
]


@dataclass
class Pair:
    """A primary with its standby, and the service that reads through either into a sink apart."""

    primary: EmbeddedPostgres
    standby: Standby
    source: Database
    sink: Database
    service: RunningService

    def fail_over(self) -> None:
        """The primary is lost, its standby takes over."""
        self.primary.kill()
        self.standby.promote()

    def problem(self) -> dict:
        """What a view says that keeps it from going on."""
        return self.service.call("GET", "/views/prefix").json().get("error") or {}


@contextlib.contextmanager
def _pair(
    sink: Database,
    folder: Path,
    version: int,
    settings: dict[str, str] | None = None,
) -> Iterator[Pair]:
    with EmbeddedPostgres(version, {**SERVER_SETTINGS, "synchronous_commit": "on"}) as first:
        Database(first, "postgres").execute("CREATE DATABASE shop")
        Database(first, "shop").execute(SCHEMA)
        with Standby(first) as second:
            alter_system(first, settings or {})
            source = Either(first, "shop", second)
            with RunningService(source.dsn, folder, sink=sink.dsn) as service:
                yield Pair(first, second, source, sink, service)


@pytest.fixture
def sink(database: Database) -> Iterator[Database]:
    with new_database(database.server) as made:
        yield made


def _start(pair: Pair) -> tuple[Writer, Checker]:
    writer = Writer(pair.source, SEED)
    for name, query in VIEWS.items():
        pair.service.create(name, query, backfill="local")
    return writer, Checker(pair.sink, writer)


def test_a_promoted_standby_with_the_slot_continues(sink: Database, tmp_path: Path) -> None:
    """PostgreSQL 17 and later: the slot is copied, nothing is sent before the standby has it, and
    no commit is acknowledged before. Twice nothing is rebuilt, under load."""
    primary = {"synchronized_standby_slots": SLOT, "synchronous_standby_names": "*"}
    command = f"TIDEMARK_TEST_SEED={SEED} {RUN}"
    with figures.counted("promotions", command) as run, _pair(sink, tmp_path, NEW, primary) as pair:
        writer, checker = _start(pair)
        pair.standby.await_copy(OURS)
        writer.start()
        checker.await_further(5, WITHIN_S, pair.service.log_tail)
        time.sleep(random.Random(SEED).uniform(0, 0.5))
        pair.fail_over()
        checker.await_further(5, WITHIN_S, pair.service.log_tail)
        pair.service.kill_child("pipeline")
        checker.await_further(5, WITHIN_S, pair.service.log_tail)
        last = writer.stop()
        pair.service.await_so(lambda: checker.check() == last, WITHIN_S)
        checker.close()
        told = [event["event"] for event in pair.service.events()]
        assert "source.promoted" in told
        assert not {"source.refused", "view.degraded", "view.state_lost"} & set(told), told
        assert told.count("build.started") == len(VIEWS)
        timelines = pair.sink.rows("SELECT timeline FROM tidemark.sources")
        assert timelines == [(2,)]
        run.count, run.epochs = 1, checker.states


@pytest.mark.whole
def test_a_standby_that_lacks_what_was_shown_is_refused(sink: Database, tmp_path: Path) -> None:
    """Nothing keeps the stream from running ahead of this standby. Its changes would stand at
    positions that were shown already: by name, not one row goes back, and the old server does."""
    with figures.counted("promotions", RUN) as run, _pair(sink, tmp_path, NEW) as pair:
        writer, checker = _start(pair)
        pair.standby.await_copy(OURS)
        pair.standby.leave_behind()
        writer.start()
        checker.await_further(5, WITHIN_S, pair.service.log_tail)
        last = writer.stop()
        pair.service.await_so(lambda: checker.check() == last, WITHIN_S)
        pair.fail_over()
        pair.service.await_so(
            lambda: pair.problem().get("code") == "source.promoted_behind", WITHIN_S
        )
        problem = pair.problem()
        assert "timeline 1" in problem["detail"] and problem["hint"], problem
        assert checker.check() == last
        slots = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s"
        assert Database(pair.standby, "shop").rows(slots, (OURS,)) == [(1,)]
        # The way out that loses nothing: the server that has it all.
        pair.standby.stop()
        pair.primary.start()
        pair.source.execute("INSERT INTO marker VALUES (%s)", (last + 1,))
        shown = [(last + 1,)]
        pair.service.await_so(lambda: sink.rows("SELECT id FROM prefix") == shown, WITHIN_S)
        checker.close()
        run.count, run.epochs = 1, checker.states


@pytest.mark.whole
def test_a_standby_of_the_sink_that_lacks_a_drop(database: Database, tmp_path: Path) -> None:
    """It has every epoch, and a view that was dropped since: nobody may take that for kept."""
    database.execute(SCHEMA)
    settings = {**SERVER_SETTINGS, "synchronous_commit": "on"}
    with figures.counted("promotions", RUN) as run, EmbeddedPostgres(NEW, settings) as first:
        Database(first, "postgres").execute("CREATE DATABASE shop")
        with Standby(first) as second:
            sink = Either(first, "shop", second)
            with RunningService(database.dsn, tmp_path, sink=sink.dsn) as service:
                service.create("prefix", VIEWS["prefix"], backfill="local")
                service.create("kept", "SELECT count(*) - 1 AS n FROM marker", backfill="local")
                _write_marker(database, service, sink, 1)
                copied = "SELECT status FROM tidemark.views WHERE name = 'kept'"
                service.await_so(lambda: Database(second, "shop").rows(copied) == [("live",)])
                service.await_so(lambda: Database(second, "shop").rows("TABLE kept") == [(1,)])
                second.leave_behind()
                service.drop("kept")
                first.kill()
                second.promote()
                assert sink.rows("TABLE kept") == [(1,)]
                database.execute("INSERT INTO marker VALUES (2)")
                service.await_so(lambda: _looks(sink, run) == 2, WITHIN_S)
                _write_marker(database, service, sink, 3)
                service.await_so(lambda: sink.rows(copied) == [("live",)], WITHIN_S)
                assert _looks(sink, run) == 3
                assert any(e.get("code") == "sink.promoted" for e in service.events())
                run.count = 1


def _write_marker(database: Database, service: RunningService, sink: Database, number: int) -> None:
    database.execute("INSERT INTO marker VALUES (%s)", (number,))
    service.await_so(lambda: sink.rows("SELECT id FROM prefix") == [(number,)], WITHIN_S)


def _looks(sink: Database, run: figures.Run) -> int:
    """The prefix that is shown now; a view that is called live shows just that."""
    look = (
        "SELECT p.id, (SELECT max(n) FROM kept), v.status FROM prefix AS p"
        " LEFT JOIN tidemark.views AS v ON v.name = 'kept'"
    )
    prefix, n, status = sink.rows(look)[0]
    run.epochs += 1
    if status == "live" and n != prefix:
        raise WrongStateError(f"kept has {n} at prefix {prefix}")
    return prefix


@pytest.mark.whole
@pytest.mark.skipif(OLD not in available_versions(), reason="no PostgreSQL 15 here")
def test_a_standby_without_the_slot_is_refused(sink: Database, tmp_path: Path) -> None:
    """Before PostgreSQL 17 no slot is copied. What the views showed stays readable; dropped and
    created again they are right."""
    primary = {"synchronous_standby_names": "*"}
    with figures.counted("promotions", RUN) as run, _pair(sink, tmp_path, OLD, primary) as pair:
        pair.service.create("prefix", VIEWS["prefix"], backfill="local")
        pair.source.execute("INSERT INTO marker VALUES (1)")
        pair.service.await_so(lambda: sink.rows("SELECT id FROM prefix") == [(1,)], WITHIN_S)
        pair.fail_over()
        pair.source.execute("INSERT INTO marker VALUES (2)")
        pair.service.await_so(lambda: pair.problem().get("code") == "source.slot_missing", WITHIN_S)
        assert pair.problem()["hint"]
        assert sink.rows("SELECT id FROM prefix") == [(1,)]
        pair.service.drop("prefix")
        pair.service.create("prefix", VIEWS["prefix"], backfill="local")
        assert sink.rows("SELECT id FROM prefix") == [(2,)]
        run.count, run.epochs = 1, 2
