"""Resources that must not grow in a long run: memory, handles, threads, files, WAL, tables, with
trends.

A trend is the line of least squares through the samples after warming up; what it has grown from
its first sample to its last is held against a limit in the same unit. Kills make samples jump,
and a line through many of them does not.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
from psycopg2 import Error

from tests.harness.files import files_below
from tests.harness.postgres import Database
from tests.harness.service import RunningService

MB = 1 << 20
_SLOTS = "SELECT coalesce(max(pg_current_wal_lsn() - restart_lsn), 0) FROM pg_replication_slots"
_SINK = """SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0) FROM pg_class AS c
WHERE c.oid IN (SELECT table_oid FROM tidemark.tables)
    OR (c.relnamespace = 'tidemark'::regnamespace AND c.relkind = 'r')"""


@dataclass(frozen=True)
class Growth:
    """From the line's first point to its last."""

    first: float
    last: float
    limit: float

    @property
    def is_flat(self) -> bool:
        return self.last - self.first <= self.limit

    def __str__(self) -> str:
        reported = f"{self.first:.0f} to {self.last:.0f}"
        return reported if self.is_flat else f"{reported}, more than {self.limit:.0f} in between"


@dataclass
class Meters:
    """limits: what each may grow by."""

    limits: dict[str, float]
    times: list[float] = field(default_factory=list)
    samples: dict[str, list[float]] = field(default_factory=dict)

    def sample(self, service: RunningService, database: Database, temporary: Path) -> None:
        """Sample everything once; skip processes that are just being restarted."""
        try:
            found = _processes(service) | _files(service.state, temporary)
            found["slot_wal_mb"] = float(database.rows(_SLOTS)[0][0]) / MB
            found["sink_mb"] = float(database.rows(_SINK)[0][0]) / MB
        except (psutil.Error, Error, KeyError):
            return
        self.times.append(time.monotonic())
        for name, value in found.items():
            self.samples.setdefault(name, []).append(value)

    def trends(self, warm_up: float = 1 / 3) -> dict[str, Growth]:
        """By name; without the first samples."""
        begin = int(len(self.times) * warm_up)
        times = np.array(self.times[begin:])
        found = {}
        for name, limit in self.limits.items():
            values = np.array(self.samples[name][begin:])
            slope, start = np.polyfit(times - times[0], values, 1)
            found[name] = Growth(start, start + slope * (times[-1] - times[0]), limit)
        return found


def _processes(service: RunningService) -> dict[str, float]:
    found = {"handles": 0.0, "threads": 0.0}
    for name in ("pipeline", "api"):
        pid = service.pid_of(name)
        if pid is None:
            raise KeyError(name)
        process = psutil.Process(pid)
        found[f"{name}_mb"] = process.memory_info().rss / MB
        found["handles"] += process.num_fds()
        found["threads"] += process.num_threads()
    return found


def _files(*folders: Path) -> dict[str, float]:
    count = size = 0
    for path in files_below(*folders):
        with contextlib.suppress(FileNotFoundError):
            count, size = count + 1, size + path.stat().st_size
    return {"files": float(count), "disk_mb": size / MB}
