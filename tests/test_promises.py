"""Oracle: docs/CONSISTENCY.md has the promises, docs/contributing/EVIDENCE.md names the tests of
each, and they exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.harness import tiers

DOCS = Path(__file__).resolve().parent.parent / "docs"
ROOT = DOCS.parent
PROMISE = re.compile(r"^\| (P\d)? *\| \*\*", re.MULTILINE)
ROW = re.compile(r"^\| (P\d)? *\| \*\*.*?\| ([^|]*) \|$", re.MULTILINE)
FILE = re.compile(r"`(tests/[\w/]+/test_\w+\.py)`")


def _rows() -> list[tuple[str, str]]:
    """Return (number or "", the tests that show it) of each promise."""
    return ROW.findall((DOCS / "contributing" / "EVIDENCE.md").read_text())


def test_every_promise_has_tests_that_are_there() -> None:
    promises = PROMISE.findall((DOCS / "CONSISTENCY.md").read_text())
    rows = _rows()
    assert [number for number, _ in rows] == promises
    assert [number for number in promises if number] == [f"P{n}" for n in range(1, 10)]
    faults = []
    for number, shown_by in rows:
        files = FILE.findall(shown_by)
        faults += [] if files else [f"{number or 'a row without a number'}: no test"]
        for file in files:
            path = ROOT / file
            if not path.is_file() or "\ndef test_" not in path.read_text():
                faults.append(f"{number}: {file} has no test")
    assert not faults, "\n" + "\n".join(faults)


def test_every_promise_is_shown_by_a_test_of_this_run(request: pytest.FixtureRequest) -> None:
    """In the fast tier as well, whatever is left out of it."""
    if not tiers.is_whole_run(request.config):
        pytest.skip("this is not a run of all folders")
    run = {str(item.path.relative_to(ROOT)) for item in request.session.items}
    hidden = [row for row in _rows() if run.isdisjoint(FILE.findall(row[1]))]
    assert not hidden, hidden
