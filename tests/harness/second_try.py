"""`--second-try`: what failed runs once more, alone, after all other tests have ended.

What passes then is shown as `flaky: NAME, first error` and does not fail the run; its cause is to
be repaired all the same (docs/contributing/TESTING.md). Failures of a kind that is final
(tests/harness/verdicts.py), and very many at once, get no second try. Used by the process that
reports: with xdist, the controller.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pytest

OPTION = "--second-try"
# More than these are no races.
MOST = 10
# Beyond any test's own time limit.
_WITHIN_S = 1200
_FAILED = ("failed", "error")
# As xdist reports a test whose worker has ended.
_WORKER_ENDED = "???"


def add_option(parser: pytest.Parser) -> None:
    """`--second-try`."""
    parser.addoption(OPTION, action="store_true", help="run once more, alone, what failed")


def _run_alone(config: pytest.Config, node: str) -> bool:
    """Return whether one test passes in a process of its own."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    if config.getoption("--fast", False):
        command.append("--fast")
    # A parameter of a test may look like an option.
    try:
        done = subprocess.run(
            [*command, "--", node],
            cwd=config.rootpath,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == pytest.ExitCode.OK


def first_line(report: Any) -> str:
    """Return how a test failed, in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(crash.message if crash is not None else report.longrepr).strip()
    return text.splitlines()[0][:200] if text else "no message"


def is_final(report: Any) -> bool:
    """Return whether a report's failure gets no second try."""
    return bool(getattr(report, "final", "")) or report.when == _WORKER_ENDED


class SecondTry:
    """Give failed tests their second try. run_alone: whether a test passes by itself."""

    def __init__(
        self, config: pytest.Config, run_alone: Callable[[pytest.Config, str], bool] = _run_alone
    ) -> None:
        self._config = config
        self._run_alone = run_alone
        self._flaky: list[Any] = []

    def judge(self, session: pytest.Session) -> None:
        """Once everything has ended: run again what may be a race, and pass the run if all of it
        passes."""
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if session.exitstatus != pytest.ExitCode.TESTS_FAILED or terminal is None:
            return
        reports = [r for kind in _FAILED for r in terminal.stats.get(kind, [])]
        nodes = list(dict.fromkeys(r.nodeid for r in reports))
        is_of_test = all(isinstance(r, pytest.TestReport) for r in reports)
        if not nodes or not is_of_test or len(nodes) > MOST or any(map(is_final, reports)):
            return
        again = {node for node in nodes if self._passes(terminal, node)}
        self._flaky = [r for r in reports if r.nodeid in again]
        for kind in _FAILED:
            left = [r for r in terminal.stats.pop(kind, []) if r.nodeid not in again]
            if left:
                terminal.stats[kind] = left
        if self._flaky:
            terminal.stats["flaky"] = self._flaky
        if again == set(nodes):
            session.exitstatus = pytest.ExitCode.OK

    def summarize(self, terminal: pytest.TerminalReporter) -> None:
        """Print what was flaky, how it failed, and its row of the table in TESTING.md."""
        if not self._flaky:
            return
        terminal.section("flaky tests")
        for report in self._flaky:
            terminal.line(f"flaky: {report.nodeid}, {first_line(report)}", yellow=True)
        for report in self._flaky:
            terminal.section(report.nodeid, "_")
            terminal.line(str(report.longreprtext))
        terminal.line("for the table of docs/contributing/TESTING.md:")
        for row in table_rows(self._flaky, datetime.now(UTC).date().isoformat()):
            terminal.line(row)

    def _passes(self, terminal: Any, node: str) -> bool:
        terminal.write_line("")
        terminal.write_line(f"failed, run once more: {node}")
        return self._run_alone(self._config, node)


def table_rows(reports: Sequence[Any], day: str) -> list[str]:
    """Return a row of the table of flaky tests for each report."""
    shown = ((r.nodeid, first_line(r).replace("|", "\\|")) for r in reports)
    return [f"| `{node}` | {day} | {error} |" for node, error in shown]
