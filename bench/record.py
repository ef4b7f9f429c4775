"""Stored measurements: one JSON file for each part and runner, with the conditions of the run.

Invariant: a figure always has its date, its revision and the load of the machine. The page of
results is written from these files alone, so an old figure cannot pass for a new one.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from collections.abc import Iterator, Mapping
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

    revision: of the product, with "+" if the working tree had uncommitted changes. load: of the
    machine (1 minute) before the run. other_cores: cores that other programs kept busy during it.
    missing: why there are no figures.
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
        """Return the file's name without its suffix."""
        return f"{self.part}-{self.runner}"


@contextmanager
def measuring(part: str, runner: str, sizes: dict[str, Any], folder: Path) -> Iterator[Record]:
    """Yield a record to fill in; it is written if the block ends without an error."""
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
    """Return all records of a folder."""
    return [Record(**json.loads(p.read_text())) for p in sorted(folder.glob("*.json"))]


def revision() -> str:
    """Return the last commit that touched the product, with "+" for uncommitted changes."""
    head = _git("log", "-1", "--format=%h", "--", *PRODUCT) or "unknown"
    return head + ("+" if _git("status", "--porcelain", "--", *PRODUCT) else "")


def stamp() -> dict[str, Any]:
    """Return the date, the revision and the machine's load for figures measured now."""
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "revision": revision(),
        "load": round(os.getloadavg()[0], 1),
    }


def save_figures(path: Path, sizes: Mapping[str, Any], figures: Mapping[str, Any]) -> None:
    """Print the record of one benchmark, and write it to its file."""
    found = {"revision": revision(), "machine": machine(), "sizes": sizes, "figures": figures}
    text = json.dumps({**found, "load": round(os.getloadavg()[0], 1)}, indent=2)
    path.write_text(text + "\n")
    print(text)


def commits_since(measured: str) -> int | None:
    """Return how many commits touched the product since a revision; None if unknown to git."""
    counted = _git("rev-list", "--count", f"{measured.rstrip('+')}..HEAD", "--", *PRODUCT)
    return int(counted) if counted else None


def _git(*arguments: str) -> str:
    answer = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=False, cwd=_ROOT
    )
    return answer.stdout.strip() if answer.returncode == 0 else ""


def _busy_s() -> float:
    """Return the CPU seconds of the whole machine so far."""
    reported = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    ticks = [int(t) for t in reported]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """Return the CPU seconds of this program and of its ended children."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(u.ru_utime + u.ru_stime for u in used)
