"""Oracle: docs/CONSISTENCY.md: each promise names tests, and they are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROW = re.compile(r"^\| (P\d)? *\| \*\*.*?\| ([^|]*) \|$", re.MULTILINE)
FILE = re.compile(r"`(tests/[\w/]+/test_\w+\.py)`")


def test_every_promise_has_tests_that_are_there() -> None:
    rows = ROW.findall((ROOT / "docs" / "CONSISTENCY.md").read_text())
    assert [number for number, _ in rows if number] == [f"P{n}" for n in range(1, 10)]
    faults = []
    for number, shown_by in rows:
        files = FILE.findall(shown_by)
        faults += [] if files else [f"{number or 'a row without a number'}: no test"]
        for file in files:
            path = ROOT / file
            if not path.is_file() or "\ndef test_" not in path.read_text():
                faults.append(f"{number}: {file} has no test")
    assert not faults, "\n" + "\n".join(faults)
