"""Percentiles, peak memory, and the machine on which a figure was measured."""

from __future__ import annotations

import multiprocessing
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tidemark_native

PACKAGES = ("numpy", "rocksdict", "psycopg2-binary", "pyspark", "sqlglot")


@dataclass(frozen=True)
class Figure:
    """One row of the table: our value and, if there is one, a peer's.

    more_is_better decides how the ratio is computed: above 1 is always in our favour.
    """

    group: str
    what: str
    value: float
    unit: str
    peer: str = ""
    peer_value: float | None = None
    more_is_better: bool = True

    @property
    def ratio(self) -> float | None:
        """Return how many times better than the peer we are."""
        if not self.peer_value or not self.value:
            return None
        ratio = self.value / self.peer_value
        return ratio if self.more_is_better else 1 / ratio


def percentile(values: Sequence[float], share: float) -> float:
    """Return the percentile of values, by nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def peak_rss_mb(pid: int | str = "self") -> float:
    """Return the peak memory of a process so far, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) / 1024
    return 0.0


def reset_peak_rss_mb() -> float:
    """Reset this process's peak; return the memory it holds now, in MB."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_rss_mb()


def in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the result of a function, run in a process of its own to measure its memory."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(function, arguments)


def machine() -> str:
    """Return the machine and the versions on which figures depend."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    return (
        f"{os.cpu_count()} x {model}, {memory_gb:.0f} GiB, {platform.system()}; "
        f"Python {platform.python_version()}; kernels {tidemark_native.VERSION}, {packages}"
    )
