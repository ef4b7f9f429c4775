"""Oracle: the process table, the sockets of every process that Spark started, and the files that
are there once it was killed and another one has begun."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from connectors.spark.session import LazySession
from dataflow.errors import TidemarkError
from tests.harness.waiting import wait_until

# Prints the processes of a first session that outlive it, then waits with a second one running.
SCRIPT = """
import sys, time
import psutil
from connectors.spark.session import LazySession

def same(batches):
    yield from batches

def run(lazy):
    assert lazy.get().range(0, 9, 1, 2).mapInArrow(same, "id long").count() == 9
    return [child.pid for child in psutil.Process().children(recursive=True)]

lazy = LazySession("local[2]")
pids = run(lazy)
assert len(pids) > 1, pids
lazy.stop()
time.sleep(1)
print(*[pid for pid in pids if psutil.pid_exists(pid)], flush=True)
print(*run(lazy), flush=True)
sys.stdin.read()
"""


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.whole
def test_a_session_stays_on_loopback_and_leaves_nothing() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", SCRIPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert owner.stdout is not None
        survivors = [int(pid) for pid in owner.stdout.readline().split()]
        assert not any(map(is_running, survivors))
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        running = [psutil.Process(pid) for pid in pids if is_running(pid)]
        assert any(process.name() == "java" for process in running)
        listeners = [
            (process.name(), connection.laddr.ip)
            for process in [psutil.Process(owner.pid), *running]
            for connection in process.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        ]
        assert listeners
        assert {ip.removeprefix("::ffff:") for _, ip in listeners} == {"127.0.0.1"}
    finally:
        os.kill(owner.pid, signal.SIGKILL)
        _, complaints = owner.communicate()
    assert complaints == "", "Spark's words belong in its log"
    wait_until(lambda: not any(map(is_running, pids)))


@pytest.mark.whole
def test_a_start_that_was_killed_leaves_what_the_next_one_finds(tmp_path: Path) -> None:
    """Whatever PySpark makes on the way lies in the session's directory, and the JVM ends, whether
    it gets as far as to see that nobody is there or not."""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    child = subprocess.Popen([sys.executable, "-c", SCRIPT], env=environment, stdin=subprocess.PIPE)
    # PySpark's own directory is there before the JVM answers.
    deadline = time.monotonic() + 60
    started: list[psutil.Process] = []
    while not (started and list(tmp_path.glob("*/tmp*"))):
        assert child.poll() is None and time.monotonic() < deadline, list(tmp_path.rglob("*"))
        time.sleep(0.01)
        started = psutil.Process(child.pid).children(recursive=True)
    child.kill()
    child.wait()
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(f"tidemark-spark-{child.pid}-")
    (tmp_path / f"tidemark-spark-{os.getpid()}-mine").mkdir()
    (tmp_path / "tidemark-spark-of-another").mkdir()
    sweep = [sys.executable, "-c", "from connectors.spark import leftovers; leftovers.sweep()"]
    subprocess.run(sweep, env=environment, check=True)
    _, alive = psutil.wait_procs(started, timeout=60)
    for process in alive:
        process.kill()
    assert not alive
    # It may have written until then.
    subprocess.run(sweep, env=environment, check=True)
    kept = {"tidemark-spark-of-another", f"tidemark-spark-{os.getpid()}-mine"}
    assert {p.name for p in tmp_path.iterdir()} == kept


def test_without_java_the_error_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TidemarkError) as refused:
        LazySession().get()
    assert refused.value.code == "spark.no_java"
    old = tmp_path / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(TidemarkError, match=r"spark\.no_java"):
        LazySession().get()


def test_whoever_gives_up_does_not_wait_for_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a view is dropped while the session for it, or for another one, starts."""
    lazy, looks, starts = LazySession("local[2]"), [], []
    monkeypatch.setattr(lazy, "_start", lambda: starts.append(1) or "the session")

    def give_up() -> None:
        looks.append(1)
        if len(looks) == 3:
            raise InterruptedError

    # Somebody else is starting it.
    with lazy._lock, pytest.raises(InterruptedError):
        lazy.get(give_up)
    assert len(looks) == 3
    monkeypatch.setattr(lazy, "_answers", lambda: True)
    # The start went on: it is there for the next one, who need not be told anything.
    assert lazy.get(lambda: None) == "the session" and starts == [1]
