"""Oracle: a plain-Python model of the writer's transactions; every state that the sink ever shows
must be the model's at the prefix which it names itself, also while and after it is a server that
lacks what the sink had acknowledged. An independent reader of a view's topic, which was set back by
nobody, finds each epoch once."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from connectors.kafka.embedded import EmbeddedKafka, missing
from connectors.postgres.embedded.server import EmbeddedPostgres
from storage.failpoints import REACHED
from tests.harness import figures
from tests.harness.broker import unique_name
from tests.harness.failpoints import arm
from tests.harness.postgres import SERVER_SETTINGS, Database
from tests.harness.service import RunningService
from tests.harness.sinks import add_sink
from tests.harness.standby import Either, Standby
from tests.recovery.prefix import SCHEMA, VIEWS, Checker, Writer
from tests.recovery.special import SET_BACK
from tests.recovery.test_topics import Prefixes

RUN = "pytest tests/recovery/test_sink_rewind.py"
SEED = int(os.environ.get("TIDEMARK_TEST_SEED", "5"))
WITHIN_S = 240.0

pytestmark = pytest.mark.timeout(900)


@dataclass
class Scene:
    """A service under load, and its sink apart from the source."""

    service: RunningService
    source: Database
    sink: Database
    writer: Writer
    checker: Checker

    def begin(self) -> None:
        self.source.execute(SCHEMA)
        for name, query in VIEWS.items():
            self.service.create(name, query, backfill="local")
        self.writer.start()
        self.go_on()

    def go_on(self, prefixes: int = 20) -> None:
        self.checker.await_further(prefixes, WITHIN_S, self.service.log_tail)

    def look_anew(self) -> None:
        """The sink has gone back, which no reader of it can miss: from here on it goes on only."""
        self.checker.close()
        self.checker = Checker(self.sink, self.writer)

    def finish(self) -> int:
        last = self.writer.stop()
        self.service.await_so(lambda: self.checker.check() == last, WITHIN_S)
        self.checker.close()
        return last

    def told(self, *names: str) -> list[dict[str, Any]]:
        return [e for e in self.service.events() if e["event"] in names]


@contextmanager
def _scene(source: Database, sink: Database, folder: Path, **settings: Any) -> Iterator[Scene]:
    with RunningService(source.dsn, folder, sink=sink.dsn, **settings) as service:
        writer = Writer(source, SEED)
        yield Scene(service, source, sink, writer, Checker(sink, writer))


def test_a_standby_that_lags_gets_again_what_it_lacks(database: Database, tmp_path: Path) -> None:
    """Under load the sink's primary is lost, and its standby takes over without the newest epochs:
    nothing is rebuilt, nothing is lost or doubled."""
    with EmbeddedPostgres(settings={**SERVER_SETTINGS, "synchronous_commit": "on"}) as first:
        Database(first, "postgres").execute("CREATE DATABASE sink")
        with Standby(first) as second:
            sink = Either(first, "sink", second)
            with _scene(database, sink, tmp_path) as scene:
                scene.begin()
                second.leave_behind()
                scene.go_on()
                first.kill()
                second.promote()
                scene.look_anew()
                scene.go_on()
                scene.finish()
                (replayed,) = scene.told("recover.outbox")
                assert replayed["epochs"] > 10, "the standby did not lag"
                assert len(scene.told("build.started")) == len(VIEWS)
                assert not scene.told("sink.rewound", "view.state_lost")
    _add_figures(scene)


def _copy(server: EmbeddedPostgres, name: str) -> Path:
    """The server's folder as it is now."""
    server.stop()
    folder = server.directory / name
    subprocess.run(["cp", "-a", server.directory / "data", folder], check=True)
    server.start()
    return folder


def _set_back(server: EmbeddedPostgres, copy: Path) -> None:
    server.stop(immediate=True)
    shutil.rmtree(server.directory / "data")
    subprocess.run(["cp", "-a", copy, server.directory / "data"], check=True)


@pytest.fixture
def any_broker(request: pytest.FixtureRequest) -> EmbeddedKafka | None:
    """The shared broker; None where its jars are not there: what is without topics continues."""
    return None if missing() else request.getfixturevalue("broker")


@pytest.mark.whole
def test_an_older_sink_is_brought_back_in_one_transaction(
    database: Database, tmp_path: Path, any_broker: EmbeddedKafka | None
) -> None:
    """The folder of the sink is set back to a copy, under the running service and while it does not
    run. Views that the copy knows as they are come back all at once; one that it does not know is
    gone, one that it knows otherwise is rebuilt. A topic continues all the while."""
    topic = unique_name("prefix")
    with EmbeddedPostgres(settings={**SERVER_SETTINGS, "synchronous_commit": "on"}) as server:
        Database(server, "postgres").execute("CREATE DATABASE sink")
        sink = Database(server, "sink")
        with _scene(database, sink, tmp_path, failpoints_folder=tmp_path) as scene:
            service = scene.service
            scene.begin()
            service.create("other", "SELECT min(id) AS id FROM marker", backfill="local")
            if any_broker is not None:
                add_sink(service, "prefix", topic=topic, bootstrap_servers=any_broker.bootstrap)
            copy = _copy(server, "older")
            scene.look_anew()
            scene.go_on()
            at = _positions(sink)
            # What it lacks is more than rows: the outbox cannot tell it again.
            service.create("later", "SELECT count(*) AS n FROM marker", backfill="local")
            service.drop("other")
            scene.go_on()
            _set_back(server, copy)
            server.start()
            scene.look_anew()
            _await_told_behind(scene, at)
            scene.go_on()
            service.await_status("other")
            assert service.call("GET", "/views/later").status_code == 404
            assert sink.rows("TABLE other") == [(0,)]
            assert len(scene.told("sink.repaired")) == 1
            service.await_so(lambda: service.call("GET", "/health").json()["status"] == "ok")
            # Once more, while nobody looks, and killed around what brings it back.
            service.kill()
            _set_back(server, copy)
            server.start()
            scene.look_anew()
            for point in SET_BACK:
                arm(tmp_path, point)
            service.start()
            for point in SET_BACK:
                service.await_so((tmp_path / f"{point}{REACHED}").exists, WITHIN_S)
            scene.go_on()
            last = scene.finish()
            if any_broker is not None:
                epoch = sink.rows("SELECT epoch FROM tidemark.progress")[0][0]
                assert Prefixes(any_broker, topic, epoch).at(epoch) == last
    _add_figures(scene)


def _positions(sink: Database) -> int:
    return sink.rows("SELECT (positions->>'source')::bigint FROM tidemark.progress")[0][0]


def _await_told_behind(scene: Scene, at: int) -> None:
    """Until the views have come back: what is shown and told of them is the older position."""
    deadline, is_reported = time.monotonic() + WITHIN_S, False
    while not scene.told("sink.repaired"):
        assert time.monotonic() < deadline, scene.service.log_tail()
        scene.checker.check()
        health = scene.service.call("GET", "/health").json()
        view = scene.service.call("GET", "/views/prefix").json()
        if any("sink.rewound" in reason for reason in health["reasons"]):
            shown = view["positions"].get("source")
            is_reported |= shown is None or _position(shown) < at
    assert is_reported


def _position(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def _add_figures(scene: Scene) -> None:
    figures.add(
        "promotions",
        count=1,
        epochs=scene.checker.states,
        command=f"TIDEMARK_TEST_SEED={SEED} {RUN}",
    )
