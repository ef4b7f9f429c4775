"""Oracle: what is known of each job here: how long it runs, and which lines Spark's log has."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from connectors.spark import job_watch
from connectors.spark.job_watch import SparkLog
from connectors.spark.session import LazySession
from dataflow.errors import TidemarkError
from tests.harness.waiting import wait_until

needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="no Java, Spark needs it")

STARVED = "Initial job has not accepted any resources; check your cluster UI"
LINES = f"""10:00:01.000 WARN org.apache.spark.SparkConf: nothing of interest
10:00:02.000 WARN org.apache.spark.scheduler.TaskSchedulerImpl: {STARVED}
java.io.IOException: Connection refused
"""
LOST = """10:00:03.000 WARN org.apache.spark.deploy.client.StandaloneAppClient$ClientEndpoint: \
Connection to 127.0.0.1:7077 failed; waiting for master to reconnect...
10:00:04.000 ERROR org.apache.spark.scheduler.TaskSchedulerImpl: Lost executor 0 on """


def test_the_words_are_the_newest_whole_line_about_executors(tmp_path: Path) -> None:
    path, log = tmp_path / "spark.log", SparkLog()
    log.refresh(path)
    assert (log.words, log.is_master_lost) == ("", False)
    path.write_text(LINES)
    log.refresh(path)
    assert (log.words, log.is_master_lost) == (STARVED, False)
    path.write_text(LINES + LOST)
    log.refresh(path)
    assert log.words.startswith("Connection to") and log.is_master_lost
    path.write_text(LINES + LOST + "127.0.0.1\n")
    log.refresh(path)
    assert log.words == "Lost executor 0 on 127.0.0.1"
    log.forget()
    log.refresh(path)
    assert (log.words, log.is_master_lost) == ("", True)
    # Of another session.
    log.refresh(None)
    assert not log.is_master_lost


@needs_java
@pytest.mark.whole
@pytest.mark.timeout(300)
def test_a_job_past_its_deadline_ends_and_no_other(
    session: LazySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reason is shown first. The other job, of another pool, shares the session."""
    session.get()
    monkeypatch.setattr(job_watch, "LATE_S", 1.0)
    monkeypatch.setattr(job_watch, "DEADLINE_S", 4.0)
    jobs, failures = session.jobs, list[TidemarkError]()

    def never_ends(spark: SparkSession) -> None:
        spark.sparkContext.parallelize([3600], 1).foreach(time.sleep)

    def run() -> None:
        with pytest.raises(TidemarkError) as raised:
            jobs.run(never_ends, "it failed", pool="bad")
        failures.append(raised.value)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until(lambda: "take longer" in jobs.waiting("bad"), within_s=120)
    # The one that has begun keeps its own.
    monkeypatch.undo()
    good = jobs.run(lambda s: s.sparkContext.parallelize(range(9), 1).sum(), "it", pool="good")
    assert good == 36 and jobs.waiting("good") == ""
    thread.join(120)
    assert [(f.code, f.is_temporary) for f in failures] == [("spark.deadline", True)]
    assert jobs.waiting() == "" and session.is_alive()


@needs_java
@pytest.mark.whole
@pytest.mark.timeout(300)
def test_what_nobody_waits_for_is_cancelled(session: LazySession) -> None:
    begun, failures = threading.Event(), list[TidemarkError]()

    def never_ends(spark: SparkSession) -> None:
        begun.set()
        spark.sparkContext.parallelize([3600], 1).foreach(time.sleep)

    def run() -> None:
        with pytest.raises(TidemarkError) as raised:
            session.jobs.run(never_ends, "it failed")
        failures.append(raised.value)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(120)
    # A job that Spark does not know yet cannot be cancelled: again until it is.
    while thread.is_alive():
        session.jobs.cancel(thread)
        thread.join(0.5)
    assert [f.code for f in failures] == ["spark.job"]
