"""Oracle: processes and files of this machine: one broker for all workers, gone after the last."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from connectors.kafka.embedded import missing
from tests.harness.shared_broker import ROOT, shared_broker
from tests.harness.waiting import wait_until

WORKER = """
import sys, time
from pathlib import Path
from tests.harness.shared_broker import shared_broker
with shared_broker(Path(sys.argv[1]), {}) as broker:
    print(broker.pid, flush=True)
    time.sleep(600)
"""


def _worker(folder: Path) -> tuple[subprocess.Popen[str], int]:
    command = [sys.executable, "-c", WORKER, str(folder)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    return process, int(process.stdout.readline())


@pytest.mark.whole
@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_one_broker_outlives_every_worker_but_the_last(tmp_path: Path) -> None:
    folder = tmp_path / "broker"
    first, pid = _worker(folder)
    with shared_broker(folder, {}) as broker:
        assert broker.pid == pid
        first.send_signal(signal.SIGKILL)
        first.wait()
        time.sleep(0.5)
        broker.create_topic("t", 1)
        with pytest.raises(AssertionError, match="own_broker"):
            broker.stop()
    wait_until(lambda: not psutil.pid_exists(pid))
    wait_until(lambda: not broker.directory.exists())
    with shared_broker(folder, {}) as again:
        assert again.pid != pid
        again.create_topic("t", 1)
    wait_until(lambda: not psutil.pid_exists(again._pid))
