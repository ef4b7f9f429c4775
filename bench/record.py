"""What was measured, kept as one JSON file a part and runner, with what it was measured under.

A figure is never without its date, its revision and the load of the machine: the page of results
is written from these files alone, so an old figure cannot pass for a new one.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.measure import machine

RESULTS = Path(__file__).parent / "results"
_ROOT = Path(__file__).parent.parent
PRODUCT = ("storage", "dataflow", "connectors", "service")


@dataclass
class Record:
    """One part by one runner.

    revision: of the product, with "+" where it differed from what is committed. load: of the
    machine (1 minute) before; other_cores: cores that others kept busy meanwhile. missing: why
    there are no figures.
    """

    part: str
    runner: str
    sizes: dict[str, Any] = field(default_factory=dict)
    figures: dict[str, Any] = field(default_factory=dict)
    date: str = ""
    revision: str = ""
    load: float = 0.0
    other_cores: float = 0.0
    seconds: float = 0.0
    missing: str | None = None
    machine: str = ""

    @property
    def name(self) -> str:
        """The file's name without its end."""
        return f"{self.part}-{self.runner}"


@contextmanager
def measuring(part: str, runner: str, sizes: dict[str, Any], folder: Path) -> Iterator[Record]:
    """A record to put figures into; written when the block is left without an error."""
    record = Record(part, runner, sizes, date=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"))
    record.revision, record.load = revision(), round(os.getloadavg()[0], 1)
    record.machine = machine()
    started, busy, own = time.monotonic(), _busy_s(), _own_s()
    yield record
    record.seconds = round(time.monotonic() - started, 1)
    others = _busy_s() - busy - (_own_s() - own) - record.figures.get("orphan_cpu_s", 0.0)
    record.other_cores = round(max(others, 0) / max(record.seconds, 0.1), 2)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{record.name}.json").write_text(json.dumps(asdict(record), indent=1) + "\n")


def read_all(folder: Path = RESULTS) -> list[Record]:
    """All records of a folder."""
    return [Record(**json.loads(p.read_text())) for p in sorted(folder.glob("*.json"))]


def revision() -> str:
    """Return the last commit that touched the product, with "+" when what is on disk is another."""
    head = _git("log", "-1", "--format=%h", "--", *PRODUCT) or "unknown"
    return head + ("+" if _git("status", "--porcelain", "--", *PRODUCT) else "")


def stamp() -> dict[str, Any]:
    """Return when, at which revision and under which load of the machine figures are measured."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "revision": revision(),
        "load": round(os.getloadavg()[0], 1),
    }


def commits_since(measured: str) -> int | None:
    """Return how many commits have touched the product since a revision; None when git cannot
    tell."""
    counted = _git("rev-list", "--count", f"{measured.rstrip('+')}..HEAD", "--", *PRODUCT)
    return int(counted) if counted else None


def _git(*arguments: str) -> str:
    answer = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=False, cwd=_ROOT
    )
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _busy_s() -> float:
    """CPU seconds of the whole machine so far."""
    reported = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    ticks = [int(t) for t in reported]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """CPU seconds of this program and of its children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)
