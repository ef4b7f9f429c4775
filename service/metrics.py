"""What the pipeline measures of itself, handed to the API process through a small file.

The pipeline replaces the file once a second; the API reads it for status and `/metrics`. Figures
are for people and alerts, never for answers.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from connectors.sink import SinkEpoch
from dataflow.sharing import NodeFigures
from service.log import log

FILE = "pipeline.json"
WAL_FILE = "wal.json"
DATAFLOW_FILE = "dataflow.json"
# Of the pipeline's time, that telling people of the dataflow may take: one part in so many.
_DATAFLOW_SHARE = 100
_WINDOW = 2_000


class PipelineMetrics:
    """Counters since the start of the process, and recent freshness (commit to visible)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._freshness_ms: deque[float] = deque(maxlen=_WINDOW)
        self._step_ms: deque[float] = deque(maxlen=_WINDOW)
        self.source_rows = 0
        self.transactions = 0
        self.epochs_written = 0
        self.epochs_in_parts = 0
        self.rows_written = 0
        self.kernels_compiled = 0
        self.position = 0
        self.source_position = 0
        self.source_error = ""
        self.sink_error = ""
        self.sink_stalled_s = 0.0
        self.sources: dict[str, dict[str, object]] = {}
        self.views: dict[str, dict[str, int]] = {}
        self.followers: dict[str, dict[str, Any]] = {}
        self.started_at = time.time()
        self._dataflow_at = 0.0

    def tell_dataflow(self, figures: Callable[[], Iterable[NodeFigures]]) -> None:
        """Write the nodes' figures to their own file; where that takes long, seldom."""
        started = time.perf_counter()
        if started < self._dataflow_at:
            return
        facts = {
            "at": round(time.time(), 3),
            "since": round(self.started_at, 3),
            "nodes": [_plain(node) for node in figures()],
        }
        replace_file(self._folder / DATAFLOW_FILE, facts)
        ended = time.perf_counter()
        self._dataflow_at = ended + _DATAFLOW_SHARE * (ended - started)

    def epoch_stepped(self, rows: int, transactions: int, seconds: float) -> None:
        """Count one step of the engine."""
        self.source_rows += rows
        self.transactions += transactions
        self._step_ms.append(seconds * 1000)

    def epoch_written(self, epoch: SinkEpoch) -> None:
        """Count one epoch that is now visible in the sink."""
        self.epochs_written += 1
        self.epochs_in_parts += epoch.later is not None
        for table, rows in epoch.row_counts().items():
            self.rows_written += rows
            counts = self.views.setdefault(table.title, {"changes": 0})
            counts["changes"] += rows
        if epoch.commit_time_us:
            self._freshness_ms.append(max(0.0, time.time() * 1000 - epoch.commit_time_us / 1000))

    def kernel_compiled(self, kernel: str) -> None:
        """Count a kernel that was not compiled ahead: an epoch has waited for it."""
        self.kernels_compiled += 1
        log.warning("kernel.compiled_late", kernel=kernel)

    def snapshot(self) -> dict[str, Any]:
        """All figures as plain values."""
        return {
            "pid": os.getpid(),
            "started_at": self.started_at,
            "updated_at": time.time(),
            "source_rows_total": self.source_rows,
            "transactions_total": self.transactions,
            "epochs_written_total": self.epochs_written,
            "epochs_in_parts_total": self.epochs_in_parts,
            "rows_written_total": self.rows_written,
            "kernels_compiled_total": self.kernels_compiled,
            "position": self.position,
            "source_position": self.source_position,
            "source_error": self.source_error,
            "sink_error": self.sink_error,
            "sink_stalled_s": round(self.sink_stalled_s, 1),
            "freshness_ms": _quantiles(self._freshness_ms),
            "step_ms": _quantiles(self._step_ms),
            "rss_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "sources": self.sources,
            "views": self.views,
            "sinks": self.followers,
        }

    def write(self) -> None:
        """Replace the file."""
        replace_file(self._folder / FILE, self.snapshot())


def read_metrics(folder: Path) -> dict[str, Any] | None:
    """The pipeline's newest figures, or None before the first."""
    figures = _read(folder / FILE)
    return None if figures is None else {**figures, **(_read(folder / WAL_FILE) or {})}


def read_dataflow(folder: Path) -> dict[str, Any]:
    """The nodes of the pipeline's dataflow: at, since and nodes; none before the first."""
    return _read(folder / DATAFLOW_FILE) or {"at": None, "since": None, "nodes": []}


def write_refusal(folder: Path, error: Exception) -> None:
    """Leave an error that no restart can heal, until the pipeline runs again."""
    refusal = {
        "title": getattr(error, "what", str(error)),
        "status": 503,
        "code": getattr(error, "code", "internal"),
        "detail": getattr(error, "detail", ""),
        "hint": getattr(error, "hint", ""),
    }
    figures = {**(_read(folder / FILE) or PipelineMetrics(folder).snapshot()), "refused": refusal}
    figures["updated_at"] = time.time()
    replace_file(folder / FILE, figures)


def replace_file(path: Path, figures: dict[str, Any]) -> None:
    """Write figures so that a reader sees the old ones or the new ones."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(figures))
    part.replace(path)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None


def _plain(node: NodeFigures) -> dict[str, Any]:
    """A node with its views by the titles that people know."""
    names = {word: list(map(str, getattr(node, word))) for word in ("views", "output_of")}
    return {**vars(node), **names, "time_s": round(node.time_s, 6)}


def _quantiles(values: deque[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {"p50": 0.0, "p99": 0.0}
    return {
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
    }
