"""Oracle: what the kernel tells of a process: its status, its open files, its command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from service.runtime.forking import Forked
from storage.process_title import set_title


def told_by(main: Callable[[], object]) -> object:
    """What a child finds out, by way of a descriptor that it keeps."""
    ours, theirs = os.pipe()

    def run() -> int:
        os.write(theirs, json.dumps(main()).encode())
        return 0

    child = Forked(run, {"ONLY": "this"}, (theirs,))
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        text = pipe.read()
    assert child.wait() == 0
    return json.loads(text)


@pytest.mark.parametrize("code", [0, 3, 4])
def test_the_exit_code_is_what_main_gives(code: int) -> None:
    child = Forked(lambda: code, {})
    assert child.wait() == code == child.returncode == child.poll()
    # Ended and waited for: its pid may be another's by now.
    child.kill()


def test_a_parent_that_was_started_with_children_ignored_learns_how_one_ended() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert Forked(lambda: 3, {}).wait() == 3
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_who_breaks_ends_with_one(capfd: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise ValueError("no good")

    assert Forked(main, {}).wait() == 1
    assert "no good" in capfd.readouterr().err


def test_a_child_has_its_environment_and_no_open_file_but_its_own(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as mine:
        found = told_by(lambda: [dict(os.environ), os.listdir("/proc/self/fd"), mine.fileno()])
    assert isinstance(found, list)
    environment, descriptors, of_parent = found
    assert environment == {"ONLY": "this"}
    assert str(of_parent) not in descriptors
    # The standard streams, its end of the pipe, and the folder that it lists.
    assert len(descriptors) == 5


def test_a_child_begins_without_its_parents_handlers() -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        found = told_by(
            lambda: [
                signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
                # Ctrl-C is the parent's to act on.
                signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
                sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            ]
        )
        assert found == [True, True, sorted(blocked)]
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("pause_s", [0.0, 0.001, 0.01, 0.1])
def test_a_signal_is_not_lost_while_a_child_begins(pause_s: float) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        for _ in range(10):
            child = Forked(lambda: time.sleep(60) or 0, {})
            time.sleep(pause_s)
            child.terminate()
            assert child.wait() == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_process_is_shown_as_what_it_is() -> None:
    def main() -> str:
        set_title("pipeline")
        return Path("/proc/self/cmdline").read_text().rstrip("\0")

    assert told_by(main) == "tidemark: pipeline"


def test_who_ends_takes_along_what_it_has_started() -> None:
    ours, theirs = os.pipe()

    def main() -> int:
        # It does not ask to be ended with its parent, and holds the pipe for as long as it lives.
        subprocess.Popen(["sleep", "60"], pass_fds=(theirs,))
        return 3

    child = Forked(main, dict(os.environ), (theirs,))
    os.close(theirs)
    assert child.wait() == 3
    ready = wait([ours], 10)
    assert ready and os.read(ours, 1) == b""
    os.close(ours)
