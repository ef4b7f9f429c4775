"""What a run under fire has counted, told as one JSON line, for the page of results.

Each fault test counts within `counted`, so that a run that fails has its line as well, or calls
`add` once, where it continues after something was wrong and says how much that was. The line is
always printed; it is appended to the file that TIDEMARK_TEST_FIGURES names, where it names one.
`python -m bench.fire FILE` takes the lines of such a file into bench/fire.jsonl and the page.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bench.fire_record import KINDS
from bench.record import revision
from tests.harness.verdicts import WrongStateError

FILE = "TIDEMARK_TEST_FIGURES"


@dataclass
class Run:
    """How far a run has come; told: whatever else is worth knowing, as `add` takes it."""

    count: int = 0
    epochs: int = 0
    told: dict[str, Any] = field(default_factory=dict)


@contextlib.contextmanager
def counted(kind: str, command: str, **reported: Any) -> Iterator[Run]:
    """One line of what the block has counted, whether it ends well or fails.

    kind, command, reported: as for `add`. A failure is told by its first line; it counts as a wrong
    state where it is a WrongStateError.
    """
    run = Run(told=reported)
    try:
        yield run
    except (Exception, pytest.fail.Exception) as error:
        run.told["failed"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        wrong = int(isinstance(error, WrongStateError))
        add(kind, count=run.count, command=command, epochs=run.epochs, wrong=wrong, **run.told)
        raise
    add(kind, count=run.count, command=command, epochs=run.epochs, **run.told)


def add(
    kind: str, *, count: int, command: str, epochs: int = 0, wrong: int = 0, **more: Any
) -> None:
    """One line.

    kind: of bench/fire_record.py. count: faults (seeds, files, operations) gone through. epochs:
    states of the sink that were compared with the oracle. wrong: those that differed. command:
    what repeats the run. more: whatever else is worth knowing, by name with its unit last.
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
