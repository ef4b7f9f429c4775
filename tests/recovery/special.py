"""What leads to the failpoints of a start, an end, a large epoch, Spark, Kafka and `init`: each has
a service of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from connectors.kafka.embedded import EmbeddedKafka, missing
from service.engine.state_version import FILE
from storage.failpoints import VARIABLE
from tests.harness.broker import unique_name
from tests.harness.postgres import Database
from tests.harness.sinks import add_sink, await_sink
from tests.harness.topic_reader import TopicReader
from tests.recovery.prefix import VIEWS
from tests.recovery.scene import BUSY, Scene

Run = Callable[[pytest.FixtureRequest, Database, Path], None]


@dataclass(frozen=True)
class Special:
    """points: those that it reaches. is_slow: it starts Spark after each kill."""

    points: tuple[str, ...]
    run: Run
    is_slow: bool = False


FIRST = ("state.version.before", "state.create.unmarked", "catalog.step.after")
SLOT = ("source.slot.before", "source.slot.after")
FORGET = (
    *("source.reset.before", "source.reset.slot"),
    *("source.reset.state", "source.reset.progress"),
)
LARGE = ("outbox.put.parts",)
# Of values that are pickles: tests/recovery/test_older_states.py.
UPGRADE = ("state.upgrade.value", "state.upgrade.after")
SPARK = ("spark.job.before", "spark.part.after", "spark.slot.after", "spark.files.before")
TOPICS = (
    *("topic.rows.flushed", "topic.commit.before", "topic.commit.after"),
    "sink.notify.before",
)
INIT = ("init.repair.after", "init.schema.before")


def first_and_last_view(_: Any, database: Database, folder: Path) -> None:
    """Killed at each step from nothing to the first view, and from the last one to nothing."""
    scene = Scene(database, folder, 3)
    try:
        scene.arm(["state.version.before", "state.create.unmarked", "catalog.step.after@3"])
        scene.arm(SLOT)
        # Schema tidemark is made before anything is supervised.
        with pytest.raises(AssertionError, match="did not start"):
            scene.service.start()
        scene.begin()
        scene.await_reached([*FIRST, *SLOT])
        scene.move_on()
        scene.finish()
        for number, point in enumerate(FORGET):
            scene.arm([point])
            scene.drop_all()
            scene.await_reached([point])
            database.execute(f"UPDATE wide SET v = {number} WHERE id < 100")
            scene.create("again", "SELECT v, count(*) AS n FROM wide GROUP BY v")
            scene.settled("again")
            scene.assert_answers()
        scene.drop_all()
    finally:
        scene.close()


def state_behind_the_sink(_: Any, database: Database, folder: Path) -> None:
    """Killed while what the state has lost is stepped again, muted."""
    scene = Scene(database, folder, 4, sync_interval_s=3600)
    service, older = scene.service, folder / "older"
    try:
        scene.begin()
        scene.move_on(10)
        service.kill()
        shutil.copytree(service.state, older)
        service.start()
        scene.move_on(30)
        service.kill()
        shutil.rmtree(service.state)
        shutil.copytree(older, service.state)
        scene.arm(["epoch.replayed.before"])
        service.start()
        scene.await_reached(["epoch.replayed.before"])
        scene.move_on(10)
        scene.finish()
    finally:
        scene.close()


def large_epoch(_: Any, database: Database, folder: Path) -> None:
    """Killed while the parts of an epoch that is too large for memory are stored."""
    scene = Scene(database, folder, 5, memory=384)
    try:
        scene.begin()
        scene.create("texts", "SELECT id, note FROM wide")
        scene.settled("texts")
        scene.arm(LARGE)
        database.execute(
            "INSERT INTO wide SELECT i, 1, repeat(md5(i::text), 8)"
            " FROM generate_series(1000, 80000) AS i"
        )
        scene.await_reached(LARGE)
        scene.move_on()
        scene.finish()
    finally:
        scene.close()


def older_state(_: Any, database: Database, folder: Path) -> None:
    """Killed while a state of before versions were written down is brought up."""
    scene = Scene(database, folder, 6)
    try:
        scene.begin()
        scene.service.stop()
        (scene.service.state / FILE).unlink()
        scene.arm(["state.upgrade.value@2", "state.upgrade.after"])
        scene.service.start()
        scene.await_reached(UPGRADE)
        scene.move_on()
        scene.finish()
        assert json.loads((scene.service.state / FILE).read_text())["version"]
    finally:
        scene.close()


def spark_job(_: Any, database: Database, folder: Path) -> None:
    """Driver and tasks are killed, one after the other."""
    if shutil.which("java") is None:
        pytest.skip("no Java on this machine, Spark needs it")
    scene = Scene(database, folder, 8)
    try:
        scene.begin()
        scene.arm(SPARK)
        scene.create("busy", BUSY, backfill="spark")
        scene.await_reached(SPARK, 400)
        scene.settled("busy", timeout_s=300)
        scene.move_on()
        # Its JVM stays warm for the next one.
        scene.finish(of_spark=True)
    finally:
        scene.close()


def topics(request: pytest.FixtureRequest, database: Database, folder: Path) -> None:
    """Killed around the commits of Kafka's transactions; the topic is read independently."""
    if missing() is not None:
        pytest.skip(str(missing()))
    broker: EmbeddedKafka = request.getfixturevalue("broker")
    scene, topic = Scene(database, folder, 9), unique_name("prefix")
    try:
        scene.begin()
        add_sink(scene.service, "prefix", topic=topic, bootstrap_servers=broker.bootstrap)
        for point in TOPICS:
            scene.arm([f"{point}@2"])
            scene.await_reached([point])
            scene.move_on()
            await_sink(scene.service, "prefix", status="live")
        scene.finish()
        epoch = database.rows("SELECT epoch FROM tidemark.progress")[0][0]
        reader, shown = TopicReader(broker, topic), []
        for _seen in reader.epochs(until=lambda: reader.last_epoch >= epoch):
            (row,) = reader.rows()
            shown.append(json.loads(row)["id"])
        reader.close()
        # An epoch may leave the view as it is; a row told twice would not be the only one.
        assert shown == sorted(shown)
        assert shown[-1] == database.rows(VIEWS["prefix"])[0][0]
    finally:
        scene.close()


def init_again(_: Any, database: Database, folder: Path) -> None:
    """`tidemark init` is killed; running it again does the rest."""
    role = f"init_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN")
    try:
        for point in INIT:
            ended = _init(database.dsn, role, {VARIABLE: f"{point}=kill"})
            assert ended.returncode == -signal.SIGKILL, ended.stdout + ended.stderr
        ended = _init(database.dsn, role, {})
        assert ended.returncode == 0, ended.stdout + ended.stderr
        found = database.rows("SELECT rolreplication FROM pg_roles WHERE rolname = %s", (role,))
        assert found == [(True,)]
    finally:
        database.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def _init(dsn: str, role: str, more: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "service.cli.main", "init", dsn, "--role", role]
    return subprocess.run(
        command,
        env={**os.environ, **more},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


SPECIAL = [
    Special((*FIRST, *SLOT, *FORGET), first_and_last_view),
    Special(("epoch.replayed.before",), state_behind_the_sink),
    Special(LARGE, large_epoch),
    Special(UPGRADE, older_state),
    Special(SPARK, spark_job, is_slow=True),
    Special(TOPICS, topics),
    Special(INIT, init_again),
]
# Reached by a store alone, in tests/unit/storage/test_recovery.py.
STORAGE = ("merge.flush.step", "merge.runs.step", "merge.runs.entered")
# Killed at in tests/recovery/test_sink_rewind.py.
SET_BACK = ("sink.repair.before", "sink.repair.after")
# Killed at in tests/recovery/test_checkpoints.py.
CHECKPOINTS = tuple(f"checkpoints.{what}" for what in ("copied", "sent", "finished", "pruned"))
# Failed at in tests/property/test_buckets.py and test_bucket_ranges.py; killed at in
# tests/end_to_end/test_on_spark.py.
BUCKETS = (
    *(f"spark.epoch.{what}" for what in ("read", "fixed", "computed", "stored", "committed")),
    "spark.range.read",
    "spark.state.moved",
    "spark.import.cut",
    *(f"spark.bucket.{what}" for what in ("before", "commit", "after")),
)
# Killed at in tests/end_to_end/test_runtime.py.
HANDOVER = tuple(
    f"view.handover.{what}"
    for what in (
        *("marked", "prepared", "stored", "committed"),
        *("adopting", "adopted", "discarded"),
    )
)
# Waited and killed at in tests/end_to_end/test_postgres_source.py.
STARTS = ("source.start.found",)
# Killed at in tests/end_to_end/test_uninstall.py.
UNINSTALL = (
    *("uninstall.sink.after", "uninstall.source.after", "uninstall.view.after"),
    *("uninstall.privilege.after", "uninstall.catalog.after", "uninstall.files.after"),
)
# Failed at in the tests of each type of sinks, by tests/harness/sink_contract.py.
SINKS = (
    *("clickhouse.rows.written", "clickhouse.progress.written"),
    *("copy.commit.before", "copy.commit.after"),
    *("delta.commit.before", "delta.commit.after"),
    *("iceberg.commit.before", "iceberg.commit.after"),
    *("lake.files.sent", "lake.manifest.before", "lake.manifest.after"),
    *("mysql.commit.before", "mysql.commit.after"),
    "webhook.message.after",
)
# Tests in tests/connectors/spark/batch/ stop at each of them.
RUNS = ("batch.view.started", "batch.lake.written", "batch.lake.committed", "batch.lake.compacted")
