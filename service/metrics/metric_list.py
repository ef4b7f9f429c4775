"""Every metric by name, with its type, labels and help text. docs/METRICS.md has the same list.

Invariants: a name never changes, because users' alerts depend on it. A label is a declared name
(group, view, source, sink), a route or a status. It is never a value, a row, a requested path or an
error's text, so the number of series is bounded.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram"]


class Metric(NamedTuple):
    """`name` is the queried name; a counter's name ends in _total."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    text: str


_GROUP = ("group",)
_SOURCE = ("group", "source")
_SINK = ("group", "sink")
_VIEW = ("view",)
_ROUTE = ("method", "route", "status")

METRICS: tuple[Metric, ...] = (
    # The service
    Metric(
        "tidemark_build_info", "gauge", ("version",), "1, labeled with the version of the program"
    ),
    Metric("tidemark_healthy", "gauge", (), "1 when GET /health answers ok"),
    Metric("tidemark_health_reasons", "gauge", (), "number of reasons why GET /health is not ok"),
    Metric("tidemark_catalog_up", "gauge", (), "1 when the catalog in the sink can be read"),
    Metric(
        "tidemark_restarts_total", "counter", ("process",), "restarts of a process after it ended"
    ),
    Metric("tidemark_state_free_bytes", "gauge", (), "free space on the disk of the state"),
    Metric("tidemark_views", "gauge", ("status",), "views by status"),
    Metric("tidemark_views_unlisted", "gauge", (), "views beyond the first 500, without series"),
    Metric("tidemark_api_requests_total", "counter", _ROUTE, "REST requests answered"),
    Metric(
        "tidemark_api_request_seconds", "histogram", ("route",), "time to answer a REST request"
    ),
    # A pipeline
    Metric("tidemark_pipeline_up", "gauge", _GROUP, "1 when the pipeline has reported recently"),
    Metric(
        "tidemark_pipeline_refused", "gauge", _GROUP, "1 when the pipeline waits for an operator"
    ),
    Metric(
        "tidemark_pipeline_start_time_seconds", "gauge", _GROUP, "start of the pipeline, Unix time"
    ),
    Metric("tidemark_lag_seconds", "gauge", _GROUP, "age of what the views show"),
    Metric("tidemark_epochs_stepped_total", "counter", _GROUP, "epochs processed by the dataflow"),
    Metric("tidemark_epochs_written_total", "counter", _GROUP, "epochs committed in the sink"),
    Metric(
        "tidemark_epochs_in_parts_total",
        "counter",
        _GROUP,
        "epochs too large for memory, processed in parts",
    ),
    Metric("tidemark_transactions_total", "counter", _GROUP, "source transactions processed"),
    Metric("tidemark_source_rows_total", "counter", _GROUP, "source rows processed"),
    Metric("tidemark_rows_written_total", "counter", _GROUP, "view changes committed in the sink"),
    Metric("tidemark_sink_waiting_epochs", "gauge", _GROUP, "epochs waiting for the sink"),
    Metric("tidemark_sink_stalled_s", "gauge", _GROUP, "seconds since the sink accepted an epoch"),
    Metric(
        "tidemark_wal_retained_bytes", "gauge", _GROUP, "WAL that the source retains for the slot"
    ),
    Metric(
        "tidemark_wal_kept_bytes", "gauge", _GROUP, "deprecated name of tidemark_wal_retained_bytes"
    ),
    Metric(
        "tidemark_wal_budget_bytes", "gauge", _GROUP, "WAL that the source may retain, 0: unlimited"
    ),
    Metric("tidemark_rss_bytes", "gauge", _GROUP, "resident memory of the pipeline process"),
    Metric("tidemark_rss_peak_bytes", "gauge", _GROUP, "peak resident memory of the pipeline"),
    Metric(
        "tidemark_memory_limit_bytes", "gauge", _GROUP, "memory limit of the pipeline (--memory)"
    ),
    Metric("tidemark_state_disk_bytes", "gauge", _GROUP, "size of the state's files"),
    Metric("tidemark_outbox_bytes", "gauge", _GROUP, "size of the outbox, part of the state"),
    Metric(
        "tidemark_abandoned_threads",
        "gauge",
        _GROUP,
        "threads in a call of a source or sink that does not end",
    ),
    Metric(
        "tidemark_freshness_seconds",
        "gauge",
        ("group", "quantile"),
        "commit at the source to visible in the sink, over the last 2000 epochs",
    ),
    Metric(
        "tidemark_step_seconds",
        "gauge",
        ("group", "quantile"),
        "one step of the dataflow, over the last 2000",
    ),
    Metric("tidemark_evaluator_calls_total", "counter", _GROUP, "batches evaluated by PostgreSQL"),
    Metric("tidemark_evaluator_rows_total", "counter", _GROUP, "rows evaluated by PostgreSQL"),
    Metric("tidemark_evaluator_seconds_total", "counter", _GROUP, "time spent in PostgreSQL"),
    Metric("tidemark_checkpoint_age_seconds", "gauge", _GROUP, "age of the newest checkpoint"),
    Metric(
        "tidemark_checkpoint_interval_seconds", "gauge", _GROUP, "configured checkpoint interval"
    ),
    Metric("tidemark_checkpoint_bytes", "gauge", _GROUP, "size of the newest checkpoint"),
    Metric(
        "tidemark_checkpoint_sent_bytes",
        "gauge",
        _GROUP,
        "bytes uploaded for the newest checkpoint",
    ),
    Metric("tidemark_checkpoint_seconds", "gauge", _GROUP, "duration of the newest checkpoint"),
    Metric("tidemark_checkpoints_total", "counter", _GROUP, "checkpoints made"),
    Metric("tidemark_checkpoint_failures_total", "counter", _GROUP, "checkpoints that failed"),
    # A source
    Metric("tidemark_source_up", "gauge", _SOURCE, "1 when the source is being read"),
    Metric("tidemark_source_stopped", "gauge", _SOURCE, "1 when the source waits for an operator"),
    Metric("tidemark_source_lag_seconds", "gauge", _SOURCE, "age of what was read last"),
    Metric("tidemark_source_lag_bytes", "gauge", _SOURCE, "WAL received but not yet processed"),
    Metric("tidemark_source_lag", "gauge", _SOURCE, "approximate number of unread records"),
    Metric("tidemark_source_records_total", "counter", _SOURCE, "records read"),
    Metric("tidemark_source_rejected_total", "counter", _SOURCE, "malformed records"),
    Metric(
        "tidemark_source_skipped_total", "counter", _SOURCE, "malformed records that were skipped"
    ),
    Metric("tidemark_source_gaps_total", "counter", _SOURCE, "reconnects that may have lost some"),
    Metric(
        "tidemark_dead_letters", "gauge", ("source",), "malformed records stored as dead letters"
    ),
    # A view
    Metric("tidemark_view_live", "gauge", _VIEW, "1 when the view is live"),
    Metric(
        "tidemark_view_degraded",
        "gauge",
        _VIEW,
        "1 when the view is readable but not kept up to date",
    ),
    Metric("tidemark_view_failed", "gauge", _VIEW, "1 when the view has failed"),
    Metric("tidemark_view_rows", "gauge", _VIEW, "approximate number of rows"),
    Metric("tidemark_view_lag_bytes", "gauge", _VIEW, "WAL not yet shown"),
    Metric("tidemark_view_errors", "gauge", _VIEW, "source rows left out"),
    Metric("tidemark_view_late_rows", "gauge", _VIEW, "rows later than the view's lateness"),
    Metric("tidemark_view_watermark_seconds", "gauge", _VIEW, "least watermark, in Unix time"),
    Metric(
        "tidemark_view_state_bytes",
        "gauge",
        _VIEW,
        "state of the view; shared state in equal parts",
    ),
    Metric("tidemark_view_changes_total", "counter", _VIEW, "changes committed in the sink"),
    Metric(
        "tidemark_view_latency_seconds",
        "histogram",
        _VIEW,
        "commit at the source to visible in the sink, per epoch that changes the view",
    ),
    Metric("tidemark_view_backfill_ratio", "gauge", _VIEW, "fraction of backfill parts read"),
    Metric(
        "tidemark_view_backfill_remaining_seconds",
        "gauge",
        _VIEW,
        "estimated time left in the backfill",
    ),
    Metric("tidemark_view_verified_seconds", "gauge", _VIEW, "last verification, Unix time"),
    Metric(
        "tidemark_view_verification",
        "gauge",
        ("view", "result"),
        "1 for the last result: equal, different, open or failed",
    ),
    Metric(
        "tidemark_view_differing_rows", "gauge", _VIEW, "differing rows in the last verification"
    ),
    # An additional sink
    Metric("tidemark_sink_live", "gauge", _SINK, "1 when the sink accepts epochs"),
    Metric("tidemark_sink_rows_total", "counter", _SINK, "rows written to the sink"),
    Metric("tidemark_sink_backlog_bytes", "gauge", _SINK, "backlog of the sink on disk"),
    Metric(
        "tidemark_sink_skipped_total",
        "counter",
        _SINK,
        "messages that the sink's receiver refused",
    ),
)
BY_NAME = {metric.name: metric for metric in METRICS}
