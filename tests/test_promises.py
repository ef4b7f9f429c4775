"""Oracle: docs/CONSISTENCY.md has the promises, docs/contributing/EVIDENCE.md names the tests of
each, and they exist."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
ROOT = DOCS.parent
PROMISE = re.compile(r"^\| (P\d)? *\| \*\*", re.MULTILINE)
ROW = re.compile(r"^\| (P\d)? *\| \*\*.*?\| ([^|]*) \|$", re.MULTILINE)
FILE = re.compile(r"`(tests/[\w/]+/test_\w+\.py)`")


def test_every_promise_has_tests_that_are_there() -> None:
    promises = PROMISE.findall((DOCS / "CONSISTENCY.md").read_text())
    rows = ROW.findall((DOCS / "contributing" / "EVIDENCE.md").read_text())
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
