"""Oracle: the kernel's list of processes: what a test has started goes when the test is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.harness.leash import Leash

# Starts a process in a thread that ends at once, and dies as it is told.
SCRIPT = """
import os, subprocess, sys, threading
from tests.harness.leash import Leash
kept = []
def start():
    child = subprocess.Popen(["sleep", "600"])
    kept.extend((child, Leash(child.pid)))
thread = threading.Thread(target=start)
thread.start()
thread.join()
print(kept[0].pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL], ids=["SIGTERM", "SIGKILL"])
def test_a_process_ends_with_the_one_that_has_started_it(by: signal.Signals) -> None:
    command = [sys.executable, "-c", SCRIPT]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.name() == "sleep", "it has ended with the thread that has started it"
        parent.send_signal(by)
        parent.wait()
        child.wait(30)


def test_what_was_let_go_lives_on() -> None:
    with subprocess.Popen(["sleep", "600"]) as child:
        leash = Leash(child.pid)
        leash.let_go()
        time.sleep(0.2)
        assert child.poll() is None
        child.kill()
