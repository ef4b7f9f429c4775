"""Every metric by name: its type, its labels, and what it says. docs/METRICS.md has the same list.

Names are never changed, since people's alerts rest on them. A label is the name of something that
someone declared (a group, view, source, sink), a route or a status: never a value, a row, a path
as it was asked for, or an error's words, so that there are never more series than things.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram"]


class Metric(NamedTuple):
    """name: as it is queried; that of a counter ends in _total."""

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
    Metric("tidemark_build_info", "gauge", ("version",), "1, with the version of the program"),
    Metric("tidemark_healthy", "gauge", (), "1 when GET /health answers ok"),
    Metric("tidemark_health_reasons", "gauge", (), "for how many reasons it does not"),
    Metric("tidemark_catalog_up", "gauge", (), "1 when the control tables could be read"),
    Metric(
        "tidemark_restarts_total", "counter", ("process",), "processes that ended and came back"
    ),
    Metric("tidemark_state_free_bytes", "gauge", (), "room on the disk of the state"),
    Metric("tidemark_views", "gauge", ("status",), "views, by status"),
    Metric("tidemark_views_unlisted", "gauge", (), "views beyond the first 500, without series"),
    Metric("tidemark_api_requests_total", "counter", _ROUTE, "REST calls answered"),
    Metric("tidemark_api_request_seconds", "histogram", ("route",), "time to a call's answer"),
    # A pipeline
    Metric("tidemark_pipeline_up", "gauge", _GROUP, "1 when the pipeline reported lately"),
    Metric("tidemark_pipeline_refused", "gauge", _GROUP, "1 when it waits for someone to act"),
    Metric("tidemark_pipeline_start_time_seconds", "gauge", _GROUP, "when it started, Unix time"),
    Metric("tidemark_lag_seconds", "gauge", _GROUP, "how old is what the views show"),
    Metric("tidemark_epochs_stepped_total", "counter", _GROUP, "epochs stepped"),
    Metric("tidemark_epochs_written_total", "counter", _GROUP, "epochs committed in the sink"),
    Metric("tidemark_epochs_in_parts_total", "counter", _GROUP, "epochs too large for memory"),
    Metric("tidemark_transactions_total", "counter", _GROUP, "source transactions stepped"),
    Metric("tidemark_source_rows_total", "counter", _GROUP, "source rows stepped"),
    Metric("tidemark_rows_written_total", "counter", _GROUP, "view changes committed in the sink"),
    Metric("tidemark_sink_waiting_epochs", "gauge", _GROUP, "epochs on their way to the sink"),
    Metric("tidemark_sink_stalled_s", "gauge", _GROUP, "seconds since the sink took an epoch"),
    Metric("tidemark_wal_kept_bytes", "gauge", _GROUP, "WAL that the source keeps for our slot"),
    Metric("tidemark_wal_budget_bytes", "gauge", _GROUP, "WAL that it may keep, 0: any"),
    Metric("tidemark_rss_bytes", "gauge", _GROUP, "resident memory of the pipeline process"),
    Metric("tidemark_rss_peak_bytes", "gauge", _GROUP, "the most that it has been"),
    Metric("tidemark_memory_limit_bytes", "gauge", _GROUP, "what it may be (--memory)"),
    Metric("tidemark_state_disk_bytes", "gauge", _GROUP, "files of the state"),
    Metric("tidemark_outbox_bytes", "gauge", _GROUP, "epochs that are kept for sinks, of these"),
    Metric(
        "tidemark_freshness_seconds",
        "gauge",
        ("group", "quantile"),
        "commit at the source to visible in the sink, of the last 2000 epochs",
    ),
    Metric(
        "tidemark_step_seconds",
        "gauge",
        ("group", "quantile"),
        "one step of the dataflow, of the last 2000",
    ),
    Metric("tidemark_evaluator_calls_total", "counter", _GROUP, "batches PostgreSQL evaluated"),
    Metric("tidemark_evaluator_rows_total", "counter", _GROUP, "rows in them"),
    Metric("tidemark_evaluator_seconds_total", "counter", _GROUP, "time that they took"),
    Metric("tidemark_kernels_compiled_total", "counter", _GROUP, "kernels compiled too late"),
    Metric("tidemark_checkpoint_age_seconds", "gauge", _GROUP, "age of the newest copy elsewhere"),
    Metric("tidemark_checkpoint_interval_seconds", "gauge", _GROUP, "how often there is to be one"),
    Metric("tidemark_checkpoint_bytes", "gauge", _GROUP, "what the newest one holds"),
    Metric("tidemark_checkpoint_sent_bytes", "gauge", _GROUP, "what of that had to be brought"),
    Metric("tidemark_checkpoint_seconds", "gauge", _GROUP, "how long that took"),
    Metric("tidemark_checkpoints_total", "counter", _GROUP, "copies made"),
    Metric("tidemark_checkpoint_failures_total", "counter", _GROUP, "copies that failed"),
    # A source
    Metric("tidemark_source_up", "gauge", _SOURCE, "1 when the source is being read"),
    Metric("tidemark_source_stopped", "gauge", _SOURCE, "1 when it is not until someone acts"),
    Metric("tidemark_source_lag_seconds", "gauge", _SOURCE, "how old is what was read last"),
    Metric("tidemark_source_lag_bytes", "gauge", _SOURCE, "WAL received and not yet stepped"),
    Metric("tidemark_source_lag", "gauge", _SOURCE, "about how many records were not read yet"),
    Metric("tidemark_source_records_total", "counter", _SOURCE, "records read"),
    Metric("tidemark_source_rejected_total", "counter", _SOURCE, "records that are no rows"),
    Metric("tidemark_source_skipped_total", "counter", _SOURCE, "of these, passed over"),
    Metric("tidemark_dead_letters", "gauge", ("source",), "records that wait for someone"),
    # A view
    Metric("tidemark_view_live", "gauge", _VIEW, "1 when the view is live"),
    Metric("tidemark_view_degraded", "gauge", _VIEW, "1 when it stands still until someone acts"),
    Metric("tidemark_view_failed", "gauge", _VIEW, "1 when it is not kept up to date any more"),
    Metric("tidemark_view_rows", "gauge", _VIEW, "rows, about"),
    Metric("tidemark_view_lag_bytes", "gauge", _VIEW, "WAL not yet shown"),
    Metric("tidemark_view_errors", "gauge", _VIEW, "source rows left out"),
    Metric("tidemark_view_state_bytes", "gauge", _VIEW, "state kept for it; shared state in parts"),
    Metric("tidemark_view_changes_total", "counter", _VIEW, "changes committed in the sink"),
    Metric(
        "tidemark_view_latency_seconds",
        "histogram",
        _VIEW,
        "commit at the source to visible in the sink, an epoch that changes the view",
    ),
    Metric("tidemark_view_backfill_ratio", "gauge", _VIEW, "parts read of all, while it is built"),
    Metric(
        "tidemark_view_backfill_remaining_seconds", "gauge", _VIEW, "estimate, while it is built"
    ),
    Metric("tidemark_view_verified_seconds", "gauge", _VIEW, "when it was last compared"),
    Metric(
        "tidemark_view_verification",
        "gauge",
        ("view", "result"),
        "1 for how that ended: equal, different, open or failed",
    ),
    Metric("tidemark_view_differing_rows", "gauge", _VIEW, "rows in which it differed then"),
    # A further sink
    Metric("tidemark_sink_live", "gauge", _SINK, "1 when the sink takes epochs"),
    Metric("tidemark_sink_rows_total", "counter", _SINK, "rows written to it"),
    Metric("tidemark_sink_backlog_bytes", "gauge", _SINK, "what waits for it on disk"),
)
BY_NAME = {metric.name: metric for metric in METRICS}
