"""Oracle: by hand; small suites that pytest itself runs, with `--second-try`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness.verdicts import (
    CrashError,
    FinalError,
    LeakError,
    WrongStateError,
    judged,
    kind_of,
    require_no_crash,
)

ROOT = Path(__file__).parent.parent.parent
CONFTEST = """
import pytest
from tests.harness import second_try, verdicts

def pytest_addoption(parser):
    second_try.add_option(parser)

def pytest_configure(config):
    if config.getoption("--second-try") and not hasattr(config, "workerinput"):
        config.again = second_try.SecondTry(config)

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        report.final = verdicts.kind_of(call.excinfo.value, "")
    return report

@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    if hasattr(session.config, "again"):
        session.config.again.judge(session)

def pytest_terminal_summary(terminalreporter):
    if hasattr(terminalreporter.config, "again"):
        terminalreporter.config.again.summarize(terminalreporter)
"""
# Fails at its first run, passes at its second.
ONCE = """
import pathlib
def once(name):
    seen = pathlib.Path(__file__).with_name(name)
    is_first, _ = not seen.exists(), seen.touch()
    return is_first
"""


def run(folder: Path, tests: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_some.py").write_text(ONCE + tests)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--second-try", *options]
    environment = {"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_what_passes_the_second_time_is_flaky_and_passes_the_run(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    tests = """
import pytest
def test_good(): pass
@pytest.mark.parametrize("name", ["a b", "--c"])
def test_race(name): assert not once(name), "it was | late"
@pytest.fixture
def server(): assert not once("server"), "it did not start"
def test_with_a_server(server): pass
"""
    done = run(tmp_path, tests, *options)
    assert done.returncode == 0, done.stdout
    assert "1 passed, 3 flaky in" in done.stdout.splitlines()[-1]
    assert "flaky: test_some.py::test_race[a b], AssertionError: it was | late" in done.stdout
    assert "flaky: test_some.py::test_with_a_server, AssertionError: it did not" in done.stdout
    assert "| `test_some.py::test_race[--c]` | 20" in done.stdout
    assert "it was \\| late" in done.stdout


def test_what_fails_again_fails_the_run(tmp_path: Path) -> None:
    done = run(tmp_path, "def test_bad(): assert 1 == 2\ndef test_race(): assert not once('x')\n")
    assert done.returncode == 1
    assert "1 failed, 1 flaky in" in done.stdout.splitlines()[-1]
    assert "FAILED test_some.py::test_bad" in done.stdout


@pytest.mark.parametrize("kind", ["WrongStateError", "LeakError", "CrashError"])
def test_a_final_failure_fails_at_once(tmp_path: Path, kind: str) -> None:
    raised = f"from tests.harness import verdicts\n    raise verdicts.{kind}('of 3 rows')"
    tests = (
        f"def test_final():\n  if once('x'):\n    {raised}\ndef test_race(): assert not once('y')"
    )
    done = run(tmp_path, tests)
    assert done.returncode == 1
    assert "2 failed in" in done.stdout.splitlines()[-1]


def test_a_worker_that_ends_is_a_crash(tmp_path: Path) -> None:
    tests = "import os\ndef test_ends():\n  if once('x'): os.abort()\ndef test_good(): pass\n"
    done = run(tmp_path, tests, "-n", "2")
    assert done.returncode == 1
    assert "1 failed" in done.stdout.splitlines()[-1]


def test_very_many_failures_are_no_races(tmp_path: Path) -> None:
    tests = "import pytest\n@pytest.mark.parametrize('n', range(11))\n"
    done = run(tmp_path, tests + "def test_race(n): assert not once(str(n))\n")
    assert done.returncode == 1
    assert "11 failed in" in done.stdout.splitlines()[-1]


def test_a_file_that_cannot_be_imported_fails(tmp_path: Path) -> None:
    done = run(tmp_path, "import missing_module\n")
    assert done.returncode != 0


def test_kinds() -> None:
    with pytest.raises(LeakError, match="left"), judged(LeakError):
        raise AssertionError("left")
    with pytest.raises(WrongStateError), judged(LeakError):
        raise WrongStateError("stays what it is")
    assert kind_of(FinalError(), "unit") == ""
    assert kind_of(CrashError(), "api") == "crash"
    assert kind_of(LeakError(), "api") == "leak"
    assert kind_of(AssertionError(), "api") == ""
    assert kind_of(AssertionError(), "equality") == "wrong answer"
    assert kind_of(TimeoutError(), "equality") == ""


@pytest.mark.parametrize("code", [-11, 139, 134])
def test_a_process_that_was_ended_by_its_own_fault_is_a_crash(code: int) -> None:
    killed = {"event": "process.ended", "name": "api", "code": -9}
    require_no_crash([killed, {"event": "process.ended", "name": "api", "code": 1}])
    with pytest.raises(CrashError, match="pipeline crashed: SIG"):
        require_no_crash([{"event": "process.ended", "name": "pipeline", "code": code}])
