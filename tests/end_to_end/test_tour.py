"""Oracle: README and docs/TOUR.md. A first-time user pastes the tour's blocks one after another, on
an empty server, and sees what stands below each."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import expect, sync_playwright

from connectors.loopback import free_port
from connectors.postgres.embedded.server import EmbeddedPostgres
from tests.console.conftest import chromium
from tests.harness import http
from tests.harness.tour import PLACES, Step, read_tour

ROOT = Path(__file__).resolve().parents[2]
STEPS = [*read_tour(ROOT / "README.md"), *read_tour(ROOT / "docs" / "TOUR.md")]
ADDRESS = "http://127.0.0.1:8000"
SERVE = "tidemark serve "
READY_S = 300.0


class Newcomer:
    """Someone with a shell, psql and a folder; what is served stays until he leaves."""

    def __init__(self, server: EmbeddedPostgres, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self._folder = folder
        self._programs = folder / "programs"
        self._served: list[subprocess.Popen[bytes]] = []
        self._programs.mkdir()
        for name in ("psql", "createdb"):
            (self._programs / name).symlink_to(server.program(name))
        (self._programs / "tidemark").write_text(
            f'#!/bin/sh\nexec {sys.executable} -m service.cli.main "$@"\n'
        )
        (self._programs / "tidemark").chmod(0o755)
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "TIDEMARK_"))}
        self._environment = clean | {
            "PATH": f"{self._programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "PGHOST": "127.0.0.1",
            "PGPORT": str(server.port),
            "PGUSER": "postgres",
            # The page has the ports that the service takes by itself.
            "TIDEMARK_PORT": self.url.rpartition(":")[2],
            "TIDEMARK_URL": self.url,
            "COLUMNS": "120",
        }

    def run(self, step: Step) -> str:
        """All that a block prints; AssertionError when it fails."""
        text = step.text.replace(ADDRESS, self.url)
        if step.place == "sh" and text.startswith(SERVE):
            self._serve(text)
            return ""
        commands = {
            "sh": ["bash", "-e"],
            "sql": ["psql", "-X", "shop"],
            "python": [sys.executable, "-"],
        }
        ran = subprocess.run(
            commands[step.place],
            input=text,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=180,
            check=False,
            cwd=self._folder,
            env=self._environment,
        )
        assert ran.returncode == 0, f"{step.page}:{step.line}\n{ran.stdout}"
        return ran.stdout.replace(self.url, ADDRESS)

    def _serve(self, text: str) -> None:
        with (self._folder / "service.log").open("wb") as log:
            command = ["bash", "-c", f"exec {text}"]
            started = subprocess.Popen(
                command,
                stderr=log,
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
            )
        self._served.append(started)
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and started.poll() is None:
            with contextlib.suppress(httpx.HTTPError):
                http.get(f"{self.url}/health")
                return
            time.sleep(0.1)
        raise AssertionError((self._folder / "service.log").read_text())

    def stop(self) -> None:
        """Ctrl-C in the service's terminal; it must end well."""
        for served in self._served:
            served.send_signal(signal.SIGTERM)
        codes = [served.wait(60) for served in self._served]
        self._served.clear()
        assert codes == [0] * len(codes)


@pytest.fixture
def newcomer(own_postgres: EmbeddedPostgres, tmp_path: Path) -> Iterator[Newcomer]:
    made = Newcomer(own_postgres, tmp_path)
    try:
        yield made
    finally:
        made.stop()


def test_the_tour_shows_each_way_in() -> None:
    assert {step.place for step in STEPS} >= set(PLACES)
    assert sum(step.shown is not None for step in STEPS) >= 8
    served = [step for step in STEPS if step.text.startswith(SERVE)]
    assert len(served) == 1
    dots = [line for step in STEPS for line in (step.shown or "").splitlines() if "..." in line]
    lines = [line for step in STEPS for line in (step.shown or "").splitlines()]
    assert len(dots) < len(lines) / 3, "most of what is shown must be held against the truth"


def test_dots_stand_for_any_lines_or_none() -> None:
    notices = Step(1, "sql", "", "a\n...\nb ...c\n")
    for printed in ("a\nb c\n", "a\n1\n2\nb 1 c\n"):
        assert not notices.differs(printed)
    for printed in ("a\nc\n", "b c\n", "a\nb c\nd\n"):
        assert notices.differs(printed)


def look_at_the_console(url: str) -> None:
    """It lists the view; where there is no browser, it is there at least."""
    program = chromium()
    if program is None:
        assert "<title>Tidemark</title>" in http.get(url).text
        return
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(url)
        expect(page.get_by_role("link", name="revenue", exact=True)).to_be_visible(timeout=30_000)
        browser.close()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not there: apt-get install curl")
def test_what_readme_shows_is_what_happens(newcomer: Newcomer) -> None:
    is_seen = False
    for step in STEPS:
        if "drop_view('revenue')" in step.text:
            look_at_the_console(newcomer.url)
            is_seen = True
        difference = step.differs(newcomer.run(step))
        assert not difference, f"{step.page}:{step.line}\n{step.text}\n{difference}"
    assert is_seen
