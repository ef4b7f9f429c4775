"""The pipelines' figures and the views' states as Prometheus text.

A pipeline is a group of views: its figures bear the label `group`. Names are never changed, since
people's alerts rest on them.
"""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from service.models import ViewModel

_PIPELINE = {
    "source_rows_total": "source rows stepped since the pipeline started",
    "transactions_total": "source transactions stepped since the pipeline started",
    "epochs_in_parts_total": "epochs too large for memory since the pipeline started",
    "sink_stalled_s": "seconds since the sink took the epoch that waits, 0: none waits",
    "epochs_written_total": "epochs committed in the sink since the pipeline started",
    "rows_written_total": "view changes committed in the sink since the pipeline started",
    "kernels_compiled_total": "kernels compiled while views waited, since the pipeline started",
    "wal_kept_bytes": "WAL that the source keeps for our replication slot",
    "wal_budget_bytes": "WAL that it may keep, 0: any",
    "rss_peak_bytes": "peak resident memory of the pipeline process",
}

# tidemark_source_rows_total is the pipeline's own: a source has records.
_SOURCE = {
    "records_total": "records read of a source beside the database since the pipeline started",
    "rejected_total": "records that were not rows since the pipeline started",
    "skipped_total": "records passed over (on_error: skip) since the pipeline started",
    "lag": "about how many records the source has that were not read yet",
}

_QUANTILES = {
    "freshness": "commit at the source to visible in the sink",
    "step": "one step of the dataflow",
}


def render(groups: dict[str, dict[str, Any] | None], views: list[ViewModel]) -> bytes:
    """One scrape. groups: each pipeline's snapshot, None before its first."""
    registry = CollectorRegistry()
    by_group = {"labelnames": ["group"], "registry": registry}
    up = Gauge("tidemark_pipeline_up", "1 when the pipeline reported lately", **by_group)
    gauges = {name: Gauge(f"tidemark_{name}", text, **by_group) for name, text in _PIPELINE.items()}
    quantiles = {name: _quantiles(registry, name, text) for name, text in _QUANTILES.items()}
    for group, figures in groups.items():
        up.labels(group).set(figures is not None and time.time() - figures["updated_at"] < 10)
        if figures is None:
            continue
        for name, gauge in gauges.items():
            gauge.labels(group).set(figures.get(name, 0))
        for name, gauge in quantiles.items():
            for quantile, value in figures[f"{name}_ms"].items():
                gauge.labels(group, f"0.{quantile[1:]}").set(value / 1000)
    _render_others(registry, groups)
    live = Gauge("tidemark_view_live", "1 when the view is live", ["view"], registry=registry)
    rows = Gauge("tidemark_view_rows", "rows of the view, about", ["view"], registry=registry)
    lag = Gauge("tidemark_view_lag_bytes", "WAL not yet shown", ["view"], registry=registry)
    errors = Gauge("tidemark_view_errors", "source rows left out", ["view"], registry=registry)
    verified = _verified(registry)
    for view in views:
        title = f"{view.schema_name}.{view.name}"
        if view.verification is not None:
            _tell_verified(verified, title, view.verification)
        live.labels(title).set(view.status == "live")
        errors.labels(title).set(view.errors)
        if view.rows is not None:
            rows.labels(title).set(view.rows)
        if view.lag_bytes is not None:
            lag.labels(title).set(view.lag_bytes)
    return generate_latest(registry)


def _verified(registry: CollectorRegistry) -> dict[str, Gauge]:
    """The gauges of the newest comparison of each view with PostgreSQL's answer."""
    texts = {
        "view_verified_seconds": "when the view was last compared, in seconds since 1970",
        "view_differing_rows": "rows in which it differed then",
    }
    found = {n: Gauge(f"tidemark_{n}", t, ["view"], registry=registry) for n, t in texts.items()}
    text = "1 for how the last comparison ended: equal, different, open or failed"
    labels = ["view", "result"]
    found["result"] = Gauge("tidemark_view_verification", text, labels, registry=registry)
    return found


def _tell_verified(gauges: dict[str, Gauge], title: str, facts: dict[str, Any]) -> None:
    at = datetime.fromisoformat(facts["at"]).timestamp()
    gauges["view_verified_seconds"].labels(title).set(at)
    gauges["result"].labels(title, facts["result"]).set(1)
    if "missing" in facts:
        differing = facts["missing"] + facts["surplus"] + facts["different"]
        gauges["view_differing_rows"].labels(title).set(differing)


def _render_others(registry: CollectorRegistry, groups: dict[str, dict[str, Any] | None]) -> None:
    """Sources beside the database, and further sinks."""
    labels = ["group", "source"]
    up = Gauge("tidemark_source_up", "1 when the source is being read", labels, registry=registry)
    gauges = {
        name: Gauge(f"tidemark_source_{name}", text, labels, registry=registry)
        for name, text in _SOURCE.items()
    }
    labels = ["group", "sink"]
    live = Gauge("tidemark_sink_live", "1 when the sink takes epochs", labels, registry=registry)
    rows = Gauge("tidemark_sink_rows_total", "rows written to it", labels, registry=registry)
    for group, figures in groups.items():
        for source, facts in (figures or {}).get("sources", {}).items():
            up.labels(group, source).set(facts["status"] == "running")
            for name, gauge in gauges.items():
                figure = "rows_total" if name == "records_total" else name
                gauge.labels(group, source).set(facts[figure])
        for sink, facts in (figures or {}).get("sinks", {}).items():
            live.labels(group, sink).set(facts["status"] == "live")
            rows.labels(group, sink).set(facts["rows_total"])


def _quantiles(registry: CollectorRegistry, name: str, help_text: str) -> Gauge:
    labels = ["group", "quantile"]
    return Gauge(f"tidemark_{name}_seconds", help_text, labels, registry=registry)
