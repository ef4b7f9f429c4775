"""Metrics as Prometheus text: figures of pipelines, views and the API process.

Each pipeline serves a group of views; its figures have the label `group`. `metric_list` lists all
metrics; a sample of another name is a bug.
Invariant: a scrape succeeds even if its subject fails. Figures that cannot be read are omitted, and
tidemark_catalog_up is 0 if the catalog cannot be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from connectors.source import MAIN_SOURCE
from service.api.models import ViewModel
from service.api.shared_nodes import state_bytes
from service.metrics.histogram import buckets
from service.metrics.metric_list import BY_NAME, METRICS
from service.metrics.metrics import is_fresh
from service.views.lifecycle import ViewState
from storage import clock

UP_S = 10.0
MAX_VIEWS = 500
# Figures of a group that become metrics of the same name.
_PLAIN = (
    "epochs_stepped_total",
    "epochs_written_total",
    "epochs_in_parts_total",
    "transactions_total",
    "source_rows_total",
    "rows_written_total",
    "sink_waiting_epochs",
    "sink_stalled_s",
    "wal_retained_bytes",
    "wal_kept_bytes",
    "wal_budget_bytes",
    "rss_bytes",
    "rss_peak_bytes",
    "memory_limit_bytes",
    "state_disk_bytes",
    "outbox_bytes",
    "abandoned_threads",
    "evaluator_calls_total",
    "evaluator_rows_total",
    "evaluator_seconds_total",
    "lag_seconds",
    "checkpoint_bytes",
    "checkpoint_sent_bytes",
    "checkpoint_seconds",
    "checkpoint_interval_seconds",
    "checkpoints_total",
    "checkpoint_failures_total",
)
_OF_SOURCE = {
    "lag_seconds": "lag_seconds",
    "lag_bytes": "lag_bytes",
    "lag": "lag",
    "records_total": "rows_total",
    "rejected_total": "rejected_total",
    "skipped_total": "skipped_total",
    "gaps_total": "gaps_total",
}
_FAMILIES = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}


@dataclass(frozen=True)
class ScrapeFacts:
    """The input of a scrape.

    groups: figures of each pipeline, None before its first report. dataflows: figures of its nodes.
    views: None if the catalog cannot be read. requests: `ApiFigures.facts`. health: status of the
    service. sources: status by group and name.
    """

    groups: Mapping[str, dict[str, Any] | None]
    dataflows: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    views: Sequence[ViewModel] | None = ()
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    restarts: Mapping[str, int] = field(default_factory=dict)
    requests: Mapping[str, Any] = field(default_factory=dict)
    free_bytes: int | None = None
    version: str = ""
    health: str = "starting"
    reasons: int = 0
    sources: Mapping[tuple[str, str], str] = field(default_factory=dict)


class Page(Collector):
    """The samples of one scrape."""

    def __init__(self) -> None:
        self._families: dict[str, Any] = {}

    def add(self, name: str, value: float | None, *labels: str) -> None:
        """Add a sample of a listed gauge or counter; omit None."""
        if value is not None:
            self._family(name).add_metric(labels, value)

    def add_histogram(self, name: str, facts: Mapping[str, Any] | None, *labels: str) -> None:
        """Add the buckets of a listed histogram; omit None."""
        if facts is not None:
            self._family(name).add_metric(labels, buckets(dict(facts)), facts["sum"])

    def collect(self) -> Iterable[Metric]:
        """Return the metric families in the order of the list."""
        return [self._families[m.name] for m in METRICS if m.name in self._families]

    def _family(self, name: str) -> Any:
        if name not in self._families:
            metric = BY_NAME[name]
            plain = name.removesuffix("_total") if metric.kind == "counter" else name
            made = _FAMILIES[metric.kind](plain, metric.text, labels=metric.labels)
            self._families[name] = made
        return self._families[name]


def render(scrape: ScrapeFacts) -> bytes:
    """Return the text of one scrape."""
    page = Page()
    page.add("tidemark_build_info", 1, scrape.version)
    page.add("tidemark_healthy", scrape.health == "ok")
    page.add("tidemark_health_reasons", scrape.reasons)
    page.add("tidemark_catalog_up", scrape.views is not None)
    page.add("tidemark_state_free_bytes", scrape.free_bytes)
    for process, count in scrape.restarts.items():
        page.add("tidemark_restarts_total", count, process)
    for source, count in scrape.dead_letters.items():
        page.add("tidemark_dead_letters", count, source)
    for (method, route, status), count in scrape.requests.get("answered", {}).items():
        page.add("tidemark_api_requests_total", count, method, route, status)
    for route, facts in scrape.requests.get("seconds", {}).items():
        page.add_histogram("tidemark_api_request_seconds", facts, route)
    for group, figures in scrape.groups.items():
        _add_group(page, group, figures)
    for (group, source), status in scrape.sources.items():
        page.add("tidemark_source_up", status == "running", group, source)
        page.add("tidemark_source_stopped", status == "stopped", group, source)
    _add_views(page, scrape)
    registry = CollectorRegistry()
    registry.register(page)
    return generate_latest(registry)


def _add_group(page: Page, group: str, figures: dict[str, Any] | None) -> None:
    is_up = figures is not None and is_fresh(figures, UP_S)
    is_refused = figures is not None and "refused" in figures
    page.add("tidemark_pipeline_up", is_up, group)
    if figures is None:
        return
    page.add("tidemark_pipeline_refused", is_refused, group)
    page.add("tidemark_pipeline_start_time_seconds", figures.get("started_at"), group)
    if figures.get("checkpoint_at"):
        age_s = max(0.0, clock.wall() - figures["checkpoint_at"])
        page.add("tidemark_checkpoint_age_seconds", round(age_s, 3), group)
    for name in _PLAIN:
        page.add(f"tidemark_{name}", figures.get(name), group)
    for name in ("freshness", "step"):
        for quantile, value in figures[f"{name}_ms"].items():
            page.add(f"tidemark_{name}_seconds", value / 1000, group, f"0.{quantile[1:]}")
    database = figures.get("database")
    sources = {} if database is None else {MAIN_SOURCE: database}
    for source, facts in {**sources, **figures["sources"]}.items():
        for name, figure in _OF_SOURCE.items():
            page.add(f"tidemark_source_{name}", facts.get(figure), group, source)
    for sink, facts in figures["sinks"].items():
        page.add("tidemark_sink_live", facts["status"] == "live", group, sink)
        page.add("tidemark_sink_rows_total", facts["rows_total"], group, sink)
        page.add("tidemark_sink_backlog_bytes", facts.get("backlog_bytes"), group, sink)
        page.add("tidemark_sink_skipped_total", facts.get("skipped_total"), group, sink)


def _add_views(page: Page, scrape: ScrapeFacts) -> None:
    views = scrape.views or ()
    statuses: dict[str, int] = {}
    for view in views:
        statuses[view.status] = statuses.get(view.status, 0) + 1
    for status, count in statuses.items():
        page.add("tidemark_views", count, status)
    page.add("tidemark_views_unlisted", max(0, len(views) - MAX_VIEWS))
    state_sizes = {group: state_bytes(nodes) for group, nodes in scrape.dataflows.items()}
    for view in views[:MAX_VIEWS]:
        title = f"{view.schema_name}.{view.name}"
        page.add("tidemark_view_live", view.status == ViewState.LIVE, title)
        page.add("tidemark_view_degraded", view.status == ViewState.DEGRADED, title)
        page.add("tidemark_view_failed", view.status == ViewState.FAILED, title)
        page.add("tidemark_view_errors", view.errors, title)
        if view.watermarks:
            moments = map(datetime.fromisoformat, view.watermarks.values())
            page.add("tidemark_view_watermark_seconds", min(m.timestamp() for m in moments), title)
            page.add("tidemark_view_late_rows", view.late_rows, title)
        page.add("tidemark_view_rows", view.rows, title)
        page.add("tidemark_view_lag_bytes", view.lag_bytes, title)
        page.add("tidemark_view_state_bytes", state_sizes.get(view.group, {}).get(title), title)
        figures = (scrape.groups.get(view.group) or {}).get("views", {}).get(title, {})
        page.add("tidemark_view_changes_total", figures.get("changes"), title)
        page.add_histogram("tidemark_view_latency_seconds", figures.get("latency"), title)
        _add_backfill(page, title, view.backfill)
        _add_verification(page, title, view.verification)


def _add_backfill(page: Page, title: str, facts: Mapping[str, Any] | None) -> None:
    if facts is None:
        return
    total = facts.get("parts_total") or 0
    if total:
        page.add("tidemark_view_backfill_ratio", facts["parts_done"] / total, title)
    page.add("tidemark_view_backfill_remaining_seconds", facts.get("remaining_s"), title)


def _add_verification(page: Page, title: str, facts: Mapping[str, Any] | None) -> None:
    """Add the newest comparison with PostgreSQL's answer."""
    if facts is None:
        return
    at = datetime.fromisoformat(facts["at"]).timestamp()
    page.add("tidemark_view_verified_seconds", at, title)
    page.add("tidemark_view_verification", 1, title, facts["result"])
    if "missing" in facts:
        differing = facts["missing"] + facts["surplus"] + facts["different"]
        past = facts.get("history") or {}
        differing += sum(count for kind, count in past.items() if kind != "rows")
        page.add("tidemark_view_differing_rows", differing, title)
