"""Pydantic models of `GET /overview` and `GET /views/{name}/errors`.

Invariant: as in `models.py`, fields may be added; a rename keeps the earlier name for one release.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from service.api.models import ProblemModel


class ViewGlance(BaseModel):
    """A view in a list."""

    name: str
    schema_name: str = Field(serialization_alias="schema")
    status: str
    kind: str
    group: str
    rows: int | None = Field(description="estimated, some seconds old; null until live")
    changes_total: int = Field(description="changes written since the pipeline started")
    lag_bytes: int | None = Field(description="WAL at the source that is not yet visible")
    errors: int = Field(description="number of error rows")
    backfill: dict[str, Any] | None
    error: ProblemModel | None
    created_at: str


class SourceGlance(BaseModel):
    """An external source in a list."""

    name: str
    type: str
    status: str
    error: ProblemModel | None
    lag: int | None
    records_total: int = Field(description="records read since the pipeline started")
    dead_letters: int
    relations: list[str]


class SinkGlance(BaseModel):
    """An additional sink of a view in a list."""

    name: str
    view: str
    type: str
    status: str
    error: ProblemModel | None
    backlog_bytes: int | None
    rows_total: int = Field(description="rows written since the pipeline started")


class PipelineGlance(BaseModel):
    """The pipeline of a group. Totals are since its start; quantiles are of the last epochs."""

    group: str
    is_up: bool = Field(description="it has reported within the last ten seconds")
    status: str = Field(description="of the source database: running, retrying or stopped")
    error: ProblemModel | None
    started_at: float
    updated_at: float
    epochs_written_total: int
    source_rows_total: int
    transactions_total: int
    rows_written_total: int
    lag_bytes: int = Field(description="WAL at the source that is not yet visible")
    lag_seconds: float | None = Field(description="seconds since all commits were visible")
    freshness_ms: dict[str, float] = Field(description="commit to visible: p50, p99")
    step_ms: dict[str, float]
    rss_bytes: int | None
    rss_peak_bytes: int
    wal_retained_bytes: int | None = Field(description="WAL that the source retains for the slot")
    wal_kept_bytes: int | None = Field(
        description="earlier name of `wal_retained_bytes`, for one release",
        json_schema_extra={"deprecated": True},
    )
    wal_budget_bytes: int | None
    sink_stalled_s: float


class FigureSeries(BaseModel):
    """Figures of a group over the last minutes, by name. Rates are differences of totals."""

    group: str
    at: list[float] = Field(description="seconds since 1970 of each point")
    totals: dict[str, list[float | None]]
    gauges: dict[str, list[float | None]]


class Overview(BaseModel):
    """All objects of the service in one response, cheap enough to request every second."""

    at: float = Field(description="seconds since 1970 at which the figures were taken")
    status: str
    reasons: list[str]
    role: str = Field(description="role of the caller: reader, operator or admin")
    views: list[ViewGlance]
    sources: list[SourceGlance]
    sinks: list[SinkGlance]
    pipelines: list[PipelineGlance]
    history: list[FigureSeries] = Field(default=[], description="the last minutes, if requested")


class LeftOutModel(BaseModel):
    """An error row: a source row left out of a view because an expression fails for it."""

    id: str
    operator: str
    sqlstate: str
    message: str
    source_row: str
    count: int = Field(description="how often it is left out")
    first_seen: str


class LeftOutList(BaseModel):
    """Error rows, newest first. next: `after` of the next page; null at the end."""

    errors: list[LeftOutModel]
    next: str | None
