"""What a run under fire has counted, told as one JSON line, for the page of results.

Each fault test calls `add` once, at its end; one that goes on after something was wrong says how
much that was. The line is always printed; it is appended to the file that TIDEMARK_TEST_FIGURES
names, where it names one.
`python -m bench.fire FILE` takes the lines of such a file into bench/fire.jsonl and the page.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.fire import KINDS
from bench.record import revision

FILE = "TIDEMARK_TEST_FIGURES"


def add(
    kind: str, *, count: int, command: str, epochs: int = 0, wrong: int = 0, **more: Any
) -> None:
    """One line.

    kind: of bench/fire.py. count: faults (seeds, files, operations) gone through. epochs: states
    of the sink that were compared with the oracle. wrong: those that differed. command: what
    repeats the run. more: whatever else is worth knowing, by name with its unit last.
    """
    assert kind in KINDS, f"{kind} is none of {', '.join(KINDS)}"
    line = json.dumps(
        {
            "kind": kind,
            "count": count,
            "epochs": epochs,
            "wrong": wrong,
            "command": command,
            "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
            "revision": revision(),
            **more,
        }
    )
    print(f"\nfigures: {line}", flush=True)
    file = os.environ.get(FILE)
    if file:
        # One write in append mode: several processes may add to one file.
        with Path(file).open("a") as out:
            out.write(line + "\n")
