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
@pytest.mark.timeout(900)
def test_a_job_past_its_deadline_is_run_again_and_no_other(
    session: LazySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its reason is shown first. The other job, of another pool, shares the session."""
    session.get()
    monkeypatch.setattr(job_watch, "LATE_S", 1.0)
    monkeypatch.setattr(job_watch, "DEADLINE_S", 8.0)
    jobs, tries, found = session.jobs, list[float](), list[int]()

    def hangs_once(spark: SparkSession) -> int:
        tries.append(0 if tries else 3600)
        return spark.sparkContext.parallelize([tries[-1]], 1).map(slept).sum()

    def slept(seconds: float) -> int:
        time.sleep(seconds)
        return 42

    thread = threading.Thread(target=lambda: found.append(jobs.run(hangs_once, "it", pool="bad")))
    thread.start()
    wait_until(lambda: "take longer" in jobs.waiting("bad"), within_s=120)
    assert jobs.waiting() == jobs.waiting("bad")
    # The one that has begun keeps its own.
    monkeypatch.undo()
    good = jobs.run(lambda s: s.sparkContext.parallelize(range(9), 1).sum(), "it", pool="good")
    assert good == 36 and jobs.waiting("good") == ""
    thread.join(600)
    # On a busy machine the next ones are too late as well.
    assert found == [42] and len(tries) > 1
    assert jobs.waiting() == "" and session.is_alive()


@needs_java
@pytest.mark.whole
@pytest.mark.timeout(900)
def test_nothing_waits_for_what_warms_up(
    session: LazySession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no view is degraded for it: a new one has its rows before Spark has started."""
    session.get()
    monkeypatch.setattr(job_watch, "LATE_S", 0.0)
    jobs, ended = session.jobs, threading.Event()
    warming = {"pool": job_watch.WARM_UP}
    thread = threading.Thread(
        target=jobs.run, args=(lambda _: ended.wait(600), "it"), kwargs=warming
    )
    thread.start()
    try:
        wait_until(lambda: jobs.waiting(job_watch.WARM_UP) != "", within_s=120)
        assert jobs.waiting() == ""
    finally:
        ended.set()
        thread.join()


@needs_java
@pytest.mark.whole
def test_a_job_that_fails_is_an_error(session: LazySession) -> None:
    with pytest.raises(TidemarkError) as raised:
        session.jobs.run(lambda s: s.sparkContext.parallelize([0], 1).map(divided).sum(), "it")
    assert (raised.value.code, raised.value.is_temporary) == ("spark.job", True)
    assert "ZeroDivisionError" in raised.value.detail


@needs_java
@pytest.mark.whole
@pytest.mark.timeout(900)
def test_a_job_ends_with_a_session_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the error of a job, which is not run again; and no thread crashes, the watcher's too."""
    crashed: list[object] = []
    monkeypatch.setattr(threading, "excepthook", crashed.append)
    lazy, begun, failures = LazySession("local[2]"), threading.Event(), list[TidemarkError]()

    def uses_it(spark: SparkSession) -> None:
        begun.set()
        while True:
            spark.sparkContext.parallelize([0.2], 1).foreach(time.sleep)

    def run() -> None:
        with pytest.raises(TidemarkError) as raised:
            lazy.jobs.run(uses_it, "it failed")
        failures.append(raised.value)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert begun.wait(300)
        time.sleep(2 * job_watch.POLL_S)
    finally:
        lazy.stop()
    thread.join(300)
    assert [f.code for f in failures] == ["spark.job"]
    wait_until(lambda: "spark-jobs" not in {t.name for t in threading.enumerate()}, within_s=60)
    assert crashed == [] and not lazy.is_started


def divided(number: int) -> float:
    return 1 / number
