"""Oracle: what docs/ENGINE.md says that its lines print, and a script's own last line."""

from __future__ import annotations

import doctest
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_the_tour_is_what_happens() -> None:
    page = (ROOT / "docs" / "ENGINE.md").read_text()
    # A fence would be taken for output.
    text = "\n".join("" if line.startswith("```") else line for line in page.split("\n"))
    tour = doctest.DocTestParser().get_doctest(text, {}, "ENGINE.md", None, 0)
    assert len(tour.examples) > 20
    told: list[str] = []
    result = doctest.DocTestRunner().run(tour, out=told.append)
    assert not result.failed, "".join(told)


@pytest.mark.whole
def test_the_example_runs() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "engine.py"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, *between, last = done.stdout.splitlines()
    assert first == "at first: [('apple', 30.0), ('plum', 7.5)]"
    assert between[0] == "- apple 30.0"
    worth = between[1].removeprefix("+ apple ")
    assert last == f"at last: [Row(fruit='apple', worth={worth})]"
