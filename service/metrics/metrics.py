"""The pipeline's measurements, passed to the API process through a small file.

The pipeline replaces the file once a second; the API reads it for status and `/metrics`. Figures
are for people and alerts; no answer to a query depends on them.
"""

from __future__ import annotations

import json
import os
import resource
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from connectors.source import MAIN_SOURCE
from service.metrics.histogram import Histogram
from service.runtime.log import log
from service.runtime.memory_watch import resident_reader
from service.runtime.private_files import replace_file
from storage import clock

# The supervisor and the CLI read and write these files; neither should load the dataflow.
if TYPE_CHECKING:
    from connectors.sink import SinkEpoch
    from connectors.source import SourceBatch
    from dataflow.sharing import NodeFigures

FILE = "pipeline.json"
WAL_FILE = "wal.json"
DATAFLOW_FILE = "dataflow.json"
SUPERVISOR_FILE = "supervisor.json"
# Reporting the dataflow may take one part in this many of the pipeline's time.
_DATAFLOW_FRACTION = 100
_WINDOW = 2_000


class Reach:
    """The Unix time up to which something is complete; None until it is known."""

    def __init__(self) -> None:
        self._at: float | None = None

    def moved(self, at: float | None) -> None:
        """Advance to `at` (Unix time); an earlier time or None changes nothing."""
        if at is not None:
            self._at = at if self._at is None else max(self._at, at)

    def __call__(self) -> float | None:
        return self._at

    @property
    def lag_seconds(self) -> float | None:
        """Return the seconds since that time, or None."""
        return None if self._at is None else round(max(0.0, clock.wall() - self._at), 3)


class PipelineMetrics:
    """Counters since the start of the process, and recent freshness (commit to visible).

    read: up to when the source database was read. shown: up to when the sink shows all sources.
    gauges: what the pipeline measures at each report.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.read, self.shown = Reach(), Reach()
        self.gauges: dict[str, Any] = {}
        self.epochs_stepped = 0
        self.evaluator_calls = 0
        self.evaluator_rows = 0
        self.evaluator_s = 0.0
        self._latency: dict[str, Histogram] = {}
        self._resident = resident_reader()
        self._freshness_ms: deque[float] = deque(maxlen=_WINDOW)
        self._step_ms: deque[float] = deque(maxlen=_WINDOW)
        self.source_rows = 0
        self.transactions = 0
        self.epochs_written = 0
        self.epochs_in_parts = 0
        self.rows_written = 0
        self.position = 0
        self.source_position = 0
        self.source_error = ""
        self.sink_error = ""
        # Returns why Spark makes no progress with what this process wants of it, or "".
        self.spark_error: Callable[[], str] = str
        self._spark_before = ""
        # Whose lock an epoch waits for; the pipeline's thread sets it, the other is the writer's.
        self.sink_wait = ""
        self.sink_stalled_s = 0.0
        self.sources: dict[str, dict[str, object]] = {}
        self.views: dict[str, dict[str, int]] = {}
        self.sink_workers: dict[str, dict[str, Any]] = {}
        self.started_at = clock.wall()
        self._dataflow_at = 0.0
        self._is_unwritten = False

    def report_dataflow(self, figures: Callable[[], Iterable[NodeFigures]]) -> None:
        """Write the nodes' figures to their own file; if that is slow, do it less often."""
        started = time.perf_counter()
        if started < self._dataflow_at:
            return
        facts = {
            "at": round(clock.wall(), 3),
            "since": round(self.started_at, 3),
            "nodes": [_plain(node) for node in figures()],
        }
        with suppress(OSError):
            replace_file(self._folder / DATAFLOW_FILE, facts)
        ended = time.perf_counter()
        self._dataflow_at = ended + _DATAFLOW_FRACTION * (ended - started)

    def epoch_stepped(self, batch: SourceBatch, seconds: float) -> None:
        """Count one step of the engine."""
        self.epochs_stepped += 1
        self.source_rows += batch.rows
        self.transactions += batch.transactions
        if batch.source == MAIN_SOURCE:
            self.read.moved(batch.commit_time_us / 1e6 or None)
        self._step_ms.append(seconds * 1000)

    def epoch_written(self, epoch: SinkEpoch) -> None:
        """Count one epoch that is now visible in the sink."""
        self.epochs_written += 1
        self.epochs_in_parts += epoch.rows.later is not None
        counted = epoch.rows.counts()
        for table, rows in counted.items():
            self.rows_written += rows
            counts = self.views.setdefault(table.title, {"changes": 0})
            counts["changes"] += rows
        if not epoch.commit_time_us:
            return
        committed_at = epoch.commit_time_us / 1e6
        took_s = max(0.0, clock.wall() - committed_at)
        self._freshness_ms.append(took_s * 1000)
        self.shown.moved(committed_at)
        for table in counted:
            self._latency.setdefault(table.title, Histogram()).observe(took_s)

    def forget_others(self, titles: Container[str]) -> None:
        """Drop the figures of views that are not in `titles`."""
        for figures in (self.views, self._latency):
            for title in [t for t in figures if t not in titles]:
                figures.pop(title, None)

    def evaluated(self, rows: int, seconds: float) -> None:
        """Count one batch that PostgreSQL evaluated."""
        self.evaluator_calls += 1
        self.evaluator_rows += rows
        self.evaluator_s += seconds

    def snapshot(self) -> dict[str, Any]:
        """Return all figures as plain values."""
        return {
            "pid": os.getpid(),
            "started_at": self.started_at,
            "updated_at": clock.wall(),
            "steady_at": time.monotonic(),
            "source_rows_total": self.source_rows,
            "transactions_total": self.transactions,
            "epochs_stepped_total": self.epochs_stepped,
            "epochs_written_total": self.epochs_written,
            "epochs_in_parts_total": self.epochs_in_parts,
            "rows_written_total": self.rows_written,
            "evaluator_calls_total": self.evaluator_calls,
            "evaluator_rows_total": self.evaluator_rows,
            "evaluator_seconds_total": round(self.evaluator_s, 6),
            "position": self.position,
            "source_position": self.source_position,
            "source_error": self.source_error,
            "sink_error": self.sink_wait or self.sink_error,
            "spark_error": self._spark(),
            "sink_stalled_s": round(self.sink_stalled_s, 1),
            "lag_seconds": self.shown.lag_seconds,
            "database": self._database(),
            "freshness_ms": _quantiles(self._freshness_ms),
            "step_ms": _quantiles(self._step_ms),
            "rss_bytes": self._resident(),
            "rss_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "sources": self.sources,
            "views": self._views(),
            **self.gauges,
            "sinks": self.sink_workers,
        }

    def _database(self) -> dict[str, Any] | None:
        """Return how the database is being read, or None if no database is read."""
        if self.read() is None:
            return None
        return {
            "status": "retrying" if self.source_error else "running",
            "lag_seconds": self.read.lag_seconds,
            "lag_bytes": None
            if self.source_error
            else max(0, self.source_position - self.position),
        }

    def _spark(self) -> str:
        before, found = self._spark_before, self.spark_error()
        self._spark_before = found
        if found and not before:
            log.warning("spark.waiting", why=found)
        elif before and not found:
            log.info("spark.resumed")
        return found

    def _views(self) -> dict[str, dict[str, Any]]:
        latency = {title: one.facts() for title, one in list(self._latency.items())}
        return {
            title: {**counts, "latency": latency.get(title)}
            for title, counts in list(self.views.items())
        }

    def write(self) -> None:
        """Replace the file; a disk error is logged once and stops nothing."""
        try:
            replace_file(self._folder / FILE, self.snapshot())
            self._is_unwritten = False
        except OSError as error:
            if not self._is_unwritten:
                log.warning("metrics.unwritten", why=str(error))
            self._is_unwritten = True


def read_metrics(folder: Path) -> dict[str, Any] | None:
    """Return the pipeline's newest figures, or None before the first report."""
    figures = _read(folder / FILE)
    return None if figures is None else {**figures, **(_read(folder / WAL_FILE) or {})}


def is_fresh(figures: Mapping[str, Any], seconds: float) -> bool:
    """Return True if the figures are at most `seconds` old by the monotonic clock.

    All processes of a machine share that clock; figures from before a reboot are not fresh.
    """
    return 0 <= time.monotonic() - figures.get("steady_at", float("inf")) <= seconds


def read_dataflow(folder: Path) -> dict[str, Any]:
    """Return the nodes of the pipeline's dataflow as at, since and nodes; no nodes before the first
    report.
    """
    return _read(folder / DATAFLOW_FILE) or {"at": None, "since": None, "nodes": []}


def read_supervisor(folder: Path) -> dict[str, Any]:
    """Return the supervisor's report on its processes; empty before the first one."""
    return _read(folder / SUPERVISOR_FILE) or {}


def write_refusal(folder: Path, error: Exception) -> None:
    """Write an error that no restart can fix; it stays until the pipeline runs again."""
    refusal = {
        "title": getattr(error, "what", str(error)),
        "status": 503,
        "code": getattr(error, "code", "internal"),
        "detail": getattr(error, "detail", ""),
        "hint": getattr(error, "hint", ""),
    }
    figures = {**(_read(folder / FILE) or PipelineMetrics(folder).snapshot()), "refused": refusal}
    figures |= {"updated_at": clock.wall(), "steady_at": time.monotonic()}
    try:
        replace_file(folder / FILE, figures)
    except OSError:
        _overwrite(folder / FILE, figures)


def _overwrite(path: Path, figures: dict[str, Any]) -> None:
    """Overwrite the file in place, for a full disk; a reader may see it torn."""
    content = json.dumps(figures).encode()
    try:
        with path.open("r+b") as file:
            file.write(content)
            file.truncate()
    except OSError as error:
        log.error("metrics.unwritten", why=str(error))


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _plain(node: NodeFigures) -> dict[str, Any]:
    """Return a node with its views by their titles."""
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
